/* Settings of other programs that Brim has no key for, because it needs none. */
#ifndef CONF_NEEDLESS_H
#define CONF_NEEDLESS_H

/* Why the setting is not needed ("batches are always pinned"); NULL for any other name. Sections before the
 * name do not count: "data.pin_memory". */
const char *needless_why(const char *name);

#endif
