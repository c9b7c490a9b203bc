/* The vector kernels: the scalar tier against double arithmetic, every other tier against the
 * scalar one to the bit, for all tails, both guard sides, NaN, infinities and extreme values.
 */
#include "kernel_test.h"

#define N_MAX 1040u

/* A kernel as a test sees it: inputs a, b, c of n floats, a parameter, one output of n floats
 * (raw bytes for other types) and one returned number. */
struct inputs {
    const float *a, *b, *c;
    float parameter;
    uint32_t n;
};
typedef float kernel_run(const struct vf_kernels *k, const struct inputs *in, float *out);

static float run_rmsnorm(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->rmsnorm(in->a, in->b, 1.0f, 1e-6f, in->n, out);
    return 0.0f;
}

static float run_rmsnorm_plain(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(*out)); /* in place */
    k->rmsnorm(out, NULL, 0.0f, 1e-5f, in->n, out);
    return 0.0f;
}

static float run_rope(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    uint32_t distance = in->n / 2;
    memcpy(out, in->a, in->n * sizeof(*out));
    k->rope(out, in->b, in->c, distance, in->n - distance);
    return 0.0f;
}

static float run_silu(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->act_mul(VF_ACT_SILU, in->a, in->b, in->n, out);
    return 0.0f;
}

static float run_gelu(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->b, in->n * sizeof(*out));
    k->act_mul(VF_ACT_GELU, in->a, out, in->n, out); /* out is up */
    return 0.0f;
}

static float run_gelu_tanh(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(*out));
    k->act_mul(VF_ACT_GELU_TANH, out, in->b, in->n, out); /* out is gate */
    return 0.0f;
}

static float run_relu2(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->act_mul(VF_ACT_RELU2, in->a, NULL, in->n, out);
    return 0.0f;
}

static float run_axpy(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->b, in->n * sizeof(*out));
    k->axpy(in->parameter, in->a, in->n, out);
    return 0.0f;
}

static float run_mul_add(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->c, in->n * sizeof(*out));
    k->mul_add(in->a, in->b, in->n, out);
    return 0.0f;
}

static float run_add(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->add(in->a, in->b, in->n, out);
    return 0.0f;
}

static float run_scale(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(*out));
    k->scale(in->parameter, in->n, out);
    return 0.0f;
}

static float run_softcap(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->a, in->n * sizeof(*out));
    k->softcap(fabsf(in->parameter) + 0.5f, in->n, out);
    return 0.0f;
}

static float run_max(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memset(out, 0, in->n * sizeof(*out));
    return k->max(in->a, in->n);
}

static float run_exp_sum(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    return k->exp_sum(in->a, in->parameter, in->n, out);
}

static float run_exp_sum_only(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memset(out, 0, in->n * sizeof(*out));
    return k->exp_sum(in->a, in->parameter, in->n, NULL);
}

static float run_log_softmax(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->log_softmax(in->a, in->parameter, 2.5f, in->n, out);
    return 0.0f;
}

static float run_log_add_exp(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    memcpy(out, in->b, in->n * sizeof(*out));
    k->log_add_exp(in->a, in->parameter, out, -0.5f, in->n, out);
    return 0.0f;
}

/* Halves go into the upper part of out, so that their end meets the guard page. */
static float run_f32_to_f16(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    uint16_t *half = (uint16_t *)out + in->n;
    memset(out, 0, in->n * sizeof(*out));
    k->f32_to_f16(in->a, in->n, half);
    for (uint32_t i = 0; i < in->n; i++) /* a NaN's payload is free */
        half[i] = (half[i] & 0x7fff) > 0x7c00 ? 0x7e00 : half[i];
    return 0.0f;
}

static float run_f16_to_f32(const struct vf_kernels *k, const struct inputs *in, float *out)
{
    k->f16_to_f32((const uint16_t *)in->a + in->n, in->n, out);
    return 0.0f;
}

