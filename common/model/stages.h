/* The order in which a program is executed: stages.
 *
 * A stage is first its light operations (embed, norm, sum, route, fetch, head) in program order,
 * then its heavy ones (attention, dense, experts; at most one of each kind). The heavy operations
 * of a stage don't depend on each other, so that they can share parallel regions: a delay in the
 * model becomes work for all threads between two barriers. Every operation comes behind the
 * producers of its inputs. The order is one for the whole program: workers that each execute their
 * operations in this order never wait for each other in a circle.
 */
#ifndef VF_COMMON_MODEL_STAGES_H
#define VF_COMMON_MODEL_STAGES_H

#include "common/model/program.h"

/* When the experts run; the results are the same. */
enum vf_experts_when {
    VF_EXPERTS_EARLY, /* beside other heavy operations: their weights are in memory */
    VF_EXPERTS_LATE,  /* in a stage of their own, right before their consumer: they are read from
                         the drive, and what comes before hides that; the last layer's dense FFN
                         comes behind that layer's orders, since it hides the token's last read */
    VF_EXPERTS_SYNC,  /* right behind their routing decision, before everything heavy: nothing hides
                         the read */
    VF_EXPERTS_WHEN_COUNT
};

/* order[i]: the i-th operation to execute. slot[op]: when, counted from 0 and ascending along the
 * order: the heavy operations of a stage share a slot (sync experts have one before them), every
 * other operation has its own. Both [op_count]. */
void vf_stages_order(const struct vf_program *p, enum vf_experts_when when, uint32_t *order,
                     uint32_t *slot);

static inline bool vf_op_is_heavy(const struct vf_op *op)
{
    return op->kind == VF_OP_ATTENTION || op->kind == VF_OP_DENSE || op->kind == VF_OP_EXPERTS;
}

#endif
