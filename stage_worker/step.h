/* The step at hand: its columns, in the order of struct vf_step, and where its rows go. */
#ifndef VF_STAGE_WORKER_STEP_H
#define VF_STAGE_WORKER_STEP_H

#include "stage_worker/executor.h"

struct step {
    uint64_t id;
    const struct vf_column *columns;
    uint32_t n_col;     /* all flows */
    uint32_t n_primary; /* flow 0: columns [0, n_primary) */
    uint32_t flow_begin[VF_FLOWS_MAX + 1];
    float *rows;
    uint32_t row_count;
};

/* Whether a step keeps the contract of struct vf_step; what arrives came over a socket. */
enum vf_code step_check(const struct vf_executor_params *p, const struct vf_step *step,
                        struct vf_err *err);
void step_set(struct step *s, const struct vf_step *step, uint32_t flows, float *rows);

#endif
