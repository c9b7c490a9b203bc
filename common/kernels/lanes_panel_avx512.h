/* The words of lanes_panel.h on AVX-512 registers of sixteen rows, a record each; two row blocks
 * share a broadcast. The tiers add the arithmetic.
 */
#ifndef VF_COMMON_KERNELS_LANES_PANEL_AVX512_H
#define VF_COMMON_KERNELS_LANES_PANEL_AVX512_H

#include "common/kernels/lanes_avx512.h"
#include "common/tile/tile.h"

#include <stdbool.h>

#define PANEL_LANES 16u
/* 16 sums, 2 weights, a broadcast, two products and the ones, of 32 registers. */
#ifndef VF_EMULATE_AVX512
#define PANEL_TILE_COLS 8u
#else
#define PANEL_TILE_COLS 4u
#endif
/* From a record's step to its next one: the other row block's lies between. */
#define STEP_BYTES 128u

typedef __m512i panel_ints;
typedef __m512 panel_floats;

static ALWAYS_INLINE panel_ints panel_ints_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

static ALWAYS_INLINE panel_ints panel_ints_set(int32_t i)
{
    return _mm512_set1_epi32(i);
}

/* Keeps the sum where and when it is, as in lanes_panel_avx2.h. */
static ALWAYS_INLINE panel_ints panel_pin(panel_ints v)
{
#ifndef VF_EMULATE_AVX512
    __asm__("" : "+v"(v));
#endif
    return v;
}

static ALWAYS_INLINE panel_floats panel_floats_set(float f)
{
    return _mm512_set1_ps(f);
}

/* acc += float(dot) * (weight scales * activation scale) */
static ALWAYS_INLINE void panel_add_scaled(panel_ints dot, const float *weight_scale,
                                           panel_floats scale, float *acc)
{
    panel_floats both = _mm512_mul_ps(_mm512_loadu_ps(weight_scale), scale);
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, _mm512_loadu_ps(acc)));
}

/* A q4 record's nibbles as bytes: the low ones are its first four steps. */
static ALWAYS_INLINE void panel_unpack_nibbles(const uint8_t *body, uint8_t *out)
{
    const __m512i fifteen = _mm512_set1_epi8(15);
    for (uint32_t j = 0; j < 4; j++) {
        __m512i pairs = _mm512_loadu_si512(body + 64 * j);
        _mm512_storeu_si512(out + j * STEP_BYTES, _mm512_and_si512(pairs, fifteen));
        _mm512_storeu_si512(out + (j + 4) * STEP_BYTES,
                            _mm512_and_si512(_mm512_srli_epi16(pairs, 4), fifteen));
    }
}

#endif
