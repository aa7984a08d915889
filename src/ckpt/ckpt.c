/* Names, listing and removal of checkpoints. Saving is in ckpt_write.c, loading in ckpt_load.c. */
#include "ckpt/ckpt.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char ckpt_tmp_prefix[] = ".tmp-";
const char ckpt_state_name[] = "state.json";
const char ckpt_done_name[]  = "DONE";

static const char step_prefix[]      = "step-";
static const char abandoned_prefix[] = "abandoned-";
static const char left_prefix[]      = "left-";

/* ---- What is stored ------------------------------------------------------------------------------------ */

static void add_item(CkptItem *item, CkptFileKind file, const char *name, const Tensor *t)
{
    *item            = (CkptItem){ .file = file, .t = t };
    item->spec.name  = name;
    item->spec.dtype = t->dtype;
    item->spec.ndim  = t->ndim;
    memcpy(item->spec.dim, t->dim, sizeof *t->dim * (size_t)t->ndim);
    item->n_elem = tensor_numel(t);
}

static int add_table(const ParamTable *t, Arena *a, CkptItem *item)
{
    int n = 0;
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        for (int c = 0; c < COL_COUNT; c++) {
            if (!p->col[c] || !column_table[c].is_kept) continue;
            const char *name = arena_printf(a, "%s%s", p->name, column_table[c].suffix);
            CkptItem   *it   = &item[n++];
            add_item(it, c == COL_WEIGHT ? CKPT_MODEL : CKPT_OPTIM, name, p->col[c]);
            /* The padding of a vocabulary is not stored. */
            it->spec.dim[0] = p->ndim == 2 ? p->rows : p->rows * p->cols;
            it->n_elem      = p->rows * p->cols;
        }
    }
    return n;
}

int ckpt_items(const Job *j, Arena *a, CkptItem **out)
{
    int most = j->n_kept, n = 0;
    for (int k = 0; k < j->n_table; k++) most += j->table[k]->n_param * COL_COUNT;
    *out = ARENA_ARRAY(a, CkptItem, most + 1);
    for (int k = 0; k < j->n_table; k++) {
        if (!j->table[k]->origin[0]) n += add_table(j->table[k], a, *out + n);
    }
    for (int k = 0; k < j->n_kept; k++) {
        CkptFileKind file = j->kept_in_model[k] ? CKPT_MODEL : CKPT_OPTIM;
        if (file == CKPT_MODEL || job_trains(j))
            add_item(&(*out)[n++], file, arena_printf(a, "state.%s", j->kept[k]->name), j->kept[k]);
    }
    return n;
}

int64_t ckpt_size_bytes(const Job *j)
{
    enum { BESIDE_BYTES = 1 << 16, ITEM_BYTES = 256 /* headers, names and hashes */ };
    Arena     a;
    CkptItem *item;
    int64_t   sum = BESIDE_BYTES;
    arena_init(&a);
    int n = ckpt_items(j, &a, &item);
    for (int i = 0; i < n; i++) sum += item[i].n_elem * (int64_t)dtype_bytes(item[i].spec.dtype) + ITEM_BYTES;
    arena_deinit(&a);
    return sum;
}

int ckpt_join(char *buf, size_t n, const char *folder, const char *name)
{
    int len = snprintf(buf, n, "%s/%s", folder, name);
    return len >= 0 && (size_t)len < n ? 0 : err_set("%s/%s: path too long", folder, name);
}

