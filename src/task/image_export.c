/* A vision transformer as a Hugging Face folder; a run with a mean of weights exports the mean. */
#include "base/err.h"
#include "base/file.h"
#include "task/hf_export.h"
#include "task/image.h"

#include <limits.h>

static int describe(const Recipe *r, HfConfig *c)
{
    TRY(hfconf_check_image(&r->model, &r->image));
    *c = (HfConfig){ .family        = HF_VIT,
                     .model         = r->model,
                     .image         = r->image,
                     .crop_fraction = r->data.crop_fraction,
                     .bos           = -1 };
    return 0;
}

static int write_processor(const Recipe *r, const HfConfig *c, const char *out)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/preprocessor_config.json", out) >= (int)sizeof path)
        return err_user("%s: path too long", out);
    FILE *f  = file_create_tmp(path);
    int   rc = f ? hfconf_write_processor(c, f) : -1;
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

int image_export(const Recipe *r, const TaskExport *opt)
{
    return hf_export(r, opt, &(HfExport){ r->image.ema > 0 ? "ema." : "", describe, write_processor });
}
