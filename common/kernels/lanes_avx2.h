/* Sixteen float lanes as two AVX2 registers; lane i of the contract is lane i here.
 *
 * The vocabulary of the lanes_*.h bodies: each operation does to every lane what the scalar
 * specification does to one number. lanes_avx512.h has the same names on one register.
 */
#ifndef VF_COMMON_KERNELS_LANES_AVX2_H
#define VF_COMMON_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* For bodies that take their shape from a constant argument. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
/* For bodies that many such shapes share, which would otherwise be compiled once for each. */
#define NO_INLINE __attribute__((noinline))
#define LANES     16u
#define UNROLLED  _Pragma("GCC unroll 8")
/* Activation columns whose chain of products fills the multipliers. */
#define F32_COLS 4u
/* Attention: queries of one pass in registers, how many of a query's four chains of products run
 * side by side, and registers of lanes per query in a pass over the values. */
#define ATTN_TILE            4u
#define SCORE_CHAINS(count)  ((count) == 1 ? 4u : (count) <= 3 ? 2u : 1u)
#define VALUE_VECTORS_MAX    4u
#define VALUE_VECTORS(count) ((count) == 1 ? 4u : (count) <= 3 ? 2u : 1u)

typedef struct {
    __m256 lo, hi;
} lanes;

typedef lanes lanes_mask; /* all bits of a lane, or none */

static inline lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void lanes_store(float *p, lanes v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

static inline lanes lanes_load_f16(const void *p)
{
    const __m128i *h = p;
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

static inline void lanes_store_f16(void *p, lanes v)
{
    __m128i *h = p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline lanes lanes_set(float f)
{
    return (lanes){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

static inline lanes lanes_zero(void)
{
    return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return (lanes){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline lanes lanes_sub(lanes a, lanes b)
{
    return (lanes){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return (lanes){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return (lanes){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

/* a * b + c, rounded once. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

/* a * b - c, rounded once. */
static inline lanes lanes_fms(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}

static inline lanes lanes_abs(lanes a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

static inline lanes lanes_negate(lanes a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes){_mm256_xor_ps(sign, a.lo), _mm256_xor_ps(sign, a.hi)};
}

/* The magnitude of the first with the sign of a. */
static inline lanes lanes_copysign(lanes magnitude, lanes a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes){_mm256_or_ps(_mm256_andnot_ps(sign, magnitude.lo), _mm256_and_ps(sign, a.lo)),
                   _mm256_or_ps(_mm256_andnot_ps(sign, magnitude.hi), _mm256_and_ps(sign, a.hi))};
}

static inline lanes_mask lanes_less(lanes a, lanes b)
{
    return (lanes){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}

static inline lanes_mask lanes_is_nan(lanes a)
{
    return (lanes){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q),
                   _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}

/* Lanes with begin <= lane index < end. */
static inline lanes_mask lanes_between(uint32_t begin, uint32_t end)
{
    __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
    __m256i first = _mm256_set1_epi32((int)begin);
    __m256i last = _mm256_set1_epi32((int)end);
    lo = _mm256_andnot_si256(_mm256_cmpgt_epi32(first, lo), _mm256_cmpgt_epi32(last, lo));
    hi = _mm256_andnot_si256(_mm256_cmpgt_epi32(first, hi), _mm256_cmpgt_epi32(last, hi));
    return (lanes){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}

/* mask ? a : b */
static inline lanes lanes_select(lanes_mask mask, lanes a, lanes b)
{
    return (lanes){_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}

/* The larger value, b when equal; a NaN in either wins. */
static inline lanes lanes_max(lanes a, lanes b)
{
    lanes larger = {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; /* b when unordered */
    return lanes_select(lanes_is_nan(a), a, larger);
}

/* The low integer bits of t, shifted to the exponent's place, added to the bits of p. */
static inline lanes lanes_add_exponent(lanes p, lanes t)
{
    __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(t.lo), 23);
    __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(t.hi), 23);
    return (lanes){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.lo), lo)),
                   _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.hi), hi))};
}

/* A float's bits less those of `low`, a positive one, as exponent and mantissa: returns the
 * mantissa upon the bits of low, *exponent what is left as a number. x is positive and normal. */
static inline __m256 split_exponent(__m256 x, __m256 low, __m256 *exponent)
{
    __m256i base = _mm256_castps_si256(low);
    __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(x), base);
    *exponent = _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 23));
    __m256i mantissa = _mm256_and_si256(shifted, _mm256_set1_epi32(0x7fffff));
    return _mm256_castsi256_ps(_mm256_add_epi32(mantissa, base));
}

static inline lanes lanes_split_exponent(lanes x, lanes low, lanes *exponent)
{
    return (lanes){split_exponent(x.lo, low.lo, &exponent->lo),
                   split_exponent(x.hi, low.hi, &exponent->hi)};
}

/* Lanes fold 8, 4, 2, 1. */
static inline float lanes_fold_add(lanes v)
{
    __m256 eight = _mm256_add_ps(v.lo, v.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Largest of the magnitudes as bits (unsigned order; NaN above infinity). */
static inline uint32_t lanes_largest_bits(lanes a, lanes b)
{
    __m256i clear = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_and_si256(_mm256_castps_si256(a.lo), clear);
    m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(a.hi), clear));
    m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(b.lo), clear));
    m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(b.hi), clear));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

/* Stores rint(v) clipped to [-127, 127] as sixteen int8 and returns their sum. |v| < 2^31. */
static inline int32_t lanes_store_codes(int8_t *q, lanes v)
{
    __m256i lo = _mm256_cvtps_epi32(v.lo);
    __m256i hi = _mm256_cvtps_epi32(v.hi);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    words =
        _mm256_max_epi16(_mm256_min_epi16(words, _mm256_set1_epi16(127)), _mm256_set1_epi16(-127));
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)q, bytes);
    __m256i pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

/* From 64 nibble pairs at p (16 rows x 4 columns, and the columns 16 further) one column as
 * floats q - 8; shift is the nibble's place in a row's four bytes. */
static inline lanes lanes_load_nibbles(const uint8_t *p, int shift)
{
    __m256i lo = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)p), shift);
    __m256i hi = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)(p + 32)), shift);
    __m256i eight = _mm256_set1_epi32(8);
    lo = _mm256_sub_epi32(_mm256_and_si256(lo, _mm256_set1_epi32(15)), eight);
    hi = _mm256_sub_epi32(_mm256_and_si256(hi, _mm256_set1_epi32(15)), eight);
    return (lanes){_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
}

/* From 64 int8 at p (16 rows x 4 columns) column c of the four as floats. */
static inline lanes lanes_load_bytes(const uint8_t *p, int c)
{
    __m256i lo = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 24 - 8 * c);
    __m256i hi = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(p + 32)), 24 - 8 * c);
    return (lanes){_mm256_cvtepi32_ps(_mm256_srai_epi32(lo, 24)),
                   _mm256_cvtepi32_ps(_mm256_srai_epi32(hi, 24))};
}

#endif
