/* What the tiers give to dispatch.c; nobody else includes this.
 *
 * Each vf_kernels_fill_* overrides the entries it has in a table that a lower tier filled, so
 * the order is scalar, avx2 | avx512, avx512vnni. The *_emulated ones are the same sources
 * compiled through SIMDe.
 */
#ifndef VF_COMMON_KERNELS_KERNELS_TIERS_H
#define VF_COMMON_KERNELS_KERNELS_TIERS_H

#include "common/kernels/kernels.h"

void vf_kernels_fill_scalar(struct vf_kernels *table);
void vf_kernels_fill_avx2(struct vf_kernels *table);
void vf_kernels_fill_avx512(struct vf_kernels *table);
void vf_kernels_fill_avx512vnni(struct vf_kernels *table);
void vf_kernels_fill_avx512_emulated(struct vf_kernels *table);
void vf_kernels_fill_avx512vnni_emulated(struct vf_kernels *table);

/* Where a query is and which keys of the block count for it. */
static inline const float *vf_attn_query(const struct vf_attn_args *a, uint32_t query)
{
    uint32_t heads = a->heads ? a->heads : a->n_q;
    return a->q + query / heads * a->q_column_stride + query % heads * a->q_stride;
}

static inline struct vf_attn_keys vf_attn_keys_of(const struct vf_attn_args *a, uint32_t query)
{
    struct vf_attn_keys keys = {a->key_begin, a->key_end};
    if (a->keys)
        keys = a->keys[a->heads ? query / a->heads : 0];
    VF_ASSERT(keys.begin < keys.end && keys.end <= VF_ATTN_BLOCK);
    return keys;
}

/* Instruction sets that the CPU has and whose registers the OS saves (XCR0). */
enum vf_cpu_feature {
    VF_CPU_AVX2 = 1 << 0,
    VF_CPU_FMA = 1 << 1,
    VF_CPU_F16C = 1 << 2,
    VF_CPU_AVX512F = 1 << 3,
    VF_CPU_AVX512BW = 1 << 4,
    VF_CPU_AVX512VL = 1 << 5,
    VF_CPU_AVX512DQ = 1 << 6,
    VF_CPU_AVX512VNNI = 1 << 7,
    VF_CPU_OS_YMM = 1 << 8,
    VF_CPU_OS_ZMM = 1 << 9,
};

/* Bits of enum vf_cpu_feature; 0 on a CPU that isn't x86-64. */
unsigned vf_cpu_features(void);
/* The names of the features in the set, separated by spaces, into text[0..size). */
void vf_cpu_feature_names(unsigned features, char *text, size_t size);

#endif
