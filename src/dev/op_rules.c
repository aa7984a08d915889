/* The rules themselves: op_rules.h says how they read. */
#include "dev/op_rules.h"

#include <stddef.h>

static void need(OpCheck *v, int ok, const char *rule)
{
    if (!ok) op_check_fail(v, "%s", rule);
}

/* ---- letters from scalars, and what letters cannot say ------------------------------------------------- */

static void dims_embed(OpCheck *v, const OpArgs *a)
{
    v->dim['T'] = tensor_cols(a->embed_fwd.tok);
    v->dim['B'] = tensor_rows(a->embed_fwd.tok);
}

static void need_time(OpCheck *v, const Tensor *x)
{
    need(v, x->ndim == 3, "needs [B,T,W]");
    v->dim['T'] = x->ndim == 3 ? x->dim[1] : 0;
    v->dim['B'] = x->ndim == 3 ? x->dim[0] : 0;
}

static void dims_pos_dw(OpCheck *v, const OpArgs *a) { need_time(v, a->pos_dw.dy); }
static void dims_add_pos(OpCheck *v, const OpArgs *a) { need_time(v, a->add_pos.x); }
static void dims_mean_rows_fwd(OpCheck *v, const OpArgs *a) { need_time(v, a->mean_rows_fwd.x); }
static void dims_mean_rows_dx(OpCheck *v, const OpArgs *a) { need_time(v, a->mean_rows_dx.dx); }

/* B samples of I bytes in all, X numbers of windows, Y of boxes, N patches of C bytes each. */
static void dims_patches(OpCheck *v, const OpArgs *args)
{
    const Patches *a     = &args->patches;
    int64_t        image = (int64_t)a->frames * a->src_height * a->src_width * 3;
    int some = a->patch >= 1 && a->tubelet >= 1 && a->frames >= 1 && a->height >= 1 && a->width >= 1;
    need(v, some, "patch, tubelet, frames, height and width must be positive");
    need(v, !some || a->frames % a->tubelet == 0, "frames must be a multiple of tubelet");
    need(v, !some || (a->height % a->patch == 0 && a->width % a->patch == 0),
         "height and width must be multiples of patch");
    need(v, a->height <= a->src_height && a->width <= a->src_width, "the window is larger than the image");
    if (v->bad) return;
    int64_t B = tensor_numel(a->img) / image;
    need(v, B >= 1 && B * image == tensor_numel(a->img), "img is not a whole number of samples");
    v->dim['B'] = B;
    v->dim['I'] = B * image;
    v->dim['X'] = 3 * B;
    v->dim['Y'] = 4 * B;
    v->dim['N'] = B * (a->frames / a->tubelet) * (a->height / a->patch) * (a->width / a->patch);
    v->dim['C'] = (int64_t)a->tubelet * a->patch * a->patch * 3;
}

static void more_patches(OpCheck *v, const OpArgs *a)
{
    need(v, a->patches.partner || (!a->patches.lambda && !a->patches.box), "lambda and box need a partner");
}

/* B sequences, X rows of their tails, Y copies of where they are. */
static void dims_pack(OpCheck *v, const OpArgs *args)
{
    const PackRows *a = &args->pack_rows;
    v->dim['B']       = tensor_numel(a->len);
    v->dim['X']       = v->dim['B'] * a->n_tail;
    v->dim['Y']       = v->dim['B'] * a->n_each;
    need(v, a->stride >= 1 && a->align >= 1, "stride and align must be positive");
}

static void more_pack(OpCheck *v, const OpArgs *args)
{
    const PackRows *a = &args->pack_rows;
    need(v, (a->tail != NULL) == (a->n_tail > 0), "tail and n_tail come together");
    need(v, (a->low != NULL) == (a->n_each > 0) && (a->high != NULL) == (a->n_each > 0),
         "low, high and n_each come together");
}

static void more_norm_bwd(OpCheck *v, const OpArgs *a)
{
    need(v, a->norm_bwd.dgamma || !a->norm_bwd.dbeta, "dbeta needs dgamma");
}

/* G is twice F, the width of a gate and what it gates. */
static void set_gate(OpCheck *v, const Tensor *half)
{
    v->dim['F'] = tensor_cols(half);
    v->dim['G'] = 2 * v->dim['F'];
}

static void dims_glu_fwd(OpCheck *v, const OpArgs *a) { set_gate(v, a->glu_fwd.y); }
static void dims_glu_dx(OpCheck *v, const OpArgs *a) { set_gate(v, a->glu_dx.dy); }
static void dims_linear_glu_fwd(OpCheck *v, const OpArgs *a) { set_gate(v, a->linear_glu_fwd.y); }
static void dims_linear_glu_bwd(OpCheck *v, const OpArgs *a) { set_gate(v, a->linear_glu_bwd.w); }

/* D head size, W packed row of queries, keys and values, O row of queries, R heads that have a norm. */
static void set_heads(OpCheck *v, int heads, int kv_heads, int head_dim)
{
    int64_t H = heads, K = kv_heads, D = head_dim;
    need(v, K >= 1 && H >= 1 && D >= 1 && H % K == 0, "heads must be a multiple of kv_heads");
    v->dim['H'] = H;
    v->dim['D'] = D;
    v->dim['W'] = (H + 2 * K) * D;
    v->dim['O'] = H * D;
    v->dim['R'] = H + K;
}

