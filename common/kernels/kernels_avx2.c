/* The AVX2 tier: the shared bodies of lanes_*.h on register pairs, and the integer dot products.
 *
 * q4: a nibble is at most 15 and a code at most 127 in magnitude, so a pair is at most 3810 and
 * the eight pairs of a row's group fit 16 bits; the -8 of every nibble is taken off exactly, as
 * 8 times the sum of the group's codes. In panels it is taken off at the start, in the low one of
 * a lane's two 16-bit sums: that may wrap around on the way, but ends as at most 32 products of
 * 8 * 127, or 32512, in magnitude.
 * q8: |w| * |q| pairs reach 2 * 128 * 127 = 32512, which still fits, but only one of them. In
 * panels weights and codes are 16-bit words, whose products pair up in 32 bits.
 */
#include "common/kernels/lanes_avx2.h"

#include "common/kernels/kernels_tiers.h"
#include "common/kernels/lanes_attention.h"
#include "common/kernels/lanes_matmul_f32.h"
#include "common/kernels/lanes_panel_avx2.h"
#include "common/kernels/lanes_vector.h"

#include "common/kernels/lanes_panel.h"

#define SCALES_BYTES (2 * VF_RECORD_ROWS)

/* What one activation column brings to a record. */
struct column {
    const int8_t *q;
    const float *scale;
    const int32_t *sum;
};

static ALWAYS_INLINE struct column column_at(const struct span *span, uint32_t c)
{
    const struct vf_acts *acts = span->acts;
    size_t col = span->col + c;
    size_t group = col * (acts->stride / VF_RECORD_COLS) + span->group;
    return (struct column){acts->q + col * acts->stride + (size_t)span->group * VF_RECORD_COLS,
                           acts->scale + group, acts->sum + group};
}

/* Four neighbouring codes in every lane. */
static ALWAYS_INLINE __m256i four_codes(const int8_t *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof(bits));
    return _mm256_set1_epi32(bits);
}

/* acc += float(dot) * (weight scales * activation scale) */
static ALWAYS_INLINE __m256 add_scaled(__m256i dot, __m256 weight_scale, float scale, __m256 acc)
{
    __m256 both = _mm256_mul_ps(weight_scale, _mm256_set1_ps(scale));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc);
}

/* Dot products of a q4 record's rows with `count` columns, in pairs of 16 bits, for the low and
 * high eight rows. */
static ALWAYS_INLINE void dot_nibbles(const uint8_t *body, const struct column *column, uint32_t i,
                                      uint32_t count, __m256i (*pairs)[2])
{
    const __m256i fifteen = _mm256_set1_epi8(15);
    for (uint32_t c = 0; c < count; c++)
        pairs[c][0] = pairs[c][1] = _mm256_setzero_si256();
#pragma GCC unroll 1 /* unrolled, GCC moves all additions behind all products and spills them */
    for (uint32_t j = 0; j < 4; j++) {
        __m256i top = _mm256_loadu_si256((const __m256i *)(body + 64 * j));
        __m256i bottom = _mm256_loadu_si256((const __m256i *)(body + 64 * j + 32));
        __m256i top_low = _mm256_and_si256(top, fifteen);
        __m256i top_high = _mm256_and_si256(_mm256_srli_epi16(top, 4), fifteen);
        __m256i bottom_low = _mm256_and_si256(bottom, fifteen);
        __m256i bottom_high = _mm256_and_si256(_mm256_srli_epi16(bottom, 4), fifteen);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < count; c++) {
            const int8_t *q = column[c].q + (size_t)i * VF_RECORD_COLS + 4 * j;
            __m256i low = four_codes(q);
            __m256i high = four_codes(q + 16);
            pairs[c][0] = _mm256_add_epi16(pairs[c][0], _mm256_maddubs_epi16(top_low, low));
            pairs[c][1] = _mm256_add_epi16(pairs[c][1], _mm256_maddubs_epi16(bottom_low, low));
            pairs[c][0] = _mm256_add_epi16(pairs[c][0], _mm256_maddubs_epi16(top_high, high));
            pairs[c][1] = _mm256_add_epi16(pairs[c][1], _mm256_maddubs_epi16(bottom_high, high));
        }
    }
}

