/* Every buffer an executor needs, sized for its largest step at create, so a step allocates
 * nothing.
 */
#include "stage_worker/internal.h"

#include "common/util.h"

#include <stdlib.h>
#include <string.h>

/* Zeroed, 64-byte aligned; NULL is remembered in *failed so callers check once. */
static void *space(uint64_t count, uint64_t element_bytes, bool *failed)
{
    uint64_t bytes;
    if (*failed || !vf_mul_u64(count ? count : 1, element_bytes, &bytes) ||
        bytes > (uint64_t)1 << 46) {
        *failed = true;
        return NULL;
    }
    bytes = vf_round_up(bytes, 64);
    void *p = aligned_alloc(64, bytes);
    if (p)
        memset(p, 0, bytes);
    else
        *failed = true;
    return p;
}

static void acts_alloc(struct acts_space *a, uint64_t columns, uint64_t stride, bool *failed)
{
    a->q = space(columns * stride, 1, failed);
    a->scale = space(columns * (stride / 32), sizeof *a->scale, failed);
    a->sum = space(columns * (stride / 32), sizeof *a->sum, failed);
}

static void acts_free(struct acts_space *a)
{
    free(a->q);
    free(a->scale);
    free(a->sum);
}

static uint32_t pad32(uint32_t n)
{
    return (uint32_t)vf_round_up(n, 32);
}

static void alloc_values(struct vf_executor *ex, bool *failed)
{
    uint64_t cols = ex->p.columns_max;
    ex->buffers = space(ex->buffer_count, sizeof *ex->buffers, failed);
    ex->routes = space(ex->route_count, sizeof *ex->routes, failed);
    for (uint32_t i = 0; !*failed && i < ex->buffer_count; i++)
        ex->buffers[i] = space(cols * ex->stride, sizeof(float), failed);
    for (uint32_t i = 0; !*failed && i < ex->route_count; i++) {
        uint64_t n = cols * top_k_max(ex->config);
        ex->routes[i].experts = space(n, sizeof(uint32_t), failed);
        ex->routes[i].weights = space(n, sizeof(float), failed);
        ex->routes[i].counts = space(cols, sizeof(uint32_t), failed);
    }
}

static void alloc_attention(struct vf_executor *ex, bool *failed)
{
    const struct vf_config *c = ex->config;
    uint64_t cols = ex->p.columns_max;
    uint32_t group = c->head_count / c->kv_head_count;
    uint64_t blocks = vf_div_up(ex->p.context, VF_ATTN_BLOCK);
    ex->q = space(cols * c->head_count * c->head_dim, sizeof(float), failed);
    ex->k = space(cols * c->kv_head_count * c->head_dim, sizeof(float), failed);
    ex->v = space(cols * c->kv_head_count * c->head_dim, sizeof(float), failed);
    ex->attn = space(cols * pad32(c->head_count * c->head_dim), sizeof(float), failed);
    ex->rope_freq = space(c->head_dim, sizeof(double), failed);
    ex->rope_cos = space(cols * c->head_dim, sizeof(float), failed);
    ex->rope_sin = space(cols * c->head_dim, sizeof(float), failed);
    /* One partial result per block of keys: [blocks][group] of max, sum and head_dim floats. */
    ex->partial_floats = blocks * group * (c->head_dim + 2ull);
    ex->partial_items = vf_pool_threads(ex->pool);
    if (ex->partial_items < c->kv_head_count)
        ex->partial_items = c->kv_head_count;
    ex->partials = space(ex->partial_floats * ex->partial_items, sizeof(float), failed);
}

static void alloc_experts(struct vf_executor *ex, bool *failed)
{
    const struct vf_config *c = ex->config;
    uint64_t cols = ex->p.columns_max, pairs = cols * top_k_max(c);
    uint32_t wide = pad32(c->expert_ffn_size);
    ex->router_logits = space(cols * c->expert_count, sizeof(float), failed);
    ex->union_experts = space(c->expert_count, sizeof(uint32_t), failed);
    ex->expert_seen = space(c->expert_count, sizeof(uint32_t), failed);
    ex->refs = space(c->expert_count, sizeof *ex->refs, failed);
    ex->got = space(c->expert_count, sizeof *ex->got, failed);
    ex->outstanding = space(c->expert_count, sizeof(uint32_t), failed);
    ex->ready = space(c->expert_count, sizeof(uint32_t), failed);
    ex->ready_data = space(c->expert_count, sizeof *ex->ready_data, failed);
    ex->expert_views = space(c->expert_count, sizeof *ex->expert_views, failed);
    ex->expert_jobs = space(c->expert_count, sizeof *ex->expert_jobs, failed);
    ex->pair_begin = space(c->expert_count + 1ull, sizeof(uint32_t), failed);
    ex->pair_column = space(pairs, sizeof(uint32_t), failed);
    ex->pair_rank = space(pairs, sizeof(uint32_t), failed);
    ex->pair_in = space(pairs * ex->stride, sizeof(float), failed);
    ex->pair_hidden = space(pairs * wide, sizeof(float), failed);
    ex->pair_up = space(pairs * wide, sizeof(float), failed);
    ex->pair_out = space(pairs * ex->stride, sizeof(float), failed);
    acts_alloc(&ex->pair_acts, pairs, ex->stride, failed);
    acts_alloc(&ex->pair_acts2, pairs, wide, failed);
}

enum vf_code scratch_alloc(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    uint64_t cols = ex->p.columns_max;
    bool failed = false;
    alloc_values(ex, &failed);
    alloc_attention(ex, &failed);
    ex->wide = pad32(c->head_count * c->head_dim);
    if (pad32(c->ffn_size) > ex->wide)
        ex->wide = pad32(c->ffn_size);
    if (ex->stride > ex->wide)
        ex->wide = ex->stride;
    acts_alloc(&ex->acts, cols, ex->stride, &failed);
    acts_alloc(&ex->acts2, cols, ex->wide, &failed);
    ex->hidden = space(cols * pad32(c->ffn_size), sizeof(float), &failed);
    ex->hidden_up = space(cols * pad32(c->ffn_size), sizeof(float), &failed);
    if (c->expert_count > 0)
        alloc_experts(ex, &failed);
    if (ex->p.placement->head_worker == ex->p.worker) {
        uint64_t rows = (uint64_t)ex->p.rows_max * ex->flows;
        ex->head_in = space(rows * ex->stride, sizeof(float), &failed);
        ex->head_out = space(rows * c->vocab_size, sizeof(float), &failed);
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
    acts_free(&ex->acts);
    acts_free(&ex->acts2);
    acts_free(&ex->pair_acts);
    acts_free(&ex->pair_acts2);
    void *owned[] = {ex->q,
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
                     ex->outstanding,
                     ex->ready,
                     ex->ready_data,
                     ex->expert_views,
                     ex->expert_jobs};
    for (size_t i = 0; i < VF_ARRAY_LEN(owned); i++)
        free(owned[i]);
}
