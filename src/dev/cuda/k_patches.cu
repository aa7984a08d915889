/* PATCHES: images as bytes to rows of patches.
 *
 * Maths    y = v*scale[c] - shift[c], scale = 1/(255 std), shift = mean/std; v a byte or a mix of two
 *          (cpu/cpu_patches.c).
 * Layout   img u8[B,frames,src_height,src_width,3]; y [B*n_patch, tubelet*P*P*3] with a row stride.
 * Grid     a block a row of y and a thread a column, several in turn: neighbours read neighbouring bytes.
 * Bytes    1 + size an element; 2 + size where two samples are mixed. */
#include "dev/cuda/k_common.cuh"

enum { PATCH_THREADS = 256 };

template <typename T> struct PatchP {
    T             *y;
    const uint8_t *img;
    const int32_t *crop, *partner, *box;
    const float   *lambda;
    int64_t        ld_y, image; /* bytes of a sample */
    int            src_height, src_width, width, tubelet, patch, cols;
    int            nt, ny, nx; /* patches of a sample */
    float          scale[3], shift[3];
};

/* The byte at (frame, row, col, channel) of a sample's window. */
template <typename T>
__device__ __forceinline__ float patch_byte(const PatchP<T> &p, int64_t b, int frame, int row, int col,
                                            int channel)
{
    int top = 0, left = 0, mirror = 0;
    if (p.crop) {
        top    = p.crop[3 * b];
        left   = p.crop[3 * b + 1];
        mirror = p.crop[3 * b + 2];
    }
    int64_t y = top + row, x = left + (mirror ? p.width - 1 - col : col);
    return (float)p.img[b * p.image + ((frame * (int64_t)p.src_height + y) * p.src_width + x) * 3 + channel];
}

template <typename T> __global__ void __launch_bounds__(PATCH_THREADS) patches_kernel(PatchP<T> p)
{
    int64_t row = blockIdx.x, b = row / ((int64_t)p.nt * p.ny * p.nx);
    int     rest = (int)(row - b * p.nt * p.ny * p.nx);
    int x0 = rest % p.nx * p.patch, y0 = rest / p.nx % p.ny * p.patch, t0 = rest / (p.nx * p.ny) * p.tubelet;
    int64_t other  = p.partner ? b + p.partner[b] : -1;
    float   lambda = p.lambda ? p.lambda[b] : 1.0f;
    int     box[4] = {};
    for (int k = 0; k < 4 && p.box; k++) box[k] = p.box[4 * b + k];
    for (int k = threadIdx.x; k < p.cols; k += PATCH_THREADS) {
        int   c = k % 3, at = k / 3, x = x0 + at % p.patch, y = y0 + at / p.patch % p.patch;
        int   t = t0 + at / (p.patch * p.patch);
        float v = patch_byte(p, b, t, y, x, c);
        if (other >= 0) {
            float u      = patch_byte(p, other, t, y, x, c);
            bool  inside = y >= box[0] && y < box[1] && x >= box[2] && x < box[3];
            v            = inside ? u : lambda * v + (1.0f - lambda) * u;
        }
        float scale           = c == 0 ? p.scale[0] : c == 1 ? p.scale[1] : p.scale[2];
        float shift           = c == 0 ? p.shift[0] : c == 1 ? p.shift[1] : p.shift[2];
        p.y[row * p.ld_y + k] = from_f32<T>(fmaf(v, scale, -shift));
    }
}

extern "C" int cuda_patches(Dev *dev, const Patches *a)
{
    const char *op = "patches";
    TRY(k_need_dtype(op, a->img, DT_U8));
    TRY(k_need_dtype(op, a->crop, DT_I32));
    TRY(k_need_dtype(op, a->partner, DT_I32));
    TRY(k_need_dtype(op, a->box, DT_I32));
    TRY(k_need_dtype(op, a->lambda, DT_F32));
    return k_dispatch(a->y->dtype, op, [&](auto zero) {
        using T      = decltype(zero);
        PatchP<T> p  = {};
        p.y          = t_data<T>(a->y);
        p.img        = t_data<uint8_t>(a->img);
        p.crop       = t_data<int32_t>(a->crop);
        p.partner    = t_data<int32_t>(a->partner);
        p.box        = t_data<int32_t>(a->box);
        p.lambda     = t_data<float>(a->lambda);
        p.ld_y       = t_ld(a->y);
        p.image      = (int64_t)a->frames * a->src_height * a->src_width * 3;
        p.src_height = a->src_height;
        p.src_width  = a->src_width;
        p.width      = a->width;
        p.tubelet    = a->tubelet;
        p.patch      = a->patch;
        p.cols       = (int)tensor_cols(a->y);
        p.nt         = a->frames / a->tubelet;
        p.ny         = a->height / a->patch;
        p.nx         = a->width / a->patch;
        for (int c = 0; c < 3; c++) {
            p.scale[c] = 1.0f / (255.0f * a->std[c]);
            p.shift[c] = a->mean[c] / a->std[c];
        }
        return k_launch(op, patches_kernel<T>, dim3((unsigned)tensor_rows(a->y)), PATCH_THREADS, 0,
                        cuda_stream(dev), p);
    });
}
