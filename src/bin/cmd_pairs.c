#include "base/err.h"
#include "bin/cmd_data.h"
#include "data/factbook.h"

#include <stdio.h>

int cmd_data_factbook(const CmdArgs *a)
{
    const char    *out = NULL, *bytes = "512";
    int64_t        n_byte;
    const CmdFlag  flag[] = { { "--out", &out, NULL, "FILE    JSON lines with prompt and answer" },
                              { "--bytes", &bytes, NULL, "N       of a prompt, at most, default 512" } };
    FactbookResult r;
    int            n = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n != 1) return err_user("command line: data factbook: one folder is needed, %d are given", n);
    if (!out) return err_user("command line: --out: the file to write is missing");
    TRY(cmd_out_file("--out", out));
    TRY(cmd_int("--bytes", bytes, 64, 65536, &n_byte));
    TRY(factbook_convert(a->argv[0], out, n_byte, &r));
    printf("%s: %lld pairs of %lld profiles; %lld answers longer than %d bytes left out", out,
           (long long)r.n_pair, (long long)r.n_file, (long long)r.n_long, FACTBOOK_ANSWER);
    if (r.n_unseen > 0) printf("; %lld answers are not in their prompt: it is cut", (long long)r.n_unseen);
    if (r.n_skipped > 0) printf("; %lld files are no profile", (long long)r.n_skipped);
    printf("\n");
    return 0;
}
