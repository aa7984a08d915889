/* Walk: a YAML text as a flat series of items with dotted keys, read event by event.
 *
 * 1. Accepted is one document: a mapping of plain keys to scalars, lists of scalars, and further mappings.
 *    Anchors, aliases, tags and lists of anything else are refused.
 * 2. Nothing recurses and depth is limited to WALK_MAX_DEPTH, so hostile nesting cannot exhaust the stack.
 * 3. Item texts are valid during the visit only and contain no zero byte. */
#ifndef CONF_WALK_H
#define CONF_WALK_H

#include <stddef.h>

enum { WALK_MAX_DEPTH = 8, WALK_KEY_MAX = 256, WALK_LIST_MAX = 4096 };

typedef enum {
    WALK_MAP,    /* a mapping begins; its items follow */
    WALK_SCALAR, /* a value */
    WALK_NONE,   /* a key without one; text is "" */
    WALK_LIST    /* a list of scalars; text has the items joined by commas */
} WalkKind;

typedef struct {
    WalkKind    kind;
    const char *key; /* "model.width" */
    const char *text;
    int         quoted; /* the scalar stood in quotation marks */
    int         line;   /* of the key, from 1 */
} WalkItem;

/* Calls visit for each item, in order, until it returns negative. name is for messages. Negative after
 * err_user(), or after what visit reported. */
int walk_yaml(const char *name, const char *text, size_t n, int (*visit)(void *ctx, const WalkItem *item),
              void *ctx);

#endif
