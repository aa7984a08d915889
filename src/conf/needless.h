/* Settings of other programs that Brim has no key for, because it needs none, or has no such thing. */
#ifndef CONF_NEEDLESS_H
#define CONF_NEEDLESS_H

/* Why there is no such setting ("batches are always pinned"); NULL for any other name. Sections before the
 * name do not count: "data.pin_memory". */
const char *needless_why(const char *name);

#endif
