/* What the commands that use a model ask a task for. */
#ifndef TASK_ASK_H
#define TASK_ASK_H

#include <stdint.h>
#include <stdio.h>

/* What `brim sample`, and a run with watch.samples, asks for. */
typedef struct {
    const char *prompt;      /* NULL: the task's own */
    const char *prompt_file; /* one prompt a line instead; NULL: none */
    const char *prompt_ids;  /* ids instead: "1,2,3"; NULL: none */
    int64_t     batch;       /* most prompts at a time; 0: the task's choice */
    int64_t     n_unit;
    int         n_unit_given; /* 1: a user asked for n_unit */
    double      temperature;  /* 0: the most likely */
    int64_t     top_k;        /* 0: all */
    double      top_p;        /* the most likely that make up this share; 0 or 1: all */
    double      repetition;   /* logits of what has occurred are divided by this; 0 or 1: not */
    uint64_t    seed;
    const char *stop;    /* texts that end a sample, separated by |; NULL: none */
    int         ends;    /* 1: an end-of-text token ends a sample */
    int         ids;     /* 1: the new ids of each prompt on a line of their own, last */
    int         rate;    /* 1: says how fast, on standard error */
    FILE       *picture; /* where a task that has one writes a PNG, JPEG or GIF; NULL: none is wanted */
} TaskSample;

/* What `brim predict` asks for. */
typedef struct {
    char *const *path; /* files, or folders of samples */
    int          n_path;
    int64_t      top;     /* so many answers of each sample */
    const char  *picture; /* a picture of samples and answers goes there; NULL: none */
    int64_t      n_shown; /* samples of a set in the list and in the picture */
    const char  *logits;  /* file to write, .npy: a row for each sample; NULL: none */
} TaskPredict;

/* What `brim eval --ids` asks for. */
typedef struct {
    const char *ids;    /* file of token ids */
    const char *logits; /* file to write, .npy; NULL: none */
    int         json;   /* one JSON object instead of text */
} TaskScore;

/* What `brim export` asks for. */
typedef struct {
    const char *run;        /* the run's folder */
    const char *checkpoint; /* folder of the chosen one; verified */
    const char *out;        /* folder to write */
    const char *dtype;      /* "float32", "bfloat16", "float16"; NULL: the task's choice */
    int64_t     part_bytes; /* most bytes of weights in one file; 0: the task's choice */
    int64_t     step;       /* of the checkpoint; 0: nothing was trained */
} TaskExport;

/* What `brim play` asks for. */
typedef struct {
    int64_t     n_episode;
    const char *out;         /* FILE.gif; NULL: none */
    int         in_terminal; /* 1: draw there */
    uint64_t    seed;
    FILE       *text; /* where results are said; NULL: standard output */
} TaskPlay;

#endif
