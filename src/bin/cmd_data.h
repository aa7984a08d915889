/* The verbs of `brim data`. */
#ifndef BIN_CMD_DATA_H
#define BIN_CMD_DATA_H

#include "bin/cmd.h"

int cmd_data_images(const CmdArgs *a);
int cmd_data_clips(const CmdArgs *a);
int cmd_data_show(const CmdArgs *a);

#endif
