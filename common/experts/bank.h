/* Where the experts' records lie: the part of a model file that streaming needs, and no more, so
 * that the cache, the stream source and the I/O worker can be driven by any table of extents.
 *
 * A bank is a plain value; it borrows what it points to.
 */
#ifndef VF_COMMON_EXPERTS_BANK_H
#define VF_COMMON_EXPERTS_BANK_H

#include "common/format/model_file.h"

#define VF_BANK_FILES_MAX 16u

struct vf_expert_ref {
    uint32_t layer, expert; /* weight layer */
};

/* The front of a record, gate and up, that has landed while down is still being read. It lies in
 * memory that nobody holds for the reader: what is computed from it counts only when the expert is
 * got and its load is this one. */
struct vf_expert_front {
    const uint8_t *data; /* NULL: none, or none that is new */
    uint64_t load;       /* a number that no other load of the run has; 0: none */
};

struct vf_expert_bank {
    const char *path;                     /* of the model */
    const char *files[VF_BANK_FILES_MAX]; /* where the records lie: extent.file is the index */
    uint32_t file_count;
    uint64_t fingerprint; /* of the model's tables; both sides of a cache must agree on it */
    uint64_t file_bytes;  /* of the model */
    uint32_t layer_count, expert_count; /* both at least 1 */
    uint64_t record_bytes;              /* of every expert, multiple of VF_EXPERT_ALIGN */
    uint64_t front_bytes; /* of every record: gate and up, which come first; 0: nobody asks */
    /* O(1); layer < layer_count, expert < expert_count. */
    struct vf_expert_extent (*extent)(const void *ctx, uint32_t layer, uint32_t expert);
    const void *ctx;
};

/* The bank of an open model file, which must outlive it. VF_ERR_UNSUPPORTED when the model has no
 * experts. */
enum vf_code vf_expert_bank_from_model(const struct vf_model_file *f, struct vf_expert_bank *out,
                                       struct vf_err *err);
/* Whether a record of the same layer begins where this one ends in its file, with no byte between:
 * *next is its expert. In a striped bank that isn't expert + 1. */
bool vf_expert_bank_next(const struct vf_expert_bank *b, uint32_t layer, uint32_t expert,
                         uint32_t *next);
/* From a file's first record to its last one's end; no bytes when it has none. */
void vf_expert_bank_range(const struct vf_expert_bank *b, uint32_t file, uint64_t *offset,
                          uint64_t *bytes);

#endif
