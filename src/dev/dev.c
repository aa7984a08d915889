/* Choosing a backend, counting its memory, and calling its slots. */
#include "dev/dev.h"

#include "base/err.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Per thread, like the error message: what dev_open() and dev_cuda() have to say. */
__attribute__((format(printf, 1, 2))) static const char *say(const char *fmt, ...)
{
    static _Thread_local char text[2][640];
    static _Thread_local int  turn;
    turn ^= 1; /* the last text may be an argument of this one */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text[turn], sizeof text[turn], fmt, ap);
    va_end(ap);
    return text[turn];
}

const DevVt *dev_cuda(const char **why)
{
    const char *ignored;
    if (!why) why = &ignored;
    char    path[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0) {
        *why = "the program's own folder is unknown";
        return NULL;
    }
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "libbrim_cuda.so");
    if (access(path, R_OK) != 0) {
        *why = "no CUDA half in this build (make builds it where CUDA 13 is)";
        return NULL;
    }
    /* Never closed: its threads and its driver state outlive every Dev. */
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        *why = say("%s", dlerror());
        return NULL;
    }
    const char *(*id)(void) = NULL;
    *(void **)&id           = dlsym(lib, "brim_cuda_id");
    if (!id || strcmp(id(), BRIM_DEV_ID) != 0) {
        *why = say("%s is of another build (%s, the program is of %s): make builds both", path,
                   id ? id() : "an older one", BRIM_DEV_ID);
        return NULL;
    }
    const DevVt *(*get)(void) = NULL;
    *(void **)&get            = dlsym(lib, "brim_dev_cuda");
    if (!get) {
        *why = say("%s has no brim_dev_cuda", path);
        return NULL;
    }
    *why = "cuda";
    return get();
}

static Dev *open_with(const DevVt *vt, int index, const DevOptions *opt)
{
    DevOptions plain = { .capture = 1, .tune = 1 };
    if (!opt) opt = &plain;
    Dev *dev = vt->open(index, opt);
    if (!dev) return NULL;
    dev->vt  = vt;
    dev->opt = *opt;
    return dev;
}

static Dev *open_auto(const DevOptions *opt, const char **why)
{
    const char  *reason;
    const DevVt *vt = dev_cuda(&reason);
    if (vt) {
        Dev *dev = open_with(vt, 0, opt);
        if (dev) {
            *why = "cuda: device auto, and a GPU answers";
            return dev;
        }
        reason = say("%s", err_get());
        err_clear();
    }
    *why = say("cpu: %s", reason);
    return open_with(dev_cpu(), 0, opt);
}

/* The message for a user who asks for a GPU that cannot be used: it names the devices that work. */
static Dev *refuse_cuda(const char *spec, const char *reason)
{
    err_user("device: %s is not usable: %s; cpu and auto work here", spec, reason);
    return NULL;
}

/* The number of "NAME:N", 0 of "NAME"; -1: it is none. */
static int read_index(const char *spec)
{
    const char *colon = strchr(spec, ':');
    char       *end;
    if (!colon) return 0;
    long n = strtol(colon + 1, &end, 10);
    return end == colon + 1 || *end || n < 0 || n > 1023 ? -1 : (int)n;
}

static Dev *open_cuda(const char *spec, const DevOptions *opt, const char **why)
{
    int index = read_index(spec);
    if (index < 0) {
        err_user("device: \"%s\" names no GPU (did you mean cuda:0?)", spec);
        return NULL;
    }
    const char  *reason;
    const DevVt *vt = dev_cuda(&reason);
    if (!vt) return refuse_cuda(spec, reason);
    *why     = "cuda: as asked";
    Dev *dev = open_with(vt, index, opt);
    if (dev || err_kind() != ERR_USER) return dev;
    reason = say("%s", err_get());
    err_clear();
    return refuse_cuda(spec, reason);
}

Dev *dev_open(const char *spec, const DevOptions *opt, const char **why)
{
    const char *ignored;
    if (!why) why = &ignored;
    *why = "as asked";
    if (strcmp(spec, "auto") == 0) return open_auto(opt, why);
    if (strcmp(spec, "cpu") == 0) return open_with(dev_cpu(), 0, opt);
    if (strcmp(spec, "null") == 0) return open_with(dev_null(), 0, opt);
    if (strcmp(spec, "cuda") == 0 || strncmp(spec, "cuda:", 5) == 0) return open_cuda(spec, opt, why);
    if (strncmp(spec, "late:", 5) == 0 && read_index(spec) >= 0)
        return open_with(dev_late(), read_index(spec), opt);
    err_user("device: \"%s\" is not auto, cpu, cuda, cuda:N or null", spec);
    return NULL;
}

void dev_close(Dev *dev)
{
    if (dev) dev->vt->close(dev);
}

void *dev_slab_alloc(Dev *dev, size_t size_bytes)
{
    CHECK(!dev->sealed, "%zu bytes asked of %s after the start", size_bytes, dev->vt->name);
    void *p = dev->vt->alloc(dev, size_bytes);
    if (p) dev->allocated_bytes += size_bytes;
    return p;
}

void dev_slab_free(Dev *dev, void *p)
{
    if (p) dev->vt->free(dev, p);
}

void dev_seal(Dev *dev) { dev->sealed = 1; }

int dev_has(const DevVt *vt, OpKind kind)
{
    switch (kind) {
#define X(KIND, field, Type)                                                                                 \
    case OP_##KIND: return vt->ops.field != NULL;
        OP_LIST(X)
#undef X
    default: return 0;
    }
}

int dev_run_op(Dev *dev, const Op *op)
{
    switch (op->kind) {
#define X(KIND, field, Type)                                                                                 \
    case OP_##KIND:                                                                                          \
        if (dev->vt->ops.field) return dev->vt->ops.field(dev, &op->args.field);                             \
        break;
        OP_LIST(X)
#undef X
    default: break;
    }
    return err_set("%s: %s cannot run %s", op->label, dev->vt->name, op_table[op->kind].name);
}
