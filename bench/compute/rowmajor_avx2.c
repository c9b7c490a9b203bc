#include "bench/compute/rowmajor.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define GROUP_BYTES   18u
#define AHEAD_BYTES   3072 /* as far as the tiled kernels prefetch */

/* One for each cache line, about. */
static ALWAYS_INLINE void prefetch(const uint8_t *group, uint32_t g)
{
    if (g % 4 == 0)
        _mm_prefetch((const char *)group + AHEAD_BYTES, _MM_HINT_T0);
}

static ALWAYS_INLINE __m256 scale_of(const uint8_t *group)
{
    uint16_t half;
    memcpy(&half, group, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)half));
}

/* The group's 32 nibbles in the order of its columns. */
static ALWAYS_INLINE __m256i nibbles_of(const uint8_t *group)
{
    __m128i packed = _mm_loadu_si128((const __m128i *)(group + 2));
    __m256i both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

static ALWAYS_INLINE float fold(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Eight of the group's weights, before their scale. */
static ALWAYS_INLINE __m256 eight_weights(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

static ALWAYS_INLINE __m256 dot_f32(const uint8_t *group, const __m256 x[4])
{
    __m256i w = _mm256_sub_epi8(nibbles_of(group), _mm256_set1_epi8(8));
    __m128i low = _mm256_castsi256_si128(w), high = _mm256_extracti128_si256(w, 1);
    __m256 s = _mm256_mul_ps(eight_weights(low), x[0]);
    __m256 t = _mm256_mul_ps(eight_weights(high), x[2]);
    s = _mm256_fmadd_ps(eight_weights(_mm_srli_si128(low, 8)), x[1], s);
    t = _mm256_fmadd_ps(eight_weights(_mm_srli_si128(high, 8)), x[3], t);
    return _mm256_add_ps(s, t);
}

static ALWAYS_INLINE void rows_f32(const uint8_t *groups, const struct vf_acts *acts, uint32_t row,
                                   uint32_t count, float *y)
{
    uint32_t group_count = acts->cols / VF_RECORD_COLS;
    size_t row_bytes = (size_t)group_count * GROUP_BYTES;
    const uint8_t *first = groups + row * row_bytes;
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    for (uint32_t g = 0; g < group_count; g++) {
        __m256 x[4];
        for (int i = 0; i < 4; i++)
            x[i] = _mm256_loadu_ps(acts->x + (size_t)g * VF_RECORD_COLS + 8 * i);
        for (uint32_t r = 0; r < count; r++) {
            const uint8_t *group = first + r * row_bytes + (size_t)g * GROUP_BYTES;
            prefetch(group, g);
            sum[r] = _mm256_fmadd_ps(scale_of(group), dot_f32(group, x), sum[r]);
        }
    }
    for (uint32_t r = 0; r < count; r++)
        y[row + r] = fold(sum[r]);
}

static ALWAYS_INLINE __m256 dot_q8(const uint8_t *group, __m256i q)
{
    __m256i w = _mm256_sub_epi8(nibbles_of(group), _mm256_set1_epi8(8));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static ALWAYS_INLINE void rows_q8(const uint8_t *groups, const struct vf_acts *acts, uint32_t row,
                                  uint32_t count, float *y)
{
    uint32_t group_count = acts->cols / VF_RECORD_COLS;
    size_t row_bytes = (size_t)group_count * GROUP_BYTES;
    const uint8_t *first = groups + row * row_bytes;
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    for (uint32_t g = 0; g < group_count; g++) {
        __m256i q = _mm256_loadu_si256((const __m256i *)(acts->q + (size_t)g * VF_RECORD_COLS));
        __m256 scale = _mm256_set1_ps(acts->scale[g]);
        for (uint32_t r = 0; r < count; r++) {
            const uint8_t *group = first + r * row_bytes + (size_t)g * GROUP_BYTES;
            prefetch(group, g);
            sum[r] =
                _mm256_fmadd_ps(_mm256_mul_ps(scale_of(group), scale), dot_q8(group, q), sum[r]);
        }
    }
    for (uint32_t r = 0; r < count; r++)
        y[row + r] = fold(sum[r]);
}

void rowmajor_f32(const uint8_t *groups, const struct vf_acts *acts, uint32_t row_begin,
                  uint32_t row_end, uint32_t at_a_time, float *y)
{
    for (uint32_t row = row_begin; row < row_end; row += at_a_time)
        if (at_a_time == 4)
            rows_f32(groups, acts, row, 4, y);
        else
            rows_f32(groups, acts, row, 1, y);
}

void rowmajor_q8(const uint8_t *groups, const struct vf_acts *acts, uint32_t row_begin,
                 uint32_t row_end, uint32_t at_a_time, float *y)
{
    for (uint32_t row = row_begin; row < row_end; row += at_a_time)
        if (at_a_time == 4)
            rows_q8(groups, acts, row, 4, y);
        else
            rows_q8(groups, acts, row, 1, y);
}
