/* The AVX-512-VNNI overrides: dpbusd multiplies unsigned weights with signed codes, four a lane,
 * straight into exact 32-bit sums. What makes a weight unsigned (q4: + 8, q8: + 128) is taken
 * off at the start, as that many times the sum of the group's codes.
 */
#include "common/kernels/kernels_tiers.h"
#include "common/kernels/lanes_codes_avx512.h"
#include "common/kernels/lanes_panel_avx512.h"

/* ---- many columns: the arithmetic of lanes_panel.h ---- */

static ALWAYS_INLINE bool panel_is_wide(enum vf_quant quant)
{
    (void)quant;
    return false;
}

static ALWAYS_INLINE int32_t panel_start(enum vf_quant quant, int32_t sum)
{
    return quant == VF_QUANT_Q4 ? -8 * sum : -128 * sum;
}

static ALWAYS_INLINE __m512i panel_step(enum vf_quant quant, __m512i dot, __m512i w, __m512i codes)
{
    (void)quant;
    return _mm512_dpbusd_epi32(dot, w, codes);
}

static ALWAYS_INLINE __m512i panel_finish(enum vf_quant quant, __m512i dot)
{
    (void)quant;
    return dot;
}

static ALWAYS_INLINE void panel_copy_codes(enum vf_quant quant, const int8_t *q, int8_t *out)
{
    (void)quant;
    _mm256_storeu_si256((__m256i *)out, _mm256_loadu_si256((const __m256i *)q));
}

static ALWAYS_INLINE void panel_unpack(enum vf_quant quant, const uint8_t *body, uint8_t *out)
{
    if (quant == VF_QUANT_Q4) {
        panel_unpack_nibbles(body, out);
        return;
    }
    for (uint32_t j = 0; j < 8; j++) {
        __m512i w = _mm512_loadu_si512(body + 64 * j);
        _mm512_storeu_si512(out + j * STEP_BYTES, _mm512_xor_si512(w, _mm512_set1_epi8(INT8_MIN)));
    }
}

#include "common/kernels/lanes_panel.h"

/* ---- few columns ---- */

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
            __m512i dot = _mm512_set1_epi32(-8 * codes.sum);
#pragma GCC unroll 8
            for (uint32_t j = 0; j < 8; j++)
                dot = _mm512_dpbusd_epi32(dot, w[j], four_codes(codes.q + 4 * j));
            add_scaled(dot, scale, codes.scale, acc[c]);
        }
        record += vf_record_bytes(VF_QUANT_Q4);
    }
}

static void span_q8(const struct span *span, float (*acc)[LANES])
{
    const uint8_t *record = span->record;
    for (uint32_t i = 0; i < span->group_count; i++) {
        __m512i w[8];
        prefetch_record(record, vf_record_bytes(VF_QUANT_Q8));
        for (uint32_t j = 0; j < 8; j++)
            w[j] = _mm512_xor_si512(_mm512_loadu_si512(record + SCALES_BYTES + 64 * j),
                                    _mm512_set1_epi8(INT8_MIN));
        lanes scale = lanes_load_f16(record);
        for (uint32_t c = 0; c < span->col_count; c++) {
            struct codes codes = codes_at(span, c, i);
            __m512i dot = _mm512_set1_epi32(-128 * codes.sum);
#pragma GCC unroll 8
            for (uint32_t j = 0; j < 8; j++)
                dot = _mm512_dpbusd_epi32(dot, w[j], four_codes(codes.q + 4 * j));
            add_scaled(dot, scale, codes.scale, acc[c]);
        }
        record += vf_record_bytes(VF_QUANT_Q8);
    }
}

static void matmul_q4_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q4, acts->n_col))
        panel_matmul(VF_QUANT_Q4, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, (struct walk){span_q4, SUMS_AT_A_TIME, 1}, y,
                    y_stride);
}

static void matmul_q8_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                         uint32_t rb_end, float *y, size_t y_stride)
{
    if (panel_pays(VF_QUANT_Q8, acts->n_col))
        panel_matmul(VF_QUANT_Q8, m, acts, rb_begin, rb_end, y, y_stride);
    else
        walk_matrix(m, acts, rb_begin, rb_end, (struct walk){span_q8, SUMS_AT_A_TIME, 1}, y,
                    y_stride);
}

static void fill(struct vf_kernels *table)
{
    table->stripes_q8 = 1;
    table->matmul_q8[VF_QUANT_Q8] = matmul_q8_q8;
    table->matmul_q8[VF_QUANT_Q4] = matmul_q4_q8;
}

#ifdef VF_EMULATE_AVX512
void vf_kernels_fill_avx512vnni_emulated(struct vf_kernels *table)
{
    fill(table);
    table->name = "avx512vnni-emulated";
}
#else
void vf_kernels_fill_avx512vnni(struct vf_kernels *table)
{
    fill(table);
    table->name = "avx512vnni";
}
#endif
