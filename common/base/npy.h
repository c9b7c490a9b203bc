/* NumPy files (format 1.0, little-endian, C order): written row by row, read whole. A written file
 * appears under its name only when it is whole; a file that is read is untrusted.
 */
#ifndef VF_COMMON_BASE_NPY_H
#define VF_COMMON_BASE_NPY_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct vf_npy;

/* float32 [rows, columns]. */
enum vf_code vf_npy_create(const char *path, uint64_t rows, uint64_t columns, struct vf_npy **out,
                           struct vf_err *err);
/* uint16 [rows, columns, depth]. */
enum vf_code vf_npy_create_u16(const char *path, uint64_t rows, uint64_t columns, uint64_t depth,
                               struct vf_npy **out, struct vf_err *err);
/* The next row_count rows; more than were announced is VF_ERR_LIMIT. */
enum vf_code vf_npy_append(struct vf_npy *npy, const void *values, uint64_t row_count,
                           struct vf_err *err);
/* All rows must be there. Gives the file its name; the handle stays to be destroyed. */
enum vf_code vf_npy_commit(struct vf_npy *npy, struct vf_err *err);
/* Without a commit nothing is left of the file. NULL is fine. */
void vf_npy_destroy(struct vf_npy *npy);

enum vf_npy_type { VF_NPY_U16, VF_NPY_I32 }; /* '<u2', '<i4' */
struct vf_npy_array {
    enum vf_npy_type type;
    uint64_t shape[3];
    void *data; /* heap, [shape[0] * shape[1] * shape[2]], the caller frees */
};
/* An array of three dimensions and one of these types, format 1.0 or 2.0, of at most bytes_max.
 * VF_ERR_UNSUPPORTED for another, VF_ERR_CORRUPT for what isn't a whole NumPy file. */
enum vf_code vf_npy_read(const char *path, uint64_t bytes_max, struct vf_npy_array *out,
                         struct vf_err *err);

#endif
