#include "data/factbook.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 8 << 20, NAME = 256, DEPTH = 4 };

/* One line of a section, and where its text lies. */
typedef struct {
    char        name[NAME]; /* "Capital / name" */
    const char *text;
    size_t      begin, end; /* of the whole line, in Section.body */
} Line;

typedef struct {
    Line  *line;
    int    n, cap;
    char  *body;
    size_t n_body, cap_body;
} Section;

static int add_line(Section *s, const char *name, const char *text)
{
    size_t n = strlen(name) + strlen(text) + 4;
    if (s->n == s->cap) {
        int   cap  = MAX(2 * s->cap, 64);
        Line *more = realloc(s->line, sizeof *more * (size_t)cap);
        if (!more) return err_sys("memory for a profile");
        s->line = more;
        s->cap  = cap;
    }
    if (s->n_body + n > s->cap_body) {
        size_t cap  = 2 * (s->n_body + n);
        char  *more = realloc(s->body, cap);
        if (!more) return err_sys("memory for a profile");
        s->body     = more;
        s->cap_body = cap;
    }
    Line *l  = &s->line[s->n++];
    l->text  = text;
    l->begin = s->n_body;
    str_copy(l->name, sizeof l->name, name);
    s->n_body += (size_t)sprintf(s->body + s->n_body, "%s: %s\n", name, text);
    l->end = s->n_body;
    return 0;
}

/* The texts of a field and of its parts. */
static int add_field(Section *s, json_t *field, const char *name, int depth)
{
    const char *key;
    json_t     *value;
    json_object_foreach(field, key, value)
    {
        char full[NAME];
        if (json_is_string(value) && strcmp(key, "text") == 0)
            TRY(add_line(s, name, json_string_value(value)));
        if (!json_is_object(value) || depth >= DEPTH) continue;
        str_copy(full, sizeof full, name); /* a name that is too long is cut */
        str_append(full, sizeof full, "%s%s", name[0] ? " / " : "", key);
        TRY(add_field(s, value, full, depth + 1));
    }
    return 0;
}

/* The lines around line i that fit into `room` bytes, as many before as behind. */
static void around(const Section *s, int i, size_t room, size_t *begin, size_t *end)
{
    const Line *l = &s->line[i];
    size_t      n = l->end - l->begin;
    *begin        = l->begin;
    *end          = l->begin + MIN(n, room);
    if (n >= room) return;
    size_t before = MIN((room - n) / 2, l->begin), behind = MIN(room - n - before, s->n_body - l->end);
    before = MIN(room - n - behind, l->begin);
    *begin = l->begin - before;
    *end   = l->end + behind;
}

static int write_pair(FILE *f, const Section *s, int i, const char *place, size_t bytes, FactbookResult *r)
{
    char    question[2 * NAME + 64];
    size_t  begin, end, n = (size_t)snprintf(question, sizeof question, "%s / %s?", place, s->line[i].name);
    size_t  room = bytes > n + 1 ? bytes - n - 1 : 0;
    JsonOut o;
    around(s, i, room, &begin, &end);
    begin = (size_t)str_char_begin(s->body, (int64_t)begin, (int64_t)end);
    while (end < s->n_body && end > begin && ((unsigned char)s->body[end] & 0xC0) == 0x80) end--;
    char *prompt = mem_alloc(end - begin + n + 2);
    if (!prompt) return err_sys("memory for a prompt");
    memcpy(prompt, s->body + begin, end - begin);
    sprintf(prompt + (end - begin), "\n%s", question);
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_str(&o, "prompt", prompt);
    json_out_str(&o, "answer", s->line[i].text);
    r->n_pair++;
    r->n_unseen += strstr(prompt, s->line[i].text) == NULL;
    free(prompt);
    return json_out_end(&o);
}

static const char *name_of(json_t *profile)
{
    json_t *o = json_object_get(json_object_get(profile, "Government"), "Country name");
    o         = json_object_get(o, "conventional short form");
    return json_string_value(json_object_get(o, "text"));
}

static int convert_profile(FILE *f, json_t *profile, size_t bytes, FactbookResult *r)
{
    const char *key, *country = name_of(profile);
    json_t     *value;
    int         rc = 0;
    if (!country) {
        r->n_skipped++;
        return 0;
    }
    json_object_foreach(profile, key, value)
    {
        Section s = { 0 };
        char    place[NAME];
        snprintf(place, sizeof place, "%s / %s", country, key);
        if (rc == 0) rc = add_field(&s, value, "", 0);
        for (int i = 0; i < s.n && rc == 0; i++) {
            int is_long = strlen(s.line[i].text) > FACTBOOK_ANSWER, is_empty = !s.line[i].text[0];
            r->n_long += is_long;
            if (is_long || is_empty) continue;
            rc = write_pair(f, &s, i, place, bytes, r);
        }
        free(s.line);
        free(s.body);
    }
    r->n_file++;
    return rc;
}

int factbook_parse(FILE *f, const char *text, size_t n, int64_t bytes, FactbookResult *r)
{
    json_t *o  = json_loadb(text, n, 0, NULL);
    int     rc = 0;
    if (json_is_object(o)) {
        rc = convert_profile(f, o, (size_t)bytes, r);
    } else {
        r->n_skipped++;
    }
    json_decref(o);
    return rc;
}

static int convert_file(FILE *f, const char *path, int64_t bytes, FactbookResult *r)
{
    char  *text;
    size_t n;
    TRY(file_read_all(path, FILE_BYTES, &text, &n));
    int rc = factbook_parse(f, text, n, bytes, r);
    free(text);
    return rc;
}

static int convert_region(FILE *f, const char *dir, int64_t bytes, FactbookResult *r)
{
    char **names;
    Arena  a;
    arena_init(&a);
    int n = file_list(&a, dir, ".json", &names), rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = convert_file(f, arena_printf(&a, "%s/%s", dir, names[i]), bytes, r);
    arena_deinit(&a);
    return rc;
}

int factbook_convert(const char *dir, const char *out, int64_t bytes, FactbookResult *result)
{
    char **names;
    Arena  a;
    memset(result, 0, sizeof *result);
    if (file_kind(dir) != FILE_FOLDER) return err_user("%s: no such folder", dir);
    FILE *f = file_create_tmp(out);
    if (!f) return -1;
    arena_init(&a);
    int n = file_list(&a, dir, "", &names), rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n && rc == 0; i++) {
        const char *path = arena_printf(&a, "%s/%s", dir, names[i]);
        if (file_kind(path) == FILE_FOLDER) rc = convert_region(f, path, bytes, result);
    }
    arena_deinit(&a);
    if (rc == 0 && result->n_pair == 0) rc = err_user("%s: no profile of a country in it", dir);
    if (rc == 0) return file_publish(&f, out);
    file_discard(&f);
    return -1;
}
