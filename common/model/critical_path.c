/* The closed form of the pipeline-native report and the schedule of a program. */
#include "common/model/critical_path.h"

#define BYTES_PER_WEIGHT 0.5 /* what the report counts for Q4: its scales are left out */

enum vf_lane vf_op_lane(enum vf_op_kind kind)
{
    switch (kind) {
    case VF_OP_ATTENTION:
        return VF_LANE_ATTENTION;
    case VF_OP_DENSE:
        return VF_LANE_DENSE;
    case VF_OP_EXPERTS:
        return VF_LANE_EXPERTS;
    default:
        return VF_LANE_NONE;
    }
}

static double lane_bytes(const struct vf_config *c, enum vf_lane lane)
{
    double d = c->hidden_size, matrices = c->mlp_gated ? 3 : 2;
    double heads = 2.0 * c->head_count + 2.0 * c->kv_head_count; /* q and o, k and v */
    switch (lane) {
    case VF_LANE_ATTENTION:
        return heads * c->head_dim * d * BYTES_PER_WEIGHT;
    case VF_LANE_DENSE:
        return matrices * d * c->ffn_size * BYTES_PER_WEIGHT;
    case VF_LANE_EXPERTS:
        return c->expert_top_k * matrices * d * c->expert_ffn_size * BYTES_PER_WEIGHT;
    default:
        return 0.0;
    }
}

double vf_op_half_bytes(const struct vf_config *config, const struct vf_op *op)
{
    return lane_bytes(config, vf_op_lane(op->kind));
}

static double longest(double a, double b, double c)
{
    double m = a > b ? a : b;
    return m > c ? m : c;
}

struct vf_critical_path vf_critical_path_closed_form(const struct vf_config *config)
{
    struct vf_critical_path r = {
        .attention = lane_bytes(config, VF_LANE_ATTENTION),
        .dense = lane_bytes(config, VF_LANE_DENSE),
        .experts = lane_bytes(config, VF_LANE_EXPERTS),
    };
    double layers = vf_config_effective_layers(config);
    r.serial = layers * (r.attention + r.dense + r.experts);
    r.naive = layers * longest(r.attention, r.dense, r.experts);
    r.critical = layers * longest(r.attention / (config->attention_delay + 1.0),
                                  r.dense / (config->dense_delay + 1.0),
                                  r.experts / (config->expert_delay + 1.0));
    return r;
}

/* The fetch that ordered what an experts op reads: the nearest before it with its routing decision.
 */
static double experts_there(const struct vf_program *p, uint32_t op, const double *finish)
{
    vf_value route = vf_op_inputs(p, &p->ops[op])[1];
    for (uint32_t i = op; i-- > 0;)
        if (p->ops[i].kind == VF_OP_FETCH && vf_op_inputs(p, &p->ops[i])[0] == route)
            return finish[i];
    return 0.0;
}

static double inputs_ready(const struct vf_program *p, uint32_t i, const double *finish)
{
    const struct vf_op *op = &p->ops[i];
    double ready = op->kind == VF_OP_EXPERTS ? experts_there(p, i, finish) : 0.0;
    for (uint32_t k = 0; k < op->in_count; k++) {
        double t = finish[p->values[vf_op_inputs(p, op)[k]].producer];
        if (t > ready)
            ready = t;
    }
    return ready;
}

double vf_program_schedule(const struct vf_program *p, const double *cost, const uint32_t *order,
                           const uint32_t *resource, double *resource_free, uint32_t resource_count,
                           double *start, double *finish)
{
    double end = 0.0;
    for (uint32_t r = 0; r < resource_count; r++)
        resource_free[r] = 0.0;
    for (uint32_t n = 0; n < p->op_count; n++) {
        uint32_t i = order ? order[n] : n;
        double t = inputs_ready(p, i, finish);
        uint32_t r = resource[i];
        if (r != VF_RESOURCE_NONE && resource_free[r] > t)
            t = resource_free[r];
        start[i] = t;
        finish[i] = t + cost[i];
        if (r != VF_RESOURCE_NONE)
            resource_free[r] = finish[i];
        if (finish[i] > end)
            end = finish[i];
    }
    return end;
}
