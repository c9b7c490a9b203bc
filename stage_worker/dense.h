/* The dense FFN. */
#ifndef VF_STAGE_WORKER_DENSE_H
#define VF_STAGE_WORKER_DENSE_H

#include "stage_worker/operation.h"

/* Of one layer; flow j: its own matrices or flow 0's. */
struct dense_weights {
    struct vf_matrix gate[VF_FLOWS_MAX], up[VF_FLOWS_MAX], down[VF_FLOWS_MAX];
    const float *hidden_coupling[VF_FLOWS_MAX], *output_coupling[VF_FLOWS_MAX];
};

struct dense {
    struct core *core;
    const struct vf_config *config;
    const struct step *step;
    struct dense_weights *layers; /* [layer_count] */
    struct vf_dense_space space;
    struct acts acts, hidden_acts;
};
init_fn dense_init;
deinit_fn dense_deinit;
phase_fn dense_phase;

#endif
