/* matmul with f32 activations over sixteen lanes: a record becomes floats once, then every
 * activation column takes four fused chains over it. Included after lanes_avx2.h or
 * lanes_avx512.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_MATMUL_F32_H
#define VF_COMMON_KERNELS_LANES_MATMUL_F32_H

#include "common/kernels/lanes_walk.h"

static inline void unpack_record(enum vf_quant quant, const uint8_t *body, float *w)
{
    if (quant == VF_QUANT_Q4) {
        for (uint32_t j = 0; j < 4; j++)
            lanes_unpack_nibbles(body + 64 * j, w + 4 * LANES * j);
    } else if (quant == VF_QUANT_Q8) {
        for (uint32_t j = 0; j < 8; j++)
            lanes_unpack_bytes(body + 64 * j, w + 4 * LANES * j);
    } else {
        for (uint32_t c = 0; c < VF_RECORD_COLS; c++)
            lanes_store(w + LANES * c, lanes_load_f16(body + 2 * LANES * c));
    }
}

/* Sixteen rows times 32 columns of one activation vector, in four chains. */
static inline lanes dot_group(const float *w, const float *x)
{
    lanes p[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    for (uint32_t j = 0; j < VF_RECORD_COLS; j += 4) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++)
            p[c] = lanes_fma(lanes_load(w + LANES * (j + c)), lanes_set(x[j + c]), p[c]);
    }
    return lanes_add(lanes_add(p[0], p[1]), lanes_add(p[2], p[3]));
}

static inline __attribute__((always_inline)) void
add_span_f32(enum vf_quant quant, const struct span *span, float (*acc)[LANES])
{
    bool scaled = quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8;
    const struct vf_acts *acts = span->acts;
    for (uint32_t i = 0; i < span->group_count; i++) {
        const uint8_t *record = span->record + (size_t)i * vf_record_bytes(quant);
        float unpacked[VF_RECORD_COLS * LANES];
        const float *w = unpacked;
        prefetch_record(record, vf_record_bytes(quant));
        if (quant == VF_QUANT_F32)
            w = (const float *)record;
        else
            unpack_record(quant, record + (scaled ? 2 * VF_RECORD_ROWS : 0), unpacked);
        for (uint32_t c = 0; c < span->col_count; c++) {
            lanes dot = dot_group(w, acts->x + (size_t)(span->col + c) * acts->stride +
                                         (size_t)(span->group + i) * VF_RECORD_COLS);
            lanes sum = lanes_load(acc[c]);
            sum = scaled ? lanes_fma(lanes_load_f16(record), dot, sum) : lanes_add(sum, dot);
            lanes_store(acc[c], sum);
        }
    }
}

static void add_span_f32_f32(const struct span *span, float (*acc)[LANES])
{
    add_span_f32(VF_QUANT_F32, span, acc);
}

static void add_span_f16_f32(const struct span *span, float (*acc)[LANES])
{
    add_span_f32(VF_QUANT_F16, span, acc);
}

static void add_span_q8_f32(const struct span *span, float (*acc)[LANES])
{
    add_span_f32(VF_QUANT_Q8, span, acc);
}

static void add_span_q4_f32(const struct span *span, float (*acc)[LANES])
{
    add_span_f32(VF_QUANT_Q4, span, acc);
}

static void matmul_f32(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                       uint32_t rb_end, float *y, size_t y_stride)
{
    static span_fn *const add_span[VF_QUANT_COUNT] = {
        [VF_QUANT_F32] = add_span_f32_f32,
        [VF_QUANT_F16] = add_span_f16_f32,
        [VF_QUANT_Q8] = add_span_q8_f32,
        [VF_QUANT_Q4] = add_span_q4_f32,
    };
    walk_matrix(m, acts, rb_begin, rb_end, add_span[m->quant], y, y_stride);
}

static void fill_matmul_f32(struct vf_kernels *table)
{
    for (int quant = 0; quant < VF_QUANT_COUNT; quant++)
        table->matmul_f32[quant] = matmul_f32;
    table->matmul_q8[VF_QUANT_F32] = matmul_f32;
    table->matmul_q8[VF_QUANT_F16] = matmul_f32;
}

#endif
