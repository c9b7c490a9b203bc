/* The chosen experts of a layer, summed. */
#ifndef VF_STAGE_WORKER_EXPERTS_H
#define VF_STAGE_WORKER_EXPERTS_H

#include "stage_worker/expert_source.h"
#include "stage_worker/route.h"

/* Of one layer. */
struct experts_weights {
    const float *hidden_coupling[VF_FLOWS_MAX], *output_coupling[VF_FLOWS_MAX];
};

/* An expert at hand: its record, or the front of it. */
struct expert_view {
    uint32_t expert; /* index into the set */
    bool is_whole;
    bool has_hidden; /* its hidden activations were computed from the front */
    struct vf_matrix gate, up, down;
};

struct experts {
    struct core *core;
    const struct vf_config *config;
    const struct vf_kernels *kernels;
    const struct step *step;
    struct experts_weights *layers; /* [layer_count] */
    struct vf_experts_space space;
    struct acts acts, pair_acts, hidden_acts;
    struct expert_set set;          /* of the operation at hand */
    struct vf_expert_ref *refs;     /* [outstanding_count], and what acquire gave for them */
    const uint8_t **got;            /* ... records */
    struct vf_expert_front *fronts; /* ... fronts taken of them */
    uint32_t outstanding_count;     /* of space.outstanding: indices into the set */
    struct expert_view *views;      /* [view_count]: those that can be worked on */
    uint32_t view_count;
    uint64_t stall_ns; /* waited for experts */
};
init_fn experts_init;
deinit_fn experts_deinit;
phase_fn experts_phase;

#endif
