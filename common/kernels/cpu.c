/* CPUID and XCR0: what this CPU can run and what the operating system saves on a switch. */
#include "common/kernels/kernels_tiers.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define XCR0_YMM 0x06u /* SSE and AVX state */
#define XCR0_ZMM 0xe6u /* and opmask, upper halves, upper sixteen registers */

static unsigned when(unsigned reg, unsigned bit, unsigned feature)
{
    return reg >> bit & 1u ? feature : 0;
}

/* Only valid where CPUID reports OSXSAVE. */
static unsigned read_xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static unsigned os_features(unsigned leaf1_ecx)
{
    if (!(leaf1_ecx & bit_OSXSAVE))
        return 0;
    unsigned xcr0 = read_xcr0();
    unsigned features = 0;
    if ((xcr0 & XCR0_YMM) == XCR0_YMM)
        features |= VF_CPU_OS_YMM;
    if ((xcr0 & XCR0_ZMM) == XCR0_ZMM)
        features |= VF_CPU_OS_ZMM;
    return features;
}

unsigned vf_cpu_features(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    unsigned features = os_features(c);
    features |= when(c, 12, VF_CPU_FMA) | when(c, 29, VF_CPU_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return features;
    features |= when(b, 5, VF_CPU_AVX2) | when(b, 16, VF_CPU_AVX512F);
    features |= when(b, 17, VF_CPU_AVX512DQ) | when(b, 30, VF_CPU_AVX512BW);
    features |= when(b, 31, VF_CPU_AVX512VL) | when(c, 11, VF_CPU_AVX512VNNI);
    return features;
}

#else

unsigned vf_cpu_features(void)
{
    return 0;
}

#endif

void vf_cpu_feature_names(unsigned features, char *text, size_t size)
{
    static const struct {
        unsigned feature;
        const char *name;
    } names[] = {
        {VF_CPU_AVX2, "avx2"},         {VF_CPU_FMA, "fma"},
        {VF_CPU_F16C, "f16c"},         {VF_CPU_AVX512F, "avx512f"},
        {VF_CPU_AVX512BW, "avx512bw"}, {VF_CPU_AVX512VL, "avx512vl"},
        {VF_CPU_AVX512DQ, "avx512dq"}, {VF_CPU_AVX512VNNI, "avx512vnni"},
        {VF_CPU_OS_YMM, "os-ymm"},     {VF_CPU_OS_ZMM, "os-zmm"},
    };
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!(features & names[i].feature) || used + strlen(names[i].name) + 2 > size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "", names[i].name);
    }
}
