/* How many weight bytes lie between a token's start and its logits: the papers' closed form and
 * the same question asked of the layer program itself.
 *
 * The closed form (pipeline-native report, section 4.5) counts 0.5 bytes a weight and sums, over
 * the executed layers, the longest of three streams:
 *
 *     max(B_attention / (attention_delay + 1), B_dense / (dense_delay + 1),
 *         B_expert / (expert_delay + 1))
 *
 * It supposes that a stream which has a window of n layers is read in n layers' time at no cost
 * to the others. The program's own path supposes less: an operation reads its weights when its
 * inputs exist, and each stream reads one operation at a time. The two differ for three reasons:
 * without a delay a dense FFN waits for its layer's attention (a sum, where the closed form has
 * a maximum); a delayed stream still has to read all its bytes one after another; and layers
 * before the dense delay read no dense weights at all. docs/MODELS.md works an example.
 *
 * Nothing here owns memory; the caller's arrays have op_count entries.
 */
#ifndef VF_COMMON_MODEL_CRITICAL_PATH_H
#define VF_COMMON_MODEL_CRITICAL_PATH_H

#include "common/model/program.h"

/* What reads an operation's weights when streams run side by side. */
enum vf_lane {
    VF_LANE_ATTENTION,
    VF_LANE_DENSE,
    VF_LANE_EXPERTS,
    VF_LANE_COUNT,
    VF_LANE_NONE = VF_LANE_COUNT /* embed, norm, route, fetch, sum, head: wait for nobody */
};
enum vf_lane vf_op_lane(enum vf_op_kind kind);

/* Bytes at 0.5 a weight. The first three are one layer's, undelayed; the others one token's. */
struct vf_critical_path {
    double attention, dense, experts;
    double serial;   /* every stream of every layer back to back */
    double naive;    /* the closed form with all delays 0 */
    double critical; /* the closed form with the model's delays */
};
struct vf_critical_path vf_critical_path_closed_form(const struct vf_config *config);

/* The closed form's cost of one op: 0.5 bytes a weight of attention, dense and experts
 * projections, 0 for everything else. */
double vf_op_half_bytes(const struct vf_config *config, const struct vf_op *op);

/* Runs the program against the clock "bytes read". Op i takes cost[i], starts when its inputs
 * are there and its resource is free, experts also when their fetch is finished, and resources take
 * their ops in the given order (NULL: the program's), in which producers come first. resource[i]
 * is below resource_count, or VF_RESOURCE_NONE for an op that waits for its inputs only.
 * resource_free has resource_count entries (scratch). Fills start and finish (either may not be
 * NULL) and returns the last finish. */
#define VF_RESOURCE_NONE 0xffffffffu
double vf_program_schedule(const struct vf_program *p, const double *cost, const uint32_t *order,
                           const uint32_t *resource, double *resource_free, uint32_t resource_count,
                           double *start, double *finish);

#endif
