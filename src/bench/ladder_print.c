/* A ladder as a table, as JSON lines and as a picture. */
#include "bench/ladder.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#include <limits.h>
#include <math.h>

/* ---- Markdown ------------------------------------------------------------------------------------------ */

/* Columns are padded: the table is read in a terminal first. */
static void print_row(const Rung *r, FILE *out)
{
    char rate[32], bytes[32];
    fprintf(out, "| %-22s | ", r->name);
    if (r->refused[0]) {
        fprintf(out, "refused: %s | | | | | | %s |\n", r->refused, r->guide);
    } else {
        fprintf(out, "%8s | %9.2f | %10.2fx | %10.2fx | %11lld | %8s | %-10s |\n",
                str_count(rate, sizeof rate, r->per_s), r->step_s * 1e3, r->over_before, r->over_bottom,
                (long long)r->micro_batch, str_bytes(bytes, sizeof bytes, (double)r->planned_bytes),
                r->guide);
    }
}

/* Each rung's keys, to repeat it; too long for the table. */
static void print_keys(const Ladder *l, FILE *out)
{
    fprintf(out, "\nkeys of each rung, on top of the recipe:\n\n");
    for (int i = 0; i < l->n_rung; i++) {
        const Rung *r = &l->rung[i];
        if (r->is_cost || r->refused[0]) continue;
        fprintf(out, "- %s: ", r->name);
        for (int k = 0; k < r->n_key; k++)
            fprintf(out, "%s%s%s", k ? " " : "`", r->key[k], k + 1 == r->n_key ? "`" : "");
        fprintf(out, "%s\n", r->n_key ? "" : "none, the recipe as it is");
    }
}

void ladder_print(const Ladder *l, FILE *out)
{
    char per_s[48];
    snprintf(per_s, sizeof per_s, "%s/s", l->unit);
    fprintf(out, "%s on %s\n\n", l->recipe, l->device);
    fprintf(out, "| %-22s | %8s | %9s | %11s | %11s | %11s | %8s | %-10s |\n", "rung", per_s, "ms/step",
            "over before", "over bottom", "micro-batch", "memory", "guides say");
    fprintf(out, "|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < l->n_rung; i++) {
        if (!l->rung[i].is_cost) print_row(&l->rung[i], out);
    }
    for (int i = 0; i < l->n_rung; i++) {
        const Rung *r = &l->rung[i];
        char        rate[32];
        if (!r->is_cost) continue;
        fprintf(out, "\n%s: ", r->name);
        if (r->refused[0]) {
            fprintf(out, "refused: %s\n", r->refused);
        } else {
            fprintf(out, "%+.1f %%, %s %s/s (`%s`)\n", 100 * (r->over_before - 1),
                    str_count(rate, sizeof rate, r->per_s), l->unit, r->key[0]);
        }
    }
    print_keys(l, out);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_int(JsonOut *o, const char *key, int known, int64_t x)
{
    if (known) {
        json_out_int(o, key, x);
    } else {
        json_out_str(o, key, NULL);
    }
}

void ladder_print_json(const Ladder *l, FILE *out)
{
    for (int i = 0; i < l->n_rung; i++) {
        const Rung *r  = &l->rung[i];
        int         ok = !r->refused[0];
        JsonOut     o;
        json_out_init_file(&o, out);
        json_out_object(&o, NULL);
        json_out_str(&o, "recipe", l->recipe);
        json_out_str(&o, "device", l->device);
        json_out_str(&o, "rung", r->name);
        json_out_bool(&o, "cost", r->is_cost);
        json_out_array(&o, "keys");
        for (int k = 0; k < r->n_key; k++) json_out_str(&o, NULL, r->key[k]);
        json_out_close(&o);
        json_out_str(&o, "refused", ok ? NULL : r->refused);
        json_out_str(&o, "unit", l->unit);
        json_out_num(&o, "per_s", ok ? r->per_s : NAN);
        json_out_num(&o, "step_ms", ok ? r->step_s * 1e3 : NAN);
        json_out_num(&o, "over_before", ok ? r->over_before : NAN);
        json_out_num(&o, "over_bottom", ok ? r->over_bottom : NAN);
        put_int(&o, "micro_batch", ok, r->micro_batch);
        put_int(&o, "planned_bytes", ok, (int64_t)r->planned_bytes);
        json_out_str(&o, "guide", r->guide[0] ? r->guide : NULL);
        json_out_end(&o);
    }
}

/* ---- picture ------------------------------------------------------------------------------------------- */

enum { WIDTH = 1120, ROW = 34, HEAD = 64, LEFT = 230, BAR = 480 }; /* pixels */

static void put_escaped(const char *s, FILE *f)
{
    for (; *s; s++) {
        switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        default: fputc(*s, f);
        }
    }
}

