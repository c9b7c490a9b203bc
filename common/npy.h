/* Writes a float32 matrix as a NumPy file (format 1.0, little-endian, C order), row by row. The
 * file appears under its name only when it is whole.
 */
#ifndef VF_COMMON_NPY_H
#define VF_COMMON_NPY_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

struct vf_npy;

enum vf_code vf_npy_create(const char *path, uint64_t rows, uint64_t columns, struct vf_npy **out,
                           struct vf_err *err);
/* The next row_count rows; more than were announced is VF_ERR_LIMIT. */
enum vf_code vf_npy_append(struct vf_npy *npy, const void *values, uint64_t row_count,
                           struct vf_err *err);
/* All rows must be there. Gives the file its name; the handle stays to be destroyed. */
enum vf_code vf_npy_commit(struct vf_npy *npy, struct vf_err *err);
/* Without a commit nothing is left of the file. NULL is fine. */
void vf_npy_destroy(struct vf_npy *npy);

#endif
