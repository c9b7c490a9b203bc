/* The AVX2 kernels once more, without their prefetches, under another name. */
#include <immintrin.h>

#undef _mm_prefetch
#define _mm_prefetch(address, hint) ((void)(address))
#define __builtin_prefetch(...)     ((void)0)
#define vf_kernels_fill_avx2        bench_kernels_fill_no_prefetch

#include "common/kernels/kernels_avx2.c"