static void dims_qknorm_fwd(OpCheck *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_fwd.heads, a->qknorm_fwd.kv_heads, a->qknorm_fwd.head_dim);
}
static void dims_qknorm_dx(OpCheck *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_dx.heads, a->qknorm_dx.kv_heads, a->qknorm_dx.head_dim);
}
static void dims_qknorm_dw(OpCheck *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_dw.heads, a->qknorm_dw.kv_heads, a->qknorm_dw.head_dim);
}

static void dims_rope(OpCheck *v, const OpArgs *a)
{
    need_time(v, a->rope.x);
    v->dim['D'] = a->rope.head_dim;
    v->dim['P'] = (int64_t)a->rope.n_head * a->rope.head_dim;
    need(v, a->rope.head_dim >= 2 && a->rope.head_dim % 2 == 0, "head size must be even");
    need(v, a->rope.n_head >= 1 && tensor_cols(a->rope.x) >= v->dim['P'], "row is narrower than the heads");
}

/* S numbers of lse. */
static void set_attn(OpCheck *v, const Tensor *qkv, const AttnShape *s)
{
    set_heads(v, s->heads, s->kv_heads, s->head_dim);
    need_time(v, qkv);
    v->dim['S'] = v->dim['B'] * v->dim['H'] * v->dim['T'];
    v->dim['P'] = v->dim['S'] * v->dim['T'];
}

static void dims_attn_fwd(OpCheck *v, const OpArgs *a) { set_attn(v, a->attn_fwd.qkv, &a->attn_fwd.shape); }
static void dims_attn_bwd(OpCheck *v, const OpArgs *a) { set_attn(v, a->attn_bwd.qkv, &a->attn_bwd.shape); }

static void need_range(OpCheck *v, Mask mask, const Tensor *first, const Tensor *last)
{
    need(v, mask != MASK_RANGE || (first && last), "the range mask needs first and last");
}

static void need_mask(OpCheck *v, Mask mask, const Tensor *doc, const Tensor *prefix)
{
    need(v, mask < MASK_COUNT, "mask is none");
    need(v, mask != MASK_DOCUMENT || doc, "the document mask needs doc");
    need(v, mask != MASK_PREFIX || prefix, "the prefix mask needs prefix");
}

static void need_weights(OpCheck *v, const Tensor *p)
{
    if (!p) return;
    need(v,
         p->ndim == 4 && p->dim[0] == v->dim['B'] && p->dim[1] == v->dim['H'] && p->dim[2] == v->dim['T'] &&
             p->dim[3] == v->dim['T'],
         "p must be [B,H,T,T]");
}

static void more_attn_fwd(OpCheck *v, const OpArgs *args)
{
    const AttnFwd *a = &args->attn_fwd;
    need_mask(v, a->shape.mask, a->doc, a->prefix);
    need_range(v, a->shape.mask, a->first, a->last);
    need_weights(v, a->p);
}

static void more_attn_bwd(OpCheck *v, const OpArgs *args)
{
    const AttnBwd *a = &args->attn_bwd;
    need_mask(v, a->shape.mask, a->doc, a->prefix);
    need_range(v, a->shape.mask, a->first, a->last);
    need_weights(v, a->p);
    need(v, !a->table || a->shape.head_dim % 2 == 0, "head size must be even");
}

/* B sequences, C rows of a cache. */
static void dims_attn_decode(OpCheck *v, const OpArgs *args)
{
    const AttnDecode *a = &args->attn_decode;
    set_heads(v, a->shape.heads, a->shape.kv_heads, a->shape.head_dim);
    for (int i = 0; i < 2; i++) {
        const Tensor *t = i ? a->vcache : a->kcache;
        need(v, t->ndim == 4 && t->dim[0] == a->kcache->dim[0] && t->dim[2] == a->shape.kv_heads,
             "caches need [B,Tmax,K,D]");
        need(v, tensor_same_shape(t, a->kcache) && tensor_is_contiguous(t), "caches differ or have gaps");
    }
    v->dim['B'] = a->kcache->dim[0];
    v->dim['C'] = tensor_rows(a->kcache);
    need(v, v->bad || tensor_rows(a->qkv) % v->dim['B'] == 0, "qkv needs as many rows for each sequence");
    need(v, a->shape.window >= 0, "window is negative");
}

/* U row of keys and values. */
static void set_cross(OpCheck *v, const Tensor *q, const Tensor *kv, const AttnShape *s)
{
    set_attn(v, q, s);
    v->dim['U'] = 2 * (int64_t)s->kv_heads * s->head_dim;
    need(v, kv->ndim == 3 && kv->dim[0] == v->dim['B'], "kv needs [B,S,2*K*D]");
    need(v, s->mask == MASK_FULL || s->mask == MASK_RANGE, "cross-attention has a full or a range mask");
}

static void dims_cross_attn_fwd(OpCheck *v, const OpArgs *args)
{
    const CrossAttnFwd *a = &args->cross_attn_fwd;
    set_cross(v, a->q, a->kv, &a->shape);
    need_range(v, a->shape.mask, a->first, a->last);
}
static void dims_cross_attn_bwd(OpCheck *v, const OpArgs *args)
{
    const CrossAttnBwd *a = &args->cross_attn_bwd;
    set_cross(v, a->q, a->kv, &a->shape);
    need_range(v, a->shape.mask, a->first, a->last);
}

