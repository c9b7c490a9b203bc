/* What all operations of one executor share: its part of the program, its memory, the values and
 * the step at hand, and the work of the next parallel region. core_init makes it once; operations
 * keep a pointer to it and own everything else they need (operation.h).
 */
#ifndef VF_STAGE_WORKER_CORE_H
#define VF_STAGE_WORKER_CORE_H

#include "stage_worker/step.h"
#include "stage_worker/values.h"
#include "stage_worker/work.h"

struct core {
    struct vf_executor_params p;
    const struct vf_config *config;
    const struct vf_kernels *kernels;
    uint32_t flows;
    uint32_t stride; /* floats per column of a value */
    struct vf_pool *pool;
    struct vf_step_shape shape; /* of the largest step */
    struct vf_part part;
    void *memory; /* every buffer of the worker, as space names them */
    uint64_t memory_bytes;
    struct vf_step_space space;
    struct work work;
    struct values values;
    struct step step;
};

/* Also on failure core_deinit takes what was made. */
enum vf_code core_init(struct core *core, const struct vf_executor_params *params,
                       struct vf_err *err);
void core_deinit(struct core *core);

/* A value that exists, and one that the operation at hand makes: [n_col, stride]. */
static inline const float *value_in(const struct core *core, vf_value v)
{
    return core->values.in[v];
}
static inline float *value_out(const struct core *core, vf_value v)
{
    return core->values.out[v];
}
static inline struct vf_route *value_route(const struct core *core, vf_value v)
{
    return &core->space.values.routes[core->part.buffer[v]];
}
/* The k-th input of an operation. */
static inline vf_value op_input(const struct core *core, const struct vf_op *op, uint32_t k)
{
    return vf_op_inputs(core->p.program, op)[k];
}

/* Ranks orders of experts by when their consumer runs; a later step's rank behind. */
uint64_t deadline_rank(const struct core *core, const struct vf_op *op);
/* x[column] += coupling[flow of it] * x[primary of it] for a column of an auxiliary flow that has a
 * coupling: x [n_col, stride], n entries of each. */
void couple_column(const struct core *core, const float *const *coupling, float *x, uint32_t n,
                   uint32_t stride, uint32_t column);

#endif
