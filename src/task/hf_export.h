/* Hf_export: a checkpoint of any task as a Hugging Face folder. The task says what the model is called there
 * and writes the files that lie beside the weights; names and orders of weights are those of file/hf.h. */
#ifndef TASK_HF_EXPORT_H
#define TASK_HF_EXPORT_H

#include "conf/hfconf.h"
#include "task/task.h"
#include "tensor/tensor.h"

typedef struct {
    const char *prefix; /* of the checkpoint's names that are written; others are left out */
    /* Family, model and image keys of a run that was not imported. Negative after err_user(). */
    int (*describe)(const Recipe *r, HfConfig *c);
    /* Tokenizer or the like into folder out, for a run that was not imported. */
    int (*beside)(const Recipe *r, const HfConfig *c, const char *out);
} HfExport;

int hf_export(const Recipe *r, const TaskExport *opt, const HfExport *what);

/* Writes config.json `from` to `to`, which may be the same. dtype: of the weights; f32, bf16 or f16. */
int hf_export_retype(const char *from, const char *to, DType dtype);

/* Writes a small file that appears complete. */
int hf_export_text(const char *path, const char *text);

#endif
