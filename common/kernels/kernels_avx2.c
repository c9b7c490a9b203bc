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

/* Columns times stripes whose sums are in registers. */
#define SUMS_AT_A_TIME 4u

static const uint8_t stripes[VF_STRIPES_COLS + 1] = {1, 4, 2, 1, 1};

/* Sums in registers: so many columns of so many stripes. Constants where it is compiled. */
struct tile {
    uint32_t stripes, cols;
};

/* Keeps sums where and when they are: left to itself GCC moves all additions behind all products
 * and spills them. */
#define PIN(v) __asm__ volatile("" : "+x"(v))

/* The records that come next: of several stripes four in all. Of four streams the core's own
 * prefetchers fetch more than that, and explicit prefetches would only stand in their way. */
static ALWAYS_INLINE void prefetch_stripes(const struct span *span, const uint8_t *record,
                                           uint32_t bytes, struct tile t)
{
    uint32_t ahead = t.stripes > 1 ? 4 / t.stripes * bytes : PREFETCH_BYTES;
    for (uint32_t s = 0; t.stripes < 4 && s < t.stripes; s++)
        prefetch_record_ahead(record + s * span->apart, bytes, ahead);
}

/* Adds step j of the dot products: four columns of weights and the four that are 16 further. */
static ALWAYS_INLINE void dot_step(const uint8_t *body, size_t apart, const struct column *column,
                                   uint32_t i, struct tile t, uint32_t j, __m256i (*pairs)[2])
{
    const __m256i fifteen = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (uint32_t s = 0; s < t.stripes; s++) {
        const __m256i *w = (const __m256i *)(body + s * apart + 64 * j);
        __m256i top = _mm256_loadu_si256(w);
        __m256i bottom = _mm256_loadu_si256(w + 1);
        __m256i top_low = _mm256_and_si256(top, fifteen);
        __m256i top_high = _mm256_and_si256(_mm256_srli_epi16(top, 4), fifteen);
        __m256i bottom_low = _mm256_and_si256(bottom, fifteen);
        __m256i bottom_high = _mm256_and_si256(_mm256_srli_epi16(bottom, 4), fifteen);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < t.cols; c++) {
            const int8_t *q = column[c].q + (size_t)i * VF_RECORD_COLS + 4 * j;
            __m256i low = four_codes(q), high = four_codes(q + 16);
            __m256i *sum = pairs[s * t.cols + c];
            sum[0] = _mm256_add_epi16(sum[0], _mm256_maddubs_epi16(top_low, low));
            sum[1] = _mm256_add_epi16(sum[1], _mm256_maddubs_epi16(bottom_low, low));
            sum[0] = _mm256_add_epi16(sum[0], _mm256_maddubs_epi16(top_high, high));
            sum[1] = _mm256_add_epi16(sum[1], _mm256_maddubs_epi16(bottom_high, high));
            PIN(sum[0]);
            PIN(sum[1]);
        }
    }
}

/* The dot products of the q4 records at `body`, in pairs of 16 bits, for the low and high eight
 * rows of each. */
static ALWAYS_INLINE void dot_nibbles(const uint8_t *body, size_t apart,
                                      const struct column *column, uint32_t i, struct tile t,
                                      __m256i (*pairs)[2])
{
    for (uint32_t k = 0; k < t.stripes * t.cols; k++)
        pairs[k][0] = pairs[k][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++)
        dot_step(body, apart, column, i, t, j, pairs);
}

static ALWAYS_INLINE void add_span_q4(const struct span *span, float (*acc)[LANES], struct tile t)
{
    const __m256i ones = _mm256_set1_epi16(1);
    struct column column[SUMS_AT_A_TIME];
    lanes sum[SUMS_AT_A_TIME];
    for (uint32_t c = 0; c < t.cols; c++)
        column[c] = column_at(span, c);
    for (uint32_t k = 0; k < t.stripes * t.cols; k++)
        sum[k] = lanes_load(acc[k]);
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        __m256i pairs[SUMS_AT_A_TIME][2];
        prefetch_stripes(span, record, vf_record_bytes(VF_QUANT_Q4), t);
        dot_nibbles(record + SCALES_BYTES, span->apart, column, i, t, pairs);
#pragma GCC unroll 4
        for (uint32_t s = 0; s < t.stripes; s++) {
            lanes scale = lanes_load_f16(record + s * span->apart);
#pragma GCC unroll 4
            for (uint32_t c = 0; c < t.cols; c++) {
                uint32_t k = s * t.cols + c;
                __m256i bias = _mm256_slli_epi32(_mm256_set1_epi32(column[c].sum[i]), 3);
                __m256i top = _mm256_sub_epi32(_mm256_madd_epi16(pairs[k][0], ones), bias);
                __m256i bottom = _mm256_sub_epi32(_mm256_madd_epi16(pairs[k][1], ones), bias);
                sum[k].lo = add_scaled(top, scale.lo, column[c].scale[i], sum[k].lo);
                sum[k].hi = add_scaled(bottom, scale.hi, column[c].scale[i], sum[k].hi);
            }
        }
        record += vf_record_bytes(VF_QUANT_Q4);
    }
    for (uint32_t k = 0; k < t.stripes * t.cols; k++)
        lanes_store(acc[k], sum[k]);
}

