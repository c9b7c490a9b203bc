/* kernels_math.h on sixteen lanes: the same steps with the same constants, one for one.
 *
 * Included after lanes_avx2.h or lanes_avx512.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_MATH_H
#define VF_COMMON_KERNELS_LANES_MATH_H

#include "common/kernels/kernels_math.h"

/* c[0] x^(n-1) + ... + c[n-1] */
static inline lanes lanes_poly(const float *c, int n, lanes x)
{
    lanes p = lanes_set(c[0]);
    for (int i = 1; i < n; i++)
        p = lanes_fma(p, x, lanes_set(c[i]));
    return p;
}

static inline lanes lanes_exp(lanes x)
{
    lanes magic = lanes_set(VF_ROUND_MAGIC);
    lanes t = lanes_fma(x, lanes_set(VF_LOG2_E), magic);
    lanes n = lanes_sub(t, magic);
    lanes r = lanes_fma(n, lanes_set(-VF_LN2_HIGH), x);
    r = lanes_fma(n, lanes_set(-VF_LN2_LOW), r);
    lanes p = lanes_poly(vf_exp_poly, 6, r);
    p = lanes_add(lanes_fma(p, lanes_mul(r, r), r), lanes_set(1.0f));
    lanes y = lanes_add_exponent(p, t);
    y = lanes_select(lanes_less(x, lanes_set(VF_EXP_LOWEST)), lanes_zero(), y);
    y = lanes_select(lanes_less(lanes_set(VF_EXP_HIGHEST), x), lanes_set(INFINITY), y);
    return lanes_select(lanes_is_nan(x), x, y);
}

static inline lanes lanes_log(lanes x)
{
    lanes zero = lanes_zero(), infinity = lanes_set(INFINITY);
    lanes_mask subnormal = lanes_less(x, lanes_set(0x1p-126f));
    lanes m = lanes_select(subnormal, lanes_mul(x, lanes_set(0x1p23f)), x), e;
    m = lanes_split_exponent(m, lanes_set(VF_SQRT_HALF), &e);
    e = lanes_add(lanes_select(subnormal, lanes_set(-23.0f), zero), e);
    lanes f = lanes_sub(m, lanes_set(1.0f));
    lanes z = lanes_mul(f, f);
    lanes y = lanes_mul(lanes_mul(lanes_poly(vf_log_poly, 9, f), f), z);
    y = lanes_fma(e, lanes_set(VF_LN2_LOW), y);
    y = lanes_fma(lanes_set(-0.5f), z, y);
    y = lanes_fma(e, lanes_set(VF_LN2_HIGH), lanes_add(f, y));
    y = lanes_select(lanes_less(x, infinity), y, infinity);
    y = lanes_select(lanes_less(zero, x), y, lanes_negate(infinity)); /* zero */
    y = lanes_select(lanes_less(x, zero), lanes_set(NAN), y);
    return lanes_select(lanes_is_nan(x), x, y);
}

static inline lanes lanes_tanh(lanes x)
{
    lanes one = lanes_set(1.0f);
    lanes a = lanes_abs(x);
    lanes z = lanes_mul(x, x);
    lanes p = lanes_poly(vf_tanh_poly, 5, z);
    lanes small = lanes_fma(lanes_mul(p, z), x, x);
    lanes e = lanes_add(lanes_exp(lanes_add(a, a)), one);
    lanes large = lanes_sub(one, lanes_div(lanes_set(2.0f), e));
    return lanes_copysign(lanes_select(lanes_less(a, lanes_set(VF_TANH_SMALL)), small, large), x);
}

static inline lanes lanes_erf(lanes x)
{
    lanes t = lanes_abs(x);
    lanes s = lanes_mul(x, x);
    lanes small = lanes_fma(lanes_poly(vf_erf_poly, 6, s), x, x);
    lanes high = lanes_poly(vf_erfc_poly, 2, t);
    lanes low = lanes_poly(vf_erfc_poly + 2, 2, t);
    lanes r = lanes_fma(high, s, low);
    for (int i = 4; i < 7; i++)
        r = lanes_fma(r, t, lanes_set(vf_erfc_poly[i]));
    r = lanes_fms(r, t, t);
    lanes large = lanes_sub(lanes_set(1.0f), lanes_exp(r));
    return lanes_select(lanes_less(t, lanes_set(VF_ERF_SMALL)), small, lanes_copysign(large, x));
}

static inline lanes lanes_silu(lanes x)
{
    return lanes_div(x, lanes_add(lanes_set(1.0f), lanes_exp(lanes_negate(x))));
}

static inline lanes lanes_gelu(lanes x)
{
    lanes e = lanes_erf(lanes_mul(x, lanes_set(VF_SQRT_HALF)));
    return lanes_mul(lanes_mul(lanes_set(0.5f), x), lanes_add(lanes_set(1.0f), e));
}

static inline lanes lanes_gelu_tanh(lanes x)
{
    lanes cube = lanes_mul(lanes_mul(x, x), x);
    lanes sum = lanes_fma(lanes_set(VF_GELU_CUBIC), cube, x);
    lanes e = lanes_tanh(lanes_mul(lanes_set(VF_GELU_OUTER), sum));
    return lanes_mul(lanes_mul(lanes_set(0.5f), x), lanes_add(lanes_set(1.0f), e));
}

static inline lanes lanes_relu2(lanes x)
{
    lanes r = lanes_select(lanes_less(x, lanes_zero()), lanes_zero(), x);
    return lanes_mul(r, r);
}

static inline lanes lanes_activate(enum vf_activation act, lanes x)
{
    switch (act) {
    case VF_ACT_SILU:
        return lanes_silu(x);
    case VF_ACT_GELU:
        return lanes_gelu(x);
    case VF_ACT_GELU_TANH:
        return lanes_gelu_tanh(x);
    default:
        return lanes_relu2(x);
    }
}

static inline lanes lanes_softcap(float cap, lanes x)
{
    return lanes_mul(lanes_set(cap), lanes_tanh(lanes_div(x, lanes_set(cap))));
}

#endif