static const struct {
    const char *name;
    kernel_run *run;
} kernels[] = {
    {"rmsnorm", run_rmsnorm},
    {"rmsnorm without weight, in place", run_rmsnorm_plain},
    {"rope", run_rope},
    {"silu", run_silu},
    {"gelu", run_gelu},
    {"gelu_tanh", run_gelu_tanh},
    {"relu2", run_relu2},
    {"axpy", run_axpy},
    {"mul_add", run_mul_add},
    {"add", run_add},
    {"scale", run_scale},
    {"softcap", run_softcap},
    {"max", run_max},
    {"exp_sum", run_exp_sum},
    {"exp_sum without output", run_exp_sum_only},
    {"log_softmax", run_log_softmax},
    {"log_add_exp in place", run_log_add_exp},
    {"f32_to_f16", run_f32_to_f16},
    {"f16_to_f32", run_f16_to_f32},
};
#define KERNEL_COUNT (sizeof(kernels) / sizeof(kernels[0]))

static bool same_bytes(const float *a, const float *b, uint32_t n, kernel_run *run)
{
    if (run == run_f32_to_f16)
        return memcmp(a, b, n * sizeof(*a)) == 0;
    return same_floats(a, b, n);
}

static bool tier_equals(const struct vf_kernels *scalar, const struct vf_kernels *tier,
                        kernel_run *run, uint32_t n, enum kind kind, enum guard side)
{
    static float a[N_MAX], b[N_MAX], c[N_MAX], wanted[N_MAX];
    rng_fill(a, n, kind);
    rng_fill(b, n, kind);
    rng_fill(c, n, kind);
    struct inputs in = {a, b, c, rng_value(kind), n};
    float wanted_value = run(scalar, &in, wanted);
    size_t bytes = n * sizeof(float);
    struct guarded ga = guarded_copy(a, bytes, side);
    struct guarded gb = guarded_copy(b, bytes, side);
    struct guarded gc = guarded_copy(c, bytes, side);
    struct guarded gout = guarded_alloc(bytes, side);
    struct inputs guarded_in = {ga.p, gb.p, gc.p, in.parameter, n};
    float value = run(tier, &guarded_in, gout.p);
    bool same = same_float(value, wanted_value) && same_bytes(gout.p, wanted, n, run);
    if (!same)
        note("n %u, kind %d, guard %d: %a and %a", n, (int)kind, (int)side, (double)value,
             (double)wanted_value);
    guarded_free(&ga);
    guarded_free(&gb);
    guarded_free(&gc);
    guarded_free(&gout);
    return same;
}

static void test_tier(const struct tiers *t, const struct vf_kernels *tier, size_t i)
{
    static const uint32_t long_n[] = {127, 128, 129, 255, 1000, 1039};
    bool same = true;
    for (int kind = 0; kind < KIND_COUNT && same; kind++)
        for (int side = 0; side < GUARD_COUNT && same; side++) {
            for (uint32_t n = 0; n <= 67 && same; n++)
                same = tier_equals(t->scalar, tier, kernels[i].run, n, kind, side);
            for (size_t j = 0; j < sizeof(long_n) / sizeof(long_n[0]) && same; j++)
                same = tier_equals(t->scalar, tier, kernels[i].run, long_n[j], kind, side);
        }
    ok(same, "%s: %s has the scalar bits", tier->name, kernels[i].name);
}

/* ---- quantize_q8 ---- */

struct quantized {
    int8_t q[N_MAX];
    float scale[N_MAX / 32];
    int32_t sum[N_MAX / 32];
};

static void fill_group(float *x, enum kind kind)
{
    rng_fill(x, 32, kind);
    if (rng_below(6) == 0)
        memset(x, 0, 32 * sizeof(*x));
    if (rng_below(4) == 0) { /* ties: multiples of half a step of exactly 1 */
        for (uint32_t i = 0; i < 32; i++)
            x[i] = (float)((int)rng_below(509) - 254) * 0.5f;
        x[rng_below(32)] = 127.0f;
    }
    if (rng_below(8) == 0) { /* subnormal scales of a few units, too coarse for 127 steps */
        for (uint32_t i = 0; i < 32; i++)
            x[i] = ldexpf((float)((int)rng_below(600) - 300), -149);
    }
}