/* Four bytes a lane of weights times codes, added up per lane. */
static ALWAYS_INLINE __m256i dot_bytes(__m256i w, __m256i codes)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(codes, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* acc += the product of one q8 record with one column's group of codes. */
static ALWAYS_INLINE void add_record_q8(const uint8_t *record, const int8_t *q, float q_scale,
                                        float *acc)
{
    __m256i top = _mm256_setzero_si256();
    __m256i bottom = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; j++) {
        const __m256i *w = (const __m256i *)(record + SCALES_BYTES + 64 * j);
        __m256i codes = four_codes(q + 4 * j);
        top = _mm256_add_epi32(top, dot_bytes(_mm256_loadu_si256(w), codes));
        bottom = _mm256_add_epi32(bottom, dot_bytes(_mm256_loadu_si256(w + 1), codes));
    }
    lanes scale = lanes_load_f16(record);
    lanes sum = lanes_load(acc);
    sum.lo = add_scaled(top, scale.lo, q_scale, sum.lo);
    sum.hi = add_scaled(bottom, scale.hi, q_scale, sum.hi);
    lanes_store(acc, sum);
}

static ALWAYS_INLINE void add_span_q8(const struct span *span, float (*acc)[LANES], struct tile t)
{
    struct column column[SUMS_AT_A_TIME];
    for (uint32_t c = 0; c < t.cols; c++)
        column[c] = column_at(span, c);
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        prefetch_stripes(span, record, vf_record_bytes(VF_QUANT_Q8), t);
        for (uint32_t s = 0; s < t.stripes; s++)
            for (uint32_t c = 0; c < t.cols; c++)
                add_record_q8(record + s * span->apart, column[c].q + (size_t)i * VF_RECORD_COLS,
                              column[c].scale[i], acc[s * t.cols + c]);
        record += vf_record_bytes(VF_QUANT_Q8);
    }
}

static ALWAYS_INLINE void add_span_of(enum vf_quant quant, const struct span *span,
                                      float (*acc)[LANES], struct tile t)
{
    if (quant == VF_QUANT_Q4)
        add_span_q4(span, acc, t);
    else
        add_span_q8(span, acc, t);
}

/* Every tile that the walk makes. */
static ALWAYS_INLINE void span_of(enum vf_quant quant, const struct span *span, float (*acc)[LANES])
{
    if (span->stripes == 4)
        add_span_of(quant, span, acc, (struct tile){4, 1});
    else if (span->stripes == 2 && span->col_count == 1)
        add_span_of(quant, span, acc, (struct tile){2, 1});
    else if (span->stripes == 2)
        add_span_of(quant, span, acc, (struct tile){2, 2});
    else if (span->col_count == 1)
        add_span_of(quant, span, acc, (struct tile){1, 1});
    else if (span->col_count == 2)
        add_span_of(quant, span, acc, (struct tile){1, 2});
    else if (span->col_count == 3)
        add_span_of(quant, span, acc, (struct tile){1, 3});
    else
        add_span_of(quant, span, acc, (struct tile){1, 4});
}

static void span_q4(const struct span *span, float (*acc)[LANES])
{
    span_of(VF_QUANT_Q4, span, acc);
}

static void span_q8(const struct span *span, float (*acc)[LANES])
{
    span_of(VF_QUANT_Q8, span, acc);
}

static void matmul_q4_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q4, acts->n_col))
        panel_matmul(VF_QUANT_Q4, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, (struct walk){span_q4, SPAN_COLS, stripes}, y,
                    y_stride);
}

static void matmul_q8_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q8, acts->n_col))
        panel_matmul(VF_QUANT_Q8, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, (struct walk){span_q8, SPAN_COLS, stripes}, y,
                    y_stride);
}

void vf_kernels_fill_avx2(struct vf_kernels *table)
{
    table->name = "avx2";
    fill_vector_kernels(table);
    fill_matmul_f32(table);
    table->attention_block = attention_block;
    memcpy(table->stripes_q8, stripes, sizeof stripes);
    table->matmul_q8[VF_QUANT_Q8] = matmul_q8_q8;
    table->matmul_q8[VF_QUANT_Q4] = matmul_q4_q8;
}
