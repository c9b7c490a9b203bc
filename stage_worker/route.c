/* Routing decisions, and the distinct experts in them. */
#include "stage_worker/route.h"

#include "stage_worker/weights.h"

#include <math.h>
#include <stdlib.h>

enum vf_code route_init(void *self, struct core *core, struct vf_err *err)
{
    struct router *r = self;
    r->core = core;
    r->space = core->space.router;
    r->layers = calloc(core->config->layer_count, sizeof *r->layers);
    if (!r->layers)
        return weights_no_memory(core->config, err);
    for (uint32_t l = 0; l < core->config->layer_count; l++)
        r->layers[l] = weights_matrix(core->p.file, VF_T_ROUTER, l, 0);
    return VF_OK;
}

void route_deinit(void *self)
{
    struct router *r = self;
    free(r->layers);
}

/* ---- routing ------------------------------------------------------------------------------------
 */

void select_top_k(const float *logits, uint32_t n, uint32_t k, uint32_t *chosen)
{
    float best[VF_EXPERTS_TOP_MAX];
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++) {
        float v = isnan(logits[e]) ? -INFINITY : logits[e];
        if (count == k && !(v > best[k - 1]))
            continue;
        uint32_t at = count < k ? count++ : k - 1;
        for (; at > 0 && v > best[at - 1]; at--) {
            best[at] = best[at - 1];
            chosen[at] = chosen[at - 1];
        }
        best[at] = v;
        chosen[at] = e;
    }
}

static void weigh(const struct core *core, const float *logits, const uint32_t *chosen, uint32_t k,
                  float *weights)
{
    const struct vf_config *c = core->config;
    const struct vf_kernels *kernels = core->kernels;
    for (uint32_t i = 0; i < k; i++)
        weights[i] = logits[chosen[i]];
    const float *all = c->norm_topk_prob ? weights : logits;
    uint32_t n = c->norm_topk_prob ? k : c->expert_count;
    float max = kernels->max(all, n);
    float sum = kernels->exp_sum(all, max, n, NULL);
    for (uint32_t i = 0; i < k; i++)
        weights[i] = vf_expf(weights[i] - max) / sum;
}

static void choose_experts(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    const struct router *router = job->ctx;
    const struct core *core = router->core;
    const struct vf_op *op = job->what;
    const struct vf_config *c = core->config;
    const struct vf_route *r = value_route(core, op->out);
    uint32_t stride = vf_experts_top_max(c);
    for (uint32_t col = begin; col < end; col++) {
        const struct vf_column *column = &core->step.columns[col];
        bool replay = column->flow > 0 && c->flow_router == VF_ROUTER_REPLAY;
        const float *own = router->space.logits + (size_t)col * c->expert_count;
        const float *ranking =
            replay ? router->space.logits + (size_t)column->primary * c->expert_count : own;
        r->counts[col] = column->flow == 0 ? c->expert_top_k : c->expert_top_k_aux;
        select_top_k(ranking, c->expert_count, r->counts[col], r->experts + (size_t)col * stride);
        weigh(core, own, r->experts + (size_t)col * stride, r->counts[col],
              r->weights + (size_t)col * stride);
    }
}

/* Light: a small matrix, and what it decides is wanted as soon as possible. */
void route_run(void *self, const struct vf_op *op)
{
    struct router *r = self;
    struct core *core = r->core;
    const struct vf_config *c = core->config;
    struct matmul mm = {.m = r->layers[op->layer],
                        .acts = {.x = value_in(core, op_input(core, op, 0)),
                                 .n_col = core->step.n_col,
                                 .cols = c->hidden_size,
                                 .stride = core->stride},
                        .y = r->space.logits,
                        .y_stride = c->expert_count,
                        .exact_f32 = true};
    work_add_matmul(&core->work, &mm);
    work_run(&core->work);
    /* Each expert's logit is looked at a few times. */
    work_add_loop(&core->work, r, op, choose_experts, core->step.n_col, 16ull * c->expert_count);
    work_run(&core->work);
}

/* ---- the experts of all columns -----------------------------------------------------------------
 */

void expert_set_collect(struct expert_set *set, const struct core *core, const struct vf_route *r)
{
    uint32_t stride = vf_experts_top_max(core->config);
    set->count = 0;
    for (uint32_t col = 0; col < core->step.n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            uint32_t e = r->experts[(size_t)col * stride + i];
            if (set->index[e])
                continue;
            set->experts[set->count++] = e;
            set->index[e] = set->count;
        }
}

void expert_set_forget(struct expert_set *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        set->index[set->experts[i]] = 0;
}
