/* The AVX-512 tier (F, BW, VL, DQ): the shared bodies of lanes_*.h on one register, and the
 * integer dot products with maddubs. The saturation argument is kernels_avx2.c's.
 */
#include "common/kernels/lanes_avx512.h"

#include "common/kernels/kernels_tiers.h"
#include "common/kernels/lanes_attention.h"
#include "common/kernels/lanes_codes_avx512.h"
#include "common/kernels/lanes_matmul_f32.h"
#include "common/kernels/lanes_vector.h"

static inline __m512i dot_nibbles(const __m512i *w, const int8_t *q)
{
    __m512i pairs = _mm512_maddubs_epi16(w[0], four_codes(q));
#pragma GCC unroll 7
    for (uint32_t j = 1; j < 8; j++)
        pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(w[j], four_codes(q + 4 * j)));
    return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

static void span_q4(const struct span *span, float (*acc)[LANES])
{
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        __m512i w[8];
        prefetch_record(record, vf_record_bytes(VF_QUANT_Q4));
        unpack_nibble_bytes(record + SCALES_BYTES, w);
        lanes scale = lanes_load_f16(record);
        for (uint32_t c = 0; c < span->col_count; c++) {
            struct codes codes = codes_at(span, c, i);
            __m512i bias = _mm512_set1_epi32(8 * codes.sum);
            add_scaled(_mm512_sub_epi32(dot_nibbles(w, codes.q), bias), scale, codes.scale, acc[c]);
        }
        record += vf_record_bytes(VF_QUANT_Q4);
    }
}

/* AVX-512 has no sign instruction: codes change sign under a mask of the negative weights. A
 * zero weight needs no mask, its magnitude is zero. */
static inline __m512i dot_bytes(const uint8_t *body, const int8_t *q)
{
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; j++) {
        __m512i w = _mm512_loadu_si512(body + 64 * j);
        __m512i codes = four_codes(q + 4 * j);
        codes = _mm512_mask_sub_epi8(codes, _mm512_movepi8_mask(w), _mm512_setzero_si512(), codes);
        __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), codes);
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    return sum;
}

static void span_q8(const struct span *span, float (*acc)[LANES])
{
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        prefetch_record(record, vf_record_bytes(VF_QUANT_Q8));
        lanes scale = lanes_load_f16(record);
        for (uint32_t c = 0; c < span->col_count; c++) {
            struct codes codes = codes_at(span, c, i);
            add_scaled(dot_bytes(record + SCALES_BYTES, codes.q), scale, codes.scale, acc[c]);
        }
        record += vf_record_bytes(VF_QUANT_Q8);
    }
}

static void matmul_q4_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    walk_matrix(m, acts, rb_begin, rb_end, span_q4, y, y_stride);
}

static void matmul_q8_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    walk_matrix(m, acts, rb_begin, rb_end, span_q8, y, y_stride);
}

static void fill(struct vf_kernels *table)
{
    fill_vector_kernels(table);
    fill_matmul_f32(table);
    table->attention_block = attention_block;
    table->matmul_q8[VF_QUANT_Q8] = matmul_q8_q8;
    table->matmul_q8[VF_QUANT_Q4] = matmul_q4_q8;
}

#ifdef VF_EMULATE_AVX512
void vf_kernels_fill_avx512_emulated(struct vf_kernels *table)
{
    fill(table);
    table->name = "avx512-emulated";
}
#else
void vf_kernels_fill_avx512(struct vf_kernels *table)
{
    fill(table);
    table->name = "avx512";
}
#endif
