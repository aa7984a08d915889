/* Recipe: everything the user may say, as one typed struct.
 *
 * 1. schema.c holds ONE table row per key: name, type, default, bounds, help. Reading YAML, reading
 *    key=value, writing the resolved recipe, `brim help KEY` and "did you mean" all walk that table.
 * 2. A Recipe that recipe_load() returned obeys every bound and every relation between keys.
 * 3. Strings are fixed arrays inside the struct, so a Recipe may be copied by assignment. */
#ifndef CONF_RECIPE_H
#define CONF_RECIPE_H

#include "base/arena.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    PRECISION_AUTO,
    PRECISION_FP32,
    PRECISION_TF32,
    PRECISION_BF16,
    PRECISION_FP16,
    PRECISION_FP8
} Precision;
typedef enum { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_BLOCK } Recompute;
typedef enum { NORM_LAYER, NORM_RMS } NormKind;
typedef enum { POS_LEARNED, POS_ROPE } PosKind;
typedef enum { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG } RopeScaling;
typedef enum { FFN_GELU, FFN_SWIGLU, FFN_RELU2, FFN_GELU_ERF } FfnKind;
typedef enum { MASKING_CAUSAL, MASKING_FULL, MASKING_PREFIX, MASKING_DOCUMENT } Masking;
typedef enum {
    SCHEDULE_COSINE,
    SCHEDULE_ONECYCLE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_TRAPEZOID
} ScheduleKind;
typedef enum { OPTIM_ADAMW, OPTIM_MUON } OptimKind;
typedef enum { POOL_MEAN, POOL_CLASS } PoolKind;
typedef enum { GRID_LEARNED, GRID_SINCOS } GridPos;
typedef enum { FIT_CROP, FIT_SQUEEZE } ImageFit;
typedef enum { FILTER_BILINEAR, FILTER_BICUBIC } PixelFilter;
typedef enum { DATA_TEXT, DATA_TOKENS, DATA_RANDOM, DATA_UINT16 } DataKind;
typedef enum { PACK_CONCAT, PACK_BEST_FIT } DataPack;
typedef enum { VERIFY_AUTO, VERIFY_TRUE, VERIFY_FALSE } DataVerify;
typedef enum { PAIRS_TEXT, PAIRS_JSONL, PAIRS_SQUAD, PAIRS_RANDOM } PairsKind;
typedef enum { TEACHER_NONE, TEACHER_TEXT, TEACHER_CACHED } TeacherKind;
typedef enum { POLICY_MLP, POLICY_TRUNK } PolicyKind;
typedef enum { POLICY_TANH, POLICY_RELU, POLICY_SILU, POLICY_GELU } PolicyAct;
typedef enum { PARITY_NONE, PARITY_CLEANRL } PpoParity;
typedef enum { ISOLATE_NONE, ISOLATE_PROCESS } EnvIsolate;
typedef enum { ENVS_AUTO, ENVS_HOST, ENVS_DEVICE } EnvsPlace;
typedef enum { ANSWER_AUTO, ANSWER_DEVICE, ANSWER_HOST } PpoAnswer;

enum {
    RECIPE_STR        = 4096,  /* a path */
    RECIPE_KEYS       = 256,   /* room for one per row of the schema, those of a task included */
    RECIPE_OWN        = 16384, /* bytes for the keys that a task brings along */
    RECIPE_ENV_OBS    = 8,     /* observation blocks, */
    RECIPE_ENV_ACT    = 512,   /* and heads or dimensions of an action, as in env/env.h */
    RECIPE_MOST_DEPTH = 12
};

/* Where a key's value came from; above 0: a line of the file. */
enum { ORIGIN_DEFAULT = 0, ORIGIN_COMMAND_LINE = -1 };

typedef struct SchemaRow SchemaRow;
typedef struct Recipe    Recipe;

/* What a task outside this folder adds to a recipe: the task's name, the task's own keys, and the rules
 * between those keys. */
