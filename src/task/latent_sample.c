/* `brim sample RUN --prompt TEXT`: the answer through the latents. */
#include "task/latent.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/pick.h"

#include <stdlib.h>

int latent_ask(Recipe *r, const TaskSample *opt)
{
    const struct {
        const char *flag;
        int         given;
    } none[] = { { "--prompt-ids", opt->prompt_ids != NULL },
                 { "--prompt-file", opt->prompt_file != NULL },
                 { "--stop", opt->stop != NULL },
                 { "--ids", opt->ids },
                 { "--rate", opt->rate },
                 { "--ignore-eos", !opt->ends } };
    for (int i = 0; i < ARRAY_LEN(none); i++) {
        if (none[i].given) return err_user("command line: %s: task latent has no such option", none[i].flag);
    }
    if (!opt->prompt) return err_user("command line: --prompt: is missing");
    if (opt->n_unit_given && opt->n_unit > r->latent.answer)
        return err_user("command line: --tokens: %lld: an answer has at most latent.answer tokens: %lld",
                        (long long)opt->n_unit, (long long)r->latent.answer);
    int is_cut = pairs_prompt_is_cut(r, opt->prompt);
    if (is_cut > 0)
        log_warn("--prompt: the encoder reads the last %lld bytes of it (encoder.bytes)",
                 (long long)r->encoder.bytes);
    return MIN(is_cut, 0);
}

/* A batch whose first sample is the prompt. */
static int upload_prompt(Job *j, const char *prompt)
{
    size_t n     = j->fields.block_bytes;
    char  *block = mem_zeroed(1, n);
    void  *field[FIELDS_MAX];
    if (!block) return err_sys("memory for the prompt");
    fields_set_sample0(block, 0);
    int rc = 0;
    for (int64_t b = 0; b < j->fields.B && rc == 0; b++) {
        for (int i = 0; i < j->fields.n; i++) field[i] = fields_at(&j->fields, block, i, b);
        rc = pairs_fill_prompt(&j->recipe, b == 0 ? prompt : NULL, field);
    }
    if (rc == 0) rc = job_upload(j, j->block, block, n);
    free(block);
    return rc;
}

/* What picking a token needs. */
typedef struct {
    float         *logits;
    PickItem      *scratch;
    unsigned char *seen;
} Picker;

/* The next token of sample 0 by temperature, instead of the most likely one. */
static int pick_again(Job *j, const TaskSample *opt, int64_t i, const Picker *k)
{
    const Latent *t   = latent_of(j);
    int64_t       V   = t->model.vocab;
    PickRow       row = { .V = V, .i = i, .seen = k->seen, .scratch = k->scratch };
    if (opt->temperature <= 0) return 0;
    TRY(job_download(j, t->decode.logits, k->logits, sizeof *k->logits * (size_t)V));
    int32_t tok = pick_token(k->logits, opt, &row);
    if (tok < 0) return err_set("the model's output is not finite");
    k->seen[tok] = 1;
    return job_upload(j, t->decode.tok, &tok, sizeof tok);
}

int latent_sample(Job *j, const TaskSample *opt, FILE *out)
{
    enum { TEXT_BYTES = 1 << 16 };
    Latent  *t = latent_of(j);
    int64_t  n = MIN(opt->n_unit, t->s.L), i = 0;
    int32_t *ids  = mem_alloc(sizeof *ids * (size_t)n);
    size_t   V    = (size_t)t->model.vocab;
    Picker   k    = { mem_alloc(sizeof *k.logits * V), mem_alloc(sizeof *k.scratch * V), mem_zeroed(V, 1) };
    char    *text = mem_alloc(TEXT_BYTES);
    int      rc   = ids && text && k.logits && k.scratch && k.seen ? 0 : err_sys("memory for an answer");
    /* latent_ask() has refused what `brim sample` lacks. */
    if (rc == 0 && !opt->prompt)
        rc = recipe_blame(&j->recipe, "watch.prompt", "is missing (task latent answers one)");
    if (rc == 0) rc = upload_prompt(j, opt->prompt);
    for (; i < n && rc == 0; i++) {
        rc = prog_run(j->prog[i == 0 ? t->prog_prefill : t->prog_decode], j->dev);
        if (rc == 0) rc = pick_again(j, opt, i, &k);
        if (rc == 0) rc = job_download(j, t->decode.tok, &ids[i], sizeof *ids);
        if (rc == 0 && ids[i] == t->text.end) break;
    }
    if (rc == 0) rc = pair_text_decode(&t->text, ids, i, text, TEXT_BYTES);
    if (rc == 0) fprintf(out, "%s\n", text);
    free(ids);
    free(k.logits);
    free(k.scratch);
    free(k.seen);
    free(text);
    return rc;
}