static ALWAYS_INLINE void add_span_q4(const struct span *span, float (*acc)[LANES], uint32_t count)
{
    const __m256i ones = _mm256_set1_epi16(1);
    struct column column[COLS_AT_A_TIME];
    lanes sum[COLS_AT_A_TIME];
    for (uint32_t c = 0; c < count; c++) {
        column[c] = column_at(span, c);
        sum[c] = lanes_load(acc[c]);
    }
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        __m256i pairs[COLS_AT_A_TIME][2];
        prefetch_record(record, vf_record_bytes(VF_QUANT_Q4));
        dot_nibbles(record + SCALES_BYTES, column, i, count, pairs);
        lanes scale = lanes_load_f16(record);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < count; c++) {
            __m256i bias = _mm256_slli_epi32(_mm256_set1_epi32(column[c].sum[i]), 3);
            __m256i top = _mm256_sub_epi32(_mm256_madd_epi16(pairs[c][0], ones), bias);
            __m256i bottom = _mm256_sub_epi32(_mm256_madd_epi16(pairs[c][1], ones), bias);
            sum[c].lo = add_scaled(top, scale.lo, column[c].scale[i], sum[c].lo);
            sum[c].hi = add_scaled(bottom, scale.hi, column[c].scale[i], sum[c].hi);
        }
        record += vf_record_bytes(VF_QUANT_Q4);
    }
    for (uint32_t c = 0; c < count; c++)
        lanes_store(acc[c], sum[c]);
}

/* Four bytes a lane of weights times codes, added up per lane. */
static ALWAYS_INLINE __m256i dot_bytes(__m256i w, __m256i codes)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(codes, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

static ALWAYS_INLINE void add_span_q8(const struct span *span, float (*acc)[LANES], uint32_t count)
{
    struct column column[COLS_AT_A_TIME];
    for (uint32_t c = 0; c < count; c++)
        column[c] = column_at(span, c);
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        lanes scale = lanes_load_f16(record);
        prefetch_record(record, vf_record_bytes(VF_QUANT_Q8));
        for (uint32_t c = 0; c < count; c++) {
            __m256i top = _mm256_setzero_si256();
            __m256i bottom = _mm256_setzero_si256();
#pragma GCC unroll 8
            for (uint32_t j = 0; j < 8; j++) {
                const __m256i *w = (const __m256i *)(record + SCALES_BYTES + 64 * j);
                __m256i codes = four_codes(column[c].q + (size_t)i * VF_RECORD_COLS + 4 * j);
                top = _mm256_add_epi32(top, dot_bytes(_mm256_loadu_si256(w), codes));
                bottom = _mm256_add_epi32(bottom, dot_bytes(_mm256_loadu_si256(w + 1), codes));
            }
            lanes sum = lanes_load(acc[c]);
            sum.lo = add_scaled(top, scale.lo, column[c].scale[i], sum.lo);
            sum.hi = add_scaled(bottom, scale.hi, column[c].scale[i], sum.hi);
            lanes_store(acc[c], sum);
        }
        record += vf_record_bytes(VF_QUANT_Q8);
    }
}

static void span_q4(const struct span *span, float (*acc)[LANES])
{
    switch (span->col_count) {
    case 1:
        add_span_q4(span, acc, 1);
        break;
    case 2:
        add_span_q4(span, acc, 2);
        break;
    case 3:
        add_span_q4(span, acc, 3);
        break;
    default:
        add_span_q4(span, acc, 4);
        break;
    }
}

static void span_q8(const struct span *span, float (*acc)[LANES])
{
    add_span_q8(span, acc, span->col_count);
}

static void matmul_q4_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q4, acts->n_col))
        panel_matmul(VF_QUANT_Q4, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, span_q4, COLS_AT_A_TIME, y, y_stride);
}

static void matmul_q8_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q8, acts->n_col))
        panel_matmul(VF_QUANT_Q8, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, span_q8, COLS_AT_A_TIME, y, y_stride);
}

void vf_kernels_fill_avx2(struct vf_kernels *table)
{
    table->name = "avx2";
    fill_vector_kernels(table);
    fill_matmul_f32(table);
    table->attention_block = attention_block;
    table->matmul_q8[VF_QUANT_Q8] = matmul_q8_q8;
    table->matmul_q8[VF_QUANT_Q4] = matmul_q4_q8;
}
