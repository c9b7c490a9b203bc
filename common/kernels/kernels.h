/* Compute kernels behind one dispatch table, equal to the bit in every tier.
 *
 * kernels_scalar.c is the specification: plain C, built with -ffp-contract=off, fmaf where the
 * contract says fused. The AVX2, AVX-512 and AVX-512-VNNI tiers override entries one by one and
 * must return exactly the scalar tier's bits for every input, NaN and infinities included as
 * far as "is NaN" goes (a NaN's payload is not part of the contract).
 *
 * How the orders are fixed:
 *   matmul   one chain per output row over ascending column groups of 32:
 *              f32 activations: p[c] = sum over j ascending of fmaf(w[4j+c], x[4j+c], p[c]),
 *                c < 4, j < 8, w the integer q (q4: q - 8) or, for f16/f32 matrices, the weight;
 *                s = (p[0] + p[1]) + (p[2] + p[3]);
 *                acc = fmaf(scale, s, acc) (q4, q8) or acc + s (f16, f32)
 *              q8 activations: i = exact int32 dot product of the group;
 *                acc = fmaf((float)i, scale_w * scale_x, acc)
 *   reductions over a vector: 16 lanes, lane = index mod 16, ascending, a tail is filled with the
 *              operation's neutral element; then lanes fold 8, 4, 2, 1: v[i] op v[i + width]
 *   exp, tanh, erf, log, silu, gelu: the polynomials of kernels_math.h, each step spelled out
 * Kernels are pure: no globals, no allocation, no logging, any number of threads at once.
 */
#ifndef VF_COMMON_KERNELS_KERNELS_H
#define VF_COMMON_KERNELS_KERNELS_H

#include "common/base/err.h"
#include "common/model/config.h"
#include "common/tile/tile.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Activations of n_col columns, prepared for matrices of `cols` input columns. Buffers are
 * aligned to 64 and padded with zeros to stride = cols rounded up to 32. */
struct vf_acts {
    const float *x;     /* [n_col, stride] */
    const int8_t *q;    /* [n_col, stride]; NULL with f32 activations */
    const float *scale; /* [n_col, stride / 32]: max|x| / 127 of each group */
    const int32_t *sum; /* [n_col, stride / 32]: sum of q over each group */
    uint32_t n_col;
    uint32_t cols;
    uint32_t stride;
};

/* y[c * y_stride + r] = sum over columns of W[r, :] x[c, :], for rows of the row blocks
 * [rb_begin, rb_end) (16 rows each; rows past m->rows are not written), for every column c.
 * y is overwritten. Any y alignment. */
typedef void vf_matmul_fn(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                          uint32_t rb_end, float *y, size_t y_stride);

/* One block of at most VF_ATTN_BLOCK keys of one KV head against n_q queries of it: the heads that
 * share it, of one activation column or of several, so that the block is read once for all.
 * Keys are stored 16 by 16 (lanes are keys): element i of key t is at
 * k[(t / 16) * hd * 16 + i * 16 + t % 16]; values are row-major: v[t * hd + i]. Both are f16
 * (uint16_t) or f32. Only keys [key_begin, key_end) of the block count for a query; the others may
 * hold anything.
 *   s[t] = (q . k[t]) * scale, p = 4 partial fmaf chains by i mod 4, (p0 + p1) + (p2 + p3);
 *   softcap > 0: s = softcap * tanh(s / softcap)
 *   max = largest s; l = sum exp(s - max) (16-lane reduction order over t from key 0 of the
 *   block, uncounted keys contribute 0); out[i] = fmaf chain over ascending t of p[t] * v[t][i]
 * A query's results don't depend on its company. */
#define VF_ATTN_BLOCK 256u
struct vf_attn_keys {
    uint32_t begin, end; /* begin < end <= VF_ATTN_BLOCK */
};
struct vf_attn_args {
    /* Query i is head i % heads of column i / heads: q + (i / heads) * q_column_stride +
     * (i % heads) * q_stride. heads 0: all are heads of one column. */
    const float *q;
    size_t q_stride, q_column_stride;
    uint32_t n_q, heads;
    const void *k, *v;  /* of this block */
    const void *next_k; /* NULL, or the keys of the block after this one, to be fetched meanwhile */
    bool kv_f16;
    uint32_t head_dim;
    uint32_t key_begin, key_end; /* counted keys, where `keys` is NULL */
    /* NULL, or each column's counted keys: [n_q / heads], in order of their columns. */
    const struct vf_attn_keys *keys;
    float scale, softcap;
    float *max, *sum; /* [n_q] out */
    float *out;       /* [n_q, out_stride] out */
    size_t out_stride;
};

/* More columns than these read one stripe at a time. */
#define VF_STRIPES_COLS 4u