static bool group_is_right(const float *x, const int8_t *q, float scale, int32_t sum)
{
    double largest = 0.0;
    bool finite = true;
    int32_t wanted_sum = 0;
    for (uint32_t i = 0; i < 32; i++) {
        finite &= isfinite(x[i]) != 0;
        largest = fmax(largest, fabs((double)x[i]));
        wanted_sum += q[i];
    }
    float wanted_scale = (float)largest / 127.0f;
    if (sum != wanted_sum || !same_float(scale, finite ? wanted_scale : NAN))
        return false;
    for (uint32_t i = 0; i < 32; i++) {
        bool zero = !finite || scale == 0.0f;
        double v = zero ? 0.0 : nearbyint((double)(x[i] / scale));
        if ((double)q[i] != fmin(127.0, fmax(-127.0, v)))
            return false;
    }
    return true;
}

static void test_quantize_scalar(const struct vf_kernels *k)
{
    bool right = true;
    static struct quantized out;
    for (int round = 0; round < 4000 && right; round++) {
        float x[32];
        fill_group(x, round % KIND_COUNT);
        k->quantize_q8(x, 32, out.q, out.scale, out.sum);
        right = group_is_right(x, out.q, out.scale[0], out.sum[0]);
    }
    ok(right, "scalar quantize_q8 follows its definition");
}

static bool quantize_equals(const struct tiers *t, const struct vf_kernels *tier, uint32_t n,
                            enum kind kind, enum guard side)
{
    static float x[N_MAX];
    static struct quantized wanted;
    uint32_t groups = n / 32;
    for (uint32_t g = 0; g < groups; g++)
        fill_group(x + 32 * g, kind);
    t->scalar->quantize_q8(x, n, wanted.q, wanted.scale, wanted.sum);
    struct guarded gx = guarded_copy(x, n * sizeof(*x), side);
    struct guarded gq = guarded_alloc(n, side);
    struct guarded gscale = guarded_alloc(groups * sizeof(float), side);
    struct guarded gsum = guarded_alloc(groups * sizeof(int32_t), side);
    tier->quantize_q8(gx.p, n, gq.p, gscale.p, gsum.p);
    bool same = memcmp(gq.p, wanted.q, n) == 0 && same_floats(gscale.p, wanted.scale, groups) &&
                memcmp(gsum.p, wanted.sum, groups * sizeof(int32_t)) == 0;
    guarded_free(&gx);
    guarded_free(&gq);
    guarded_free(&gscale);
    guarded_free(&gsum);
    return same;
}

static void test_quantize_tier(const struct tiers *t, const struct vf_kernels *tier)
{
    bool same = true;
    for (int round = 0; round < 400 && same; round++)
        same = quantize_equals(t, tier, 32 * rng_below(N_MAX / 32), round % KIND_COUNT,
                               round % GUARD_COUNT);
    ok(same, "%s: quantize_q8 has the scalar bits", tier->name);
}

/* ---- the scalar tier against double ---- */

static void test_scalar_rmsnorm(const struct vf_kernels *k)
{
    bool close = true;
    float x[100], w[100], y[100];
    for (uint32_t n = 1; n <= 100; n++) {
        rng_fill(x, n, KIND_PLAIN);
        rng_fill(w, n, KIND_PLAIN);
        double sum = 0.0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        double r = 1.0 / sqrt(sum / n + 1e-6);
        k->rmsnorm(x, w, 1.0f, 1e-6f, n, y);
        for (uint32_t i = 0; i < n; i++) {
            double wanted = (double)x[i] * r * ((double)w[i] + 1.0);
            close &= close_to(y[i], wanted, 1e-6 * (fabs(wanted) + 1e-3));
        }
    }
    ok(close, "scalar rmsnorm is rmsnorm");
}