typedef struct {
    const char      *name; /* value of the key `task` */
    const SchemaRow *row;  /* offsets count from the beginning of Recipe; their fields lie in Recipe.own */
    int              n_row;
    int (*resolve)(
        Recipe *r); /* checks and completes; sets step_samples. Negative after recipe_blame(). NULL: none */
} RecipeTask;

typedef struct {
    /* kv_heads, head_dim, ffn: 0 = derived on load */
    int64_t     layers, width, heads, kv_heads, head_dim, ffn, vocab, context;
    NormKind    norm;
    double      norm_eps;
    PosKind     pos;
    double      rope_theta;
    RopeScaling rope_scaling;
    double      rope_factor, rope_low, rope_high; /* as config.json of Llama 3.1 has them */
    int64_t     rope_original;                    /* context before the positions were stretched */
    double      rope_fast, rope_slow;             /* yarn: turns within that context */
    int         rope_truncate;                    /* yarn: to whole pairs */
    double      rope_attention; /* yarn, longrope: growth of queries and keys; 0: by rope_factor */
    char        rope_short[RECIPE_STR], rope_long[RECIPE_STR]; /* longrope: a factor per pair, comma lists */
    FfnKind     act;
    int         bias;     /* biases on every linear layer */
    int         qkv_bias; /* biases on the qkv projection alone (Qwen2.5) */
    int         tied;     /* the head shares the embedding's weights */
    int         qk_norm;
    double      dropout;
    double      drop_path;   /* of the last block; rises evenly from 0 in the first */
    double      layer_scale; /* initial factors of both branches of a block; 0: no such weights */
    Masking     mask;
    int64_t     window;   /* the newest keys that a query sees, itself included; 0: all */
    double      init_std; /* 0.02; projections into the residual stream get init_std / sqrt(2 layers) */
} RecipeModel;

/* What a vision transformer sees, and how it answers. */
typedef struct {
    int64_t  size, patch;            /* pixels a side, of a sample and of a patch */
    int64_t  frames, tubelet;        /* of a clip, and of one token; frames 0: still images */
    int64_t  stride;                 /* frames of the source per frame of a clip */
    int64_t  seen_size, seen_frames; /* in the stage that a plan is for; no keys: size and frames at first */
    int64_t  seen_patches;           /* of a sample that the trunk reads; no key; 0: all */
    int64_t  classes;                /* 0: as many as the data have, filled in before the first plan */
    int64_t  pos_size, pos_frames;   /* what the table of positions was made for; 0: size, frames */
    PoolKind pool;
    int64_t  registers; /* learned tokens that only the trunk reads */
    GridPos  pos;
    ImageFit fit;       /* how a picture becomes a square where nothing is random */
    PixelFilter filter; /* of every resize */
    double      smooth; /* label smoothing */
    double      ema;    /* decay of the running mean of weights; 0: none */
    char        mean[RECIPE_STR], std[RECIPE_STR]; /* of the channels, as comma lists of 3 */
    char        names[RECIPE_STR];                 /* of the classes, as a comma list */
    char        names_file[RECIPE_STR];            /* or in a file, see class_names.h; both "": the data's */
} RecipeImage;

typedef struct {
    OptimKind    kind;
    double       lr, min_lr; /* min_lr: absolute floor of the schedule */
    int64_t      warmup;     /* steps */
    ScheduleKind schedule;
    double       cooldown; /* trapezoid: last part of the steps that decays, a fraction */
    double       beta1, beta2, eps, weight_decay;
    double       clip;              /* global norm; 0: none */
    double       loss_scale;        /* to begin with; 0: 65536 in fp16, else none */
    double       momentum, muon_lr; /* of Muon; muon_lr 0: lr */
    int          nesterov;
} RecipeOptim;

