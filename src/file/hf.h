/* Hf: the weights of a Hugging Face model folder, under Brim's names and in Brim's order.
 *
 * 1. A folder has one model.safetensors, or shards that model.safetensors.index.json names.
 * 2. A map says for each of Brim's weights which of their tensors hold it. Several tensors follow each other
 *    along the rows: qkv is [q | k | v], up of a gated form is [gate | up]. GPT-2 stores matrices
 *    transposed, a ViT its patches with the channels first. Nothing is computed: numbers keep their type and
 *    their bits.
 * 3. '#' in a map stands for the number of a block, in both names.
 * 4. Reading is checked like any file from elsewhere: names, shapes, types, duplicates, bytes. */
#ifndef FILE_HF_H
#define FILE_HF_H

#include "conf/hfconf.h"
#include "file/safetensors.h"

enum { HF_PARTS = 3, HF_NAME = 256 };

/* How their tensor holds a matrix [rows, cols] of Brim's. */
typedef enum {
    HF_PLAIN,      /* the same; a vector likewise */
    HF_TRANSPOSED, /* [cols, rows] */
    HF_BATCHED,    /* ones in front: [1, rows, cols] */
    HF_PATCHES     /* [rows, 3, side, side]; Brim's columns are [side, side, 3] */
} HfForm;

typedef enum { HF_WHOLE, HF_HALVES /* gate, up */, HF_QKV /* as wide as the heads of each */ } HfParts;

typedef struct {
    const char *ours;             /* "block.#.qkv.weight" */
    const char *theirs[HF_PARTS]; /* one after another along the rows; the rest NULL */
    HfForm      form;
    HfParts     parts; /* how the rows of Brim's are shared out among theirs, on writing */
} HfRow;

typedef struct {
    const char        *base; /* before their names; a folder may leave the word away, as old ones do */
    const HfRow       *row;
    int                n_row;
    const HfRow       *own; /* instead of those in `row` for the same weights */
    int                n_own;
    const char *const *ignore; /* ends of their names that hold no weight (masks, tables); ends with NULL */
} HfMap;

/* The map of a model's family. */
const HfMap *hf_map_of(HfFamily family);

typedef struct {
    Arena        arena;
    char         dir[4096];
    SafeFile    *file;
    int          n_file;
    const HfMap *map;
    int          has_base; /* names begin with map->base */
    void        *whole;    /* a tensor of another order as Brim has it, kept between calls */
    char         whole_name[HF_NAME];
} HfFolder;

/* Where one of Brim's weights lies. */
typedef struct {
    const HfRow      *row;
    const SafeFile   *file[HF_PARTS];
    const SafeTensor *part[HF_PARTS];
    int               n_part;
    DType             dtype;
    int64_t           rows, cols; /* a vector has one row */
    int               ndim;
} HfWeight;

/* Opens the files of a folder. Both: negative after err_user() that begins with the file. */
int  hf_open(HfFolder *h, const char *dir, const HfMap *map);
void hf_close(HfFolder *h); /* nothing for a zeroed or closed one */

/* Finds a weight by Brim's name, without the prefix of a table. Negative after err_user(): not there, or not
 * one matrix in Brim's order. */
int hf_find(const HfFolder *h, const char *ours, HfWeight *w);
/* Reads elements [first, first+n) of a weight in Brim's order, in the type of the file. */
int hf_read(HfFolder *h, const HfWeight *w, int64_t first, int64_t n, void *out);
/* Refuses a tensor of the files that none of Brim's names use. is_ours tells which of Brim's names there
 * are. */
int hf_check_unused(const HfFolder *h, int (*is_ours)(void *ctx, const char *ours), void *ctx);

/* The shape in which they hold rows x cols, into dim[4]; returns how many dimensions. ndim: of Brim's. */
int hf_shape(HfForm form, int ndim, int64_t rows, int64_t cols, int64_t *dim);
/* 1: their order of numbers is another than Brim's. */
int hf_is_moved(HfForm form, int ndim);
/* Copies a whole part from their order to Brim's; back: the reverse. size: bytes of a number. */
void hf_move(HfForm form, int64_t rows, int64_t cols, size_t size, const void *from, void *to, int back);

/* Their name of part k of a weight into out[HF_NAME], base included; NULL: the map has no such weight. */
const HfRow *hf_name(const HfMap *map, const char *ours, int k, char *out);

/* The file names that model.safetensors.index.json lists, in the arena, each once. Negative after
 * err_user(). */
int hf_index_parse(Arena *a, const char *name, const char *text, size_t n, char ***files, int *n_file);

#endif