struct vf_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "avx512vnni"; tests: "avx512-emulated", ... */

    vf_matmul_fn *matmul_f32[VF_QUANT_COUNT]; /* reads acts->x */
    vf_matmul_fn *matmul_q8[VF_QUANT_COUNT];  /* q4, q8 read acts->q; f16, f32 entries are the
                                                 matmul_f32 ones: they have no integer form */

    /* Of how many stripes of 128 rows matmul_q8 of q4 and q8 reads a record in turn, where it is
     * given so many: of n columns vf_stripes_q8(), a power of two. */
    uint8_t stripes_q8[VF_STRIPES_COLS + 1];

    /* n is a multiple of 32: q, scale, sum per group of 32. scale = max|x| / 127 (f32),
     * q = rint(x / scale) half to even in [-127, 127]; a group of zeros has scale 0, q 0. A group
     * with a NaN or infinity has scale NaN, q 0 (so that the result is NaN in every tier). */
    void (*quantize_q8)(const float *x, uint32_t n, int8_t *q, float *scale, int32_t *sum);

    /* y = x / sqrt(mean(x^2) + eps) * (w + offset); w NULL: y = x * r. x == y is allowed.
     * Order: 16-lane fmaf sum, r = 1.0f / sqrtf(sum / n + eps), y = (x * r) * (w + offset). */
    void (*rmsnorm)(const float *x, const float *w, float offset, float eps, uint32_t n, float *y);
    /* Rotates pairs (i, i + distance), i < n_pair <= distance, in place:
     * a' = fmaf(a, cos, -(b * sin)), b' = fmaf(b, cos, a * sin). */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t n_pair, uint32_t distance);
    /* out = act(gate) * up; up NULL: out = act(gate). out may be gate or up. */
    void (*act_mul)(enum vf_activation act, const float *gate, const float *up, uint32_t n,
                    float *out);
    /* y = fmaf(a, x, y) */
    void (*axpy)(float a, const float *x, uint32_t n, float *y);
    /* y = fmaf(w, x, y), element by element (flow couplings) */
    void (*mul_add)(const float *w, const float *x, uint32_t n, float *y);
    /* out = x + y */
    void (*add)(const float *x, const float *y, uint32_t n, float *out);
    /* x = x * a */
    void (*scale)(float a, uint32_t n, float *x);
    /* x = cap * tanh(x / cap) */
    void (*softcap)(float cap, uint32_t n, float *x);

    void (*attention_block)(const struct vf_attn_args *args);

    /* Softmax parts over n values: the maximum (-infinity for none, NaN if one is NaN), then
     * out = exp(x - max) with the sum returned. out may be x. */
    float (*max)(const float *x, uint32_t n);
    float (*exp_sum)(const float *x, float max, uint32_t n, float *out /* NULL: sum only */);
    /* out = (x - max) - log_sum. out may be x. */
    void (*log_softmax)(const float *x, float max, float log_sum, uint32_t n, float *out);
    /* out = log(exp(a) + exp(b)), a = x + x_add, b = y + y_add: larger + log(1 + exp(smaller -
     * larger)), where b is the larger if they're equal or one is a NaN; -infinity if both are. out
     * may be x or y. */
    void (*log_add_exp)(const float *x, float x_add, const float *y, float y_add, uint32_t n,
                        float *out);

    void (*f32_to_f16)(const float *x, uint32_t n, uint16_t *out);
    void (*f16_to_f32)(const uint16_t *x, uint32_t n, float *out);
};

enum vf_kernel_tier {
    VF_KERNEL_AUTO,
    VF_KERNEL_SCALAR,
    VF_KERNEL_AVX2,
    VF_KERNEL_AVX512,
    VF_KERNEL_AVX512_VNNI,
    VF_KERNEL_TIER_COUNT
};

static inline uint32_t vf_stripes_q8(const struct vf_kernels *k, uint32_t n_col)
{
    return n_col <= VF_STRIPES_COLS ? k->stripes_q8[n_col] : 1;
}

/* The table of a tier; AUTO picks the best this CPU (and OS) has. A tier the CPU lacks is
 * VF_ERR_UNSUPPORTED, naming what is missing, unless the environment variable
 * VFLOW_EMULATE_AVX512=1 is set and the build has the SIMDe-emulated tiers (tests only). */
enum vf_code vf_kernels_get(enum vf_kernel_tier tier, const struct vf_kernels **out,
                            struct vf_err *err);
/* "auto", "scalar", "avx2", "avx512", "vnni", NULL: option words in the order of the enum. */
extern const char *const vf_kernel_tier_words[];

/* Scalar functions of the same bits as the kernels, for the few places outside them. */
float vf_expf(float x);
float vf_logf(float x);
float vf_tanhf(float x);

#endif
