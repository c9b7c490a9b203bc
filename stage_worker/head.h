/* The head: log-probabilities of the rows that are wanted. */
#ifndef VF_STAGE_WORKER_HEAD_H
#define VF_STAGE_WORKER_HEAD_H

#include "stage_worker/operation.h"

struct head {
    struct core *core;
    struct vf_matrix matrix;
    struct vf_head_space space;
    struct acts acts;
    bool not_finite; /* a row of the last step isn't made of numbers */
};
init_fn head_init;
run_fn head_run;

#endif