void ckpt_done_line(char *buf, size_t n, uint64_t hash, const char *name)
{
    snprintf(buf, n, "%016" PRIx64 "  %s\n", hash, name);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

static void step_name(char *buf, size_t n, const char *prefix, int64_t step)
{
    snprintf(buf, n, "%s%08lld", prefix, (long long)step);
}

/* The step of a folder's name, or -1 when it is not exactly a name that step_name() gives. */
static int64_t step_of_name(const char *name, const char *prefix)
{
    char    again[64];
    int64_t step;
    if (!str_starts_with(name, prefix)) return -1;
    if (str_parse_int(name + strlen(prefix), &step) < 0 || step < 0) return -1;
    step_name(again, sizeof again, prefix, step);
    return strcmp(name, again) == 0 ? step : -1;
}

int ckpt_path(const char *dir, int64_t step, char *buf, size_t n)
{
    char name[64];
    step_name(name, sizeof name, step_prefix, step);
    return ckpt_join(buf, n, dir, name);
}

/* ---- Listing ------------------------------------------------------------------------------------------- */

/* All steps in dir under names with this prefix, rising, in the arena. Negative after err_set(). */
static int list_steps(Arena *a, const char *dir, const char *prefix, int64_t **step)
{
    char **name;
    if (file_kind(dir) == FILE_NONE) return 0;
    int n = file_list(a, dir, "", &name), used = 0;
    if (n < 0) return -1;
    *step = ARENA_ARRAY(a, int64_t, n + 1);
    for (int i = 0; i < n; i++) {
        int64_t s = step_of_name(name[i], prefix);
        if (s < 0) continue;
        int at = used++; /* names are sorted bytewise: only steps of 9 digits and more ever move */
        for (; at > 0 && (*step)[at - 1] > s; at--) (*step)[at] = (*step)[at - 1];
        (*step)[at] = s;
    }
    return used;
}

int ckpt_list(const char *dir, int64_t *step, int max)
{
    Arena    a;
    int64_t *all;
    arena_init(&a);
    int n = list_steps(&a, dir, step_prefix, &all), take = MIN(n, max);
    for (int i = 0; i < take; i++) step[i] = all[n - 1 - i];
    arena_deinit(&a);
    return take;
}

int ckpt_check_names(const char *dir)
{
    Arena    a;
    int64_t *all;
    char     path[PATH_MAX], why[PATH_MAX + 128];
    arena_init(&a);
    int n = list_steps(&a, dir, step_prefix, &all), rc = MIN(n, 0);
    for (int i = 0; i < n && rc == 0; i++) {
        rc = ckpt_path(dir, all[i], path, sizeof path);
        if (rc == 0 && file_foreign(path, 1, why, sizeof why)) rc = err_user("%s", why);
    }
    arena_deinit(&a);
    return rc;
}

/* ---- The best one -------------------------------------------------------------------------------------- */

static const char best_name[] = "best";

int64_t ckpt_best(const char *dir)
{
    char    path[PATH_MAX], name[64];
    ssize_t n = ckpt_join(path, sizeof path, dir, best_name) < 0 ? -1 : readlink(path, name, sizeof name - 1);
    if (n < 0) return -1;
    name[n] = '\0';
    return step_of_name(name, step_prefix);
}

int ckpt_set_best(const char *dir, int64_t step)
{
    char path[PATH_MAX], tmp[PATH_MAX], name[64], tmp_name[64];
    step_name(name, sizeof name, step_prefix, step);
    snprintf(tmp_name, sizeof tmp_name, "%sbest-%ld", ckpt_tmp_prefix, (long)getpid());
    TRY(ckpt_join(path, sizeof path, dir, best_name));
    TRY(ckpt_join(tmp, sizeof tmp, dir, tmp_name));
    unlink(tmp);
    if (symlink(name, tmp) != 0) return err_sys("%s", tmp);
    if (fault_hit(FAULT_RENAME) || rename(tmp, path) != 0) return err_sys("%s: rename", path);
    return folder_sync(dir);
}

/* The name `best` goes when what it names is given up: another checkpoint will get that step's name. */
static int drop_best(const char *dir, int64_t after)
{
    char path[PATH_MAX];
    if (ckpt_best(dir) <= after) return 0;
    TRY(ckpt_join(path, sizeof path, dir, best_name));
    return unlink(path) == 0 ? 0 : err_sys("%s", path);
}

/* ---- Removing ------------------------------------------------------------------------------------------ */

static int is_own_file(const char *name)
{
    for (int k = 0; k < CKPT_FILES; k++) {
        if (strcmp(name, ckpt_file_name[k]) == 0) return 1;
    }
    return strcmp(name, ckpt_state_name) == 0 || strcmp(name, ckpt_done_name) == 0 || file_is_tmp(name);
}

/* Files in a checkpoint's folder that Brim did not write: how many; negative after err_set(). A folder that
 * is none has none. */
static int count_foreign(Arena *a, const char *path)
{
    char **name, why[PATH_MAX + 128];
    int    n_foreign = 0;
    if (file_foreign(path, 1, why, sizeof why)) return 0;
    int n = file_list(a, path, "", &name);
    for (int i = 0; i < n; i++) n_foreign += !is_own_file(name[i]);
    return n < 0 ? -1 : n_foreign;
}

/* The folder gets another name and keeps what is not ours. */
static int remove_own_files(Arena *a, const char *dir, const char *path, int64_t step)
{
    char left[PATH_MAX], file[PATH_MAX], **name, base[64];
    step_name(base, sizeof base, left_prefix, step);
    TRY(ckpt_join(left, sizeof left, dir, base));
    for (int i = 2; file_kind(left) != FILE_NONE; i++) {
        snprintf(base, sizeof base, "%s%08lld-%d", left_prefix, (long long)step, i);
        TRY(ckpt_join(left, sizeof left, dir, base));
    }
    if (fault_hit(FAULT_RENAME) || rename(path, left) != 0) return err_sys("%s: rename", path);
    log_info("%s has files that are not Brim's: they are in %s now", path, left);
    int n = file_list(a, left, "", &name);
    for (int i = 0; i < n; i++) {
        if (!is_own_file(name[i])) continue;
        TRY(ckpt_join(file, sizeof file, left, name[i]));
        TRY(folder_remove(file));
    }
    return MIN(n, 0);
}

/* Takes the name away first: a removal that is interrupted leaves a leftover, not a damaged checkpoint. */
static int remove_step(Arena *a, const char *dir, const char *prefix, int64_t step)
{
    char own[64], name[64], path[PATH_MAX], away[PATH_MAX];
    step_name(own, sizeof own, prefix, step);
    snprintf(name, sizeof name, "%sremove-%08lld-%ld", ckpt_tmp_prefix, (long long)step, (long)getpid());
    TRY(ckpt_join(path, sizeof path, dir, own));
    TRY(ckpt_join(away, sizeof away, dir, name));
    int n_foreign = count_foreign(a, path);
    if (n_foreign != 0) return n_foreign < 0 ? -1 : remove_own_files(a, dir, path, step);
    if (fault_hit(FAULT_RENAME) || rename(path, away) != 0) return err_sys("%s: rename", path);
    return folder_remove(away);
}

static int prune_abandoned(Arena *a, const char *dir, int64_t step)
{
    int64_t *all;
    int      n = list_steps(a, dir, abandoned_prefix, &all);
    if (n < 0) return -1;
    for (int i = 0; i < n && all[i] <= step; i++) TRY(remove_step(a, dir, abandoned_prefix, all[i]));
    return 0;
}

int ckpt_abandon(const char *dir, int64_t after)
{
    Arena    a;
    int64_t *all;
    int      moved = 0;
    arena_init(&a);
    int n = list_steps(&a, dir, step_prefix, &all), rc = n < 0 ? n : drop_best(dir, after);
    for (int i = n - 1; i >= 0 && all[i] > after && rc == 0; i--, moved++) {
        char name[64], path[PATH_MAX], away[PATH_MAX];
        step_name(name, sizeof name, abandoned_prefix, all[i]);
        rc = ckpt_path(dir, all[i], path, sizeof path);
        if (rc == 0) rc = ckpt_join(away, sizeof away, dir, name);
        if (rc == 0) rc = folder_remove(away);
        if (rc == 0 && (fault_hit(FAULT_RENAME) || rename(path, away) != 0)) rc = err_sys("%s: rename", path);
    }
    arena_deinit(&a);
    if (rc == 0 && moved > 0) rc = folder_sync(dir);
    return rc < 0 ? rc : moved;
}

void ckpt_known_set(CkptKnown *k, int64_t step, int is_good)
{
    int i = 0;
    while (i < k->n && k->row[i].step != step) i++;
    if (i == CKPT_KNOWN) { /* the oldest knowledge goes */
        memmove(k->row, k->row + 1, sizeof k->row - sizeof k->row[0]);
        i = --k->n;
    }
    k->row[i].step    = step;
    k->row[i].is_good = is_good;
    k->n              = MAX(k->n, i + 1);
}

static int is_good(const char *dir, int64_t step, CkptKnown *known)
{
    char path[PATH_MAX];
    for (int i = 0; i < known->n; i++) {
        if (known->row[i].step == step) return known->row[i].is_good;
    }
    int good = ckpt_path(dir, step, path, sizeof path) == 0 && ckpt_verify(path) == 0;
    if (!good) {
        log_warn("checkpoint of step %lld is damaged and does not count for checkpoint.keep: %s",
                 (long long)step, err_get());
        err_clear();
    }
    ckpt_known_set(known, step, good);
    return good;
}

int ckpt_prune(const char *dir, int64_t step, int64_t keep, int64_t keep_every, CkptKnown *known)
{
    Arena    a;
    int64_t *all, newer = 0, n_old = 0, best = ckpt_best(dir);
    arena_init(&a);
    int n = list_steps(&a, dir, step_prefix, &all), rc = MIN(n, 0);
    for (int i = 0; i < n; i++) n_old += all[i] <= step;
    for (int i = n - 1; i >= 0 && rc == 0 && n_old > MAX(keep, 1); i--) {
        if (all[i] > step) continue;
        if (newer < MAX(keep, 1)) {
            newer += is_good(dir, all[i], known);
            continue;
        }
        if ((keep_every > 0 && all[i] % keep_every == 0) || all[i] == best) continue;
        rc = remove_step(&a, dir, step_prefix, all[i]);
    }
    if (rc == 0) rc = prune_abandoned(&a, dir, step);
    arena_deinit(&a);
    return rc;
}

int ckpt_sweep(const char *dir)
{
    Arena  a;
    char **name, path[PATH_MAX];
    arena_init(&a);
    int n = file_list(&a, dir, "", &name), rc = MIN(n, 0);
    for (int i = 0; i < n && rc == 0; i++) {
        if (!str_starts_with(name[i], ckpt_tmp_prefix)) continue;
        rc = ckpt_join(path, sizeof path, dir, name[i]);
        if (rc == 0) rc = folder_remove(path);
    }
    arena_deinit(&a);
    return rc;
}
