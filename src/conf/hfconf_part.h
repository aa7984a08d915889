/* What the files of hfconf share. */
#ifndef CONF_HFCONF_PART_H
#define CONF_HFCONF_PART_H

#include "base/json.h"

#include <jansson.h>

/* err_user() about a value of the file `name`: what Brim wants instead. Negative, always. */
int hfconf_refuse(const char *name, const char *key, const json_t *value, const char *want);

/* A comma list of numbers as an array. */
void hfconf_write_list(JsonOut *o, const char *key, const char *list);

#endif
