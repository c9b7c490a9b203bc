/* matmul with f32 activations over sixteen lanes: four fused chains over a record's columns.
 *
 * For one activation column the weights are unpacked on the way into the chains, which run side
 * by side; for several they become floats once, in an array, and the chains run one after the
 * other, each for F32_COLS columns in registers. Included after lanes_avx2.h or lanes_avx512.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_MATMUL_F32_H
#define VF_COMMON_KERNELS_LANES_MATMUL_F32_H

#include "common/kernels/lanes_walk.h"

/* Weights without their scale: column i of the record's 32, one lane a row. */
static ALWAYS_INLINE lanes weight_column(enum vf_quant quant, const uint8_t *record, uint32_t i)
{
    const uint8_t *body = record + 2 * VF_RECORD_ROWS; /* q4, q8 */
    switch (quant) {
    case VF_QUANT_Q4:
        return lanes_load_nibbles(body + 64 * (i % 16 / 4), (int)(8 * (i % 4) + (i < 16 ? 0 : 4)));
    case VF_QUANT_Q8:
        return lanes_load_bytes(body + 64 * (i / 4), (int)(i % 4));
    case VF_QUANT_F16:
        return lanes_load_f16(record + 2 * LANES * i);
    default:
        return lanes_load((const float *)record + LANES * i);
    }
}

/* Sixteen rows times 32 columns of one activation vector. */
static ALWAYS_INLINE lanes dot_group(enum vf_quant quant, const uint8_t *record, const float *x)
{
    lanes p[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    UNROLLED
    for (uint32_t j = 0; j < VF_RECORD_COLS; j += 4) {
        UNROLLED
        for (uint32_t c = 0; c < 4; c++)
            p[c] = lanes_fma(weight_column(quant, record, j + c), lanes_set(x[j + c]), p[c]);
    }
    return lanes_add(lanes_add(p[0], p[1]), lanes_add(p[2], p[3]));
}

static ALWAYS_INLINE void add_group(enum vf_quant quant, const uint8_t *record, lanes dot,
                                    float *acc)
{
    lanes sum = lanes_load(acc);
    bool scaled = quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8;
    sum = scaled ? lanes_fma(lanes_load_f16(record), dot, sum) : lanes_add(sum, dot);
    lanes_store(acc, sum);
}

/* The same for `count` columns (a constant), which share each weight. */
static ALWAYS_INLINE void dot_columns(const float *w, const float *x, size_t stride, uint32_t count,
                                      lanes *dot)
{
    lanes p[4][F32_COLS];
    UNROLLED
    for (uint32_t k = 0; k < 4; k++) {
        for (uint32_t c = 0; c < count; c++)
            p[k][c] = lanes_zero();
        UNROLLED
        for (uint32_t j = k; j < VF_RECORD_COLS; j += 4) {
            lanes weight = lanes_load(w + LANES * j);
            UNROLLED
            for (uint32_t c = 0; c < count; c++)
                p[k][c] = lanes_fma(weight, lanes_set(x[c * stride + j]), p[k][c]);
        }
    }
    UNROLLED
    for (uint32_t c = 0; c < count; c++)
        dot[c] = lanes_add(lanes_add(p[0][c], p[1][c]), lanes_add(p[2][c], p[3][c]));
}

static NO_INLINE void dot_many(const float *w, const float *x, size_t stride, lanes *dot)
{
    dot_columns(w, x, stride, F32_COLS, dot);
}

static NO_INLINE void dot_two(const float *w, const float *x, size_t stride, lanes *dot)
{
    dot_columns(w, x, stride, 2, dot);
}

static NO_INLINE void dot_one(const float *w, const float *x, lanes *dot)
{
    *dot = dot_group(VF_QUANT_F32, (const uint8_t *)w, x);
}

/* The record's weights as floats, unpacked unless they are. */
static ALWAYS_INLINE const float *float_weights(enum vf_quant quant, const uint8_t *record,
                                                float *unpacked)
{
    if (quant == VF_QUANT_F32)
        return (const float *)record;
#pragma GCC unroll 32
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        lanes_store(unpacked + LANES * i, weight_column(quant, record, i));
    return unpacked;
}

static ALWAYS_INLINE void add_record(enum vf_quant quant, const uint8_t *record, const float *x,
                                     size_t stride, uint32_t col_count, float (*acc)[LANES])
{
    if (col_count == 1) {
        add_group(quant, record, dot_group(quant, record, x), acc[0]);
        return;
    }
    _Alignas(64) float unpacked[VF_RECORD_COLS * LANES];
    const float *w = float_weights(quant, record, unpacked);
    lanes dot[WALK_COLS];
    uint32_t c = 0;
    for (; c + F32_COLS <= col_count; c += F32_COLS)
        dot_many(w, x + c * stride, stride, dot + c);
    for (; c + 2 <= col_count; c += 2)
        dot_two(w, x + c * stride, stride, dot + c);
    if (c < col_count)
        dot_one(w, x + c * stride, dot + c);
    for (c = 0; c < col_count; c++)
        add_group(quant, record, dot[c], acc[c]);
}

static ALWAYS_INLINE void add_span(enum vf_quant quant, const struct span *span,
                                   float (*acc)[LANES])
{
    size_t stride = span->acts->stride;
    const float *x = span->acts->x + span->col * stride + (size_t)span->group * VF_RECORD_COLS;
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        prefetch_record(record, vf_record_bytes(quant));
        add_record(quant, record, x, stride, span->col_count, acc);
        record += vf_record_bytes(quant);
        x += VF_RECORD_COLS;
    }
}

static void span_f32_f32(const struct span *span, float (*acc)[LANES])
{
    add_span(VF_QUANT_F32, span, acc);
}

static void span_f16_f32(const struct span *span, float (*acc)[LANES])
{
    add_span(VF_QUANT_F16, span, acc);
}

static void span_q8_f32(const struct span *span, float (*acc)[LANES])
{
    add_span(VF_QUANT_Q8, span, acc);
}

static void span_q4_f32(const struct span *span, float (*acc)[LANES])
{
    add_span(VF_QUANT_Q4, span, acc);
}

static void matmul_f32(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                       uint32_t rb_end, float *y, size_t y_stride)
{
    static span_fn *const span[VF_QUANT_COUNT] = {
        [VF_QUANT_F32] = span_f32_f32,
        [VF_QUANT_F16] = span_f16_f32,
        [VF_QUANT_Q8] = span_q8_f32,
        [VF_QUANT_Q4] = span_q4_f32,
    };
    struct walk walk = {span[m->quant], WALK_COLS, NULL};
    walk_matrix(m, acts, rb_begin, rb_end, walk, y, y_stride);
}

static void fill_matmul_f32(struct vf_kernels *table)
{
    for (int quant = 0; quant < VF_QUANT_COUNT; quant++)
        table->matmul_f32[quant] = matmul_f32;
    table->matmul_q8[VF_QUANT_F32] = matmul_f32;
    table->matmul_q8[VF_QUANT_F16] = matmul_f32;
}

#endif
