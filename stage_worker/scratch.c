/* Every buffer an executor needs, allocated at create for its largest step, so a step allocates
 * nothing. Every size comes from common/model/step_memory.h, from which the coordinator plans.
 */
#include "stage_worker/internal.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(VF_KEY_BLOCK == VF_ATTN_BLOCK, "attention's blocks are what the plan counts");
_Static_assert(sizeof(struct vf_expert_ref) + 2 * sizeof(uint8_t *) + 5 * sizeof(uint32_t) +
                       sizeof(struct expert_view) + sizeof(struct matmul) +
                       sizeof(struct region_job) <=
                   VF_SCRATCH_EXPERT_BYTES,
               "the lists by expert fit what the plan counts");

/* Zeroed, so that all of it is resident from now on; NULL is remembered in *failed so callers check
 * once. */
static void *space(uint64_t bytes, bool *failed)
{
    if (*failed)
        return NULL;
    bytes = vf_round_up(vf_max_u64(bytes, 1), VF_SCRATCH_ALIGN);
    void *p = aligned_alloc(VF_SCRATCH_ALIGN, bytes);
    if (p)
        memset(p, 0, bytes);
    else
        *failed = true;
    return p;
}

/* One allocation of vf_acts_bytes: the int8 activations, then a scale and a sum for every 32. */
static void acts_alloc(struct acts *a, uint64_t bytes, uint64_t columns, uint64_t stride,
                       bool *failed)
{
    uint8_t *base = space(bytes, failed);
    uint64_t groups = vf_round_up(columns * (stride / 32) * sizeof(float), VF_SCRATCH_ALIGN);
    if (!base)
        return;
    a->q = (int8_t *)base;
    a->scale = (float *)(base + bytes - 2 * groups);
    a->sum = (int32_t *)(base + bytes - groups);
}

static void alloc_values(struct vf_executor *ex, const struct vf_step_memory *m, bool *failed)
{
    uint64_t cols = ex->p.columns_max, n = cols * top_k_max(ex->config);
    ex->buffers = space(ex->buffer_count * sizeof *ex->buffers, failed);
    ex->routes = space(ex->route_count * sizeof *ex->routes, failed);
    for (uint32_t i = 0; !*failed && i < ex->buffer_count; i++)
        ex->buffers[i] = space(m->bytes[VF_SCRATCH_VALUE], failed);
    for (uint32_t i = 0; !*failed && i < ex->route_count; i++) {
        ex->routes[i].experts = space(n * sizeof(uint32_t), failed);
        ex->routes[i].weights = space(n * sizeof(float), failed);
        ex->routes[i].counts = space(cols * sizeof(uint32_t), failed);
    }
}

static void alloc_attention(struct vf_executor *ex, const struct vf_step_memory *m, bool *failed)
{
    ex->q = space(m->bytes[VF_SCRATCH_Q], failed);
    ex->k = space(m->bytes[VF_SCRATCH_KV], failed);
    ex->v = space(m->bytes[VF_SCRATCH_KV], failed);
    ex->attn = space(m->bytes[VF_SCRATCH_ATTN], failed);
    ex->rope_freq = space(ex->config->head_dim * sizeof(double), failed);
    ex->rope_cos = space(m->bytes[VF_SCRATCH_ROPE], failed);
    ex->rope_sin = space(m->bytes[VF_SCRATCH_ROPE], failed);
    ex->partial_floats = m->partial_floats;
    ex->partial_items = m->partial_items;
    ex->partials = space(m->bytes[VF_SCRATCH_PARTIALS], failed);
}

static void alloc_experts(struct vf_executor *ex, const struct vf_step_memory *m, bool *failed)
{
    const struct vf_config *c = ex->config;
    uint64_t pairs = (uint64_t)ex->p.columns_max * top_k_max(c), n = c->expert_count;
    ex->router_logits = space(m->bytes[VF_SCRATCH_ROUTER], failed);
    ex->union_experts = space(n * sizeof(uint32_t), failed);
    ex->expert_seen = space(n * sizeof(uint32_t), failed);
    ex->refs = space(n * sizeof *ex->refs, failed);
    ex->got = space(n * sizeof *ex->got, failed);
    ex->fronts = space(n * sizeof *ex->fronts, failed);
    ex->outstanding = space(n * sizeof(uint32_t), failed);
    ex->expert_views = space(n * sizeof *ex->expert_views, failed);
    ex->pair_begin = space((n + 1) * sizeof(uint32_t), failed);
    ex->pair_column = space(m->bytes[VF_SCRATCH_PAIR_LISTS], failed);
    ex->pair_rank = space(m->bytes[VF_SCRATCH_PAIR_LISTS], failed);
    ex->pair_in = space(m->bytes[VF_SCRATCH_PAIR], failed);
    ex->pair_hidden = space(m->bytes[VF_SCRATCH_PAIR_HIDDEN], failed);
    ex->pair_up = space(m->bytes[VF_SCRATCH_PAIR_HIDDEN], failed);
    ex->pair_out = space(m->bytes[VF_SCRATCH_PAIR], failed);
    acts_alloc(&ex->expert_acts, m->bytes[VF_SCRATCH_ACTS_EXPERTS], ex->p.columns_max, ex->stride,
               failed);
    acts_alloc(&ex->pair_acts, m->bytes[VF_SCRATCH_PAIR_ACTS], pairs, ex->stride, failed);
    acts_alloc(&ex->pair_hidden_acts, m->bytes[VF_SCRATCH_PAIR_ACTS_HIDDEN], pairs,
               vf_round_up(c->expert_ffn_size, 32), failed);
}

