/* The words of lanes_panel.h on AVX2 registers of eight rows, two of them a record. */
#ifndef VF_COMMON_KERNELS_LANES_PANEL_AVX2_H
#define VF_COMMON_KERNELS_LANES_PANEL_AVX2_H

#include "common/kernels/lanes_avx2.h"
#include "common/tile/tile.h"

#include <stdbool.h>

#define PANEL_LANES 8u
/* 8 sums, 2 weights, a broadcast, a product and the ones fit the sixteen registers. */
#define PANEL_TILE_COLS 4u

typedef __m256i panel_ints;
typedef __m256 panel_floats;

static ALWAYS_INLINE panel_ints panel_ints_load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

static ALWAYS_INLINE panel_ints panel_ints_set(int32_t i)
{
    return _mm256_set1_epi32(i);
}

/* Keeps the sum where and when it is: left alone, GCC moves all additions of a record behind all
 * its products and spills those. */
static ALWAYS_INLINE panel_ints panel_pin(panel_ints v)
{
    __asm__("" : "+x"(v));
    return v;
}

static ALWAYS_INLINE panel_floats panel_floats_set(float f)
{
    return _mm256_set1_ps(f);
}

/* acc += float(dot) * (weight scales * activation scale) */
static ALWAYS_INLINE void panel_add_scaled(panel_ints dot, const float *weight_scale,
                                           panel_floats scale, float *acc)
{
    panel_floats both = _mm256_mul_ps(_mm256_load_ps(weight_scale), scale);
    _mm256_store_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, _mm256_load_ps(acc)));
}

/* Eight times four bytes as words: bytes 0 and 2 of each four, and bytes 1 and 3. */
static ALWAYS_INLINE void split_words(const uint8_t *p, __m256i *even, __m256i *odd)
{
    __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    *odd = _mm256_srai_epi16(bytes, 8);
}

static ALWAYS_INLINE bool panel_is_wide(enum vf_quant quant)
{
    return quant == VF_QUANT_Q8;
}

static ALWAYS_INLINE int32_t panel_start(enum vf_quant quant, int32_t sum)
{
    return quant == VF_QUANT_Q4 ? (uint16_t)(-8 * sum) : 0;
}

static ALWAYS_INLINE __m256i panel_step(enum vf_quant quant, __m256i dot, __m256i w, __m256i codes)
{
    if (quant == VF_QUANT_Q4)
        return panel_pin(_mm256_add_epi16(dot, _mm256_maddubs_epi16(w, codes)));
    return panel_pin(_mm256_add_epi32(dot, _mm256_madd_epi16(w, codes)));
}

static ALWAYS_INLINE __m256i panel_finish(enum vf_quant quant, __m256i dot)
{
    return quant == VF_QUANT_Q4 ? _mm256_madd_epi16(dot, _mm256_set1_epi16(1)) : dot;
}

static ALWAYS_INLINE void panel_copy_codes(enum vf_quant quant, const int8_t *q, int8_t *out)
{
    __m256i first, second;
    if (panel_is_wide(quant)) {
        split_words((const uint8_t *)q, &first, &second);
        _mm256_store_si256((__m256i *)(out + 32), second);
    } else {
        first = _mm256_loadu_si256((const __m256i *)q);
    }
    _mm256_store_si256((__m256i *)out, first);
}

/* 32 bytes of a record's body: eight rows times four columns of q8, or twice four of q4. */
static ALWAYS_INLINE void panel_unpack(enum vf_quant quant, const uint8_t *body, uint8_t *out)
{
    const __m256i fifteen = _mm256_set1_epi8(15);
    uint32_t half = quant == VF_QUANT_Q4 ? 256 : 512; /* from a byte's low part to its high one */
    for (uint32_t i = 0; i < half; i += 32) {
        __m256i low, high;
        if (quant == VF_QUANT_Q4) {
            __m256i pairs = _mm256_loadu_si256((const __m256i *)(body + i));
            low = _mm256_and_si256(pairs, fifteen);
            high = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), fifteen);
        } else {
            split_words(body + i, &low, &high);
        }
        _mm256_store_si256((__m256i *)(out + i), low);
        _mm256_store_si256((__m256i *)(out + half + i), high);
    }
}

#endif
