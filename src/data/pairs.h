/* Pairs: samples of a prompt and an answer, for encoders whose vectors replace the prompt.
 *
 * 1. A pair is a prompt as bytes, the same prompt as tokens, an anchor (tokens between prompt and answer) and
 *    an answer. PairShape says how many of each there is room for.
 * 2. All pairs are read and made into tokens when the source is opened.
 * 3. Prompts have different lengths. The order deals them out so that neighbours are balanced: pairs are
 *    sorted by length into groups of equal number, and of PAIRS_GROUP samples in a row one is from each
 *    group. So B samples in a row need about B times the mean, never B times the longest
 *    (pairs_rows()). Each epoch permutes every group anew.
 * 4. Tokens and targets that are not there are -1.
 * 5. With latent.teacher cached a training sample also has what the teacher said of it (file/teacher.h). A
 *    pair's number in its file is its number in the list, which no epoch changes. */
#ifndef DATA_PAIRS_H
#define DATA_PAIRS_H

#include "conf/recipe.h"
#include "data/fields.h"
#include "data/source.h"
#include "file/teacher.h"
#include "text/tokenizer.h"

/* Bytes are packed at multiples of PAIRS_ALIGN rows: then attention meets a prompt in the same blocks
 * wherever the prompt lies, and its latents have the same bits. */
enum { PAIRS_GROUP = 64, PAIRS_ALIGN = 128, PAIRS_OTHER = 4 /* answers beside the first */ };

/* Fields of a sample. bytes: the last one of the prompt first, so that the encoder counts positions from the
 * end, where the question stands. text: prompt, anchor and answer but its last token; teacher and full count
 * its tokens up to the first K or all of the answer. budget: the same with the first M tokens of the prompt.
 * none: without prompt. tok: anchor and answer behind M places for latents. first: targets but for the first
 * one -1. other: further answers that are as good, each with -1 behind; only if the data have such. Behind
 * all of these, with a cached teacher: PAIR_CACHED_*, from pairs_cached() on. */
enum {
    PAIR_BYTES,
    PAIR_N_BYTES,
    PAIR_TEXT,
    PAIR_N_TEACHER,
    PAIR_N_FULL,
    PAIR_BUDGET,
    PAIR_N_BUDGET,
    PAIR_NONE,
    PAIR_TOK,
    PAIR_TARGET,
    PAIR_FIRST,
    PAIR_OTHER,
    PAIR_FIELDS = PAIR_OTHER + 4 /* at most */
};

/* Of each of the first K tokens: ids and logits that the teacher's file has, and the log of what
 * the others add up to at latent.tau. */
enum { PAIR_CACHED_ID, PAIR_CACHED_LOGIT, PAIR_CACHED_REST };

/* Slots of losses in training, and of measures in an evaluation. */
enum { PAIR_LOSS, PAIR_FIRST_TOKEN, PAIR_FIRST_K, PAIR_KL, PAIR_LOSSES };
enum {
    PAIR_EVAL_LOSS,
    PAIR_EVAL_EM,
    PAIR_EVAL_F1,
    PAIR_EVAL_HIT,
    PAIR_EVAL_FULL,
    PAIR_EVAL_BUDGET,
    PAIR_EVAL_NONE,
    PAIR_EVALS
};

/* S bytes, P prompt tokens, A anchor tokens, L answer tokens, K of them with losses of their own, M latents,
 * G places for other answers; top: logits of a cached teacher for each token, 0: there is none; rows of a
 * sequence: student, teacher, full text, budget, no prompt. */
typedef struct {
    int64_t S, P, A, L, K, M, G, top;
    int64_t student, teacher, full, budget, none;
} PairShape;

/* Finds the language model's tokenizer and counts the anchor's tokens by it. DATA_HERE: the data are read,
 * for the rows that they need (pairs_look()). DATA_ELSEWHERE: the tokenizer may be elsewhere, too, if
 * latent.anchor_tokens is given. Negative after recipe_blame(). */
int pairs_complete(Recipe *r, int need_data);
/* The recipe of the run of Brim that latent.llm names, by its folder or by one of its checkpoints; free() it.
 * 1: *out is set; 0: latent.llm names no run. Negative after recipe_blame(). */
int pairs_llm_run(const Recipe *r, Recipe **out);

/* Negative after recipe_blame() if the anchor has no token. */
int pairs_shape(PairShape *s, const Recipe *r);
int pairs_fields(const PairShape *s, FieldRow *row); /* returns how many */
int pairs_cached(const PairShape *s);                /* number of the first field of a cached teacher */

/* Who reads a prompt: the encoder its bytes, teacher and full text its tokens. The others read no more than M
 * tokens of it. */
typedef enum { READ_BYTES, READ_TEACHER, READ_FULL, READ_BUDGET, READ_NONE } PairReader;

/* The share of the longest prompts' rows that a micro-batch has: latent.room, or what the data need; 1 where
 * the data have not been read. */
double pairs_share(const Recipe *r);
/* Rows that B samples in a row need at most, packed. room (pairs_share()) is the share of the longest
 * prompts' rows that prompts take on average; one prompt's rows are to spare. A multiple of PAIRS_ALIGN, as
 * attention's fast kernels want it. */
int64_t pairs_rows(const PairShape *s, PairReader reader, int64_t B, double room);

int pairs_has_val(const Recipe *r);
int pairs_open_train(Source **out, const Recipe *r);
/* Reads the data to set the share of rows that pairs_share() returns; says nothing about them. Negative when
 * they cannot be read. */
int pairs_look(Recipe *r);
/* The same by sources that are open; val: may be NULL. */
void pairs_fit(Recipe *r, const Source *train, const Source *val);
int  pairs_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);

/* ---- the file of a cached teacher ---- */

enum { PAIRS_PATH = RECIPE_STR + 16 };
/* latent.teacher_file, else the name of data.train with .teacher behind it; into buf[PAIRS_PATH]. */
const char *pairs_teacher_path(const Recipe *r, char *buf);
/* Every training pair once, in balanced order. Sets latent.room to what that order needs. */
int pairs_open_each(Source **out, Recipe *r);
/* The number in the list of sample g of such a source. */
int64_t pairs_number(const Source *each, int64_t g);
/* What the file of these pairs begins with, but for the language model. */
void pairs_teacher_header(const Source *each, const Recipe *r, TeacherHeader *h);

/* Makes the fields of a prompt without answer, as fill() does: for sampling. */
int pairs_fill_prompt(const Recipe *r, const char *prompt, void *const *field);
/* 1: the encoder does not read the beginning of this prompt; 0: it reads all; negative: no prompt. */
int pairs_prompt_is_cut(const Recipe *r, const char *prompt);

/* ---- text of tokens ---- */

typedef struct {
    Tokenizer        *tokenizer; /* NULL: tokens are bytes */
    TokenizerScratch *scratch;
    int32_t           end; /* the token that ends an answer; -1: none */
} PairText;

int  pair_text_open(PairText *t, const Recipe *r);
void pair_text_close(PairText *t);
/* Encodes; ids belong to t until its next use. frame: with what begins a text. Returns how many, or
 * negative. */
int64_t pair_text_encode(PairText *t, const char *text, size_t n, int frame, const int32_t **ids);
/* How many tokens begin a text that is encoded with its frame. */
int64_t pair_text_frame(const PairText *t);
/* The text of an answer up to its end token, at most cap-1 bytes, terminated. */
int pair_text_decode(PairText *t, const int32_t *ids, int64_t n, char *buf, size_t cap);

#endif
