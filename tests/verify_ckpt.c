/* For shell tests: verifies every byte of the checkpoint folders named; exit code 1 after naming those that
 * fail. */
#include "base/err.h"
#include "ckpt/ckpt.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        if (ckpt_verify(argv[i]) == 0) continue;
        fprintf(stderr, "%s: %s\n", argv[i], err_get());
        err_clear();
        bad = 1;
    }
    return bad;
}