/* ACT_SLOPE is for gradients. */
static void need_act(OpCheck *v, Act act) { need(v, act < ACT_COUNT, "act is no activation"); }
static void need_act_or_slope(OpCheck *v, Act act) { need(v, act <= ACT_SLOPE, "act is no activation"); }

static void more_linear_act_fwd(OpCheck *v, const OpArgs *a) { need_act(v, a->linear_act_fwd.act); }
static void more_linear_act_bwd(OpCheck *v, const OpArgs *a) { need_act_or_slope(v, a->linear_act_bwd.act); }
static void more_linear_glu_fwd(OpCheck *v, const OpArgs *a) { need_act(v, a->linear_glu_fwd.act); }
static void more_linear_glu_bwd(OpCheck *v, const OpArgs *a) { need_act_or_slope(v, a->linear_glu_bwd.act); }
static void more_act_fwd(OpCheck *v, const OpArgs *a) { need_act(v, a->act_fwd.act); }
static void more_act_dx(OpCheck *v, const OpArgs *a) { need_act_or_slope(v, a->act_dx.act); }
static void more_act_bias_bwd(OpCheck *v, const OpArgs *a) { need_act_or_slope(v, a->act_bias_bwd.act); }
static void more_glu_fwd(OpCheck *v, const OpArgs *a) { need_act(v, a->glu_fwd.act); }
static void more_glu_dx(OpCheck *v, const OpArgs *a) { need_act_or_slope(v, a->glu_dx.act); }

static void more_dropout(OpCheck *v, const OpArgs *a)
{
    int64_t rows = a->dropout.rows_per_sample;
    need(v, a->dropout.p >= 0 && a->dropout.p < 1, "p must be in [0, 1)");
    need(v, rows >= 1 && tensor_rows(a->dropout.x) % rows == 0, "rows must be whole samples");
}

static void need_classes(OpCheck *v, int64_t n_class)
{
    need(v, n_class >= 1 && n_class <= v->dim['V'], "more classes than logits");
}

static void need_soft(OpCheck *v, const Tensor *target2, const Tensor *lambda, float smooth)
{
    need(v, !target2 == !lambda, "target2 and lambda come together");
    need(v, smooth >= 0 && smooth < 1, "smooth must be in [0, 1)");
}

static void more_xent_fwd(OpCheck *v, const OpArgs *a)
{
    need_classes(v, a->xent_fwd.n_class);
    need_soft(v, a->xent_fwd.target2, a->xent_fwd.lambda, a->xent_fwd.smooth);
}
static void more_xent_dx(OpCheck *v, const OpArgs *a)
{
    need_classes(v, a->xent_dx.n_class);
    need_soft(v, a->xent_dx.target2, a->xent_dx.lambda, a->xent_dx.smooth);
}
static void more_xent(OpCheck *v, const OpArgs *a) { need_classes(v, a->xent.n_class); }

static void need_clip(OpCheck *v, const Tensor *old, const Tensor *clip)
{
    need(v, !old == !clip, "old and clip come together");
}
static void more_mse_fwd(OpCheck *v, const OpArgs *a) { need_clip(v, a->mse_fwd.old, a->mse_fwd.clip); }
static void more_mse_dx(OpCheck *v, const OpArgs *a) { need_clip(v, a->mse_dx.old, a->mse_dx.clip); }

/* Logits V wide, those of the teacher U. */
static void need_teacher(OpCheck *v, int64_t n_class, float tau)
{
    need_classes(v, n_class);
    need(v, n_class <= v->dim['U'], "more classes than logits of the teacher");
    need(v, tau > 0, "tau must be positive");
}
static void more_kl_fwd(OpCheck *v, const OpArgs *a) { need_teacher(v, a->kl_fwd.n_class, a->kl_fwd.tau); }
static void more_kl_dx(OpCheck *v, const OpArgs *a) { need_teacher(v, a->kl_dx.n_class, a->kl_dx.tau); }

static void more_kl_teacher(OpCheck *v, const OpArgs *a)
{
    need_classes(v, a->kl_teacher.n_class);
    need(v, v->dim['K'] <= a->kl_teacher.n_class, "more ids than classes");
    need(v, a->kl_teacher.tau > 0, "tau must be positive");
}

/* N samples, A columns, X actions of all segments, Y numbers in all columns, Z parts; norm has Q or more. */
static void set_policy(OpCheck *v, const Tensor *policy, const Tensor *seg)
{
    int64_t S = seg ? tensor_numel(seg) - 1 : 1;
    need(v, S >= 1, "seg has no segment");
    v->dim['N'] = tensor_rows(policy);
    v->dim['A'] = tensor_cols(policy);
    v->dim['X'] = v->dim['N'] * S;
    v->dim['Y'] = tensor_numel(policy);
    v->dim['Z'] = PPO_PARTS * v->dim['N'];
    v->dim['Q'] = 2;
}

static void need_log_std(OpCheck *v, const Tensor *t)
{
    need(v, tensor_rows(t) == 1 || tensor_rows(t) == v->dim['N'], "log_std needs [A] or [N,A]");
}

