/* The terminal view, on ncurses: reads once a second, draws at once on a key. */
#include "watch/top.h"

#include "base/clock.h"
#include "base/err.h"
#include "watch/top_draw.h"

#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double READ_S = 1;

typedef struct {
    Runs    *runs;
    Gpus    *gpus;
    TopState state;
    Screen   screen;
    double   read_s;
    int      colour, quit;
} Term;

/* Set by a signal: the terminal must be put right before the program ends. */
static volatile sig_atomic_t term_stop;

static void on_signal(int number) { term_stop = 1; }

static void start_colours(Term *t)
{
    const char *no = getenv("NO_COLOR");
    t->colour      = has_colors() && !(no && *no);
    if (!t->colour) return;
    start_color();
    use_default_colors();
    init_pair(1, COLOR_GREEN, -1);
    init_pair(2, COLOR_YELLOW, -1);
    init_pair(3, COLOR_RED, -1);
    init_pair(4, COLOR_CYAN, -1);
}

static attr_t style_of(const Term *t, int style)
{
    switch (style) {
    case STYLE_BOLD: return A_BOLD;
    case STYLE_DIM: return A_DIM;
    case STYLE_GOOD: return t->colour ? COLOR_PAIR(1) : A_NORMAL;
    case STYLE_WARN: return t->colour ? COLOR_PAIR(2) : A_NORMAL;
    case STYLE_BAD: return t->colour ? COLOR_PAIR(3) : A_NORMAL;
    case STYLE_LINE: return t->colour ? COLOR_PAIR(4) : A_DIM;
    case STYLE_SELECTED: return A_REVERSE;
    default: return A_NORMAL;
    }
}

static void show(const Term *t)
{
    const Screen *s = &t->screen;
    for (int r = 0; r < s->rows; r++) {
        move(r, 0);
        for (int c = 0; c < s->columns; c++) {
            const ScreenCell *cell = &s->cell[(size_t)r * (size_t)s->columns + (size_t)c];
            if (r == s->rows - 1 && c == s->columns - 1) break; /* writing there would scroll */
            attrset(style_of(t, cell->style));
            addstr(cell->text[0] ? cell->text : " ");
        }
    }
    refresh();
}

static int draw(Term *t)
{
    int rows = 24, columns = 80;
    getmaxyx(stdscr, rows, columns);
    if (rows != t->screen.rows || columns != t->screen.columns) {
        int ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
        screen_deinit(&t->screen);
        TRY(screen_init(&t->screen, MAX(20, columns), MAX(5, rows), ascii));
        clear();
    }
    int     at     = top_selected(t->runs, &t->state);
    Series *series = at >= 0 ? runs_series(t->runs, t->runs->run[at]) : NULL;
    if (at >= 0 && !series) err_clear();
    top_draw(&t->screen, t->runs, t->gpus, &t->state, series);
    show(t);
    return 0;
}

static void on_key(Term *t, int key)
{
    TopState *s = &t->state;
    switch (key) {
    case 'q': t->quit = 1; break;
    case KEY_UP:
    case 'k': top_move(t->runs, s, -1); break;
    case KEY_DOWN:
    case 'j': top_move(t->runs, s, 1); break;
    case KEY_PPAGE: top_move(t->runs, s, -10); break;
    case KEY_NPAGE: top_move(t->runs, s, 10); break;
    case '\t':
    case '\r':
    case '\n': s->view = s->view >= TOP_GPUS ? TOP_OVERVIEW : (TopView)(s->view + 1); break;
    case '1':
    case '2':
    case '3': s->view = (TopView)(key - '1'); break;
    case 'h':
    case '?': s->view = s->view == TOP_HELP ? TOP_OVERVIEW : TOP_HELP; break;
    default: break;
    }
}

static int loop(Term *t)
{
    int is_old = 1;
    while (!t->quit && !term_stop) {
        if (clock_now_s() - t->read_s >= READ_S) {
            runs_refresh(t->runs);
            gpus_refresh(t->gpus);
            t->read_s = clock_now_s();
            is_old    = 1;
        }
        if (is_old) TRY(draw(t));
        timeout(100);
        int key = getch(); /* also KEY_RESIZE */
        is_old  = key != ERR;
        if (is_old) on_key(t, key);
    }
    return 0;
}

static int open_terminal(void)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return err_user("command line: top needs a terminal (brim top --once prints one screen)");
    setlocale(LC_CTYPE, ""); /* characters only: numbers stay as C writes them */
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        const char *name = getenv("TERM");
        return err_user("command line: terminal type '%s' is not known (brim top --once needs none)",
                        name ? name : "");
    }
    set_term(screen);
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGHUP, on_signal);
    return 0;
}

int top_run(const TopOptions *o)
{
    Term t  = { .runs = (Runs *)calloc(1, sizeof *t.runs), .gpus = (Gpus *)calloc(1, sizeof *t.gpus) };
    int  rc = t.runs && t.gpus ? runs_init(t.runs, o->base) : err_sys("memory for the screen");
    if (rc == 0) rc = open_terminal();
    if (rc == 0) {
        gpus_init(t.gpus, o->nvml_path);
        start_colours(&t);
        rc = loop(&t);
        endwin();
        gpus_deinit(t.gpus);
        runs_deinit(t.runs);
        screen_deinit(&t.screen);
    }
    free(t.runs);
    free(t.gpus);
    return rc;
}
