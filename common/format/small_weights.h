/* Weights too small for the type they are stored in: scales and halves below 2^-14 lose digits,
 * below 2^-25 everything, without a NaN or an infinity to show it.
 *
 * Follows one matrix from its first stripe to its last and keeps the energy (sum of squares) of the
 * weights and of what is lost of them. A matrix that loses a noticeable part can't be stored so;
 * rows that are lost beside larger ones may matter, when what reads them scales them up again. Used
 * by one thread.
 */
#ifndef VF_COMMON_FORMAT_SMALL_WEIGHTS_H
#define VF_COMMON_FORMAT_SMALL_WEIGHTS_H

#include "common/tile/tile.h"

struct vf_small_row {
    double energy, lost;
    float largest;
};

struct vf_small_weights {
    enum vf_quant quant;
    double energy, lost;
    float largest;                          /* magnitude of the matrix's weights */
    uint64_t rows_lost;                     /* that lose a noticeable part */
    uint32_t row;                           /* of those, the one with the largest weight, */
    float row_largest;                      /* and that weight's magnitude */
    struct vf_small_row rows[VF_TILE_ROWS]; /* of the stripe so far */
};

enum vf_small_verdict {
    VF_SMALL_NONE,  /* nothing is lost, or nothing beside the largest weights in single precision */
    VF_SMALL_ROWS,  /* rows are */
    VF_SMALL_MATRIX /* the matrix is */
};

void vf_small_weights_begin(struct vf_small_weights *s, enum vf_quant quant);
/* Columns of a stripe: [row_count, col_count] finite weights, stride apart. */
void vf_small_weights_add(struct vf_small_weights *s, const float *block, uint32_t row_count,
                          uint32_t col_count, uint32_t stride);
/* All columns of row_count rows from `row` on have been added. */
void vf_small_weights_end_stripe(struct vf_small_weights *s, uint32_t row, uint32_t row_count);
enum vf_small_verdict vf_small_weights_verdict(const struct vf_small_weights *s);

#endif
