#define _GNU_SOURCE /* memmem */

#include "watch/series.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COLUMN_STEP = 0 };

int series_init(Series *s, const char *path, int n_cap, int64_t from_end)
{
    memset(s, 0, sizeof *s);
    s->from_end = from_end;
    s->n_cap    = n_cap;
    s->stride   = 1;
    for (int i = 0; i < SERIES_KEYS; i++) s->last[i] = NAN;
    return str_copy(s->path, sizeof s->path, path) < 0 ? err_set("%s: path too long", path) : 0;
}

void series_deinit(Series *s)
{
    for (int i = 0; i < SERIES_KEYS; i++) free(s->column[i]);
    memset(s->column, 0, sizeof s->column);
}

static void forget(Series *s)
{
    series_deinit(s);
    s->n_row = s->n_key = s->n_text = 0;
    s->n_line                       = 0;
    s->stride                       = 1;
    s->offset                       = 0;
    for (int i = 0; i < SERIES_KEYS; i++) s->last[i] = NAN;
    s->epoch++;
}

int series_is_plain(const char *key)
{
    static const char *const plain[] = {
        "step",
        "time_s",
        "data_wait_s",
        "data_fill_s",
        "eval_s",
        "save_s",
        "energy_j",
        "kwh",
        "j_per_unit",
        "watch_first",
        "watch_last",
        "sm_mhz",
        "mem_mhz",
        "temp_c",
        "ecc_errors",
        "cpu",
        "ram_bytes",
        "ram_total_bytes",
        "gpu_processes",
        "gpu_mem_total_bytes",
        "pcie_tx_bytes_s",
        "pcie_rx_bytes_s",
        "disk_read_bytes_s",
        "disk_write_bytes_s",
    };
    for (int i = 0; i < ARRAY_LEN(plain); i++)
        if (strcmp(key, plain[i]) == 0) return 1;
    return 0;
}

int series_find(const Series *s, const char *key)
{
    for (int i = 0; i < s->n_key; i++) {
        if (strcmp(s->key[i], key) == 0) return i;
    }
    return -1;
}

/* The column of a key, made if there is room; -1 otherwise. */
static int column_of(Series *s, const char *key)
{
    int i = series_find(s, key);
    if (i >= 0) return i;
    if (s->n_key == SERIES_KEYS || strlen(key) >= SERIES_NAME || !*key || !str_is_printable(key)) return -1;
    double *c = (double *)mem_alloc(sizeof *c * (size_t)s->n_cap);
    if (!c) return -1;
    for (int r = 0; r < s->n_row; r++) c[r] = NAN;
    i            = s->n_key++;
    s->column[i] = c;
    str_copy(s->key[i], SERIES_NAME, key);
    return i;
}

static void keep_text(Series *s, const char *key, const char *text)
{
    int i = 0;
    while (i < s->n_text && strcmp(s->text_key[i], key) != 0) i++;
    if (i == SERIES_TEXTS || strlen(key) >= SERIES_NAME) return;
    if (i == s->n_text) s->n_text++;
    str_copy(s->text_key[i], SERIES_NAME, key);
    str_quote(s->text[i], SERIES_WORD, text, strlen(text));
}

/* A step's row has "loss"; others are rare and stay longer. */
static int is_step_row(const Series *s, int loss, int row)
{
    return loss >= 0 && !isnan(s->column[loss][row]);
}

static void thin(Series *s)
{
    int loss = series_find(s, "loss"), kept = 0, odd = 0, odd_rare = 0;
    int n_rare = 0;
    for (int r = 0; r < s->n_row; r++) n_rare += !is_step_row(s, loss, r);
    for (int r = 0; r < s->n_row; r++) {
        int drop = is_step_row(s, loss, r) ? odd++ & 1 : n_rare > s->n_cap / 4 && (odd_rare++ & 1);
        if (drop) continue;
        for (int c = 0; c < s->n_key; c++) s->column[c][kept] = s->column[c][r];
        kept++;
    }
    s->n_row = kept;
    s->stride *= 2;
}

/* A tail is the end of the file: its last rows are whole. */
static void drop_oldest(Series *s)
{
    int kept = s->n_cap / 2, gone = s->n_row - kept;
    for (int c = 0; c < s->n_key; c++)
        memmove(s->column[c], s->column[c] + gone, (size_t)kept * sizeof *s->column[c]);
    s->n_row = kept;
}

static void store(Series *s, json_t *root, int row)
{
    const char *key;
    json_t     *value;
    for (int c = 0; row >= 0 && c < s->n_key; c++) s->column[c][row] = NAN;
    json_object_foreach(root, key, value)
    {
        if (json_is_string(value)) keep_text(s, key, json_string_value(value));
        if (!json_is_number(value)) continue;
        int    c = column_of(s, key);
        double x = json_number_value(value);
        if (c < 0) continue;
        s->last[c] = x;
        if (row >= 0) s->column[c][row] = x;
    }
}

