/* One worker's part of a program: what it runs and in which order, how long it holds each value,
 * and in which of its buffers.
 *
 * Everything is derived from the order of execution (stages.h), once, and from here the worker's
 * schedule, the layout of its memory and what may be guessed ahead are read off. A value that
 * crosses to or from another worker lies in a mailbox (common/run/mailbox.h) and has no buffer
 * here; the others share buffers as far as they don't live at the same time.
 */
#ifndef VF_COMMON_MODEL_PART_H
#define VF_COMMON_MODEL_PART_H

#include "common/model/placement.h"
#include "common/model/stages.h"

#define VF_BUFFER_NONE UINT32_MAX

/* The first and the last slot (stages.h) in which a value is made or read; begin > end: never. */
struct vf_span {
    uint32_t begin, end;
};

struct vf_part {
    uint32_t worker;
    uint32_t *order; /* [op_count]: its operations in the order of execution */
    uint32_t op_count;
    uint32_t op_counts[VF_OP_KIND_COUNT]; /* of each kind */
    uint32_t *slot;                       /* [operations of the program] */
    struct vf_span *spans;                /* [values] */
    uint32_t *buffer;                     /* [values]: among those of its kind, or VF_BUFFER_NONE */
    uint32_t value_buffers, route_buffers;
};

/* VF_ERR_NO_MEMORY. On failure nothing is left to free. */
enum vf_code vf_part_make(const struct vf_program *p, const struct vf_placement *placement,
                          uint32_t worker, enum vf_experts_when when, struct vf_part *out,
                          struct vf_err *err);
void vf_part_deinit(struct vf_part *part);

#endif