static void need_value(OpCheck *v, const Tensor *value, const Tensor *ret, const Tensor *old_value)
{
    need(v, !value == !ret && !value == !old_value, "value, ret and old_value come together");
}

static void dims_sample_cat(OpCheck *v, const OpArgs *a)
{
    set_policy(v, a->sample_cat.logits, a->sample_cat.seg);
}
static void dims_sample_gauss(OpCheck *v, const OpArgs *a)
{
    set_policy(v, a->sample_gauss.mean, NULL);
    need_log_std(v, a->sample_gauss.log_std);
}
static void dims_ppo_cat_fwd(OpCheck *v, const OpArgs *args)
{
    const PpoCatFwd *a = &args->ppo_cat_fwd;
    set_policy(v, a->logits, a->seg);
    need_value(v, a->value, a->ret, a->old_value);
}
static void dims_ppo_cat_dx(OpCheck *v, const OpArgs *args)
{
    const PpoCatDx *a = &args->ppo_cat_dx;
    set_policy(v, a->logits, a->seg);
    need_value(v, a->value, a->ret, a->old_value);
    need(v, !a->dvalue || a->value, "dvalue needs a value");
}
static void dims_ppo_gauss_fwd(OpCheck *v, const OpArgs *args)
{
    const PpoGaussFwd *a = &args->ppo_gauss_fwd;
    set_policy(v, a->mean, NULL);
    need_log_std(v, a->log_std);
    need_value(v, a->value, a->ret, a->old_value);
}
static void dims_ppo_gauss_dx(OpCheck *v, const OpArgs *args)
{
    const PpoGaussDx *a = &args->ppo_gauss_dx;
    set_policy(v, a->mean, NULL);
    need_log_std(v, a->log_std);
    need_value(v, a->value, a->ret, a->old_value);
    need(v, !a->dvalue || a->value, "dvalue needs a value");
}

/* M numbers of a rollout, N of one step. */
static void dims_gae(OpCheck *v, const OpArgs *a)
{
    v->dim['M'] = tensor_numel(a->gae.reward);
    v->dim['N'] = tensor_cols(a->gae.reward);
}

/* R numbers of a running mean and variance of D columns. */
static void dims_obs(OpCheck *v, const OpArgs *a)
{
    v->dim['D'] = tensor_cols(v->kind == OP_OBS_STATS ? a->obs_stats.x : a->obs_norm.x);
    v->dim['R'] = 1 + 2 * v->dim['D'];
}

static void more_tick(OpCheck *v, const OpArgs *a)
{
    need(v, a->tick.modulo >= 1, "modulo must be at least 1");
}

static void more_call(OpCheck *v, const OpArgs *a) { need(v, a->call.fn != NULL, "no function"); }

static void more_loss_add(OpCheck *v, const OpArgs *a)
{
    int n = a->loss_add.n_slot;
    need(v, n >= 0 && a->loss_add.slot + n <= LOSS_SLOTS, "slots beyond the last");
    need(v, n <= 1 || tensor_numel(a->loss_add.loss) % n == 0, "rows of different length");
}

static void need_same_dtype(OpCheck *v, const OpArgs *a)
{
    need(v, a->t[0]->dtype == a->t[1]->dtype, "y and x need one dtype");
}

static void more_rows_fwd(OpCheck *v, const OpArgs *args)
{
    const RowsFwd *a = &args->rows_fwd;
    int64_t        n = tensor_numel(a->index), rows = tensor_rows(a->y);
    need_same_dtype(v, args);
    need(v, a->at ? n % rows == 0 : n == rows, "index needs one number per row of y, or a multiple with at");
}

static void more_put(OpCheck *v, const OpArgs *a)
{
    const Put *p = &a->put;
    for (int i = 0; i < PUT_PAIRS; i++) {
        need(v, !p->y[i] == !p->x[i], "y and x come together");
        if (!p->y[i] || !p->x[i]) continue;
        need(v, p->y[i]->dtype == p->x[i]->dtype, "y and x differ in dtype");
        need(v, tensor_numel(p->y[i]) % tensor_numel(p->x[i]) == 0, "y is not a whole number of x");
    }
}

static void more_fill(OpCheck *v, const OpArgs *a)
{
    DType t = a->fill.y->dtype;
    need(v, t != DT_F64 && t != DT_E4M3 && t != DT_E5M2, "y cannot be f64 or fp8");
}

/* Rows with gaps are moved row by row. */
static void need_rows_alike(OpCheck *v, const Tensor *y, const Tensor *x)
{
    int flat = tensor_is_contiguous(y) && tensor_is_contiguous(x);
    need(v, flat || tensor_same_shape(y, x), "y and x have gaps and differ in shape");
}

static void more_copy(OpCheck *v, const OpArgs *a)
{
    need_same_dtype(v, a);
    need_rows_alike(v, a->copy.y, a->copy.x);
}

static void more_cast(OpCheck *v, const OpArgs *a)
{
    need(v, op_computes_in(a->cast.y->dtype) && op_computes_in(a->cast.x->dtype),
         "y and x must be f32, bf16 or f16");
    need_rows_alike(v, a->cast.y, a->cast.x);
}