int series_line(Series *s, const char *line, size_t n)
{
    json_t *root = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
    json_t *step = json_object_get(root, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 0 || column_of(s, "step") != COLUMN_STEP) {
        json_decref(root);
        s->n_bad++;
        return 0;
    }
    int is_step = json_is_number(json_object_get(root, "loss"));
    int take    = !is_step || s->n_line % s->stride == 0;
    s->n_line += is_step;
    if (take && s->n_row == s->n_cap && s->from_end >= 0) drop_oldest(s);
    if (take && s->n_row == s->n_cap) thin(s);
    if (take && s->n_row == s->n_cap) take = 0;
    store(s, root, take ? s->n_row : -1);
    s->n_row += take;
    json_decref(root);
    return 1;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

/* Where to begin in a file of this size: behind the first line break of its last from_end bytes. */
static int begin_reading(Series *s, int fd, off_t size)
{
    enum { LINE_BYTES = 300 /* about what a line has */ };
    while (s->from_end < 0 && size / LINE_BYTES / s->stride > s->n_cap) s->stride *= 2;
    char  buf[4096];
    off_t at  = s->from_end < 0 || size <= s->from_end ? 0 : size - s->from_end;
    s->offset = at;
    while (at > 0 && at < size) {
        ssize_t n = pread(fd, buf, sizeof buf, at);
        if (n <= 0) return n < 0 ? err_sys("%s", s->path) : 0;
        char *end = (char *)memchr(buf, '\n', (size_t)n);
        at += end ? end - buf + 1 : n;
        s->offset = at;
        if (end) break;
    }
    return 0;
}

/* 1 for a step's line that would not become a row: then only the last of its kind is worth parsing. */
static int is_passed(const Series *s, const char *line, size_t n)
{
    static const char mark[] = "\"loss\":"; /* not in "val_loss": */
    return s->n_line % s->stride != 0 && memmem(line, n, mark, sizeof mark - 1);
}

/* Takes the complete lines of buf[0..n); returns how many bytes these are. */
static size_t take_lines(Series *s, const char *buf, size_t n, int *rows)
{
    size_t      at = 0, n_passed = 0;
    const char *passed = NULL; /* the newest line that was not parsed */
    for (;;) {
        const char *line = buf + at, *end = (const char *)memchr(line, '\n', n - at);
        if (!end) break;
        size_t len = (size_t)(end - line);
        if (len > 0 && is_passed(s, line, len)) {
            passed   = line;
            n_passed = len;
            s->n_line++;
        } else if (len > 0) {
            int64_t before = s->n_line;
            *rows += series_line(s, line, len);
            if (s->n_line > before) passed = NULL; /* a newer step was taken */
        }
        at += len + 1;
    }
    if (passed) {
        s->n_line--;
        *rows += series_line(s, passed, n_passed);
    }
    return at;
}

static int read_new(Series *s, int fd, off_t size)
{
    int   rows = 0;
    char *buf  = (char *)mem_alloc(SERIES_LINE);
    if (!buf) return err_sys("%s: memory to read it", s->path);
    while (s->offset < size) {
        ssize_t n = pread(fd, buf, SERIES_LINE, s->offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size_t used = take_lines(s, buf, (size_t)n, &rows);
        if (used == 0 && n == SERIES_LINE) { /* longer than any line of ours */
            used = (size_t)n;
            s->n_bad++;
        }
        if (used == 0) break;
        s->offset += (off_t)used;
    }
    free(buf);
    return rows > 0;
}

int series_follow(Series *s)
{
    struct stat st;
    int         fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys("%s", s->path);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set("%s: not a regular file", s->path);
    }
    int rc = 0, is_other = st.st_ino != s->inode || st.st_dev != s->device || st.st_size < s->offset;
    if (is_other) {
        forget(s);
        s->inode  = st.st_ino;
        s->device = st.st_dev;
        rc        = begin_reading(s, fd, st.st_size);
    }
    if (rc == 0) rc = read_new(s, fd, st.st_size);
    close(fd);
    return rc < 0 ? rc : rc || is_other;
}

/* ---- Asking -------------------------------------------------------------------------------------------- */

double series_at(const Series *s, int column, int row) { return column < 0 ? NAN : s->column[column][row]; }

double series_first(const Series *s, const char *key)
{
    int    c = series_find(s, key);
    double x = NAN;
    for (int r = 0; c >= 0 && r < s->n_row && isnan(x); r++) x = s->column[c][r];
    return x;
}

double series_last(const Series *s, const char *key)
{
    int c = series_find(s, key);
    return c < 0 ? NAN : s->last[c];
}

double series_step(const Series *s)
{
    double step = series_last(s, "step");
    return isnan(step) ? 0 : step;
}

const char *series_text(const Series *s, const char *key)
{
    for (int i = 0; i < s->n_text; i++) {
        if (strcmp(s->text_key[i], key) == 0) return s->text[i];
    }
    return "";
}

double series_extreme(const Series *s, const char *key, int larger, double *at_step)
{
    int    c    = series_find(s, key);
    double best = NAN;
    for (int r = 0; c >= 0 && r < s->n_row; r++) {
        double x = s->column[c][r];
        if (isnan(x) || !(isnan(best) || *at_step == 0 || (larger ? x > best : x < best))) continue;
        best     = x;
        *at_step = s->column[COLUMN_STEP][r];
    }
    return best;
}

int series_tail(const Series *s, const char *key, double *out, int n)
{
    int c = series_find(s, key), found = 0;
    for (int r = s->n_row - 1; c >= 0 && r >= 0 && found < n; r--) {
        if (!isnan(s->column[c][r])) out[n - 1 - found++] = s->column[c][r];
    }
    memmove(out, out + n - found, sizeof *out * (size_t)found);
    return found;
}

double series_mean(const Series *s, const char *key, int n_last)
{
    int    c = series_find(s, key), n = 0;
    double sum = 0;
    for (int r = s->n_row - 1; c >= 0 && r >= 0 && n < n_last; r--) {
        if (isnan(s->column[c][r])) continue;
        sum += s->column[c][r];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

int series_span(const Series *s, const char *key, int n_last, double *first, double *last)
{
    int c = series_find(s, key), n = 0;
    for (int r = s->n_row - 1; c >= 0 && r >= 0 && n < n_last; r--) {
        if (isnan(s->column[c][r])) continue;
        *first = s->column[COLUMN_STEP][r];
        if (n++ == 0) *last = *first;
    }
    return n > 0;
}
