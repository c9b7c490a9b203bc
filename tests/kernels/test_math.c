/* The project's exp, log, tanh, erf and activations against libm in double. */
#include "kernel_test.h"

#include "common/kernels/kernels_math.h"

/* |found - wanted| in units of wanted's last float place (that of the smallest normal below). */
static double ulps(float found, double wanted)
{
    int exponent;
    frexp(wanted, &exponent);
    if (wanted == 0.0 || exponent < -125)
        exponent = -125;
    return fabs((double)found - wanted) / ldexp(1.0, exponent - 24);
}

typedef float float_fn(float x);
typedef double double_fn(double x);

/* Every 509th float of [low, high]. */
static void check(const char *name, float_fn *found, double_fn *wanted, float low, float high,
                  double limit)
{
    double worst = 0.0;
    float where = 0.0f;
    for (uint64_t u = 0; u < 0xff800000u; u += 509) {
        float x = bits_to_float((uint32_t)u);
        if (!(x >= low && x <= high))
            continue;
        double e = ulps(found(x), wanted((double)x));
        if (!(e <= worst)) {
            worst = e;
            where = x;
        }
    }
    note("%s: %.3f ulp at %g", name, worst, (double)where);
    ok(worst <= limit, "%s within %.1f ulp on [%g, %g]", name, limit, (double)low, (double)high);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x * M_SQRT1_2));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double relu2(double x)
{
    return x > 0.0 ? x * x : 0.0;
}

static float act_at(const struct vf_kernels *k, enum vf_activation act, float x)
{
    float y;
    k->act_mul(act, &x, NULL, 1, &y);
    return y;
}

/* Absolute error, since 1 + erf and 1 + tanh cancel for negative x. */
static void check_activation(const struct vf_kernels *k, enum vf_activation act, const char *name,
                             double_fn *wanted)
{
    double worst = 0.0;
    for (float x = -30.0f; x <= 30.0f; x += 0.00137f) {
        double e = fabs((double)act_at(k, act, x) - wanted((double)x)) /
                   fmax(1.0, fabs(wanted((double)x)));
        if (!(e <= worst))
            worst = e;
    }
    note("%s: %.3g", name, worst);
    ok(worst <= 3e-7, "%s to float accuracy", name);
}

static void check_edges(const struct vf_kernels *k)
{
    ok(same_float(vf_expf(0.0f), 1.0f) && same_float(vf_expf(-0.0f), 1.0f), "exp(0) is 1");
    ok(same_float(vf_expf(-INFINITY), 0.0f) && same_float(vf_expf(-87.34f), 0.0f) &&
           same_float(vf_expf(-1e30f), 0.0f) && vf_expf(-87.33654f) >= 0x1p-126f,
       "exp underflows to 0, without subnormals");
    ok(same_float(vf_expf(INFINITY), INFINITY) && same_float(vf_expf(88.7228394f), INFINITY) &&
           same_float(vf_expf(3e38f), INFINITY) && isfinite(vf_expf(88.7228317f)),
       "exp overflows to infinity");
    ok(isnan(vf_expf(NAN)) && isnan(vf_logf(NAN)) && isnan(vf_tanhf(NAN)) &&
           isnan(vf_math_erf(NAN)),
       "NaN stays NaN");
    ok(same_float(vf_logf(0.0f), -INFINITY) && same_float(vf_logf(-0.0f), -INFINITY) &&
           isnan(vf_logf(-1.0f)) && same_float(vf_logf(INFINITY), INFINITY) &&
           same_float(vf_logf(1.0f), 0.0f),
       "log at its edges");
    ok(same_float(vf_tanhf(INFINITY), 1.0f) && same_float(vf_tanhf(-INFINITY), -1.0f) &&
           same_float(vf_tanhf(-0.0f), -0.0f) && same_float(vf_tanhf(1e30f), 1.0f),
       "tanh at its edges");
    ok(same_float(vf_math_erf(INFINITY), 1.0f) && same_float(vf_math_erf(-INFINITY), -1.0f) &&
           same_float(vf_math_erf(-0.0f), -0.0f) && same_float(vf_math_erf(-1e20f), -1.0f),
       "erf at its edges");
    ok(isnan(act_at(k, VF_ACT_SILU, NAN)) && isnan(act_at(k, VF_ACT_GELU, NAN)) &&
           isnan(act_at(k, VF_ACT_GELU_TANH, NAN)) && isnan(act_at(k, VF_ACT_RELU2, NAN)),
       "activations of NaN are NaN");
}

int main(void)
{
    plan(4 + 8 + 4);
    const struct vf_kernels *k = tiers_available().scalar;
    check("exp", vf_expf, exp, -87.33654f, 88.7228317f, 1.5);
    check("log", vf_logf, log, 0x1p-149f, 3.4028235e38f, 1.5);
    check("tanh", vf_tanhf, tanh, -3.4e38f, 3.4e38f, 2.0);
    check("erf", vf_math_erf, erf, -3.4e38f, 3.4e38f, 2.0);
    check_edges(k);
    check_activation(k, VF_ACT_SILU, "silu", silu);
    check_activation(k, VF_ACT_GELU, "gelu", gelu);
    check_activation(k, VF_ACT_GELU_TANH, "gelu_tanh", gelu_tanh);
    check_activation(k, VF_ACT_RELU2, "relu2", relu2);
    return 0;
}