typedef struct {
    DataKind   kind;
    char       train[RECIPE_STR];     /* file (text) or file or folder of shards (tokens) */
    char       val[RECIPE_STR];       /* "" : the last val_fraction of train */
    char       tokenizer[RECIPE_STR]; /* of text; "": bytes */
    char       field[RECIPE_STR];     /* of JSON lines that is the text */
    char       split[RECIPE_STR];     /* between two documents of text; "": the end token's name */
    DataPack   pack;
    double     val_fraction;
    int64_t    threads;             /* loader threads, 0 = auto */
    int64_t    depth;               /* batches kept ready, at most RECIPE_MOST_DEPTH */
    int64_t    document_token;      /* token that ends a document, -1: none */
    int64_t    prefix_token;        /* token that ends a window's prefix, -1: none; used by mask: prefix */
    char       augment[RECIPE_STR]; /* images: comma list of what is done to a training sample */
    double     crop_min, crop_fraction; /* images: least area of a random crop; share of a centre crop */
    int        full_decode;             /* images: JPEGs are never decoded at a fraction of their size */
    double     jitter;                  /* images: strength of colour changes */
    int        erase_noise;             /* images: an erased box is noise, not the mean colour */
    double     mixup, cutmix, erase;    /* images: alphas, probability */
    int64_t    rand_ops, rand_level;    /* images: RandAugment */
    int64_t    mix_group;               /* images: samples that mix among each other */
    double     skip_limit;              /* images: largest share of samples that cannot be used */
    DataVerify verify; /* whether shards are read whole before the run; auto: up to DATA_CHECK_BYTES */
} RecipeData;

/* The byte encoder of task latent. */
typedef struct {
    int64_t bytes, width, layers, heads, head_dim, latents;
    int     tie_queries; /* one query for all latents */
} RecipeEncoder;

/* Task mae: what is hidden, and the decoder that guesses it. */
typedef struct {
    double  ratio; /* share of the patches that is hidden; 0: derived on load */
    int64_t layers, width, heads;
} RecipeMae;

/* Task latent: a frozen language model, samples of prompt and answer, and the losses. */
typedef struct {
    char        llm[RECIPE_STR], tokenizer[RECIPE_STR], anchor[RECIPE_STR];
    char        prompt_field[RECIPE_STR], answer_field[RECIPE_STR];
    char        teacher_file[RECIPE_STR]; /* "": beside data.train (pairs_teacher_path()) */
    PairsKind   pairs;
    TeacherKind teacher;
    int64_t     least_bytes;                   /* of a context or a random prompt; 0: encoder.bytes */
    int64_t     prompt, anchor_tokens, answer; /* tokens, at most; anchor_tokens: exactly */
    int64_t n_anchor;    /* no key: tokens of the anchor. In bytes until pairs_complete() has the tokenizer */
    int64_t first;       /* the first tokens of an answer that have losses of their own */
    int64_t teacher_top; /* logits of a token that a file of the teacher has */
    double  tau, first_token_weight, first_weight, kl_weight;
    double  room;  /* share of the padded rows that a micro-batch has room for; 0: what the data need */
    double  share; /* no key: that share. 0 until pairs_complete() has seen the data: all */
    int     baselines;
    int     one_pass; /* all losses from one pass of the student */
} RecipeLatent;

typedef struct {
    int64_t every; /* steps; 0: only at the end */
    /* Validation samples per evaluation: spread evenly, the same ones each time, whatever the micro-batch. */
    int64_t samples;
    int64_t sequences; /* the same, as a language model's recipe says it */
    double  target;    /* stop once the measure that counts is as good as this; 0: never */
    int64_t patience;  /* evaluations without improvement before stopping; 0: never */
} RecipeEval;

typedef struct {
    int64_t every;      /* steps; 0: only at the end */
    int64_t keep;       /* newest N are kept */
    int64_t keep_every; /* and every one whose step is a multiple of this; 0: none */
    int     best;       /* and the best one by the task's measure */
} RecipeCheckpoint;

