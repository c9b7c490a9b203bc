/* vf_kernels_get: which table a tier word gives, and what is said where it can't be had. */
#include "kernel_test.h"

#include "common/kernels/kernels_tiers.h"

static bool table_is_complete(const struct vf_kernels *k)
{
    for (int quant = 0; quant < VF_QUANT_COUNT; quant++)
        if (!k->matmul_f32[quant] || !k->matmul_q8[quant])
            return false;
    return k->name && k->quantize_q8 && k->rmsnorm && k->rope && k->act_mul && k->axpy &&
           k->mul_add && k->add && k->scale && k->softcap && k->attention_block && k->max &&
           k->exp_sum && k->f32_to_f16 && k->f16_to_f32;
}

static void test_tier(enum vf_kernel_tier tier, const char *native, const char *emulated)
{
    const struct vf_kernels *k = NULL;
    struct vf_err err = {0};
    unsetenv("VFLOW_EMULATE_AVX512");
    if (vf_kernels_get(tier, &k, &err) == VF_OK)
        ok(table_is_complete(k) && strcmp(k->name, native) == 0, "%s is native", native);
    else
        ok(err.code == VF_ERR_UNSUPPORTED && strstr(err.text, "lacks "), "%s", err.text);
    bool had = k != NULL;
    setenv("VFLOW_EMULATE_AVX512", "1", 1);
    k = NULL;
    if (vf_kernels_get(tier, &k, &err) == VF_OK)
        ok(table_is_complete(k) && strcmp(k->name, had ? native : emulated) == 0, "%s", k->name);
    else
        ok(!had && err.code == VF_ERR_UNSUPPORTED, "%s", err.text);
}

int main(void)
{
    const struct vf_kernels *k = NULL;
    struct vf_err err = {0};
    char names[160], two[5];
    plan(11);
    ok(vf_kernels_get(VF_KERNEL_AUTO, &k, &err) == VF_OK && table_is_complete(k), "auto is %s",
       k ? k->name : err.text);
    ok(!strstr(k->name, "emulated"), "auto is never emulated");
    ok(vf_kernels_get(VF_KERNEL_SCALAR, &k, &err) == VF_OK && strcmp(k->name, "scalar") == 0,
       "scalar is everywhere");
    test_tier(VF_KERNEL_AVX2, "avx2", "none");
    test_tier(VF_KERNEL_AVX512, "avx512", "avx512-emulated");
    test_tier(VF_KERNEL_AVX512_VNNI, "avx512vnni", "avx512vnni-emulated");
    ok(vf_kernels_get(VF_KERNEL_TIER_COUNT, &k, &err) == VF_ERR_USAGE, "%s", err.text);
    vf_cpu_feature_names(VF_CPU_AVX2 | VF_CPU_OS_ZMM, names, sizeof(names));
    vf_cpu_feature_names(~0u, two, sizeof(two));
    ok(strcmp(names, "avx2 os-zmm") == 0 && strlen(two) < sizeof(two), "features by name");
    return 0;
}
