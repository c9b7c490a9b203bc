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

static ALWAYS_INLINE void record_unpack(enum vf_quant quant, const uint8_t *body, __m512i *w)
{
    if (quant == VF_QUANT_Q4) {
        unpack_nibble_bytes(body, w);
        return;
    }
    for (uint32_t j = 0; j < 8; j++)
        w[j] = _mm512_xor_si512(_mm512_loadu_si512(body + 64 * j), _mm512_set1_epi8(INT8_MIN));
}

static ALWAYS_INLINE __m512i record_dot(enum vf_quant quant, const __m512i *w, const int8_t *q,
                                        int32_t sum)
{
    __m512i dot = _mm512_set1_epi32((quant == VF_QUANT_Q4 ? -8 : -128) * sum);
    UNROLLED
    for (uint32_t j = 0; j < 8; j++)
        dot = _mm512_dpbusd_epi32(dot, w[j], four_codes(q + 4 * j));
    return dot;
}

#include "common/kernels/lanes_span_avx512.h"

static void fill(struct vf_kernels *table)
{
    fill_matmul_q8(table);
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
