#include "base/signals.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int         sig;
    const char *name;
} signal_table[] = {
    { SIGINT, "SIGINT" }, { SIGTERM, "SIGTERM" }, { SIGUSR1, "SIGUSR1" }, { SIGHUP, "SIGHUP" }
};

/* What the handler shares with the program; signal handlers take no argument to hang it on. */
static volatile sig_atomic_t signal_seen, signal_count, stop_count, is_hushed;
static atomic_int_least64_t  int_us; /* when the first SIGINT came; 0: none did */

/* timeout(1) and some launchers send a signal to the process and to its group. The copy comes at once; no
 * person is as fast. */
static int is_copy(int sig)
{
    enum { COPY_US = 50000 };
    int_least64_t now = (int_least64_t)(clock_now_s() * 1e6), first = 0;
    if (sig != SIGINT || atomic_compare_exchange_strong(&int_us, &first, now)) return 0;
    return now - first < COPY_US;
}

/* A step may take minutes, so a user who presses Ctrl-C must see an answer. A SIGTERM may come from a program
 * that has no Ctrl-C. */
static void tell_waiting(int sig)
{
    static const char heard[] = "\nstopping after this step\n";
    static const char more[] = "\nstopping after this step; Ctrl-C once more stops at once, without saving\n";
    int               before = errno;
    ssize_t           n      = sig == SIGINT ? write(STDERR_FILENO, more, sizeof more - 1)
                                             : write(STDERR_FILENO, heard, sizeof heard - 1);
    (void)n; /* a terminal that is gone must not keep the run from stopping */
    errno = before;
}

static void on_signal(int sig)
{
    enum { EXIT_BY_SIGNAL = 128 /* what shells add to the number of a signal */ };
    if (is_copy(sig)) return;
    signal_count++;
    int asks_to_stop = sig != SIGUSR1;
    if (sig == SIGINT && stop_count > 0) _exit(EXIT_BY_SIGNAL + sig);
    if (asks_to_stop && stop_count++ == 0 && !is_hushed) tell_waiting(sig);
    if (sig != SIGUSR1 || signal_seen == 0) signal_seen = sig;
}

int signals_install(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    act.sa_flags   = SA_RESTART;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < ARRAY_LEN(signal_table); i++) {
        struct sigaction before;
        int              sig = signal_table[i].sig;
        /* nohup: the terminal may go, the run goes on. */
        if (sig == SIGHUP && sigaction(sig, NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        if (sigaction(sig, &act, NULL) != 0) return err_sys("handler of %s", signal_table[i].name);
    }
    act.sa_handler = SIG_IGN;
    return sigaction(SIGPIPE, &act, NULL) == 0 ? 0 : err_sys("handler of SIGPIPE");
}

int signals_pending(void) { return signal_seen; }

int signals_count(void) { return signal_count; }

void signals_hush(void) { is_hushed = 1; }

void signals_clear(void)
{
    signal_seen = stop_count = 0;
    atomic_store(&int_us, 0);
}

const char *signals_name(void)
{
    for (int i = 0; i < ARRAY_LEN(signal_table); i++) {
        if (signal_table[i].sig == signal_seen) return signal_table[i].name;
    }
    return "";
}
