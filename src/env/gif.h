/* Gif: an animated GIF89a, written frame by frame.
 *
 * 1. Each frame has its own palette: its exact colours when there are at most 256, else a 6 x 7 x 6 cube.
 * 2. The file is published when it is complete (base/file.h). */
#ifndef ENV_GIF_H
#define ENV_GIF_H

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    FILE    *file;
    char     path[512];
    int      width, height, delay_cs; /* hundredths of a second */
    uint8_t *index;                   /* [width * height] */
} Gif;

int  gif_open(Gif *g, const char *path, int width, int height, int fps); /* negative after err_set() */
int  gif_frame(Gif *g, const uint8_t *rgb);
int  gif_finish(Gif *g);  /* publishes */
void gif_discard(Gif *g); /* nothing for a finished or zeroed one */

#ifdef __cplusplus
}
#endif
#endif
