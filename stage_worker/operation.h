/* How an operation is built: a struct with what it alone needs (weights, buffers, lists), made by
 * its init, and one function that runs it, of one of three kinds. executor.c has the table of all.
 */
#ifndef VF_STAGE_WORKER_OPERATION_H
#define VF_STAGE_WORKER_OPERATION_H

#include "stage_worker/core.h"

/* self is the operation's struct, zeroed; also on failure deinit takes what was made. */
typedef enum vf_code init_fn(void *self, struct core *core, struct vf_err *err);
typedef void deinit_fn(void *self);
/* Before the first operation of a step. */
typedef void begin_step_fn(void *self);

/* Goes column by column: a row of such operations runs on one column behind the other. */
typedef void column_fn(const void *self, const struct vf_op *op, uint32_t column);

/* Light: runs alone, its own regions inside. */
typedef void run_fn(void *self, const struct vf_op *op);

/* Heavy: a row of phases. Each adds jobs that don't depend on each other to the region, which runs
 * before the next phase, together with what the other operations of the stage have added. *next is
 * phase + 1 unless the operation sets it: PHASE_END when the phase was its last. A phase that adds
 * nothing is followed by the next one at once. */
#define PHASE_END UINT32_MAX
typedef enum vf_code phase_fn(void *self, const struct vf_op *op, uint32_t phase, uint32_t *next,
                              struct vf_err *err);

#endif
