#include "env/template.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The two files are part of the program, as they are in the sources; make runs in their root. */
__asm__(".section .rodata\n"
        ".balign 16\n"
        "brim_template_c: .incbin \"tools/env_template.c\"\n .byte 0\n"
        "brim_template_h: .incbin \"src/env/env.h\"\n .byte 0\n"
        ".previous\n");
extern const char brim_template_c[] __attribute__((visibility("hidden")));
extern const char brim_template_h[] __attribute__((visibility("hidden")));

static int publish(const char *path, const char *text, const char *name)
{
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    int rc = 0;
    while (rc == 0 && *text) {
        const char *at = strstr(text, "NAME");
        size_t      n  = at && name ? (size_t)(at - text) : strlen(text);
        rc             = file_write(f, text, n);
        text += n;
        if (rc == 0 && *text) {
            rc = file_write(f, name, strlen(name));
            text += strlen("NAME");
        }
    }
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

/* 1: the file has this text; 0: there is none. A file of the user's is never replaced. */
static int has_text(const char *path, const char *text)
{
    char  *found = NULL;
    size_t n     = 0;
    if (file_kind(path) == FILE_NONE) return 0;
    int is_same = file_read_all(path, 1 << 20, &found, &n) == 0 && strcmp(found, text) == 0;
    err_clear(); /* what cannot be read is another file */
    free(found);
    return is_same ? 1 : err_user("%s: the file exists already, with another text: use another folder", path);
}

int template_write(const char *name)
{
    char   path[200] = "";
    size_t n         = strlen(name);
    int    good      = n > 0 && n < 64;
    for (size_t i = 0; i < n; i++)
        good &= isalnum((unsigned char)name[i]) || name[i] == '_' || name[i] == '-';
    if (!good) return err_user("command line: %s: a name has letters, digits, _ and -, at most 63", name);
    str_append(path, sizeof path, "%s.c", name);
    if (file_kind(path) != FILE_NONE) return err_user("%s: the file exists already", path);
    int has_header = has_text("env.h", brim_template_h);
    if (has_header < 0) return -1;
    TRY(publish(path, brim_template_c, name));
    if (!has_header) TRY(publish("env.h", brim_template_h, NULL));
    printf("%s and env.h are written. Next:\n"
           "    cc -O2 -shared -fPIC -o %s.so %s\n    brim env check ./%s.so\n    brim env show ./%s.so\n"
           "    brim train cartpole run=%s-env env=./%s.so total_steps=50000 eval.target=0\n",
           path, name, path, name, name, name, name);
    return 0;
}
