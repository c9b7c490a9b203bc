/* The attention operation and the KV cache. */
#ifndef VF_STAGE_WORKER_ATTENTION_H
#define VF_STAGE_WORKER_ATTENTION_H

#include "stage_worker/kv_cache.h"
#include "stage_worker/operation.h"

/* Of one layer. What the model lacks stays zeroed. */
struct attention_weights {
    struct vf_matrix k, v;
    struct vf_matrix q[VF_FLOWS_MAX], o[VF_FLOWS_MAX]; /* flow j: its own or flow 0's */
    const float *q_bias, *k_bias, *v_bias;
    const float *q_norm, *k_norm;
    const float *query_coupling[VF_FLOWS_MAX];
};

struct attention {
    struct core *core;
    const struct vf_config *config;
    const struct vf_kernels *kernels;
    const struct step *step;
    struct attention_weights *layers; /* [layer_count] */
    struct vf_kv_cache *kv;
    uint32_t *kv_index; /* [effective layers] -> cache of this worker */
    struct vf_attention_space space;
    struct acts acts;
    uint32_t rope_pairs, rope_distance;
};
init_fn attention_init;
deinit_fn attention_deinit;
begin_step_fn attention_begin_step; /* rotations of its positions */
phase_fn attention_phase;
/* After a step that came out of the numbers: VF_ERR_LIMIT when keys or values that its columns see
 * aren't finite, naming the first layer and position; VF_OK when they are not to blame. */
enum vf_code attention_blame(const struct attention *at, struct vf_err *err);

#endif
