/* The verbs of `brim data`. */
#ifndef BIN_CMD_DATA_H
#define BIN_CMD_DATA_H

#include "bin/cmd.h"

typedef struct {
    const char *noun, *verb; /* verb "": the noun alone */
    int (*run)(const CmdArgs *a);
    const char *usage, *help;
} DataVerb;

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
int cmd_data_show(const CmdArgs *a);

/* brim data verify: 1 for an album or a folder of them; checksums of all records. */
int cmd_is_albums(const char *path);
int cmd_verify_albums(char *const *path, int n);

#endif
