/* Assets: the page's files, inside the program. */
#ifndef WATCH_ASSETS_H
#define WATCH_ASSETS_H

#include <stddef.h>

typedef struct {
    const char *path, *type; /* "/page.js", its media type */
    const void *bytes;
    size_t      n;
} Asset;

int asset_find(const char *path, Asset *out); /* 1: found, 0: there is no such file */

#endif