typedef struct {
    int     sample;             /* GPU and host are read while the run trains */
    int     tensorboard;        /* event files beside metrics.jsonl */
    int     report;             /* report.html at the end */
    int     web;                /* the page is served by the run itself */
    int64_t samples;            /* shown after each evaluation: what the model writes, sees or plays */
    int64_t port;               /* 0: any that is free */
    char    prompt[RECIPE_STR]; /* of samples; "": the task's own */
    char    bind[RECIPE_STR], token[RECIPE_STR];
} RecipeWatch;

typedef enum { FP8_DELAYED, FP8_DYNAMIC } Fp8Scaling;
typedef enum { FP8_FAST_FORWARD, FP8_FAST_ALL, FP8_FAST_NONE } Fp8Fast;

/* precision: fp8 */
typedef struct {
    Fp8Scaling scaling;
    Fp8Fast    fast;             /* which products may add up with fewer bits */
    int        head;             /* the head's products, too */
    char       wide[RECIPE_STR]; /* comma list of weights whose products stay as they are, by name */
} RecipeFp8;

typedef struct {
    char eos[RECIPE_STR]; /* comma list of ids that end a text; "": data.document_token */
} RecipeSample;

/* Not keys: what a command needs of a job for sampling. */
typedef struct {
    int64_t batch;   /* sequences at a time; 0: one */
    int64_t context; /* tokens that a sequence may have; 0: model.context */
    int     all;     /* logits of every token of a prompt */
} RecipeAsk;

/* Not keys: what a policy must know of its environment. The environment is asked once for each recipe. */
typedef struct {
    int     is_known;
    int64_t obs_dim;  /* numbers of all blocks */
    int     is_plain; /* one f32 block, no scale: rows of the environment are rows of the net */
    int     n_block;
    struct {
        char    name[64]; /* cut short if it is long */
        int64_t n_elem;
        float   scale, bias;
    } block[RECIPE_ENV_OBS];
    int     n_agent; /* of one environment */
    int     is_discrete;
    int     n_act;                                     /* heads or dimensions */
    int64_t n_out;                                     /* choices of all heads, or dimensions */
    int     n_mask;                                    /* bytes of a mask; 0: none */
    int32_t seg[RECIPE_ENV_ACT + 1];                   /* borders of the heads */
    float   low[RECIPE_ENV_ACT], high[RECIPE_ENV_ACT]; /* of continuous actions; low == high: none */
    int64_t limit;                                     /* steps of an episode; 0: none */
    int64_t state_bytes;                               /* of one environment; 0: it cannot be saved */
    int     is_cheap;                                  /* 1: a step takes less than waking a thread */
    int     has_solved_at;
    float   solved_at; /* mean return that counts as solved */
} RecipeEnv;

/* Environments, and how PPO learns from them. A step is one rollout and its updates. */
typedef struct {
    char       env[RECIPE_STR];     /* see env/envlib.h */
    char       options[RECIPE_STR]; /* comma list of key=value */
    int64_t    total_steps;         /* of all environments together; sets `steps`. 0: `steps` counts */
    int64_t    envs, rollout, epochs, minibatch;
    int        is_whole; /* no key: minibatch was 0 */
    double     gamma, lambda, clip, clip_value, entropy, value_weight;
    double     kl_stop; /* 0: never */
    int        norm_adv, obs_norm, reward_norm;
    double     obs_clip, reward_clip;
    int        truncation; /* 1: an episode that was cut is bootstrapped from its last observation */
    PpoParity  parity;
    EnvsPlace  place;
    PpoAnswer  answer;
    int        answer_bf16; /* the CPU answers with weights in bf16 */
    int64_t    groups;      /* 0: as many as pay */
    int64_t    max_steps;   /* time limit; 0: the environment's own, -1: none */
    int64_t    threads, workers;
    EnvIsolate isolate;
    double     timeout_s;
    RecipeEnv  seen;
} RecipePpo;

