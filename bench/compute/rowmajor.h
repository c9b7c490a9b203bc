/* Matrix times one column with the weights row by row, as GGUF files and the engines that run them
 * keep Q4_0: in a row one group of 18 bytes after the other (an f16 scale, then 16 bytes, byte i
 * with column i in its low nibble and column 16 + i in its high one). AVX2; the other side of
 * `vflow-bench layout`.
 *
 * `at_a_time` rows go over the activations together: 1 is the walk that the tiles are compared
 * with in the literature, 4 reads each activation once for four rows. Sums are the tiled kernels'
 * up to the order of their additions.
 */
#ifndef VF_BENCH_COMPUTE_ROWMAJOR_H
#define VF_BENCH_COMPUTE_ROWMAJOR_H

#include "common/kernels/kernels.h"

/* y[r] for rows [row_begin, row_end), a multiple of 4 of them; groups is the matrix's first byte;
 * acts has one column. */
typedef void rowmajor_fn(const uint8_t *groups, const struct vf_acts *acts, uint32_t row_begin,
                         uint32_t row_end, uint32_t at_a_time, float *y);
/* f32 activations, weights made floats on the way. */
rowmajor_fn rowmajor_f32;
/* int8 activations, integer dot products of a group. */
rowmajor_fn rowmajor_q8;

#endif
