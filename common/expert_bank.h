/* Where the experts' records lie: the part of a model file that streaming needs, and no more, so
 * that the cache, the stream source and the I/O worker can be driven by any table of extents.
 *
 * A bank is a plain value; it borrows what it points to.
 */
#ifndef VF_COMMON_EXPERT_BANK_H
#define VF_COMMON_EXPERT_BANK_H

#include "common/format/model_file.h"

struct vf_expert_bank {
    const char *path;
    uint64_t fingerprint; /* of the file's tables; both sides of a cache must agree on it */
    uint64_t file_bytes;
    uint32_t layer_count, expert_count; /* both at least 1 */
    uint64_t record_bytes;              /* of every expert, multiple of VF_EXPERT_ALIGN */
    /* O(1); layer < layer_count, expert < expert_count. */
    struct vf_expert_extent (*extent)(const void *ctx, uint32_t layer, uint32_t expert);
    const void *ctx;
};

/* The bank of an open model file, which must outlive it. VF_ERR_UNSUPPORTED when the model has no
 * experts. */
enum vf_code vf_expert_bank_from_model(const struct vf_model_file *f, struct vf_expert_bank *out,
                                       struct vf_err *err);

#endif
