/* What the dot products of both AVX-512 tiers are made of. */
#ifndef VF_COMMON_KERNELS_LANES_CODES_AVX512_H
#define VF_COMMON_KERNELS_LANES_CODES_AVX512_H

#include "common/kernels/lanes_avx512.h"

#include <string.h>

/* Four neighbouring codes in every lane. */
static ALWAYS_INLINE __m512i four_codes(const int8_t *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

/* The record's nibbles, columns 4j..4j+3 at j and 16+4j.. at 4 + j. */
static ALWAYS_INLINE void unpack_nibble_bytes(const uint8_t *body, __m512i *w)
{
    __m512i fifteen = _mm512_set1_epi8(15);
    for (uint32_t j = 0; j < 4; j++) {
        __m512i pairs = _mm512_loadu_si512(body + 64 * j);
        w[j] = _mm512_and_si512(pairs, fifteen);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), fifteen);
    }
}

#endif