static void put_text(FILE *f, double x, double y, const char *color, const char *s)
{
    fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" fill=\"%s\">", x, y, color);
    put_escaped(s, f);
    fprintf(f, "</text>\n");
}

static void draw_rung(FILE *f, const Ladder *l, const Rung *r, int row, double most)
{
    double y = HEAD + row * ROW, w = r->refused[0] ? 0 : BAR * r->per_s / most;
    char   text[300], rate[32];
    put_text(f, 18, y + 17, r->refused[0] ? "#8a909c" : "#e8e6df", r->name);
    if (r->refused[0]) {
        snprintf(text, sizeof text, "refused: %.90s", r->refused);
        put_text(f, LEFT, y + 17, "#8a909c", text);
        return;
    }
    fprintf(f, "<rect x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"22\" rx=\"3\" fill=\"%s\"/>\n", LEFT, y,
            w < 1 ? 1 : w, r->is_cost ? "#e0a96f" : "#6fb3e0");
    str_count(rate, sizeof rate, r->per_s);
    if (r->is_cost) {
        snprintf(text, sizeof text, "%s %s/s  %+.1f %%", rate, l->unit, 100 * (r->over_before - 1));
    } else {
        snprintf(text, sizeof text, "%s %s/s  %.2fx  (%.2fx)%s%s", rate, l->unit, r->over_bottom,
                 r->over_before, r->guide[0] ? "  guides: " : "", r->guide);
    }
    put_text(f, LEFT + w + 10, y + 17, "#b9bec8", text);
}

/* A temporary file beside path, its folders made. */
static FILE *create_picture(const char *path)
{
    char folder[PATH_MAX];
    if (file_folder_of(path, folder, sizeof folder) < 0) {
        err_set("%s: the path is too long", path);
        return NULL;
    }
    return file_make_folders(folder) < 0 ? NULL : file_create_tmp(path);
}

int ladder_try_picture(const char *path)
{
    /* Publishing renames: over a folder that fails, over a device it would replace the device. */
    FileKind kind = file_kind(path);
    if (kind == FILE_FOLDER || !*file_name_of(path)) return err_set("'%s' is not the name of a file", path);
    if (kind == FILE_OTHER) return err_set("%s: not a regular file", path);
    FILE *f = create_picture(path);
    if (!f) return -1;
    file_discard(&f);
    return 0;
}

int ladder_draw(const Ladder *l, const char *path)
{
    char   title[400];
    int    height = HEAD + l->n_rung * ROW + 14;
    double most   = 0;
    for (int i = 0; i < l->n_rung; i++) most = MAX(most, l->rung[i].per_s);
    FILE *f = create_picture(path);
    if (!f) return -1;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"monospace\" "
            "font-size=\"12.5\">\n",
            WIDTH, height);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#16181d\"/>\n", WIDTH, height);
    snprintf(title, sizeof title, "$ brim bench %.200s --ladder", l->recipe);
    put_text(f, 18, 28, "#8fd18f", title);
    snprintf(title, sizeof title, "%s: %s/s, factor over the bottom (over the rung before)", l->device,
             l->unit);
    put_text(f, 18, 48, "#8a909c", title);
    for (int i = 0; i < l->n_rung; i++) draw_rung(f, l, &l->rung[i], i, most);
    fprintf(f, "</svg>\n");
    return file_publish(&f, path); /* which also sees a write that failed above */
}
