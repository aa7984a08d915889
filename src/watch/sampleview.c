#include "watch/sampleview.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "watch/samples.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 16 };

int sampleview_name_ok(const char *name)
{
    static const char prefix[] = "samples/";
    if (!str_starts_with(name, prefix)) return 0;
    const char *leaf = name + strlen(prefix);
    size_t      n    = strspn(leaf, "0123456789-");
    return n > 0 && n < 40 &&
           (strcmp(leaf + n, ".png") == 0 || strcmp(leaf + n, ".jpeg") == 0 || strcmp(leaf + n, ".gif") == 0);
}

/* The file's bytes, of which there are at most SAMPLEVIEW_PICTURE; NULL: none. The caller frees them. */
static unsigned char *read_picture(const Runs *r, const RunView *v, const char *name, size_t *n)
{
    char           path[1400];
    struct stat    st;
    unsigned char *bytes = NULL;
    if (!sampleview_name_ok(name) || runs_path(r, v, name, path, sizeof path) < 0) return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= SAMPLEVIEW_PICTURE &&
        (bytes = mem_alloc((size_t)st.st_size))) {
        *n = (size_t)st.st_size;
        if (read(fd, bytes, *n) != (ssize_t)*n) {
            free(bytes);
            bytes = NULL;
        }
    }
    close(fd);
    return bytes;
}

char *sampleview_address(const char *type, const unsigned char *b, size_t n)
{
    char *out = type ? mem_alloc((n + 2) / 3 * 4 + 64) : NULL;
    if (out) str_base64(out + sprintf(out, "data:%s;base64,", type), b, n);
    return out;
}

static char *copy_of(json_t *root, const char *key)
{
    const char *s = json_string_value(json_object_get(root, key));
    return s ? strdup(s) : NULL;
}

/* 1: the line is a sample. */
static int read_line(const Runs *r, const RunView *v, const char *line, size_t n, SampleView *out)
{
    json_t *root = json_loadb(line, n, 0, NULL);
    int     ok   = json_is_object(root);
    *out         = (SampleView){ 0 };
    if (ok) {
        const char    *name  = json_string_value(json_object_get(root, "picture"));
        size_t         size  = 0;
        unsigned char *bytes = name ? read_picture(r, v, name, &size) : NULL;
        out->step            = json_number_value(json_object_get(root, "step"));
        out->prompt          = copy_of(root, "prompt");
        out->text            = copy_of(root, "text");
        out->image           = bytes ? sampleview_address(samples_type(bytes, size), bytes, size) : NULL;
        free(bytes);
    }
    json_decref(root);
    return ok;
}

int sampleview_read(const Runs *r, const RunView *v, SampleView out[SAMPLEVIEW_MOST])
{
    char  *text = runs_text(r, v, "samples.jsonl", TEXT_BYTES), *end = text ? text + strlen(text) : NULL;
    int    n    = 0;
    size_t left = SAMPLEVIEW_PICTURES;
    while (text && end > text && n < SAMPLEVIEW_MOST) {
        if (end[-1] == '\n') end--;
        char *line = end;
        while (line > text && line[-1] != '\n') line--;
        if (read_line(r, v, line, (size_t)(end - line), &out[n])) {
            size_t bytes = out[n].image ? strlen(out[n].image) : 0;
            left -= MIN(left, bytes);
            if (left == 0) {
                free(out[n].image);
                out[n].image = NULL;
            }
            n++;
        }
        end = line;
    }
    free(text);
    return n;
}

void sampleview_free(SampleView *s, int n)
{
    for (int i = 0; i < n; i++) {
        free(s[i].prompt);
        free(s[i].text);
        free(s[i].image);
    }
}

void sampleview_put(JsonOut *o, const Runs *r, const RunView *v, double from)
{
    SampleView s[SAMPLEVIEW_MOST];
    int        n = sampleview_read(r, v, s);
    if (n == 0 || s[0].step < from) {
        sampleview_free(s, n);
        return;
    }
    json_out_array(o, "samples");
    for (int i = 0; i < n; i++) {
        json_out_object(o, NULL);
        json_out_num(o, "step", s[i].step);
        json_out_str(o, "prompt", s[i].prompt);
        json_out_str(o, "text", s[i].text);
        if (s[i].image) json_out_str(o, "image", s[i].image);
        json_out_close(o);
    }
    json_out_close(o);
    sampleview_free(s, n);
}
