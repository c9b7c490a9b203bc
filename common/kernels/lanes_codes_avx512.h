/* What the two AVX-512 tiers share for integer dot products: activation columns and scaling. */
#ifndef VF_COMMON_KERNELS_LANES_CODES_AVX512_H
#define VF_COMMON_KERNELS_LANES_CODES_AVX512_H

#include "common/kernels/lanes_avx512.h"
#include "common/kernels/lanes_walk.h"

#define SCALES_BYTES (2 * VF_RECORD_ROWS)

/* What one activation column brings to one record. */
struct codes {
    const int8_t *q; /* 32 of them */
    float scale;
    int32_t sum;
};

static inline struct codes codes_at(const struct span *span, uint32_t c, uint32_t i)
{
    const struct vf_acts *acts = span->acts;
    size_t col = span->col + c;
    size_t g = span->group + i;
    size_t group = col * (acts->stride / VF_RECORD_COLS) + g;
    return (struct codes){acts->q + col * acts->stride + g * VF_RECORD_COLS, acts->scale[group],
                          acts->sum[group]};
}

/* Four neighbouring codes in every lane. */
static inline __m512i four_codes(const int8_t *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

/* acc += float(dot) * (weight scales * activation scale) */
static inline void add_scaled(__m512i dot, lanes weight_scale, float scale, float *acc)
{
    lanes both = lanes_mul(weight_scale, lanes_set(scale));
    lanes_store(acc, lanes_fma(_mm512_cvtepi32_ps(dot), both, lanes_load(acc)));
}

/* The record's nibbles, columns 4j..4j+3 at j and 16+4j.. at 4 + j. */
static inline void unpack_nibble_bytes(const uint8_t *body, __m512i *w)
{
    __m512i fifteen = _mm512_set1_epi8(15);
    for (uint32_t j = 0; j < 4; j++) {
        __m512i pairs = _mm512_loadu_si512(body + 64 * j);
        w[j] = _mm512_and_si512(pairs, fifteen);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), fifteen);
    }
}

#endif
