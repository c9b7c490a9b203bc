/* A group's scale is its largest magnitude over 7 or 127, rounded to f16. One that rounds to zero
 * loses the group, one that rounds down clips its largest weights by as much. Above 2^-14 rounding
 * costs less than the codes do, so most groups end at one comparison.
 */
#include "common/format/small_weights.h"

#include <math.h>

/* A sixteenth of the root mean square, half of what q4 itself rounds away. */
#define LOST_ENERGY_MAX (1.0 / 256)
/* Rows so far below the largest weight vanish in single precision, too: unused embeddings do. */
#define NEGLIGIBLE     0x1p-24f
#define F16_NORMAL_MIN 0x1p-14f
#define LANES          8

void vf_small_weights_begin(struct vf_small_weights *s, enum vf_quant quant)
{
    *s = (struct vf_small_weights){.quant = quant};
}

/* Sums in lanes, which the compiler turns into vectors. */
static void measure(const float *w, uint32_t n, float *largest, float *energy)
{
    float top[LANES] = {0}, sum[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t k = 0; k < LANES; k++) {
            float m = fabsf(w[i + k]);
            top[k] = m > top[k] ? m : top[k];
            sum[k] += m * m;
        }
    }
    for (; i < n; i++) {
        top[0] = fmaxf(top[0], fabsf(w[i]));
        sum[0] += w[i] * w[i];
    }
    for (uint32_t k = 1; k < LANES; k++) {
        top[0] = fmaxf(top[0], top[k]);
        sum[0] += sum[k];
    }
    *largest = top[0];
    *energy = sum[0];
}

static double exact_energy(const float *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)w[i] * w[i];
    return sum;
}

static double lost_as_f16(const float *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double e = fabsf(w[i]) < F16_NORMAL_MIN ? w[i] - vf_f16_to_f32(vf_f32_to_f16(w[i])) : 0;
        sum += e * e;
    }
    return sum;
}

/* What of a group's energy its scale clips. */
static double lost_by_scale(float largest, float codes, double energy)
{
    float wanted = largest / codes;
    if (wanted >= F16_NORMAL_MIN)
        return 0;
    double clipped = 1 - (double)vf_f16_to_f32(vf_f32_to_f16(wanted)) * codes / (double)largest;
    return clipped > 0 ? clipped * clipped * energy : 0;
}

static void add_group(struct vf_small_weights *s, struct vf_small_row *row, const float *w,
                      uint32_t n)
{
    float largest, sum;
    measure(w, n, &largest, &sum);
    if (largest == 0)
        return;
    /* Squares of the tiniest and of the largest leave the range of a float. */
    bool in_range = largest > 0x1p-50f && largest < 0x1p50f;
    double energy = in_range ? (double)sum : exact_energy(w, n);
    row->energy += energy;
    row->largest = fmaxf(row->largest, largest);
    row->lost += s->quant == VF_QUANT_F16
                     ? lost_as_f16(w, n)
                     : lost_by_scale(largest, s->quant == VF_QUANT_Q4 ? 7 : 127, energy);
}

void vf_small_weights_add(struct vf_small_weights *s, const float *block, uint32_t row_count,
                          uint32_t col_count, uint32_t stride)
{
    if (s->quant == VF_QUANT_F32)
        return;
    for (uint32_t r = 0; r < row_count; r++) {
        const float *w = block + (size_t)r * stride;
        for (uint32_t c = 0; c < col_count; c += VF_RECORD_COLS)
            add_group(s, &s->rows[r], w + c,
                      col_count - c < VF_RECORD_COLS ? col_count - c : VF_RECORD_COLS);
    }
}

void vf_small_weights_end_stripe(struct vf_small_weights *s, uint32_t row, uint32_t row_count)
{
    for (uint32_t r = 0; r < row_count; r++) {
        struct vf_small_row *now = &s->rows[r];
        s->energy += now->energy;
        s->lost += now->lost;
        s->largest = fmaxf(s->largest, now->largest);
        if (now->lost > now->energy * LOST_ENERGY_MAX) {
            s->rows_lost++;
            if (now->largest > s->row_largest) {
                s->row = row + r;
                s->row_largest = now->largest;
            }
        }
        *now = (struct vf_small_row){0};
    }
}

enum vf_small_verdict vf_small_weights_verdict(const struct vf_small_weights *s)
{
    if (s->lost > s->energy * LOST_ENERGY_MAX)
        return VF_SMALL_MATRIX;
    return s->rows_lost && s->row_largest >= s->largest * NEGLIGIBLE ? VF_SMALL_ROWS
                                                                     : VF_SMALL_NONE;
}
