/* The AVX2 kernels compiled without software prefetch (prefetch_off.c). */
#ifndef VF_BENCH_COMPUTE_PREFETCH_H
#define VF_BENCH_COMPUTE_PREFETCH_H

#include "common/kernels/kernels.h"

#include <stdbool.h>

void bench_kernels_fill_no_prefetch(struct vf_kernels *table);

/* Overrides what they have in a table of the AVX2 tier; false where this build has none. */
static inline bool bench_kernels_without_prefetch(struct vf_kernels *table)
{
#ifdef __x86_64__
    bench_kernels_fill_no_prefetch(table);
    return true;
#else
    (void)table;
    return false;
#endif
}

#endif
