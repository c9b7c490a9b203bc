/* Builds the tables once per process and hands out the one that the CPU can run. */
#include "common/kernels/kernels.h"

#include "common/base/log.h"
#include "common/kernels/kernels_tiers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const char *const vf_kernel_tier_words[] = {"auto", "scalar", "avx2", "avx512", "vnni", NULL};

#define NEEDED_AVX2 (VF_CPU_AVX2 | VF_CPU_FMA | VF_CPU_F16C | VF_CPU_OS_YMM)
#define NEEDED_AVX512                                                                              \
    (NEEDED_AVX2 | VF_CPU_AVX512F | VF_CPU_AVX512BW | VF_CPU_AVX512VL | VF_CPU_AVX512DQ |          \
     VF_CPU_OS_ZMM)

static const unsigned needed_features[VF_KERNEL_TIER_COUNT] = {
    [VF_KERNEL_AVX2] = NEEDED_AVX2,
    [VF_KERNEL_AVX512] = NEEDED_AVX512,
    [VF_KERNEL_AVX512_VNNI] = NEEDED_AVX512 | VF_CPU_AVX512VNNI,
};

/* Filled by build_tables under the once, constant afterwards. */
static struct {
    pthread_once_t built, warned;
    unsigned features;
    struct vf_kernels tier[VF_KERNEL_TIER_COUNT];
    struct vf_kernels emulated[VF_KERNEL_TIER_COUNT];
} dispatch = {.built = PTHREAD_ONCE_INIT, .warned = PTHREAD_ONCE_INIT};

static unsigned missing_features(enum vf_kernel_tier tier)
{
    return needed_features[tier] & ~dispatch.features;
}

typedef void fill_fn(struct vf_kernels *table);

/* The fill functions are built with their tier's instructions and may use them. */
static void build_tier(enum vf_kernel_tier tier, enum vf_kernel_tier below, fill_fn *fill)
{
    if (missing_features(tier))
        return;
    dispatch.tier[tier] = dispatch.tier[below];
    fill(&dispatch.tier[tier]);
}

static void build_emulated(void)
{
#ifdef VF_KERNELS_EMULATED
    struct vf_kernels *emulated = dispatch.emulated;
    if (missing_features(VF_KERNEL_AVX2)) /* what the emulation is built for */
        return;
    emulated[VF_KERNEL_AVX512] = dispatch.tier[VF_KERNEL_SCALAR];
    vf_kernels_fill_avx512_emulated(&emulated[VF_KERNEL_AVX512]);
    emulated[VF_KERNEL_AVX512_VNNI] = emulated[VF_KERNEL_AVX512];
    vf_kernels_fill_avx512vnni_emulated(&emulated[VF_KERNEL_AVX512_VNNI]);
#endif
}

static void build_tables(void)
{
    dispatch.features = vf_cpu_features();
    vf_kernels_fill_scalar(&dispatch.tier[VF_KERNEL_SCALAR]);
#ifdef VF_KERNELS_X86
    build_tier(VF_KERNEL_AVX2, VF_KERNEL_SCALAR, vf_kernels_fill_avx2);
    build_tier(VF_KERNEL_AVX512, VF_KERNEL_SCALAR, vf_kernels_fill_avx512);
    build_tier(VF_KERNEL_AVX512_VNNI, VF_KERNEL_AVX512, vf_kernels_fill_avx512vnni);
#endif
    build_emulated();
}

static enum vf_kernel_tier best_tier(void)
{
    enum vf_kernel_tier tier = VF_KERNEL_AVX512_VNNI;
    while (tier > VF_KERNEL_SCALAR && missing_features(tier))
        tier--;
    return tier;
}

static void warn_emulated(void)
{
    vf_warn("AVX-512 kernels are emulated (VFLOW_EMULATE_AVX512=1): for tests, very slow");
}

static bool may_emulate(enum vf_kernel_tier tier)
{
    const char *wanted = getenv("VFLOW_EMULATE_AVX512");
    return dispatch.emulated[tier].name && wanted && strcmp(wanted, "1") == 0;
}

enum vf_code vf_kernels_get(enum vf_kernel_tier tier, const struct vf_kernels **out,
                            struct vf_err *err)
{
    if ((unsigned)tier >= VF_KERNEL_TIER_COUNT)
        return vf_err_set(err, VF_ERR_USAGE, "kernel tier %d: allowed are 0 to %d", (int)tier,
                          VF_KERNEL_TIER_COUNT - 1);
    pthread_once(&dispatch.built, build_tables);
    if (tier == VF_KERNEL_AUTO)
        tier = best_tier();
    if (!missing_features(tier)) {
        *out = &dispatch.tier[tier];
        return VF_OK;
    }
    if (may_emulate(tier)) {
        pthread_once(&dispatch.warned, warn_emulated);
        *out = &dispatch.emulated[tier];
        return VF_OK;
    }
    char names[160];
    vf_cpu_feature_names(missing_features(tier), names, sizeof(names));
    return vf_err_set(err, VF_ERR_UNSUPPORTED,
                      "kernel tier %s: this machine lacks %s; try --kernel auto",
                      vf_kernel_tier_words[tier], names);
}
