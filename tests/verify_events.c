/* Prints every scalar of the event files in a folder, "STEP TAG VALUE" a line, in the order of names and
 * records. */
#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "file/events.h"

#include <stdio.h>

static int print_file(const char *path)
{
    FileMap map;
    TRY(file_map(&map, path));
    for (size_t at = 0; at < map.size_bytes;) {
        EventRecord r;
        EventValue  v;
        size_t      next = 0;
        int64_t     n    = event_parse((const unsigned char *)map.data + at, map.size_bytes - at, &r);
        if (n <= 0) return err_set("%s: byte %zu: %s", path, at, n == 0 ? "cut short" : "damaged");
        while (event_next_value(&r, &next, &v) > 0) {
            if (v.has_scalar)
                printf("%lld %.*s %.9g\n", (long long)r.step, (int)v.n_tag, v.tag, (double)v.scalar);
            if (v.n_text > 0) printf("%lld %.*s text\n", (long long)r.step, (int)v.n_tag, v.tag);
        }
        at += (size_t)n;
    }
    file_unmap(&map);
    return 0;
}

int main(int argc, char **argv)
{
    Arena  arena;
    char **names, path[2048];
    int    rc = 0;
    if (argc != 2) return 2;
    arena_init(&arena);
    int n = file_list(&arena, argv[1], "", &names);
    for (int i = 0; i < n && rc == 0; i++) {
        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]);
        if (str_starts_with(names[i], "events.out.tfevents.")) rc = print_file(path);
    }
    arena_deinit(&arena);
    if (rc < 0 || n < 0) fprintf(stderr, "%s\n", err_get());
    return rc < 0 || n < 0;
}
