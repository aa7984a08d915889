/* The verbs of `brim data`. */
#ifndef BIN_CMD_DATA_H
#define BIN_CMD_DATA_H

#include "base/progress.h"
#include "bin/cmd.h"

typedef struct {
    const char *noun, *verb; /* verb "": the noun alone */
    int (*run)(const CmdArgs *a);
    const char *usage, *help;
} DataVerb;

/* How far a command is, on the terminal or in the log. Zero it to begin. */
typedef struct {
    Progress    bar;
    const char *what; /* of the bar; NULL: there is none */
    double      begin_s, shown_s;
} DataNote;

/* Bytes of text read, and all; 0: not known, as of a pipe. arg: a DataNote. */
void data_note_bytes(void *arg, int64_t done, int64_t all);
/* Things done, and all. Another `what` begins another bar. */
void data_note_count(void *arg, const char *what, int64_t done, int64_t all);
void data_note_end(DataNote *n);

int cmd_tokenizer_train(const CmdArgs *a);
int cmd_tokenizer_encode(const CmdArgs *a);
int cmd_tokenizer_decode(const CmdArgs *a);
int cmd_tokenizer_show(const CmdArgs *a);
int cmd_data_tokens(const CmdArgs *a);
int cmd_data_inspect(const CmdArgs *a);
int cmd_data_verify(const CmdArgs *a);
int cmd_data_images(const CmdArgs *a);
int cmd_data_factbook(const CmdArgs *a);
int cmd_data_clips(const CmdArgs *a);
int cmd_data_teacher(const CmdArgs *a);
int cmd_data_show(const CmdArgs *a);

/* brim data verify: 1 for an album or a folder of them; checksums of all records. */
int cmd_is_albums(const char *path);
int cmd_verify_albums(char *const *path, int n);

#endif
