/* Another program on the same card: takes a share of the GPU memory that is free and keeps it until its input
 * ends. Usage: hold_memory SHARE. Prints what it holds once it does (tests/gpu/test_gpu_faults.sh). */
#include "base/err.h"
#include "dev/dev.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    Dev    *dev = dev_open("cuda:0", NULL, NULL);
    DevInfo info;
    if (!dev || dev->vt->info(dev, &info) < 0) {
        fprintf(stderr, "hold_memory: %s\n", err_get());
        return 1;
    }
    size_t bytes = (size_t)((double)info.free_bytes * (argc > 1 ? atof(argv[1]) : 0.5));
    void  *p     = dev->vt->alloc(dev, bytes);
    if (!p) {
        fprintf(stderr, "hold_memory: %s\n", err_get());
        return 1;
    }
    printf("%zu\n", bytes);
    fflush(stdout);
    while (getchar() != EOF) continue;
    dev->vt->free(dev, p);
    dev_close(dev);
    return 0;
}
