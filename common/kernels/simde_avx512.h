/* AVX-512 intrinsics for machines without them, for tests: SIMDe's, and the few SIMDe 0.7.4
 * lacks, here on two AVX2 halves. Only the emulated tiers include this.
 */
#ifndef VF_COMMON_KERNELS_SIMDE_AVX512_H
#define VF_COMMON_KERNELS_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <string.h>

static inline __m256i compat_half(__m512i v, int upper)
{
    __m256i half[2];
    memcpy(half, &v, sizeof(half));
    return half[upper];
}

static inline __m512i compat_join(__m256i low, __m256i high)
{
    __m256i half[2] = {low, high};
    __m512i v;
    memcpy(&v, half, sizeof(v));
    return v;
}

static inline __m512 compat_cvtepi32_ps(__m512i v)
{
    __m256 low = _mm256_cvtepi32_ps(compat_half(v, 0));
    __m256 high = _mm256_cvtepi32_ps(compat_half(v, 1));
    return _mm512_castsi512_ps(compat_join(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

static inline __m512i compat_cvtps_epi32(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v);
    return compat_join(_mm256_cvtps_epi32(_mm256_castsi256_ps(compat_half(bits, 0))),
                       _mm256_cvtps_epi32(_mm256_castsi256_ps(compat_half(bits, 1))));
}

static inline __m512 compat_cvtph_ps(__m256i v)
{
    __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    return _mm512_castsi512_ps(compat_join(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

/* Rounds to nearest even, the only mode the kernels ask for. */
static inline __m256i compat_cvtps_ph(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(compat_half(bits, 0)), 0);
    __m128i high = _mm256_cvtps_ph(_mm256_castsi256_ps(compat_half(bits, 1)), 0);
    return _mm256_set_m128i(high, low);
}

/* Keeps the low byte of each lane. */
static inline __m128i compat_cvtepi32_epi8(__m512i v)
{
    __m256i low = _mm256_and_si256(compat_half(v, 0), _mm256_set1_epi32(255));
    __m256i high = _mm256_and_si256(compat_half(v, 1), _mm256_set1_epi32(255));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static inline __m512i compat_srai_epi32(__m512i v, int count)
{
    return compat_join(_mm256_srai_epi32(compat_half(v, 0), count),
                       _mm256_srai_epi32(compat_half(v, 1), count));
}

/* SIMDe 0.7.4 gives this alias the four arguments of the masked form. */
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16((a), (b))

/* Without optimisation the compiler's own headers have some of these as macros. */
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepi32_epi8
#undef _mm512_srai_epi32
#define _mm512_cvtepi32_ps(v)    compat_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v)    compat_cvtps_epi32(v)
#define _mm512_cvtph_ps(v)       compat_cvtph_ps(v)
#define _mm512_cvtps_ph(v, mode) compat_cvtps_ph(v)
#define _mm512_cvtepi32_epi8(v)  compat_cvtepi32_epi8(v)
#define _mm512_srai_epi32(v, n)  compat_srai_epi32((v), (n))

#endif
