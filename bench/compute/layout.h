/* The arms of `vflow-bench layout`: one matrix, one column, three walks, timed by layout.c and
 * counted under cachegrind by layout_misses.c.
 */
#ifndef VF_BENCH_COMPUTE_LAYOUT_H
#define VF_BENCH_COMPUTE_LAYOUT_H

#include "bench/compute/rig.h"

enum layout_walk { LAYOUT_TILED, LAYOUT_ROW, LAYOUT_ROWS, LAYOUT_WALKS };
extern const char *const layout_walk_words[]; /* for the command line */
extern const char *const layout_walk_names[]; /* for people */

struct layout_weights { /* the same numbers twice */
    const uint8_t *tiles, *groups;
    uint32_t rows, cols;
};
/* y[0..rows) for rows [row_begin, row_end), whole stripes. AVX2 on every arm. */
void layout_multiply(enum layout_walk walk, bool q8, const struct vf_kernels *avx2,
                     const struct layout_weights *w, const struct vf_acts *acts, uint32_t row_begin,
                     uint32_t row_end, float *y);
/* VF_ERR_UNSUPPORTED where the row-major kernels weren't built or can't run. */
enum vf_code layout_kernels(const struct vf_kernels **avx2, struct vf_err *err);

/* L1 data-read misses of one product of `rows` rows, counted by cachegrind in a process of its own.
 * VF_ERR_IO when valgrind isn't there. */
enum vf_code layout_count_misses(const struct rig_named_shape *shape, enum layout_walk walk,
                                 bool q8, uint32_t rows, double *misses, struct vf_err *err);
#define LAYOUT_L1 "32768,8,64" /* bytes, ways, line: what is simulated */

#endif