static void need_sum(OpCheck *v, const OpArgs *a)
{
    need_same_dtype(v, a);
    need(v, a->t[0]->dtype == DT_F32 || a->t[0]->dtype == DT_F64, "sums over ranks are f32 or f64");
}

/* One of them has the parts of all ranks. */
static void need_parts(OpCheck *v, const OpArgs *a)
{
    int64_t y = tensor_numel(a->t[0]), x = tensor_numel(a->t[1]);
    need_same_dtype(v, a);
    need(v, v->kind == OP_ALL_GATHER ? y % x == 0 : x % y == 0, "one must be a multiple of the other");
    if (v->kind == OP_REDUCE_SCATTER) need_sum(v, a);
}

static int is_wide_or_bf16(const Tensor *t) { return t->dtype == DT_F32 || t->dtype == DT_BF16; }

static void need_narrow(OpCheck *v, const Tensor *copy)
{
    need(v, !copy || copy->dtype == DT_BF16 || copy->dtype == DT_F16, "copy must be bf16 or f16");
}

static void more_adamw(OpCheck *v, const OpArgs *a)
{
    need_narrow(v, a->adamw.copy);
    need(v, is_wide_or_bf16(a->adamw.master) && is_wide_or_bf16(a->adamw.m),
         "weights and moments: f32 or bf16");
    need(v, a->adamw.m->dtype == a->adamw.v->dtype, "both moments have one dtype");
    size_t n = tensor_bytes(a->adamw.seg);
    need(v, n > 0 && n % sizeof(Segment) == 0, "seg must be whole segments");
}

static void need_segments(OpCheck *v, const Tensor *seg, const Tensor *x)
{
    size_t n = tensor_bytes(seg);
    need(v, n > 0 && n % sizeof(Segment) == 0, "seg must be whole segments");
    need(v, x->ndim == 3 && tensor_is_contiguous(x), "matrices must be [n,R,C] without gaps");
    need(v, x->ndim != 3 || n / sizeof(Segment) <= (size_t)x->dim[0],
         "there are more segments than matrices");
}

static void more_momentum(OpCheck *v, const OpArgs *a)
{
    need_segments(v, a->momentum.seg, a->momentum.x);
    need(v, a->momentum.momentum >= 0 && a->momentum.momentum < 1, "momentum must be in [0, 1)");
}

static void more_muon(OpCheck *v, const OpArgs *a)
{
    need_narrow(v, a->muon.copy);
    need_segments(v, a->muon.seg, a->muon.y);
}

static void more_ortho(OpCheck *v, const OpArgs *a)
{
    const Tensor *x = a->ortho.x, *y = a->ortho.y;
    need(v, x->ndim == 3 && y->ndim == 3 && x->dim[0] == y->dim[0], "needs [n,R,C]");
    need(v, tensor_is_contiguous(x) && tensor_is_contiguous(y), "matrices must have no gaps");
}

/* N rows, C columns, X columns of x, Y of dy, S numbers of a site. */
static void dims_quant(OpCheck *v, const OpArgs *args)
{
    const Quant *a = &args->quant;
    int64_t      X = tensor_cols(a->x);
    v->dim['N']    = tensor_rows(a->x);
    v->dim['X']    = X;
    v->dim['C']    = a->from == QUANT_GLU ? X / 2 : X;
    v->dim['Y']    = a->from == QUANT_GLU_DX ? X / 2 : X;
    v->dim['S']    = FP8_SITE;
    need(v, X % 2 == 0 || (a->from != QUANT_GLU && a->from != QUANT_GLU_DX), "x needs gate and value");
}

static int is_fp8(DType t) { return t == DT_E4M3 || t == DT_E5M2; }

static void more_quant(OpCheck *v, const OpArgs *args)
{
    const Quant *a  = &args->quant;
    int          dx = a->from == QUANT_ACT_DX || a->from == QUANT_GLU_DX;
    need(v, is_fp8(a->q_dtype), "q_dtype is not fp8");
    need(v, a->q || a->qt, "needs q or qt");
    need(v, (!a->q || a->q->dtype == a->q_dtype) && (!a->qt || a->qt->dtype == a->q_dtype),
         "q and qt have q_dtype");
    need(v, a->from < QUANT_FROM_COUNT && a->act < ACT_COUNT, "from or act is none");
    need(v, dx == (a->dy != NULL), "gradients of activations alone need dy");
    int loss = a->from == QUANT_XENT_DX;
    need(v, loss == (a->lse != NULL) && loss == (a->target != NULL) && loss == (a->state != NULL),
         "the loss's gradient alone needs lse, target and state");
    need(v, !loss || (a->n_class >= 1 && a->n_class <= v->dim['C'] && !a->db), "classes, or db of a loss");
}

static void more_fp8_scale(OpCheck *v, const OpArgs *a)
{
    const Tensor *all = a->fp8_scale.all;
    need(v, is_fp8(a->fp8_scale.q_dtype), "q_dtype is not fp8");
    need(v, tensor_cols(a->fp8_scale.sites) == FP8_SITE, "sites need FP8_SITE columns");
    need(v, !all || tensor_rows(all) % tensor_rows(a->fp8_scale.sites) == 0,
         "all needs the sites of whole ranks");
}

