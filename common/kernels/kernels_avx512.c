/* The AVX-512 tier (F, BW, VL, DQ): the shared bodies of lanes_*.h on one register, and the
 * integer dot products with maddubs. The saturation arguments are kernels_avx2.c's.
 */
#include "common/kernels/lanes_avx512.h"

#include "common/kernels/kernels_tiers.h"
#include "common/kernels/lanes_attention.h"
#include "common/kernels/lanes_codes_avx512.h"
#include "common/kernels/lanes_matmul_f32.h"
#include "common/kernels/lanes_panel_avx512.h"
#include "common/kernels/lanes_vector.h"

/* ---- many columns: the arithmetic of lanes_panel.h ---- */

static ALWAYS_INLINE bool panel_is_wide(enum vf_quant quant)
{
    return quant == VF_QUANT_Q8;
}

static ALWAYS_INLINE int32_t panel_start(enum vf_quant quant, int32_t sum)
{
    return quant == VF_QUANT_Q4 ? (uint16_t)(-8 * sum) : 0;
}

static ALWAYS_INLINE __m512i panel_step(enum vf_quant quant, __m512i dot, __m512i w, __m512i codes)
{
    if (quant == VF_QUANT_Q4)
        return panel_pin(_mm512_add_epi16(dot, _mm512_maddubs_epi16(w, codes)));
    return panel_pin(_mm512_add_epi32(dot, _mm512_madd_epi16(w, codes)));
}

static ALWAYS_INLINE __m512i panel_finish(enum vf_quant quant, __m512i dot)
{
    return quant == VF_QUANT_Q4 ? _mm512_madd_epi16(dot, _mm512_set1_epi16(1)) : dot;
}

/* Sixteen times four bytes as words: bytes 0 and 2 of each four, and bytes 1 and 3. */
static ALWAYS_INLINE void split_words(__m512i bytes, __m512i *even, __m512i *odd)
{
    *even = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
    *odd = _mm512_srai_epi16(bytes, 8);
}

static ALWAYS_INLINE void panel_copy_codes(enum vf_quant quant, const int8_t *q, int8_t *out)
{
    __m256i codes = _mm256_loadu_si256((const __m256i *)q);
    if (panel_is_wide(quant)) {
        _mm256_storeu_si256((__m256i *)(out + 32), _mm256_srai_epi16(codes, 8));
        codes = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
    }
    _mm256_storeu_si256((__m256i *)out, codes);
}

static ALWAYS_INLINE void panel_unpack(enum vf_quant quant, const uint8_t *body, uint8_t *out)
{
    if (quant == VF_QUANT_Q4) {
        panel_unpack_nibbles(body, out);
        return;
    }
    for (uint32_t j = 0; j < 8; j++) {
        __m512i even, odd;
        split_words(_mm512_loadu_si512(body + 64 * j), &even, &odd);
        _mm512_storeu_si512(out + j * STEP_BYTES, even);
        _mm512_storeu_si512(out + (j + 8) * STEP_BYTES, odd);
    }
}

#include "common/kernels/lanes_panel.h"

/* ---- few columns ---- */

static ALWAYS_INLINE __m512i dot_nibbles(const __m512i *w, const int8_t *q)
{
    __m512i pairs = _mm512_maddubs_epi16(w[0], four_codes(q));
    UNROLLED
    for (uint32_t j = 1; j < 8; j++)
        pairs =
            panel_pin(_mm512_add_epi16(pairs, _mm512_maddubs_epi16(w[j], four_codes(q + 4 * j))));
    return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

/* AVX-512 has no sign instruction: codes change sign under a mask of the negative weights. A
 * zero weight needs no mask, its magnitude is zero. */
static ALWAYS_INLINE __m512i dot_bytes(const __m512i *w, const int8_t *q)
{
    __m512i sum = _mm512_setzero_si512();
    UNROLLED
    for (uint32_t j = 0; j < 8; j++) {
        __m512i codes = four_codes(q + 4 * j);
        codes =
            _mm512_mask_sub_epi8(codes, _mm512_movepi8_mask(w[j]), _mm512_setzero_si512(), codes);
        __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w[j]), codes);
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    return sum;
}

static ALWAYS_INLINE void record_unpack(enum vf_quant quant, const uint8_t *body, __m512i *w)
{
    if (quant == VF_QUANT_Q4) {
        unpack_nibble_bytes(body, w);
        return;
    }
    for (uint32_t j = 0; j < 8; j++)
        w[j] = _mm512_loadu_si512(body + 64 * j);
}

static ALWAYS_INLINE __m512i record_dot(enum vf_quant quant, const __m512i *w, const int8_t *q,
                                        int32_t sum)
{
    if (quant == VF_QUANT_Q4)
        return _mm512_sub_epi32(dot_nibbles(w, q), _mm512_set1_epi32(8 * sum));
    return dot_bytes(w, q);
}

#include "common/kernels/lanes_span_avx512.h"

static void fill(struct vf_kernels *table)
{
    fill_vector_kernels(table);
    fill_matmul_f32(table);
    table->attention_block = attention_block;
    fill_matmul_q8(table);
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
