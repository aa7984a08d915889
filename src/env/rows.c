#include "env/rows.h"

#include "env/envfn.h"

void rows_init(Rows *r, const EnvSpec *spec, int64_t n_row, uint64_t seed)
{
    const EnvInfo *n  = &spec->info;
    EnvsIo        *io = &r->io;
    *r                = (Rows){ .seed = seed };
    arena_init(&r->arena);
    for (int k = 0; k < n->n_obs; k++) {
        io->obs[k]       = arena_alloc(&r->arena, (size_t)(n_row * spec->block_bytes[k]));
        io->final_obs[k] = arena_alloc(&r->arena, (size_t)(n_row * spec->block_bytes[k]));
    }
    if (n->act_kind == ENV_DISCRETE)
        io->act_i = r->act_i = ARENA_ARRAY(&r->arena, int32_t, n_row * n->n_act);
    else
        io->act_f = r->act_f = ARENA_ARRAY(&r->arena, float, n_row * n->n_act);
    io->reward         = ARENA_ARRAY(&r->arena, float, n_row);
    io->terminated     = ARENA_ARRAY(&r->arena, uint8_t, n_row);
    io->truncated      = ARENA_ARRAY(&r->arena, uint8_t, n_row);
    io->alive          = ARENA_ARRAY(&r->arena, uint8_t, n_row);
    io->episode_return = ARENA_ARRAY(&r->arena, float, n_row);
    io->episode_length = ARENA_ARRAY(&r->arena, int32_t, n_row);
    if (spec->n_mask) io->mask = ARENA_ARRAY(&r->arena, uint8_t, n_row * spec->n_mask);
}

void rows_deinit(Rows *r) { arena_deinit(&r->arena); }

/* The k-th allowed choice; the mask allows at least one, or all count as allowed. */
static int32_t pick(const uint8_t *mask, int32_t n, EnvRng *g)
{
    int32_t allowed = 0;
    for (int32_t c = 0; mask && c < n; c++) allowed += mask[c] != 0;
    if (allowed == 0) return envfn_below(g, n);
    int32_t k = envfn_below(g, allowed), c = 0;
    for (;; c++)
        if (mask[c] && k-- == 0) return c;
}

void rows_random(Rows *r, const EnvSpec *spec, int64_t n_row)
{
    const EnvInfo *n = &spec->info;
    EnvRng         g = { r->seed, r->n_drawn };
    for (int64_t row = 0; row < n_row; row++) {
        const uint8_t *mask = r->io.mask ? r->io.mask + row * spec->n_mask : NULL;
        for (int h = 0; h < n->n_act; h++) {
            if (n->act_kind == ENV_DISCRETE) {
                r->act_i[row * n->n_act + h] = pick(mask, n->act_choices[h], &g);
                if (mask) mask += n->act_choices[h];
            } else {
                r->act_f[row * n->n_act + h] = (float)envfn_uniform(&g, n->act_low[h], n->act_high[h]);
            }
        }
    }
    r->n_drawn = g.n_drawn;
}