static void set_site(OpCheck *v, const OpArgs *a) { v->dim['S'] = FP8_SITE; }

static void more_fp8_linear(OpCheck *v, const OpArgs *args)
{
    const Fp8Linear *a = &args->fp8_linear;
    need(v, is_fp8(a->a->dtype) && is_fp8(a->b->dtype), "a and b must be fp8");
    need(v, a->y->dtype == DT_F32 || a->y->dtype == DT_BF16, "y must be f32 or bf16");
}

static void more_fp8_linear_dw(OpCheck *v, const OpArgs *args)
{
    const Fp8LinearDw *a = &args->fp8_linear_dw;
    need(v, is_fp8(a->a->dtype) && is_fp8(a->b->dtype), "a and b must be fp8");
}

/* ---- the table ----------------------------------------------------------------------------------------- */

/* clang-format off */
/* Activations, weights of any float type, f32; then vectors. */
#define A(r, c)      { ELEM_ACT, #r[0], #c[0] }
#define P(r, c)      { ELEM_FLOAT, #r[0], #c[0] }
#define F(r, c)      { ELEM_F32, #r[0], #c[0] }
#define VECTOR(e, n) { ELEM_##e, ROWS_VEC, #n[0] }
#define START(n)     { ELEM_I32, ROWS_START, #n[0] }
#define SOME(e)      { ELEM_##e, ROWS_VEC, 0 }
#define COUNT(e, n)  { ELEM_##e, ROWS_COUNT, #n[0] }
#define N_C          A(N, C)
#define F_N          VECTOR(F32, N)
#define F_C          VECTOR(F32, C)
#define F_D          VECTOR(F32, D)
#define I_N          VECTOR(I32, N)
#define I_B          VECTOR(I32, B)
#define ONE(e)       VECTOR(e, 1)
#define WS           SOME(BYTE)
#define STEP         SOME(STATE)
#define SLOT(field)  .slot = offsetof(OpArgs, field.slot)
const OpRule op_rules[OP_COUNT] = {
    [OP_EMBED_FWD]    = { { N_C, I_N, P(V, C), P(t, C), START(B) }, .dims = dims_embed },
    [OP_EMBED_DW]     = { { F(V, C), WS, N_C, VECTOR(I32, N) } },
    [OP_POS_DW]       = { { F(t, C), N_C }, .dims = dims_pos_dw },
    [OP_PATCHES]      = { { N_C, VECTOR(BYTE, I), VECTOR(I32, X), I_B, VECTOR(F32, B), VECTOR(I32, Y) },
                          .dims = dims_patches, .more = more_patches },
    [OP_NORM_FWD]     = { { N_C, F_N, F_N, N_C, F_C, F_C } },
    [OP_NORM_DX]      = { { N_C, N_C, N_C, F_C, F_N, F_N } },
    [OP_NORM_DW]      = { { F_C, F_C, WS, N_C, N_C, F_N, F_N } },
    [OP_ADD_NORM_FWD] = { { N_C, N_C, F_N, F_N, N_C, N_C, F_C, F_C } },
    [OP_NORM_BWD]     = { { N_C, F_C, F_C, F_C, WS, N_C, N_C, F_C, F_N, F_N, N_C }, .more = more_norm_bwd },
    [OP_LINEAR_FWD]   = { { A(N, M), WS, A(N, K), P(M, K), VECTOR(FLOAT, M) } },
    [OP_LINEAR_DX]    = { { A(N, K), WS, A(N, M), P(M, K) } },
    [OP_LINEAR_DW]    = { { F(M, K), VECTOR(F32, M), WS, A(N, M), A(N, K) } },
    [OP_BIAS_DW]      = { { F_C, WS, N_C } },
    [OP_LINEAR_ACT_FWD] = { { A(N, M), A(N, M), WS, A(N, K), P(M, K), VECTOR(FLOAT, M) },
                            .more = more_linear_act_fwd },
    [OP_LINEAR_ACT_BWD] = { { A(N, F), VECTOR(F32, F), WS, A(N, M), P(M, F), A(N, F) },
                            .more = more_linear_act_bwd },
    [OP_LINEAR_GLU_FWD] = { { A(N, F), A(N, G), WS, A(N, K), P(G, K) },
                            .dims = dims_linear_glu_fwd, .more = more_linear_glu_fwd },
    [OP_LINEAR_GLU_BWD] = { { A(N, G), WS, A(N, M), P(M, F), A(N, G) },
                            .dims = dims_linear_glu_bwd, .more = more_linear_glu_bwd },
    [OP_ACT_FWD]      = { { N_C, N_C }, .more = more_act_fwd },
    [OP_ACT_DX]       = { { N_C, N_C, N_C }, .more = more_act_dx },
    [OP_ACT_BIAS_BWD] = { { N_C, F_C, WS, N_C, N_C }, .more = more_act_bias_bwd },
    [OP_GLU_FWD]      = { { A(N, F), A(N, G) }, .dims = dims_glu_fwd, .more = more_glu_fwd },
    [OP_GLU_DX]       = { { A(N, G), A(N, F), A(N, G) }, .dims = dims_glu_dx, .more = more_glu_dx },
    [OP_ADD]          = { { N_C, N_C, N_C } },
    [OP_MUL]          = { { N_C, N_C, N_C } },
    [OP_SCALE]        = { { N_C, N_C, F_C } },
    [OP_SCALE_DW]     = { { F_C, WS, N_C, N_C } },
    [OP_ROWS_FWD]     = { { { ELEM_ANY, 'N', 'C' }, { ELEM_ANY, 'M', 'C' }, SOME(I32), ONE(I32) },
                          .more = more_rows_fwd },
    [OP_ROWS_DX]      = { { A(M, C), WS, N_C, I_N } },
    [OP_MEAN_ROWS_FWD] = { { A(B, C), N_C, I_B }, .dims = dims_mean_rows_fwd },
    [OP_MEAN_ROWS_DX] = { { N_C, A(B, C), I_B }, .dims = dims_mean_rows_dx },
    [OP_ADD_POS]      = { { N_C, N_C, A(t, C) }, .dims = dims_add_pos },
    [OP_ROPE]         = { { N_C, N_C, F(t, D), START(B) }, .dims = dims_rope },
    [OP_QKNORM_FWD]   = { { A(N, W), F(N, R), A(N, W), F_D, F_D },
                          .dims = dims_qknorm_fwd },
    [OP_QKNORM_DX]    = { { A(N, W), A(N, W), A(N, W), F_D, F_D, F(N, R) },
                          .dims = dims_qknorm_dx },
    [OP_QKNORM_DW]    = { { F_D, F_D, WS, A(N, W), A(N, W), F(N, R) },
                          .dims = dims_qknorm_dw },
    [OP_ATTN_FWD]     = { { A(N, O), VECTOR(F32, S), VECTOR(ACT, P), WS, A(N, W), I_N, I_B, I_N, I_N },
                          .dims = dims_attn_fwd, .more = more_attn_fwd },
    [OP_ATTN_BWD]     = { { A(N, W), WS, A(N, O), A(N, O), VECTOR(F32, S), A(N, W), I_N, I_B, I_N, I_N,
                            VECTOR(ACT, P), F(t, D) },
                          .dims = dims_attn_bwd, .more = more_attn_bwd },
    [OP_ATTN_DECODE]  = { { A(N, O), A(C, D), A(C, D), WS, A(N, W), START(B) }, .dims = dims_attn_decode },
    [OP_CROSS_ATTN_FWD] = { { A(N, O), VECTOR(F32, S), WS, A(N, O), A(M, U), I_N, I_N, I_B },
                            .dims = dims_cross_attn_fwd },
    [OP_CROSS_ATTN_BWD] = { { A(N, O), A(M, U), WS, A(N, O), A(N, O), VECTOR(F32, S), A(N, O), A(M, U), I_N,
                              I_N, I_B },
                            .dims = dims_cross_attn_bwd },
    [OP_DROPOUT]      = { { N_C, N_C, STEP, ONE(I64) }, .more = more_dropout },
    [OP_XENT_FWD]     = { { F_N, F_N, VECTOR(F32, 2), A(N, V), I_N, I_N, F_N },
                          .more = more_xent_fwd, SLOT(xent_fwd) },
    [OP_XENT_DX]      = { { A(N, V), A(N, V), F_N, I_N, I_N, F_N, STEP },
                          .more = more_xent_dx, SLOT(xent_dx) },
    [OP_XENT]         = { { F_N, A(N, V), A(N, V), I_N, STEP }, .more = more_xent, SLOT(xent) },
    [OP_MSE_FWD]      = { { F_N, N_C, F(N, C), F(N, C), ONE(F32) }, .more = more_mse_fwd, SLOT(mse_fwd) },
    [OP_MSE_DX]       = { { N_C, N_C, F(N, C), F(N, C), ONE(F32), STEP }, .more = more_mse_dx, SLOT(mse_dx) },
    [OP_KL_FWD]       = { { F_N, F_N, F_N, A(N, V), P(N, U), I_N }, .more = more_kl_fwd, SLOT(kl_fwd) },
    [OP_KL_DX]        = { { A(N, V), A(N, V), P(N, U), F_N, F_N, I_N, STEP },
                          .more = more_kl_dx, SLOT(kl_dx) },
    [OP_KL_TEACHER]   = { { F(N, V), A(N, V), F(N, K), { ELEM_I32, 'N', 'K' }, F_N },
                          .more = more_kl_teacher },
    [OP_SAMPLE_CAT]   = { { VECTOR(I32, X), F_N, F_N, A(N, A), VECTOR(BYTE, Y), SOME(I32), STEP, ONE(I64),
                            ONE(I32) },
                          .dims = dims_sample_cat },
    [OP_SAMPLE_GAUSS] = { { F(N, A), F_N, F_N, A(N, A), P(*, A), STEP, ONE(I64), ONE(I32) },
                          .dims = dims_sample_gauss },
    [OP_PPO_CAT_FWD]  = { { F_N, VECTOR(F32, Z), A(N, A), A(N, 1), VECTOR(I32, X), F_N, F_N, F_N, F_N,
                            VECTOR(F32, q), VECTOR(BYTE, Y), SOME(I32), I_N, VECTOR(F32, 4) },
                          .dims = dims_ppo_cat_fwd, SLOT(ppo_cat_fwd) },
    [OP_PPO_CAT_DX]   = { { A(N, A), A(N, 1), A(N, A), A(N, 1), VECTOR(I32, X), F_N, F_N, F_N, F_N,
                            VECTOR(F32, q), VECTOR(BYTE, Y), SOME(I32), I_N, VECTOR(F32, 4), STEP },
                          .dims = dims_ppo_cat_dx, SLOT(ppo_cat_dx) },
    [OP_PPO_GAUSS_FWD] = { { F_N, VECTOR(F32, Z), A(N, A), P(*, A), A(N, 1), F(N, A), F_N, F_N, F_N,
                             F_N, VECTOR(F32, q), I_N, VECTOR(F32, 4) },
                           .dims = dims_ppo_gauss_fwd, SLOT(ppo_gauss_fwd) },
    [OP_PPO_GAUSS_DX] = { { A(N, A), A(N, A), A(N, 1), A(N, A), P(*, A), A(N, 1), F(N, A), F_N, F_N,
                            F_N, F_N, VECTOR(F32, q), I_N, VECTOR(F32, 4), STEP },
                          .dims = dims_ppo_gauss_dx, SLOT(ppo_gauss_dx) },
    [OP_GAE]          = { { VECTOR(F32, M), VECTOR(F32, M), VECTOR(F32, M), VECTOR(F32, M), F_N,
                            VECTOR(BYTE, M), VECTOR(BYTE, M), VECTOR(F32, M) },
                          .dims = dims_gae },
    [OP_STATS]        = { { VECTOR(F32, 3), WS, F_N, I_N } },
    [OP_OBS_STATS]    = { { VECTOR(F64, R), F(N, D), I_N }, .dims = dims_obs },
    [OP_OBS_NORM]     = { { A(N, D), F(N, D), VECTOR(F64, R) }, .dims = dims_obs },
    [OP_PUT]          = { { SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY),
                            SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY),
                            SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), ONE(I32) },
                          .more = more_put },
    [OP_TICK]         = { { ONE(I32) }, .more = more_tick },
    [OP_PERM]         = { { SOME(I32), STEP, ONE(I32) } },
    [OP_PACK_ROWS]    = { { VECTOR(I32, R), VECTOR(I32, R), VECTOR(I32, R), VECTOR(I32, X), VECTOR(I32, Y),
                            VECTOR(I32, Y), VECTOR(I32, B) },
                          .dims = dims_pack, .more = more_pack },
    [OP_CALL]         = { { SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY),
                            SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY), SOME(ANY) },
                          .more = more_call },
    [OP_LOSS_ADD]     = { { STEP, F_N }, SLOT(loss_add), .more = more_loss_add },
    [OP_HALT]         = { { STEP }, SLOT(halt) },
    [OP_FILL]         = { { { ELEM_ANY, ROWS_ANY, 0 } }, .more = more_fill },
    [OP_COPY]         = { { COUNT(ANY, N), COUNT(ANY, N) }, .more = more_copy },
    [OP_CAST]         = { { COUNT(FLOAT, N), COUNT(FLOAT, N) }, .more = more_cast },
    [OP_QUANT]        = { { P(N, C), P(C, N), VECTOR(F32, S), F_C, WS, A(N, X), A(N, Y), F_N, I_N, STEP },
                          .dims = dims_quant, .more = more_quant, SLOT(quant) },
    [OP_FP8_SCALE]    = { { F(*, S), F(*, S) }, .dims = set_site, .more = more_fp8_scale },
    [OP_FP8_LINEAR]   = { { P(N, M), WS, P(N, K), P(M, K), VECTOR(F32, S), VECTOR(F32, S),
                            VECTOR(FLOAT, M) }, .dims = set_site, .more = more_fp8_linear },
    [OP_FP8_LINEAR_DW] = { { F(M, K), WS, P(M, N), P(K, N), VECTOR(F32, S), VECTOR(F32, S) },
                           .dims = set_site, .more = more_fp8_linear_dw },
    [OP_SUMSQ]        = { { STEP, WS, SOME(FLOAT) } },
    [OP_CLIP]         = { { STEP } },
    [OP_ADAMW]        = { { VECTOR(FLOAT, N), VECTOR(FLOAT, N), VECTOR(FLOAT, N), F_N, VECTOR(FLOAT, N), STEP,
                            WS }, .more = more_adamw },
    [OP_EMA]          = { { F_N, F_N, STEP } },
    [OP_MOMENTUM]     = { { P(*, C), VECTOR(F32, E), VECTOR(F32, E), STEP, WS }, .more = more_momentum },
    [OP_ORTHO]        = { { N_C, WS, N_C }, .more = more_ortho },
    [OP_MUON]         = { { VECTOR(F32, E), VECTOR(FLOAT, E), P(*, C), STEP, WS }, .more = more_muon },
    [OP_ALL_REDUCE]   = { { VECTOR(FLOAT, N), VECTOR(FLOAT, N) }, .more = need_sum },
    [OP_REDUCE_SCATTER] = { { SOME(FLOAT), SOME(FLOAT) }, .more = need_parts },
    [OP_ALL_GATHER]   = { { SOME(ANY), SOME(ANY) }, .more = need_parts },
};
/* clang-format on */
