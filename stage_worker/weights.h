/* The tensors that operations read, where they lie in the mapped file, and which of them a worker
 * reads at all: to map, copy and verify them.
 */
#ifndef VF_STAGE_WORKER_WEIGHTS_H
#define VF_STAGE_WORKER_WEIGHTS_H

#include "stage_worker/executor.h"

/* A flow's own tensor or, of a matrix it has none of, flow 0's; what the model lacks is zeroed, or
 * NULL. */
struct vf_matrix weights_matrix(const struct vf_model_file *f, enum vf_tensor_kind kind,
                                uint32_t layer, uint32_t flow);
const float *weights_vector(const struct vf_model_file *f, enum vf_tensor_kind kind, uint32_t layer,
                            uint32_t flow);
/* VF_ERR_NO_MEMORY for a list of one per layer. */
enum vf_code weights_no_memory(const struct vf_config *c, struct vf_err *err);

/* vf_executor_weight_bytes and vf_executor_verify. */
uint64_t weights_bytes(const struct vf_executor_params *p);
enum vf_code weights_verify(const struct vf_executor_params *p, bool with_experts,
                            struct vf_err *err);

#endif
