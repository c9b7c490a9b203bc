/* Numbers that no weight may be: NaN and infinities, among f32 and f16 numbers and the scales of q8
 * and q4. */
#ifndef VF_COMMON_FORMAT_VALUES_CHECK_H
#define VF_COMMON_FORMAT_VALUES_CHECK_H

#include "common/tile/tile.h"

struct vf_bad_value {
    uint32_t row, col; /* of a scale: its group's first column */
    bool is_scale, is_nan;
};

/* Whether all numbers of records that lie one behind another are finite, padding included. */
bool vf_records_finite(enum vf_quant quant, const uint8_t *records, uint64_t count);
/* True when all are finite; else *bad is the first that isn't, record by record. */
bool vf_values_finite(const struct vf_matrix *m, struct vf_bad_value *bad);
bool vf_values_finite_vector(const float *v, uint32_t n, struct vf_bad_value *bad);

#endif
