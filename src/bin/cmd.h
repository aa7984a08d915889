/* Commands: one cmd_NAME.c each, listed in main.c. */
#ifndef BIN_CMD_H
#define BIN_CMD_H

#include "conf/recipe.h"

typedef struct {
    double      begin_s; /* clock_now_s() at program start */
    int         argc;    /* arguments after the command's name */
    char      **argv;
    const char *version; /* of the program, "0.1.0" */
    const char *commit;  /* that it was built from */
} CmdArgs;

/* Each returns 0, or negative after err_set()/err_user(). cmd_train also returns the exit code of processes
 * that it started. */
int cmd_train(const CmdArgs *a);
int cmd_plan(const CmdArgs *a);
int cmd_bench(const CmdArgs *a);
int cmd_eval(const CmdArgs *a);
int cmd_sample(const CmdArgs *a);
int cmd_predict(const CmdArgs *a);
int cmd_import(const CmdArgs *a);
int cmd_export(const CmdArgs *a);
int cmd_play(const CmdArgs *a);
int cmd_data(const CmdArgs *a);
/* What `brim data` takes; with words ("tokenizer", "train") only that part. Negative after err_user(). */
int cmd_data_help(int n_word, char *const *word);
int cmd_env(const CmdArgs *a);
int cmd_slurm(const CmdArgs *a);
int cmd_top(const CmdArgs *a);
int cmd_compare(const CmdArgs *a);
int cmd_report(const CmdArgs *a);
int cmd_doctor(const CmdArgs *a);
int cmd_trace(const CmdArgs *a);
int cmd_check(const CmdArgs *a);
int cmd_info(const CmdArgs *a);
int cmd_version(const CmdArgs *a);
int cmd_help(const CmdArgs *a);

/* ---- shared argument parsing ---- */

/* A flag of a command: "--name" alone (value NULL: takes none) or "--name VALUE" / "--name=VALUE". */
typedef struct {
    const char  *name;
    const char **value; /* set to the text, or */
    int         *on;    /* set to 1 */
    const char  *help;
} CmdFlag;

/* Splits arguments into flags, one positional argument (the recipe or run) and key=value overrides. The
 * arrays are borrowed from argv. --help lists the flags. Negative after err_user(). */
typedef struct {
    const char *target; /* NULL when absent */
    char      **override;
    int         n_override;
} CmdTarget;

int cmd_parse(const CmdArgs *a, const CmdFlag *flag, int n_flag, CmdTarget *out);
/* Splits arguments into flags and words, which are moved to the front of argv. Returns the number of words;
 * negative after err_user(). */
int cmd_parse_words(const CmdArgs *a, const CmdFlag *flag, int n_flag);
int cmd_need_recipe(const CmdTarget *t);            /* negative after err_user() when there is no target */
int cmd_load_target(const CmdTarget *t, Recipe *r); /* recipe_load; a missing target is the user's error */
int cmd_int(const char *flag, const char *text, int64_t lo, int64_t hi, int64_t *out);
/* Refuses a file to write whose folder is not there, and a folder; NULL is none. */
int cmd_out_file(const char *flag, const char *path);
/* The same for --out, whose name must end in .gif. */
int cmd_gif(const char *out);
int cmd_double(const char *flag, const char *text, double lo, double hi, double *out);

#endif
