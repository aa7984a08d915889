/* Slots filled by Brim's own kernels (k_*.cu). Matrix products, attention and copies are elsewhere in
 * dev/cuda.
 *
 * 1. Each launches on cuda_stream(dev) and returns 0, or -1 after err_set(): wrong dtype, workspace missing,
 *    launch refused. Nothing is allocated and nothing waits, so all may be captured.
 * 2. Sums have a fixed order that depends on shapes and on the device's multiprocessor count only.
 * 3. A fused slot gives the bits of the slots it replaces. */
#ifndef DEV_CUDA_KERNELS_H
#define DEV_CUDA_KERNELS_H

#include "dev/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* k_embed.cu */
int cuda_embed_fwd(Dev *dev, const EmbedFwd *a);
int cuda_embed_dw(Dev *dev, const EmbedDw *a);
int cuda_pos_dw(Dev *dev, const PosDw *a);

int cuda_rows_dx(Dev *dev, const RowsDx *a);

/* k_gather.cu */
int cuda_rows_fwd(Dev *dev, const RowsFwd *a);
int cuda_mean_rows_fwd(Dev *dev, const MeanRowsFwd *a);
int cuda_mean_rows_dx(Dev *dev, const MeanRowsDx *a);
int cuda_add_pos(Dev *dev, const AddPos *a);

/* k_patches.cu */
int cuda_patches(Dev *dev, const Patches *a);

/* k_norm.cu, k_norm_bwd.cu */
int cuda_norm_fwd(Dev *dev, const NormFwd *a);
int cuda_add_norm_fwd(Dev *dev, const AddNormFwd *a);
int cuda_norm_dx(Dev *dev, const NormDx *a);
int cuda_norm_dw(Dev *dev, const NormDw *a);
int cuda_norm_bwd(Dev *dev, const NormBwd *a);

/* k_act.cu */
int cuda_act_fwd(Dev *dev, const ActFwd *a);
int cuda_act_both(Dev *dev, const Tensor *y, const Tensor *x, Act act); /* y = act(x), then x = act'(x) */
int cuda_act_dx(Dev *dev, const ActDx *a);
int cuda_glu_fwd(Dev *dev, const GluFwd *a);
/* y = act(gate) * up for x = [gate | up], then x = [act'(gate) * up | act(gate)] */
int cuda_glu_both(Dev *dev, const Tensor *y, const Tensor *x, Act act);
int cuda_glu_dx(Dev *dev, const GluDx *a);
int cuda_add(Dev *dev, const Add *a);
int cuda_mul(Dev *dev, const Mul *a);
int cuda_scale(Dev *dev, const Scale *a);
int cuda_scale_dw(Dev *dev, const ScaleDw *a);
int cuda_ema(Dev *dev, const Ema *a);

/* k_bias.cu */
int cuda_bias_dw(Dev *dev, const BiasDw *a);
int cuda_act_bias_bwd(Dev *dev, const ActBiasBwd *a);

/* k_rope.cu, k_qknorm.cu */
int cuda_rope(Dev *dev, const Rope *a);
int cuda_qknorm_fwd(Dev *dev, const QkNormFwd *a);
int cuda_qknorm_dx(Dev *dev, const QkNormDx *a);
int cuda_qknorm_dw(Dev *dev, const QkNormDw *a);

/* k_xent.cu */
int cuda_xent_fwd(Dev *dev, const XentFwd *a);
int cuda_xent_dx(Dev *dev, const XentDx *a);
int cuda_xent(Dev *dev, const Xent *a);

/* k_loss.cu; the soft forms are what k_xent.cu leaves out */
int cuda_xent_soft_fwd(Dev *dev, const XentFwd *a);
int cuda_xent_soft_dx(Dev *dev, const XentDx *a);
int cuda_mse_fwd(Dev *dev, const MseFwd *a);
int cuda_mse_dx(Dev *dev, const MseDx *a);
int cuda_kl_fwd(Dev *dev, const KlFwd *a);
int cuda_kl_dx(Dev *dev, const KlDx *a);
int cuda_kl_teacher(Dev *dev, const KlTeacher *a);

/* k_policy.cu */
int cuda_sample_cat(Dev *dev, const SampleCat *a);
int cuda_sample_gauss(Dev *dev, const SampleGauss *a);
int cuda_ppo_cat_fwd(Dev *dev, const PpoCatFwd *a);
int cuda_ppo_cat_dx(Dev *dev, const PpoCatDx *a);
int cuda_ppo_gauss_fwd(Dev *dev, const PpoGaussFwd *a);
int cuda_ppo_gauss_dx(Dev *dev, const PpoGaussDx *a);

/* k_rollout.cu */
int cuda_gae(Dev *dev, const Gae *a);
int cuda_stats(Dev *dev, const Stats *a);
int cuda_obs_stats(Dev *dev, const ObsStats *a);
int cuda_obs_norm(Dev *dev, const ObsNorm *a);
int cuda_put(Dev *dev, const Put *a);
int cuda_tick(Dev *dev, const Tick *a);
int cuda_perm(Dev *dev, const Perm *a);
int cuda_pack_rows(Dev *dev, const PackRows *a);

/* k_misc.cu, k_quant.cu */
int cuda_dropout(Dev *dev, const Dropout *a);
int cuda_call(Dev *dev, const CallFn *a);
int cuda_loss_add(Dev *dev, const LossAdd *a);
int cuda_halt(Dev *dev, const Halt *a);
int cuda_quant(Dev *dev, const Quant *a);
int cuda_fp8_scale(Dev *dev, const Fp8Scale *a);

/* k_optim.cu */
int cuda_sumsq(Dev *dev, const Sumsq *a);
int cuda_clip(Dev *dev, const Clip *a);
int cuda_adamw(Dev *dev, const AdamW *a);

/* k_muon.cu */
int cuda_momentum(Dev *dev, const Momentum *a);
int cuda_muon(Dev *dev, const Muon *a);
/* X[n,R,C] = x/(ORTHO_MARGIN*|x| + ORTHO_EPS), matrix by matrix; sums has room for ORTHO_PARTS each. */
int cuda_ortho_start(Dev *dev, void *X, const Tensor *x, double *sums);

#ifdef __cplusplus
}
#endif
#endif
