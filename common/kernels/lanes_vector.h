/* The vector kernels of kernels.h over sixteen lanes.
 *
 * Included after lanes_avx2.h or lanes_avx512.h. Tails pass through a small array on the stack,
 * so that nothing outside the caller's ranges is touched.
 */
#ifndef VF_COMMON_KERNELS_LANES_VECTOR_H
#define VF_COMMON_KERNELS_LANES_VECTOR_H

#include "common/kernels/kernels.h"
#include "common/kernels/lanes_math.h"

/* How many of the sixteen lanes at i lie below n. */
static inline uint32_t lanes_left(uint32_t n, size_t i)
{
    return n - i < LANES ? (uint32_t)(n - i) : LANES;
}

static inline lanes lanes_load_part(const float *p, uint32_t count, float fill)
{
    if (count == LANES)
        return lanes_load(p);
    float part[LANES];
    for (uint32_t i = 0; i < LANES; i++)
        part[i] = i < count ? p[i] : fill;
    return lanes_load(part);
}

static inline lanes lanes_load_part_f16(const uint16_t *p, uint32_t count)
{
    if (count == LANES)
        return lanes_load_f16(p);
    uint16_t part[LANES] = {0};
    memcpy(part, p, count * sizeof(*p));
    return lanes_load_f16(part);
}

static inline void lanes_store_part(float *p, uint32_t count, lanes v)
{
    if (count == LANES) {
        lanes_store(p, v);
        return;
    }
    float part[LANES];
    lanes_store(part, v);
    memcpy(p, part, count * sizeof(*p));
}

static inline void lanes_store_part_f16(uint16_t *p, uint32_t count, lanes v)
{
    if (count == LANES) {
        lanes_store_f16(p, v);
        return;
    }
    uint16_t part[LANES];
    lanes_store_f16(part, v);
    memcpy(p, part, count * sizeof(*p));
}

static inline float lanes_fold_max(lanes v)
{
    float lane[LANES];
    lanes_store(lane, v);
    for (uint32_t width = LANES / 2; width > 0; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lane[i] = vf_math_max(lane[i], lane[i + width]);
    return lane[0];
}

static void quantize_group(const float *x, int8_t *q, float *scale, int32_t *sum)
{
    lanes low = lanes_load(x);
    lanes high = lanes_load(x + LANES);
    uint32_t largest = lanes_largest_bits(low, high);
    *sum = 0;
    *scale = largest >= 0x7f800000u ? NAN : vf_bits_float(largest) / 127.0f;
    if (*scale > 0.0f) {
        lanes divisor = lanes_set(*scale);
        *sum = lanes_store_codes(q, lanes_div(low, divisor));
        *sum += lanes_store_codes(q + LANES, lanes_div(high, divisor));
    } else {
        memset(q, 0, VF_RECORD_COLS);
    }
}

static void quantize_q8(const float *x, uint32_t n, int8_t *q, float *scale, int32_t *sum)
{
    for (size_t g = 0; g < n / VF_RECORD_COLS; g++)
        quantize_group(x + g * VF_RECORD_COLS, q + g * VF_RECORD_COLS, scale + g, sum + g);
}

static void rmsnorm(const float *x, const float *w, float offset, float eps, uint32_t n, float *y)
{
    lanes sum = lanes_zero();
    for (size_t i = 0; i < n; i += LANES) {
        lanes v = lanes_load_part(x + i, lanes_left(n, i), 0.0f);
        sum = lanes_fma(v, v, sum);
    }
    lanes r = lanes_set(1.0f / sqrtf(lanes_fold_add(sum) / (float)n + eps));
    lanes shift = lanes_set(offset);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_mul(lanes_load_part(x + i, count, 0.0f), r);
        if (w)
            v = lanes_mul(v, lanes_add(lanes_load_part(w + i, count, 0.0f), shift));
        lanes_store_part(y + i, count, v);
    }
}

static void rope(float *x, const float *cosine, const float *sine, uint32_t n_pair,
                 uint32_t distance)
{
    for (size_t i = 0; i < n_pair; i += LANES) {
        uint32_t count = lanes_left(n_pair, i);
        lanes c = lanes_load_part(cosine + i, count, 0.0f);
        lanes s = lanes_load_part(sine + i, count, 0.0f);
        lanes a = lanes_load_part(x + i, count, 0.0f);
        lanes b = lanes_load_part(x + i + distance, count, 0.0f);
        lanes_store_part(x + i, count, lanes_fms(a, c, lanes_mul(b, s)));
        lanes_store_part(x + i + distance, count, lanes_fma(b, c, lanes_mul(a, s)));
    }
}