static void test_scalar_rope(const struct vf_kernels *k)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    float cosine[3], sine[3];
    bool close = true;
    memcpy(y, x, sizeof(y));
    for (int i = 0; i < 3; i++) {
        cosine[i] = (float)cos(0.3 + i);
        sine[i] = (float)sin(0.3 + i);
    }
    k->rope(y, cosine, sine, 3, 4);
    for (int i = 0; i < 3; i++) {
        double c = cosine[i], s = sine[i], a = x[i], b = x[i + 4];
        close &= close_to(y[i], a * c - b * s, 1e-6) && close_to(y[i + 4], b * c + a * s, 1e-6);
    }
    ok(close && same_float(y[3], 4.0f) && same_float(y[7], 8.0f), "scalar rope rotates its pairs");
}

static void test_scalar_softmax(const struct vf_kernels *k)
{
    bool close = true;
    float x[100], y[100];
    for (uint32_t n = 1; n <= 100; n++) {
        rng_fill(x, n, KIND_PLAIN);
        double largest = -INFINITY, sum = 0.0;
        for (uint32_t i = 0; i < n; i++)
            largest = fmax(largest, (double)x[i]);
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)x[i] - largest);
        float max = k->max(x, n);
        float total = k->exp_sum(x, max, n, y);
        close &= (double)max == largest && close_to(total, sum, 2e-6 * sum);
        for (uint32_t i = 0; i < n; i++)
            close &= close_to(y[i], exp((double)x[i] - largest), 5e-7);
    }
    ok(close, "scalar max and exp_sum make a softmax");
    ok(same_float(k->max(x, 0), -INFINITY) && same_float(k->exp_sum(x, 0, 0, NULL), 0.0f),
       "neutral elements for no values");
    x[7] = NAN;
    ok(isnan(k->max(x, 30)) && isnan(k->exp_sum(x, 1.0f, 30, y)), "a NaN isn't lost");
}

static void test_scalar_elementwise(const struct vf_kernels *k)
{
    bool right = true;
    float x[50], y[50], w[50], out[50];
    rng_fill(x, 50, KIND_PLAIN);
    rng_fill(y, 50, KIND_PLAIN);
    rng_fill(w, 50, KIND_PLAIN);
    memcpy(out, y, sizeof(out));
    k->axpy(0.3f, x, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], (double)0.3f * x[i] + y[i], 1e-6);
    memcpy(out, y, sizeof(out));
    k->mul_add(w, x, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], (double)w[i] * x[i] + y[i], 2e-6);
    k->add(x, y, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], (double)x[i] + y[i], 1e-6);
    k->scale(-1.5f, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], -1.5 * ((double)x[i] + y[i]), 2e-6);
    memcpy(out, x, sizeof(out));
    k->softcap(2.5f, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], 2.5 * tanh((double)x[i] / 2.5), 2e-6);
    k->act_mul(VF_ACT_SILU, x, y, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], (double)x[i] / (1 + exp(-(double)x[i])) * y[i], 4e-6);
    k->log_softmax(x, 0.5f, 1.25f, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], (double)x[i] - 0.5 - 1.25, 1e-6);
    k->log_add_exp(x, -0.5f, y, 0.25f, 50, out);
    for (int i = 0; i < 50; i++)
        right &= close_to(out[i], log(exp((double)x[i] - 0.5) + exp((double)y[i] + 0.25)), 4e-6);
    ok(right, "scalar element-by-element kernels");
}

int main(void)
{
    struct tiers t = tiers_available();
    plan(7 + t.other_count * (1 + (int)KERNEL_COUNT));
    rng_seed(2);
    test_quantize_scalar(t.scalar);
    test_scalar_rmsnorm(t.scalar);
    test_scalar_rope(t.scalar);
    test_scalar_softmax(t.scalar);
    test_scalar_elementwise(t.scalar);
    for (int i = 0; i < t.other_count; i++) {
        test_quantize_tier(&t, t.other[i]);
        for (size_t j = 0; j < KERNEL_COUNT; j++)
            test_tier(&t, t.other[i], j);
    }
    return 0;
}
