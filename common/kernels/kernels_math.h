/* exp, log, tanh, erf and the activations as fixed sequences of float operations.
 *
 * Every multiplication that is fused says fmaf; nothing else may be fused or reordered. The
 * vector tiers (lanes_math.h) repeat these steps lane by lane with the same constants, so that
 * all tiers return the same bits. Largest errors, against the exact result in units of the last
 * place: exp 1.5, log 1.5, tanh 2, erf 2 (tests/kernels/test_math.c holds them to it).
 * Edges: exp is 0 below -87.33654 (no subnormal results) and infinity above 88.72283; log(0) is
 * -infinity, log of a negative number NaN; NaN gives NaN everywhere.
 */
#ifndef VF_COMMON_KERNELS_KERNELS_MATH_H
#define VF_COMMON_KERNELS_KERNELS_MATH_H

#include "common/model/config.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, half to even; the sum's low mantissa
 * bits hold that integer. */
#define VF_ROUND_MAGIC 12582912.0f
#define VF_LOG2_E      1.44269504f
#define VF_LN2_HIGH    0.693359375f /* 9 bits, so that n * high is exact */
#define VF_LN2_LOW     -2.12194440e-4f

#define VF_EXP_LOWEST  -87.33654f   /* ln(2^-126): below it the result would be subnormal */
#define VF_EXP_HIGHEST 88.7228317f  /* the largest float whose exp is finite */
#define VF_TANH_SMALL  0.625f       /* below it a polynomial, above it exp */
#define VF_ERF_SMALL   0.927734375f /* likewise */
#define VF_SQRT_HALF   0.707106781f /* sqrt(1/2) */
#define VF_GELU_OUTER  0.797884561f /* sqrt(2 / pi) */
#define VF_GELU_CUBIC  0.044715f

/* Highest power first. */
static const float vf_exp_poly[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
static const float vf_log_poly[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                     -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                     2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
static const float vf_tanh_poly[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                      1.33314422036e-1f, -3.33332819422e-1f};
static const float vf_erf_poly[6] = {-5.96761703e-4f, 4.99119423e-3f,  -2.67681349e-2f,
                                     1.12819925e-1f,  -3.76125336e-1f, 1.28379166e-1f};
/* ln(1 - erf(t)) + t for t above VF_ERF_SMALL: the first two steps run side by side. */
static const float vf_erfc_poly[7] = {-1.72853470e-5f, 3.83197126e-4f,  -3.88396438e-3f,
                                      2.42546219e-2f,  -1.06777877e-1f, -6.34846687e-1f,
                                      -1.28717512e-1f};

static inline uint32_t vf_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float vf_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* exp(r) * 2^n with x = n ln 2 + r; n goes straight into the exponent bits. */
static inline float vf_math_exp(float x)
{
    float t = fmaf(x, VF_LOG2_E, VF_ROUND_MAGIC);
    float n = t - VF_ROUND_MAGIC;
    float r = fmaf(n, -VF_LN2_HIGH, x);
    r = fmaf(n, -VF_LN2_LOW, r);
    float p = vf_exp_poly[0];
    for (int i = 1; i < 6; i++)
        p = fmaf(p, r, vf_exp_poly[i]);
    p = fmaf(p, r * r, r) + 1.0f;
    float y = vf_bits_float(vf_float_bits(p) + (vf_float_bits(t) << 23));
    y = x < VF_EXP_LOWEST ? 0.0f : y;
    y = x > VF_EXP_HIGHEST ? INFINITY : y;
    return x != x ? x : y;
}

/* x = m 2^e with m in [sqrt(1/2), sqrt(2)). */
static inline float vf_math_log(float x)
{
    if (!(x > 0.0f))
        return x == 0.0f ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    float e = 0.0f;
    if (x < 0x1p-126f) { /* subnormal */
        x *= 0x1p23f;
        e = -23.0f;
    }
    uint32_t bits = vf_float_bits(x);
    uint32_t shifted = bits - vf_float_bits(VF_SQRT_HALF);
    e += (float)((int32_t)shifted >> 23);
    float f = vf_bits_float((shifted & 0x7fffffu) + vf_float_bits(VF_SQRT_HALF)) - 1.0f;
    float z = f * f;
    float p = vf_log_poly[0];
    for (int i = 1; i < 9; i++)
        p = fmaf(p, f, vf_log_poly[i]);
    float y = p * f * z;
    y = fmaf(e, VF_LN2_LOW, y);
    y = fmaf(-0.5f, z, y);
    return fmaf(e, VF_LN2_HIGH, f + y);
}

static inline float vf_math_tanh(float x)
{
    float a = fabsf(x);
    float z = x * x;
    float p = vf_tanh_poly[0];
    for (int i = 1; i < 5; i++)
        p = fmaf(p, z, vf_tanh_poly[i]);
    float small = fmaf(p * z, x, x);
    float large = 1.0f - 2.0f / (vf_math_exp(a + a) + 1.0f);
    return copysignf(a < VF_TANH_SMALL ? small : large, x); /* small loses the sign of -0 */
}

static inline float vf_math_erf(float x)
{
    float t = fabsf(x);
    float s = x * x;
    float p = vf_erf_poly[0];
    for (int i = 1; i < 6; i++)
        p = fmaf(p, s, vf_erf_poly[i]);
    float small = fmaf(p, x, x);

    float high = fmaf(vf_erfc_poly[0], t, vf_erfc_poly[1]);
    float low = fmaf(vf_erfc_poly[2], t, vf_erfc_poly[3]);
    float r = fmaf(high, s, low);
    for (int i = 4; i < 7; i++)
        r = fmaf(r, t, vf_erfc_poly[i]);
    r = fmaf(r, t, -t);
    float large = 1.0f - vf_math_exp(r);
    return t < VF_ERF_SMALL ? small : copysignf(large, x);
}

static inline float vf_math_silu(float x)
{
    return x / (1.0f + vf_math_exp(-x));
}

static inline float vf_math_gelu(float x)
{
    return (0.5f * x) * (1.0f + vf_math_erf(x * VF_SQRT_HALF));
}

static inline float vf_math_gelu_tanh(float x)
{
    float cube = (x * x) * x;
    float inner = VF_GELU_OUTER * fmaf(VF_GELU_CUBIC, cube, x);
    return (0.5f * x) * (1.0f + vf_math_tanh(inner));
}

static inline float vf_math_relu2(float x)
{
    float r = x < 0.0f ? 0.0f : x;
    return r * r;
}

static inline float vf_math_activate(enum vf_activation act, float x)
{
    switch (act) {
    case VF_ACT_SILU:
        return vf_math_silu(x);
    case VF_ACT_GELU:
        return vf_math_gelu(x);
    case VF_ACT_GELU_TANH:
        return vf_math_gelu_tanh(x);
    default:
        return vf_math_relu2(x);
    }
}

/* The larger value; a NaN wins, so that it can't vanish in a maximum. */
static inline float vf_math_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

#endif
