/* Bits of numbers whose exponent is all ones. A record is looked through without branches first. */
#include "common/format/values_check.h"

#include <string.h>

#define F32_EXPONENT 0x7f800000u
#define F16_EXPONENT 0x7c00u

static bool f32_finite(const uint8_t *data, size_t n)
{
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, data + 4 * i, sizeof bits);
        bad |= (bits & F32_EXPONENT) == F32_EXPONENT;
    }
    return !bad;
}

static bool f16_finite(const uint8_t *data, size_t n)
{
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        bad |= (bits & F16_EXPONENT) == F16_EXPONENT;
    }
    return !bad;
}

static bool record_finite(enum vf_quant quant, const uint8_t *record)
{
    if (quant == VF_QUANT_F32)
        return f32_finite(record, (size_t)VF_RECORD_ROWS * VF_RECORD_COLS);
    return f16_finite(record, quant == VF_QUANT_F16 ? (size_t)VF_RECORD_ROWS * VF_RECORD_COLS
                                                    : VF_RECORD_ROWS);
}

/* Which number of the record, padding included, and whether it is a NaN. */
static void find_in_record(enum vf_quant quant, const uint8_t *record, uint32_t row, uint32_t col,
                           struct vf_bad_value *bad)
{
    bool f32 = quant == VF_QUANT_F32;
    uint32_t i = 0;
    while (f32 ? f32_finite(record + 4 * i, 1) : f16_finite(record + 2 * i, 1))
        i++;
    uint32_t bits32 = 0;
    uint16_t bits16 = 0;
    if (f32)
        memcpy(&bits32, record + 4 * i, sizeof bits32);
    else
        memcpy(&bits16, record + 2 * i, sizeof bits16);
    *bad = (struct vf_bad_value){
        .row = row + i % VF_RECORD_ROWS,
        .col = col + i / VF_RECORD_ROWS,
        .is_scale = quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8,
        .is_nan = (bits32 & ~F32_EXPONENT & 0x7fffffffu) || (bits16 & ~F16_EXPONENT & 0x7fffu),
    };
}

bool vf_records_finite(enum vf_quant quant, const uint8_t *records, uint64_t count)
{
    uint32_t bytes = vf_record_bytes(quant);
    for (uint64_t i = 0; i < count; i++)
        if (!record_finite(quant, records + i * bytes))
            return false;
    return true;
}

bool vf_values_finite(const struct vf_matrix *m, struct vf_bad_value *bad)
{
    uint64_t bytes = vf_matrix_bytes(m->quant, m->rows, m->cols);
    if (vf_records_finite(m->quant, m->data, bytes / vf_record_bytes(m->quant)))
        return true;
    for (uint32_t rb = 0; rb < vf_row_blocks(m->rows); rb++) {
        for (uint32_t g = 0; g < vf_col_groups(m->cols); g++) {
            const uint8_t *record = m->data + vf_record_offset(m->quant, m->rows, m->cols, rb, g);
            if (record_finite(m->quant, record))
                continue;
            find_in_record(m->quant, record, rb * VF_RECORD_ROWS, g * VF_RECORD_COLS, bad);
            return false;
        }
    }
    return true;
}

bool vf_values_finite_vector(const float *v, uint32_t n, struct vf_bad_value *bad)
{
    if (f32_finite((const uint8_t *)v, n))
        return true;
    uint32_t i = 0;
    while (f32_finite((const uint8_t *)(v + i), 1))
        i++;
    *bad = (struct vf_bad_value){.col = i, .is_nan = v[i] != v[i]};
    return false;
}