typedef struct {
    PolicyKind kind;
    int64_t    layers, width, critic_width; /* critic_width 0: as width */
    int        shared;                      /* actor and critic have one body */
    PolicyAct  act;
    double     log_std;   /* initial */
    int        state_std; /* the deviation depends on the observation */
    int64_t    heads, ffn, context;
} RecipePolicy;

/* Optimisations: X(name, what it does). The key opt.NAME switches each of them. This is the only list: the
 * fields below, the schema's rows, what lowering may do (prog/lower_rules.c) and what a run lists
 * (run/switches.c) come from here. */
#define OPT_LIST(X)                                                                                          \
    X(add_norm, "residual add fused with the norm after it")                                                 \
    X(norm_bwd, "norm gradients, residual add and bias gradient in one pass")                                \
    X(xent, "cross-entropy and its gradient in one pass, in place")                                          \
    X(act_bias, "activation and bias gradient in one pass")                                                  \
    X(linear_act, "activation inside the product")                                                           \
    X(linear_act_bwd, "activation gradient inside the product before it")                                    \
    X(act_slope, "slope of an activation or gate left for its gradient")                                     \
    X(linear_glu_fwd, "gate inside the product")                                                             \
    X(linear_glu_bwd, "gate's gradient inside the product before it")                                        \
    X(linear_dw_bias, "bias gradient inside the weight gradient's product")                                  \
    X(attn_rope, "rotary positions undone inside attention's gradient")                                      \
    X(quant, "activations, gates and loss gradients written in fp8 by the pass that makes them")             \
    X(chunk_head, "logits of a share of the rows at a time")                                                 \
    X(flash, "attention that never stores T x T")                                                            \
    X(graphs, "the step captured into CUDA graphs")                                                          \
    X(tune, "matrix-product algorithms timed on this card")                                                  \
    X(prefetch, "batches read ahead by threads")

/* 1: on when possible. */
typedef struct {
#define X(name, what) int name;
    OPT_LIST(X)
#undef X
} RecipeOpt;

struct Recipe {
    char              file[RECIPE_STR];    /* where it came from, for messages */
    int               origin[RECIPE_KEYS]; /* and each key: ORIGIN_*, by row of the schema */
    char              run[RECIPE_STR];     /* name; the run directory is runs/NAME */
    char              task[RECIPE_STR];    /* what is trained: "lm", ... */
    const RecipeTask *extra;               /* of a task that is not shipped; NULL: none */
    int64_t           steps;
    int64_t     step_samples; /* samples per optimizer update, over all ranks; a language model derives it */
    const char *step_key;     /* the key that step_samples comes from, for messages */
    char        stages[RECIPE_STR]; /* comma list of task image: "STEP:SIZE" or "STEP:SIZExFRAMES" */
    int64_t     step_tokens;        /* tokens per optimizer update of a language model */
    int64_t     micro_batch;        /* samples; 0 = auto */
    Recompute   recompute;
    Precision   precision;
    char        device[RECIPE_STR]; /* auto, cpu, cuda, cuda:N */
    int64_t     gpus;               /* processes that brim train starts, one a GPU; 0 = none but itself */
    int64_t     threads;            /* CPU threads; 0 = all */
    int64_t     seed;
    char        memory_limit[RECIPE_STR]; /* "", bytes with suffix (60G), or a percentage (80%) */
    int         deterministic;
    char        give_way[RECIPE_STR]; /* comma list of concessions in mathematics that are allowed */
    char        require[RECIPE_STR];  /* comma list of optimisations that must be on */
    char        freeze[RECIPE_STR];   /* comma list of weights that are not trained, by name */
    char        init[RECIPE_STR];     /* folder with the weights to begin with; "": random ones */
    double      watchdog_s;           /* seconds without a result after which the log says so; 0: never */
    double      budget_s;             /* wall-clock budget in seconds; 0: none */
    int64_t     trace;                /* steps that are recorded op by op; 0: none */
    int64_t     trace_skip;           /* steps of a start before the trace */
    int64_t     trace_warmup;         /* steps that are recorded and not kept */
    int64_t     log_every;
    int64_t     max_skips;    /* non-finite or spiking steps in a row before a rollback */
    double      spike_factor; /* a loss above this multiple of its running mean is a spike; 0: off */
    RecipeModel model;
    RecipeImage image;
    RecipeMae   mae;
    RecipeEncoder    encoder;
    RecipeLatent     latent;
    RecipeOptim      optim;
    RecipeData       data;
    RecipeEval       eval;
    RecipeCheckpoint checkpoint;
    RecipeWatch      watch;
    RecipeFp8        fp8;
    RecipeSample     sample;
    RecipeAsk        ask;
    RecipePpo        ppo;
    RecipePolicy     policy;
    RecipeOpt        opt;
    /* Keys that a task outside this folder brings along. */
    _Alignas(16) unsigned char own[RECIPE_OWN];
};

