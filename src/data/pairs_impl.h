/* What pairs.c and pairs_read.c share: the list of pairs. */
#ifndef DATA_PAIRS_IMPL_H
#define DATA_PAIRS_IMPL_H

#include "data/pairs.h"

/* Places in the list's bytes and tokens. Tokens: prompt, anchor, answer, one behind the other; then other
 * answers that are as good, each with -1 behind. */
typedef struct {
    int64_t bytes_at, tokens_at;
    int32_t n_byte, n_prompt, n_answer, n_other;
} Pair;

typedef struct {
    Pair    *pair;
    char    *bytes;
    int32_t *tokens;
    int64_t  n, cap, n_byte, cap_byte, n_token, cap_token;
    int64_t  n_skipped;                               /* broken lines and pairs without answer */
    int64_t  n_cut_bytes, n_cut_prompt, n_cut_answer; /* pairs for which there was no room */
    uint64_t hash;                                    /* of what was read */
    int      n_user;                                  /* sources that read it */
    uint64_t tokenizer;                               /* its hash; 0: tokens are bytes */
} PairList;

void pair_list_free(PairList *l);

/* Reads the pairs of the training or the validation part. quiet: pairs that are skipped or cut are not said.
 * Negative after recipe_blame() or err_set(). */
int pair_list_read(PairList *l, const Recipe *r, const PairShape *s, int validation, int quiet);
/* 1: one list has the pairs of both parts. A text is cut into pairs part by part instead. */
int pair_list_has_both(const Recipe *r);
/* Where a part's pairs lie in the list. Negative after recipe_blame() if there are none. */
int pair_list_part(const PairList *l, const Recipe *r, int validation, int64_t *from, int64_t *count);

/* Writes the fields of no sample, and of one behind that. */
void pair_fill_none(const PairShape *s, void *const *field);
void pair_fill(const PairShape *s, const PairList *l, const Pair *pair, void *const *field);

/* Part of a list. */
typedef struct {
    const PairList *list;
    const Pair     *pair;
    int64_t         n;
} PairPartList;

/* ---- the cached teacher (data/pairs_teacher.c) ---- */

typedef struct {
    TeacherHeader h;
    char          path[PAIRS_PATH];
    int           fd; /* -1: noise */
    double        tau;
} PairTeacher;

/* What a file for these pairs must begin with; vocab and model are 0. */
void pair_teacher_header(TeacherHeader *h, const Recipe *r, const PairShape *s, const PairPartList *l);
/* Opens the file and reads it whole, once. Refuses a file of other pairs, by what differs. Noise has no file.
 * Negative after recipe_blame(). */
int  pair_teacher_open(PairTeacher *t, const Recipe *r, const PairShape *s, const PairPartList *l);
void pair_teacher_close(PairTeacher *t);
/* Writes the fields of pair `number` of the part. scratch: teacher_record_bytes(). Negative after
 * err_set(). */
int  pair_teacher_fill(const PairTeacher *t, const PairShape *s, int64_t number, void *const *field,
                       void *scratch);
void pair_teacher_fill_none(const PairShape *s, void *const *field);

/* The only pair is a prompt without answer. */
int pair_list_prompt(PairList *l, const Recipe *r, const PairShape *s, const char *prompt);

/* One reading: where pairs go, what they must look like, and what turns text into tokens. */
typedef struct {
    PairList        *list;
    const Recipe    *recipe;
    const PairShape *shape;
    const char      *name;  /* of the file, for messages */
    int              quiet; /* 1: what is wrong with the file was said before */
    PairText         text;
} PairReading;

/* Fuzzed: parses JSONL or SQuAD text. */
int pair_list_parse(PairReading *p, const char *text, size_t n);

#endif
