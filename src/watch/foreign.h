/* Foreign: judges a program that is not Brim, by what the driver says about its GPUs. NVML and GPM alone:
 * what the program computes, and how it waits, is not known. */
#ifndef WATCH_FOREIGN_H
#define WATCH_FOREIGN_H

#include <stdio.h>

typedef struct {
    int         pid; /* as the driver numbers it */
    double      seconds;
    const char *nvml_path; /* as in nvml_open() */
    int         as_json;   /* one object instead of text */
} ForeignOptions;

/* Watches every GPU of the program for so long, then prints. Negative after err_user() when no GPU has such a
 * program. */
int foreign_judge(const ForeignOptions *opt, FILE *out);

#endif