/* Reads a YAML file, then n overrides "key=value" ("model.width=512"). A relative data path is taken from the
 * current directory first, then from the recipe's folder. Negative after err_user() with "file:line: key:
 * what is wrong (did you mean ...)" or "command line: key: ...". */
int recipe_load(Recipe *r, const char *path, int n_override, char *const *override);
/* 1: there is a file of that name, or a shipped recipe. */
int recipe_exists(const char *path);
/* Offers the recipes beside a path and the shipped ones as what was meant by it. Names go into the arena. */
void recipe_offer_names(StrNearest *near, Arena *a, const char *path);
/* The same where the data may be elsewhere: planning for another machine. */
int recipe_load_without_data(Recipe *r, const char *path, int n_override, char *const *override);
/* The same for a first look, before the recipe is loaded: logs nothing. */
int recipe_glance(Recipe *r, const char *path, int n_override, char *const *override);
/* recipe_load() for a task that is not shipped. task must outlive the recipe; NULL: recipe_load(). */
int recipe_load_task(Recipe *r, const RecipeTask *task, const char *path, int n_override,
                     char *const *override);

/* Parses YAML text already in memory (also the fuzz target); name is used in messages. */
int recipe_parse(Recipe *r, const char *name, const char *text, size_t n, int n_override,
                 char *const *override);

/* 1: the command line gives this key. */
int recipe_is_typed(const Recipe *r, const char *key);
/* 1: the command line or the file does. */
int recipe_is_given(const Recipe *r, const char *key);

/* Reports what is wrong with a key's value and where the value was given: "FILE:LINE: KEY: text", "command
 * line: KEY: text" or, of a key that is not given, "FILE: KEY: text". Always negative. */
int recipe_blame(const Recipe *r, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for wrong input that lower code has reported without a place. Other failures stay as they are.
 * Always negative. */
int recipe_blame_pending(const Recipe *r, const char *key);

/* What follows from the number of agents, once ppo.seen is known: the samples of a step, ppo.minibatch,
 * steps. Negative after recipe_blame(). */
int recipe_count_agents(Recipe *r);

/* Every key of schema_table with its default. */
void recipe_defaults(Recipe *r);

/* A line of the file that recipe_write() makes: behind this come the keys that the command line gave. */
extern const char recipe_typed[];

/* Writes the resolved recipe as YAML that recipe_load() reads back to the same struct. Whether all of it
 * could be written is for the caller to find, who knows the file's name. */
void recipe_write(const Recipe *r, FILE *out);

/* Prints type, default, bounds and help of one key, of a section's, or of all (key "keys"). Negative after
 * err_user() for an unknown key. */
int recipe_help(const char *key, FILE *out);
/* Prints the names of all keys, a section a line. */
void recipe_help_names(FILE *out);

/* memory_limit in bytes for a device with total_bytes; total_bytes when none is set. */
size_t recipe_memory_limit(const Recipe *r, size_t total_bytes);

#endif