static void act_mul(enum vf_activation act, const float *gate, const float *up, uint32_t n,
                    float *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_activate(act, lanes_load_part(gate + i, count, 0.0f));
        if (up)
            v = lanes_mul(v, lanes_load_part(up + i, count, 0.0f));
        lanes_store_part(out + i, count, v);
    }
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    lanes factor = lanes_set(a);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_load_part(y + i, count, 0.0f);
        v = lanes_fma(factor, lanes_load_part(x + i, count, 0.0f), v);
        lanes_store_part(y + i, count, v);
    }
}

static void mul_add(const float *w, const float *x, uint32_t n, float *y)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_load_part(y + i, count, 0.0f);
        lanes factor = lanes_load_part(w + i, count, 0.0f);
        v = lanes_fma(factor, lanes_load_part(x + i, count, 0.0f), v);
        lanes_store_part(y + i, count, v);
    }
}

static void add(const float *x, const float *y, uint32_t n, float *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_load_part(x + i, count, 0.0f);
        lanes_store_part(out + i, count, lanes_add(v, lanes_load_part(y + i, count, 0.0f)));
    }
}

static void scale_by(float a, uint32_t n, float *x)
{
    lanes factor = lanes_set(a);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes_store_part(x + i, count, lanes_mul(lanes_load_part(x + i, count, 0.0f), factor));
    }
}

static void softcap(float cap, uint32_t n, float *x)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes_store_part(x + i, count, lanes_softcap(cap, lanes_load_part(x + i, count, 0.0f)));
    }
}

static float max_of(const float *x, uint32_t n)
{
    lanes max = lanes_set(-INFINITY);
    for (size_t i = 0; i < n; i += LANES)
        max = lanes_max(max, lanes_load_part(x + i, lanes_left(n, i), -INFINITY));
    return lanes_fold_max(max);
}

static float exp_sum(const float *x, float max, uint32_t n, float *out)
{
    lanes sum = lanes_zero();
    lanes shift = lanes_set(max);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes e = lanes_exp(lanes_sub(lanes_load_part(x + i, count, -INFINITY), shift));
        e = lanes_select(lanes_between(0, count), e, lanes_zero());
        sum = lanes_add(sum, e);
        if (out)
            lanes_store_part(out + i, count, e);
    }
    return lanes_fold_add(sum);
}

static void log_softmax(const float *x, float max, float log_sum, uint32_t n, float *out)
{
    lanes shift = lanes_set(max), norm = lanes_set(log_sum);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes v = lanes_load_part(x + i, count, 0.0f);
        lanes_store_part(out + i, count, lanes_sub(lanes_sub(v, shift), norm));
    }
}

static void log_add_exp(const float *x, float x_add, const float *y, float y_add, uint32_t n,
                        float *out)
{
    lanes lowest = lanes_set(-INFINITY), one = lanes_set(1.0f);
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes a = lanes_add(lanes_load_part(x + i, count, 0.0f), lanes_set(x_add));
        lanes b = lanes_add(lanes_load_part(y + i, count, 0.0f), lanes_set(y_add));
        lanes_mask first = lanes_less(b, a);
        lanes larger = lanes_select(first, a, b);
        lanes d = lanes_sub(lanes_select(first, b, a), larger);
        d = lanes_select(lanes_less(lowest, larger), d, lowest);
        lanes_store_part(out + i, count,
                         lanes_add(larger, lanes_log(lanes_add(one, lanes_exp(d)))));
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes_store_part_f16(out + i, count, lanes_load_part(x + i, count, 0.0f));
    }
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        uint32_t count = lanes_left(n, i);
        lanes_store_part(out + i, count, lanes_load_part_f16(x + i, count));
    }
}

static void fill_vector_kernels(struct vf_kernels *table)
{
    table->quantize_q8 = quantize_q8;
    table->rmsnorm = rmsnorm;
    table->rope = rope;
    table->act_mul = act_mul;
    table->axpy = axpy;
    table->mul_add = mul_add;
    table->add = add;
    table->scale = scale_by;
    table->softcap = softcap;
    table->max = max_of;
    table->exp_sum = exp_sum;
    table->log_softmax = log_softmax;
    table->log_add_exp = log_add_exp;
    table->f32_to_f16 = f32_to_f16;
    table->f16_to_f32 = f16_to_f32;
}

#endif
