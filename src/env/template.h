/* Template: the file that `brim env new NAME` writes: a small environment that compiles and passes the
 * check. */
#ifndef ENV_TEMPLATE_H
#define ENV_TEMPLATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Writes NAME.c and env.h into the current folder; refuses to overwrite another file of these names. Negative
 * after err_user(). */
int template_write(const char *name);

#ifdef __cplusplus
}
#endif
#endif
