/* Integer products of the AVX-512 tiers: few columns span by span, many in panels.
 *
 * A record is unpacked once for all columns; their sums stay in registers, those of several stripes
 * too. Every stripe is prefetched: the core's own prefetchers alone keep less of memory at work,
 * with four streams as with one.
 *
 * Included after lanes_panel_avx512.h and lanes_panel.h, and after the tier's own
 *   record_unpack(quant, body, w)     the weights of a record, columns 4j..4j+3 of the rows at w[j]
 *   record_dot(quant, w, q, sum)      their exact dot product with 32 codes whose sum is `sum`
 */
#ifndef VF_COMMON_KERNELS_LANES_SPAN_AVX512_H
#define VF_COMMON_KERNELS_LANES_SPAN_AVX512_H

#include "common/kernels/lanes_avx512.h"
#include "common/kernels/lanes_panel.h"

#define SCALES_BYTES (2 * VF_RECORD_ROWS)
/* Columns times stripes whose sums are in registers. */
#define SUMS_AT_A_TIME 16u

static const uint8_t stripes[VF_STRIPES_COLS + 1] = {1, 4, 4, 4, 4};

/* What one activation column brings to a span. */
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

/* Sums in registers: so many columns of so many stripes. Constants where it is compiled. */
struct tile {
    uint32_t stripes, cols;
};

/* sum[c] += the record times group i of every column. */
static ALWAYS_INLINE void add_product(enum vf_quant quant, const uint8_t *record,
                                      const struct column *column, uint32_t i, uint32_t cols,
                                      lanes *sum)
{
    __m512i w[8];
    record_unpack(quant, record + SCALES_BYTES, w);
    lanes scale = lanes_load_f16(record);
    UNROLLED
    for (uint32_t c = 0; c < cols; c++) {
        const int8_t *q = column[c].q + (size_t)i * VF_RECORD_COLS;
        __m512i dot = record_dot(quant, w, q, column[c].sum[i]);
        lanes both = lanes_mul(scale, lanes_set(column[c].scale[i]));
        sum[c] = lanes_fma(_mm512_cvtepi32_ps(dot), both, sum[c]);
    }
}

static ALWAYS_INLINE void add_span_of(enum vf_quant quant, const struct span *span,
                                      float (*acc)[LANES], struct tile t)
{
    struct column column[SPAN_COLS];
    lanes sum[SUMS_AT_A_TIME];
    for (uint32_t c = 0; c < t.cols; c++)
        column[c] = column_at(span, c);
    for (uint32_t k = 0; k < t.stripes * t.cols; k++)
        sum[k] = lanes_load(acc[k]);
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        UNROLLED
        for (uint32_t s = 0; s < t.stripes; s++) {
            const uint8_t *at = record + s * span->apart;
            prefetch_record(at, vf_record_bytes(quant));
            add_product(quant, at, column, i, t.cols, sum + s * t.cols);
        }
        record += vf_record_bytes(quant);
    }
    for (uint32_t k = 0; k < t.stripes * t.cols; k++)
        lanes_store(acc[k], sum[k]);
}

/* Every tile that the walk makes; the emulation has one body for all. */
static ALWAYS_INLINE void span_of(enum vf_quant quant, const struct span *span, float (*acc)[LANES])
{
#ifndef VF_EMULATE_AVX512
    switch (8 * span->stripes + span->col_count) {
#define TILE(stripes, cols)                                                                        \
    case 8 * (stripes) + (cols):                                                                   \
        add_span_of(quant, span, acc, (struct tile){stripes, cols});                               \
        break
        TILE(1, 1);
        TILE(2, 1);
        TILE(4, 1);
        TILE(1, 2);
        TILE(2, 2);
        TILE(4, 2);
        TILE(1, 3);
        TILE(2, 3);
        TILE(4, 3);
        TILE(1, 4);
        TILE(2, 4);
        TILE(4, 4);
#undef TILE
    default:
        VF_ASSERT(false);
    }
#else
    add_span_of(quant, span, acc, (struct tile){span->stripes, span->col_count});
#endif
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

static void fill_matmul_q8(struct vf_kernels *table)
{
    memcpy(table->stripes_q8, stripes, sizeof stripes);
    table->matmul_q8[VF_QUANT_Q8] = matmul_q8_q8;
    table->matmul_q8[VF_QUANT_Q4] = matmul_q4_q8;
}

#endif
