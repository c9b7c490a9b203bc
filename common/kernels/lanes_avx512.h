/* Sixteen float lanes as one AVX-512 register; the vocabulary of lanes_avx2.h.
 *
 * With VF_EMULATE_AVX512 defined the same intrinsics come from SIMDe.
 */
#ifndef VF_COMMON_KERNELS_LANES_AVX512_H
#define VF_COMMON_KERNELS_LANES_AVX512_H

#ifdef VF_EMULATE_AVX512
#include "common/kernels/simde_avx512.h"
#else
#include <immintrin.h>
#endif
#include <stdint.h>

/* For bodies that take their shape from a constant argument. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
/* For bodies that many such shapes share, which would otherwise be compiled once for each. */
#define NO_INLINE __attribute__((noinline))
#define LANES     16u

/* F32_COLS: activation columns whose chain of products fills the multipliers.
 * Attention: queries of one pass in registers, how many of a query's four chains of products run
 * side by side, and registers of lanes per query in a pass over the values.
 * The emulation has the same bodies in smaller shapes: the compiler takes minutes over these. */
#ifndef VF_EMULATE_AVX512
#define UNROLLED             _Pragma("GCC unroll 8")
#define F32_COLS             8u
#define ATTN_TILE            8u
#define SCORE_CHAINS(count)  ((count) <= 4 ? 4u : 2u)
#define VALUE_VECTORS_MAX    4u
#define VALUE_VECTORS(count) ((count) <= 4 ? 4u : 2u)
#else
#define UNROLLED
#define F32_COLS             4u
#define ATTN_TILE            4u
#define SCORE_CHAINS(count)  2u
#define VALUE_VECTORS_MAX    2u
#define VALUE_VECTORS(count) ((count) <= 2 ? 2u : 1u)
#endif

typedef __m512 lanes;
typedef __mmask16 lanes_mask;

static inline lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void lanes_store(float *p, lanes v)
{
    _mm512_storeu_ps(p, v);
}

static inline lanes lanes_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

static inline void lanes_store_f16(void *p, lanes v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline lanes lanes_set(float f)
{
    return _mm512_set1_ps(f);
}

static inline lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

static inline lanes lanes_sub(lanes a, lanes b)
{
    return _mm512_sub_ps(a, b);
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a * b - c, rounded once. */
static inline lanes lanes_fms(lanes a, lanes b, lanes c)
{
    return _mm512_fmsub_ps(a, b, c);
}

static inline lanes lanes_abs(lanes a)
{
    __m512i clear = _mm512_set1_epi32(0x7fffffff);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), clear));
}

static inline lanes lanes_negate(lanes a)
{
    __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), sign));
}

/* The magnitude of the first with the sign of a. */
static inline lanes lanes_copysign(lanes magnitude, lanes a)
{
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(lanes_abs(magnitude)), sign));
}

static inline lanes_mask lanes_less(lanes a, lanes b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline lanes_mask lanes_is_nan(lanes a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

/* Lanes with begin <= lane index < end; both at most 16. */
static inline lanes_mask lanes_between(uint32_t begin, uint32_t end)
{
    return (lanes_mask)((1u << end) - (1u << begin));
}

/* mask ? a : b */
static inline lanes lanes_select(lanes_mask mask, lanes a, lanes b)
{
    return _mm512_mask_blend_ps(mask, b, a);
}

/* The larger value, b when equal; a NaN in either wins. */
static inline lanes lanes_max(lanes a, lanes b)
{
    return lanes_select((lanes_mask)(lanes_less(b, a) | lanes_is_nan(a)), a, b);
}

/* The low integer bits of t, shifted to the exponent's place, added to the bits of p. */
static inline lanes lanes_add_exponent(lanes p, lanes t)
{
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
}

/* A float's bits less those of `low`, a positive one, as exponent and mantissa: returns the
 * mantissa upon the bits of low, *exponent what is left as a number. x is positive and normal. */
static inline lanes lanes_split_exponent(lanes x, lanes low, lanes *exponent)
{
    __m512i base = _mm512_castps_si512(low);
    __m512i shifted = _mm512_sub_epi32(_mm512_castps_si512(x), base);
    *exponent = _mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 23));
    __m512i mantissa = _mm512_and_si512(shifted, _mm512_set1_epi32(0x7fffff));
    return _mm512_castsi512_ps(_mm512_add_epi32(mantissa, base));
}

static inline __m256i lanes_upper_half(__m512i v)
{
    return _mm512_extracti64x4_epi64(v, 1);
}

/* Lanes fold 8, 4, 2, 1. */
static inline float lanes_fold_add(lanes v)
{
    __m256 upper = _mm256_castsi256_ps(lanes_upper_half(_mm512_castps_si512(v)));
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), upper);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Largest of the magnitudes as bits (unsigned order; NaN above infinity). */
static inline uint32_t lanes_largest_bits(lanes a, lanes b)
{
    __m512i m =
        _mm512_max_epi32(_mm512_castps_si512(lanes_abs(a)), _mm512_castps_si512(lanes_abs(b)));
    __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(m), lanes_upper_half(m));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

/* Stores rint(v) clipped to [-127, 127] as sixteen int8 and returns their sum. |v| < 2^31. */
static inline int32_t lanes_store_codes(int8_t *q, lanes v)
{
    __m512i codes = _mm512_cvtps_epi32(v);
    codes =
        _mm512_max_epi32(_mm512_min_epi32(codes, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(codes));
    __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(codes), lanes_upper_half(codes));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

/* From 64 nibble pairs at p (16 rows x 4 columns, and the columns 16 further) one column as
 * floats q - 8; shift is the nibble's place in a row's four bytes. */
static inline lanes lanes_load_nibbles(const uint8_t *p, int shift)
{
    __m512i v = _mm512_srlv_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(shift));
    v = _mm512_and_si512(v, _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(v, _mm512_set1_epi32(8)));
}

/* From 64 int8 at p (16 rows x 4 columns) column c of the four as floats. */
static inline lanes lanes_load_bytes(const uint8_t *p, int c)
{
    __m512i v = _mm512_sllv_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(24 - 8 * c));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24));
}

#endif