static enum vf_code count(const struct vf_executor *ex, struct vf_step_memory *m,
                          struct vf_err *err)
{
    struct vf_step_shape shape = {.columns_max = ex->p.columns_max,
                                  .rows_max = ex->p.rows_max,
                                  .context = ex->p.context,
                                  .sequences = ex->p.sequences,
                                  .threads = vf_pool_threads(ex->pool),
                                  .kv_f16 = ex->p.kv_f16,
                                  .sync = ex->p.experts_when == VF_EXPERTS_SYNC};
    enum vf_code code = vf_step_memory_count(ex->config, ex->p.program, ex->p.placement,
                                             ex->p.worker, &shape, m, err);
    /* The schedule shares buffers between values that don't live at the same time. */
    VF_ASSERT(code ||
              (ex->buffer_count <= m->value_buffers && ex->route_count <= m->route_buffers));
    return code;
}

enum vf_code scratch_alloc(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    uint64_t cols = ex->p.columns_max;
    struct vf_step_memory m;
    bool failed = false;
    enum vf_code code = count(ex, &m, err);
    if (code)
        return code;
    VF_ASSERT(ex->stride == m.stride);
    alloc_values(ex, &m, &failed);
    alloc_attention(ex, &m, &failed);
    uint64_t heads = vf_round_up((uint64_t)c->head_count * c->head_dim, 32);
    acts_alloc(&ex->attention_acts, m.bytes[VF_SCRATCH_ACTS_ATTENTION], cols,
               vf_max_u64(m.stride, heads), &failed);
    acts_alloc(&ex->dense_acts, m.bytes[VF_SCRATCH_ACTS_DENSE], cols, m.stride, &failed);
    acts_alloc(&ex->hidden_acts, m.bytes[VF_SCRATCH_ACTS_DENSE_HIDDEN], cols,
               vf_round_up(c->ffn_size, 32), &failed);
    ex->hidden = space(m.bytes[VF_SCRATCH_HIDDEN], &failed);
    ex->hidden_up = space(m.bytes[VF_SCRATCH_HIDDEN], &failed);
    if (ex->config->expert_count > 0)
        alloc_experts(ex, &m, &failed);
    if (ex->p.placement->head_worker == ex->p.worker) {
        acts_alloc(&ex->head_acts, m.bytes[VF_SCRATCH_ACTS_HEAD],
                   (uint64_t)ex->p.rows_max * ex->flows, m.stride, &failed);
        ex->head_in = space(m.bytes[VF_SCRATCH_HEAD_IN], &failed);
        ex->head_out = space(m.bytes[VF_SCRATCH_HEAD_OUT], &failed);
    }
    if (failed)
        return vf_err_set(err, VF_ERR_NO_MEMORY,
                          "no memory for the buffers of %u columns (try a smaller --prefill-chunk)",
                          ex->p.columns_max);
    return VF_OK;
}

static void free_values(struct vf_executor *ex)
{
    for (uint32_t i = 0; ex->buffers && i < ex->buffer_count; i++)
        free(ex->buffers[i]);
    for (uint32_t i = 0; ex->routes && i < ex->route_count; i++) {
        free(ex->routes[i].experts);
        free(ex->routes[i].weights);
        free(ex->routes[i].counts);
    }
    free(ex->buffers);
    free(ex->routes);
}

void scratch_free(struct vf_executor *ex)
{
    free_values(ex);
    void *owned[] = {ex->attention_acts.q,
                     ex->dense_acts.q,
                     ex->hidden_acts.q,
                     ex->expert_acts.q,
                     ex->pair_acts.q,
                     ex->pair_hidden_acts.q,
                     ex->head_acts.q,
                     ex->q,
                     ex->k,
                     ex->v,
                     ex->attn,
                     ex->partials,
                     ex->hidden,
                     ex->hidden_up,
                     ex->pair_hidden,
                     ex->pair_up,
                     ex->pair_out,
                     ex->pair_in,
                     ex->pair_column,
                     ex->pair_rank,
                     ex->pair_begin,
                     ex->union_experts,
                     ex->expert_seen,
                     ex->refs,
                     ex->got,
                     ex->router_logits,
                     ex->head_in,
                     ex->head_out,
                     ex->rope_cos,
                     ex->rope_sin,
                     ex->rope_freq,
                     ex->fronts,
                     ex->outstanding,
                     ex->expert_views};
    for (size_t i = 0; i < VF_ARRAY_LEN(owned); i++)
        free(owned[i]);
}
