/* Builds one worker's schedule, buffers and weights once, then runs the schedule step by step.
 *
 * The schedule is the program restricted to this worker, with a receive before the first reader of
 * each incoming edge and a send right after each producer. Values live in buffers assigned by
 * liveness; scratch is sized for the largest step at create, so a step allocates nothing.
 */
#include "stage_worker/internal.h"

#include "common/clock.h"
#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below this much memory traffic a loop costs less than waking a second thread. */
#define PARALLEL_BYTES_MIN (48u << 10)
/* Items per thread and region: enough to even out a slow core, few enough to stream. */
#define ITEMS_PER_THREAD 4u
#define STRIPE_BLOCKS    (VF_TILE_ROWS / VF_RECORD_ROWS)

/* ---- parallel regions ------------------------------------------------------------------------ */

void run_parallel(struct vf_executor *ex, vf_pool_fn *fn, void *ctx, uint32_t item_count,
                  uint64_t work_bytes)
{
    if (work_bytes >= PARALLEL_BYTES_MIN) {
        vf_pool_run(ex->pool, fn, ctx, item_count);
        return;
    }
    for (uint32_t i = 0; i < item_count; i++)
        fn(ctx, i, 0);
}

static vf_matmul_fn *matmul_for(const struct vf_executor *ex, const struct matmul_job *job)
{
    return ex->p.q8 && !job->exact_f32 ? ex->p.kernels->matmul_q8[job->m->quant]
                                       : ex->p.kernels->matmul_f32[job->m->quant];
}

struct region {
    struct vf_executor *ex;
    struct matmul_job *jobs;
    uint32_t count;
};

static void matmul_item(void *ctx, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct region *r = ctx;
    uint32_t lo = 0, hi = r->count;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (r->jobs[mid].item_begin <= item)
            lo = mid;
        else
            hi = mid;
    }
    const struct matmul_job *job = &r->jobs[lo];
    uint32_t begin = (item - job->item_begin) * job->blocks_per_item;
    uint32_t blocks = vf_row_blocks(job->m->rows);
    uint32_t end = begin + job->blocks_per_item < blocks ? begin + job->blocks_per_item : blocks;
    vf_matmul_fn *matmul = matmul_for(r->ex, job);
    matmul(job->m, &job->acts, begin, end, job->y, job->y_stride);
    if (job->m2.data)
        matmul(&job->m2, &job->acts, begin, end, job->y2, job->y_stride);
    if (job->finish) {
        uint32_t row_end = end * VF_RECORD_ROWS;
        job->finish(r->ex, job, begin * VF_RECORD_ROWS,
                    row_end < job->m->rows ? row_end : job->m->rows);
    }
}

/* Whole stripes where there are enough of them, so that each thread streams. */
static uint32_t blocks_per_item(const struct vf_executor *ex, uint32_t blocks)
{
    uint32_t items = vf_pool_threads(ex->pool) * ITEMS_PER_THREAD;
    uint32_t per_item = (blocks + items - 1) / items;
    if (per_item >= STRIPE_BLOCKS)
        per_item = (uint32_t)vf_round_up(per_item, STRIPE_BLOCKS);
    return per_item ? per_item : 1;
}

void run_matmuls(struct vf_executor *ex, struct matmul_job *jobs, uint32_t count)
{
    uint32_t items = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct matmul_job *job = &jobs[i];
        uint32_t blocks = vf_row_blocks(job->m->rows);
        job->blocks_per_item = blocks_per_item(ex, blocks);
        job->item_begin = items;
        items += (uint32_t)vf_div_up(blocks, job->blocks_per_item);
        uint64_t matrix = vf_matrix_bytes(job->m->quant, job->m->rows, job->m->cols);
        bytes += (job->m2.data ? 2 : 1) * matrix * vf_div_up(job->acts.n_col, 2);
        ex->stats.weight_bytes += (job->m2.data ? 2 : 1) * matrix;
    }
    struct region region = {ex, jobs, count};
    run_parallel(ex, matmul_item, &region, items, bytes);
}

/* ---- activations ------------------------------------------------------------------------------
 */

struct quantize_job {
    struct vf_executor *ex;
    const float *x;
    uint32_t stride;
    struct acts_space *space;
};

static void quantize_item(void *ctx, uint32_t c, uint32_t thread)
{
    (void)thread;
    struct quantize_job *j = ctx;
    size_t at = (size_t)c * j->stride, group = (size_t)c * (j->stride / 32);
    j->ex->p.kernels->quantize_q8(j->x + at, j->stride, j->space->q + at, j->space->scale + group,
                                  j->space->sum + group);
}

struct vf_acts prepare_acts(struct vf_executor *ex, const float *x, uint32_t n_col, uint32_t cols,
                            uint32_t stride, struct acts_space *space)
{
    struct vf_acts acts = {.x = x, .n_col = n_col, .cols = cols, .stride = stride};
    if (!ex->p.q8)
        return acts;
    struct quantize_job job = {ex, x, stride, space};
    run_parallel(ex, quantize_item, &job, n_col, (uint64_t)n_col * stride * 4);
    acts.q = space->q;
    acts.scale = space->scale;
    acts.sum = space->sum;
    return acts;
}

struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col)
{
    struct vf_acts s = *acts;
    size_t at = (size_t)begin * acts->stride, group = (size_t)begin * (acts->stride / 32);
    s.x += at;
    if (s.q) {
        s.q += at;
        s.scale += group;
        s.sum += group;
    }
    s.n_col = n_col;
    return s;
}

void zero_padding(float *x, uint32_t n_col, uint32_t used, uint32_t stride)
{
    for (uint32_t c = 0; used < stride && c < n_col; c++)
        memset(x + (size_t)c * stride + used, 0, (stride - used) * sizeof *x);
}

/* ---- small operations -------------------------------------------------------------------------
 */

static void op_embed(struct vf_executor *ex, const struct vf_op *op)
{
    float *out = value_data(ex, op->out);
    uint32_t d = ex->config->hidden_size;
    for (uint32_t c = 0; c < ex->n_col; c++) {
        float *x = out + (size_t)c * ex->stride;
        vf_tile_unpack_row(&ex->embed[ex->columns[c].flow], ex->columns[c].token, x);
        if (ex->config->embedding_scale)
            ex->p.kernels->scale(sqrtf((float)d), d, x);
    }
}

struct vector_job {
    struct vf_executor *ex;
    const struct vf_op *op;
};

static void norm_item(void *ctx, uint32_t c, uint32_t thread)
{
    (void)thread;
    struct vector_job *j = ctx;
    struct vf_executor *ex = j->ex;
    const struct vf_op *op = j->op;
    const float *w = op->norm == VF_NORM_FINAL  ? ex->final_norm
                     : op->norm == VF_NORM_ATTN ? ex->layers[op->layer].attn_norm
                                                : ex->layers[op->layer].ffn_norm;
    size_t at = (size_t)c * ex->stride;
    ex->p.kernels->rmsnorm(value_data(ex, vf_op_inputs(ex->p.program, op)[0]) + at, w,
                           ex->config->norm_weight_offset ? 1.0f : 0.0f, ex->config->norm_eps,
                           ex->config->hidden_size, value_data(ex, op->out) + at);
}

static void sum_item(void *ctx, uint32_t c, uint32_t thread)
{
    (void)thread;
    struct vector_job *j = ctx;
    struct vf_executor *ex = j->ex;
    const struct vf_op *op = j->op;
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    uint32_t d = ex->config->hidden_size;
    size_t at = (size_t)c * ex->stride;
    float *out = value_data(ex, op->out) + at;
    memcpy(out, value_data(ex, in[0]) + at, d * sizeof *out);
    for (uint32_t i = 1; i < op->in_count; i++)
        ex->p.kernels->add(out, value_data(ex, in[i]) + at, d, out);
    if (op->scale != 1.0f)
        ex->p.kernels->scale(op->scale, d, out);
}

static enum vf_code run_op(struct vf_executor *ex, const struct vf_op *op, struct vf_err *err)
{
    struct vector_job job = {ex, op};
    uint64_t vector_bytes = (uint64_t)ex->n_col * ex->stride * 4 * (op->in_count + 1);
    switch (op->kind) {
    case VF_OP_EMBED:
        op_embed(ex, op);
        return VF_OK;
    case VF_OP_NORM:
        run_parallel(ex, norm_item, &job, ex->n_col, vector_bytes);
        return VF_OK;
    case VF_OP_SUM:
        run_parallel(ex, sum_item, &job, ex->n_col, vector_bytes);
        return VF_OK;
    case VF_OP_ATTENTION:
        op_attention(ex, op);
        return VF_OK;
    case VF_OP_DENSE:
        op_dense(ex, op);
        return VF_OK;
    case VF_OP_ROUTE:
        op_route(ex, op);
        return VF_OK;
    case VF_OP_FETCH:
        op_fetch(ex, op);
        return VF_OK;
    case VF_OP_EXPERTS:
        return op_experts(ex, op, err);
    case VF_OP_HEAD:
        op_head(ex, op);
        return VF_OK;
    case VF_OP_KIND_COUNT:
        break;
    }
    return vf_err_set(err, VF_ERR_INTERNAL, "operation kind %d", (int)op->kind);
}

/* ---- schedule ---------------------------------------------------------------------------------
 */

static bool is_mine(const struct vf_executor *ex, uint32_t op_idx)
{
    return ex->p.placement->op_worker[op_idx] == ex->p.worker;
}

/* Appends an operation with the receives in front of it and the sends behind it. */
static void schedule_op(struct vf_executor *ex, uint32_t op_idx, bool *received)
{
    const struct vf_placement *pl = ex->p.placement;
    const struct vf_op *op = &ex->p.program->ops[op_idx];
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    for (uint32_t e = 0; e < pl->edge_count; e++)
        for (uint32_t i = 0; i < op->in_count; i++)
            if (pl->edges[e].to == ex->p.worker && pl->edges[e].value == in[i] && !received[e]) {
                received[e] = true;
                ex->actions[ex->action_count++] = (struct action){ACTION_RECEIVE, e};
            }
    ex->actions[ex->action_count++] = (struct action){ACTION_OP, op_idx};
    for (uint32_t e = 0; e < pl->edge_count; e++)
        if (pl->edges[e].from == ex->p.worker && pl->edges[e].value == op->out)
            ex->actions[ex->action_count++] = (struct action){ACTION_SEND, e};
}

/* The EXPERTS operation of a FETCH: the one that reads the same routing decision. */
static uint32_t experts_of_fetch(const struct vf_program *p, const struct vf_op *fetch)
{
    vf_value route = vf_op_inputs(p, fetch)[0];
    for (uint32_t i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == VF_OP_EXPERTS && vf_op_inputs(p, &p->ops[i])[1] == route)
            return i;
    VF_ASSERT(!"every fetch has its experts");
    return 0;
}

static enum vf_code build_schedule(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    ex->op_ns = calloc(p->op_count, sizeof *ex->op_ns);
    ex->actions = calloc(p->op_count + 2ull * ex->p.placement->edge_count, sizeof *ex->actions);
    bool *received = calloc(ex->p.placement->edge_count + 1ull, sizeof *received);
    if (!ex->op_ns || !ex->actions || !received) {
        free(received);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the schedule");
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!is_mine(ex, i) || (ex->p.sync && p->ops[i].kind == VF_OP_EXPERTS))
            continue;
        schedule_op(ex, i, received);
        if (ex->p.sync && p->ops[i].kind == VF_OP_FETCH)
            schedule_op(ex, experts_of_fetch(p, &p->ops[i]), received);
    }
    free(received);
    return VF_OK;
}

/* Last action that reads or sends each value; UINT32_MAX for values this worker never holds. */
static void find_last_uses(const struct vf_executor *ex, uint32_t *last)
{
    const struct vf_program *p = ex->p.program;
    for (uint32_t a = 0; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        if (act.kind != ACTION_OP) {
            last[ex->p.placement->edges[act.index].value] = a;
            continue;
        }
        const struct vf_op *op = &p->ops[act.index];
        if (op->out != VF_VALUE_NONE)
            last[op->out] = a;
        for (uint32_t i = 0; i < op->in_count; i++)
            last[vf_op_inputs(p, op)[i]] = a;
    }
}

/* Gives every value a buffer, reusing those whose value is dead. pool_of[b]: next free time. */
struct slots {
    uint32_t *free_after; /* [count]: the slot is free from this action on */
    uint32_t count;
};

static uint32_t slot_take(struct slots *s, uint32_t now, uint32_t last)
{
    uint32_t i = 0;
    while (i < s->count && s->free_after[i] >= now)
        i++;
    if (i == s->count)
        s->count++;
    s->free_after[i] = last;
    return i;
}

static enum vf_code assign_buffers(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    uint32_t *last = calloc(p->value_count + 1ull, sizeof *last);
    struct slots data = {calloc(p->value_count + 1ull, sizeof(uint32_t)), 0};
    struct slots routes = {calloc(p->value_count + 1ull, sizeof(uint32_t)), 0};
    ex->value_buffer = calloc(p->value_count + 1ull, sizeof *ex->value_buffer);
    enum vf_code code = VF_OK;
    if (!last || !data.free_after || !routes.free_after || !ex->value_buffer) {
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u values", p->value_count);
        goto out;
    }
    find_last_uses(ex, last);
    for (uint32_t a = 0; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        vf_value v = act.kind == ACTION_OP        ? p->ops[act.index].out
                     : act.kind == ACTION_RECEIVE ? ex->p.placement->edges[act.index].value
                                                  : VF_VALUE_NONE;
        if (v != VF_VALUE_NONE)
            ex->value_buffer[v] = slot_take(p->values[v].is_route ? &routes : &data, a, last[v]);
    }
    ex->buffer_count = data.count;
    ex->route_count = routes.count;
out:
    free(last);
    free(data.free_after);
    free(routes.free_after);
    return code;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

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

static uint32_t top_k_max(const struct vf_config *c)
{
    return c->flow_count > 1 && c->expert_top_k_aux > c->expert_top_k ? c->expert_top_k_aux
                                                                      : c->expert_top_k;
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

static enum vf_code alloc_scratch(struct vf_executor *ex, struct vf_err *err)
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

/* ---- weights ----------------------------------------------------------------------------------
 */

static void matrix_get(struct vf_executor *ex, enum vf_tensor_kind kind, uint32_t layer,
                       uint32_t flow, struct vf_matrix *out)
{
    struct vf_tensor_id id = {.kind = kind, .layer = layer, .flow = flow};
    if (!vf_model_file_matrix(ex->p.file, id, out) && flow > 0) {
        id.flow = 0;
        vf_model_file_matrix(ex->p.file, id, out);
    }
}

static const float *vector_get(struct vf_executor *ex, enum vf_tensor_kind kind, uint32_t layer,
                               uint32_t flow)
{
    struct vf_tensor_id id = {.kind = kind, .layer = layer, .flow = flow};
    return vf_model_file_vector(ex->p.file, id);
}

static void load_layer(struct vf_executor *ex, uint32_t l)
{
    struct layer_weights *w = &ex->layers[l];
    matrix_get(ex, VF_T_K, l, 0, &w->k);
    matrix_get(ex, VF_T_V, l, 0, &w->v);
    matrix_get(ex, VF_T_ROUTER, l, 0, &w->router);
    w->attn_norm = vector_get(ex, VF_T_ATTN_NORM, l, 0);
    w->ffn_norm = vector_get(ex, VF_T_FFN_NORM, l, 0);
    w->q_bias = vector_get(ex, VF_T_Q_BIAS, l, 0);
    w->k_bias = vector_get(ex, VF_T_K_BIAS, l, 0);
    w->v_bias = vector_get(ex, VF_T_V_BIAS, l, 0);
    w->q_norm = vector_get(ex, VF_T_Q_NORM, l, 0);
    w->k_norm = vector_get(ex, VF_T_K_NORM, l, 0);
    for (uint32_t j = 0; j < ex->flows; j++) {
        matrix_get(ex, VF_T_Q, l, j, &w->q[j]);
        matrix_get(ex, VF_T_O, l, j, &w->o[j]);
        matrix_get(ex, VF_T_GATE, l, j, &w->gate[j]);
        matrix_get(ex, VF_T_UP, l, j, &w->up[j]);
        matrix_get(ex, VF_T_DOWN, l, j, &w->down[j]);
        w->query_coupling[j] = vector_get(ex, VF_T_QUERY_COUPLING, l, j);
        w->hidden_coupling[j] = vector_get(ex, VF_T_HIDDEN_COUPLING, l, j);
        w->output_coupling[j] = vector_get(ex, VF_T_OUTPUT_COUPLING, l, j);
        w->moe_hidden_coupling[j] = vector_get(ex, VF_T_MOE_HIDDEN_COUPLING, l, j);
        w->moe_output_coupling[j] = vector_get(ex, VF_T_MOE_OUTPUT_COUPLING, l, j);
    }
}

static enum vf_code load_weights(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    ex->layers = calloc(c->layer_count, sizeof *ex->layers);
    if (!ex->layers)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u layers", c->layer_count);
    for (uint32_t l = 0; l < c->layer_count; l++)
        load_layer(ex, l);
    for (uint32_t j = 0; j < ex->flows; j++)
        matrix_get(ex, VF_T_EMBED, VF_LAYER_NONE, j, &ex->embed[j]);
    if (c->tie_embeddings)
        ex->head = ex->embed[0];
    else
        matrix_get(ex, VF_T_HEAD, VF_LAYER_NONE, 0, &ex->head);
    ex->final_norm = vector_get(ex, VF_T_FINAL_NORM, VF_LAYER_NONE, 0);
    return VF_OK;
}

static enum vf_code create_kv(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    ex->kv_index = calloc(ex->p.program->effective_layers, sizeof *ex->kv_index);
    if (!ex->kv_index)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the KV cache index");
    uint32_t count = 0;
    for (uint32_t i = 0; i < ex->p.program->op_count; i++)
        if (is_mine(ex, i) && ex->p.program->ops[i].kind == VF_OP_ATTENTION)
            ex->kv_index[ex->p.program->ops[i].kv] = count++;
    struct vf_kv_shape shape = {.layers = count,
                                .sequences = ex->p.sequences,
                                .kv_heads = c->kv_head_count,
                                .head_dim = c->head_dim,
                                .context = ex->p.context,
                                .f16 = ex->p.kv_f16};
    return vf_kv_cache_create(&shape, &ex->kv, err);
}

/* ---- running ----------------------------------------------------------------------------------
 */

/* The contract of struct vf_step; what arrives came over a socket. */
static enum vf_code check_step(const struct vf_executor *ex, const struct vf_step *step,
                               struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    uint32_t rows = 0, flow = 0, row_flows = 0;
    if (step->column_count == 0 || step->column_count > ex->p.columns_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu has %u columns, allowed are 1 to %u",
                          (unsigned long long)step->id, step->column_count, ex->p.columns_max);
    for (uint32_t i = 0; i < step->column_count; i++) {
        const struct vf_column *col = &step->columns[i];
        bool primary_fits = col->flow == 0
                                ? col->primary == i
                                : col->primary < i && step->columns[col->primary].flow == 0 &&
                                      step->columns[col->primary].position == col->position &&
                                      step->columns[col->primary].sequence == col->sequence;
        if (col->token >= c->vocab_size || col->position >= ex->p.context ||
            col->sequence >= ex->p.sequences || col->flow >= ex->flows || col->flow < flow ||
            !primary_fits || (col->want_row && col->flow != 0))
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "step %llu column %u is out of place: token %u, position %u, "
                              "sequence %u, flow %u, primary %u",
                              (unsigned long long)step->id, i, col->token, col->position,
                              col->sequence, col->flow, col->primary);
        flow = col->flow;
        rows += col->want_row;
        row_flows += col->flow > 0 && step->columns[col->primary].want_row;
    }
    if (row_flows != rows * (ex->flows - 1))
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "step %llu wants %u rows, but has %u auxiliary columns for them, not %u",
                          (unsigned long long)step->id, rows, row_flows, rows * (ex->flows - 1));
    if (rows > ex->p.rows_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu wants %u rows, allowed are %u",
                          (unsigned long long)step->id, rows, ex->p.rows_max);
    return VF_OK;
}

static void set_step(struct vf_executor *ex, const struct vf_step *step, float *rows)
{
    ex->columns = step->columns;
    ex->n_col = step->column_count;
    ex->step_id = step->id;
    ex->rows = rows;
    ex->row_count = 0;
    uint32_t c = 0;
    for (uint32_t j = 0; j < ex->flows; j++) {
        ex->flow_begin[j] = c;
        while (c < ex->n_col && ex->columns[c].flow == j)
            c++;
    }
    ex->flow_begin[ex->flows] = c;
    ex->n_primary = ex->flows > 1 ? ex->flow_begin[1] : c;
    for (uint32_t i = 0; i < ex->n_primary; i++)
        ex->row_count += ex->columns[i].want_row;
    attention_prepare_step(ex);
}

static enum vf_code receive(struct vf_executor *ex, uint32_t edge, uint64_t deadline_ns,
                            bool *failed, struct vf_err *err)
{
    const float *data;
    uint64_t began = vf_now_ns();
    enum vf_code code =
        vf_mailbox_take(ex->p.mailboxes, edge, ex->step_id, deadline_ns, &data, failed, err);
    ex->stats.wait_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return vf_err_prepend(err,
                              "stage worker %u waiting for %s from stage worker %u: ", ex->p.worker,
                              ex->p.program->values[ex->p.placement->edges[edge].value].name,
                              ex->p.placement->edges[edge].from);
    if (!*failed)
        memcpy(value_data(ex, ex->p.placement->edges[edge].value), data,
               (size_t)ex->n_col * ex->stride * sizeof *data);
    vf_mailbox_release(ex->p.mailboxes, edge);
    return VF_OK;
}

static enum vf_code send(struct vf_executor *ex, uint32_t edge, bool failed, uint64_t deadline_ns,
                         struct vf_err *err)
{
    float *data;
    uint64_t began = vf_now_ns();
    enum vf_code code = vf_mailbox_claim(ex->p.mailboxes, edge, deadline_ns, &data, err);
    ex->stats.wait_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return vf_err_prepend(err, "stage worker %u sending %s to stage worker %u: ", ex->p.worker,
                              ex->p.program->values[ex->p.placement->edges[edge].value].name,
                              ex->p.placement->edges[edge].to);
    if (!failed)
        memcpy(data, value_data(ex, ex->p.placement->edges[edge].value),
               (size_t)ex->n_col * ex->stride * sizeof *data);
    vf_mailbox_post(ex->p.mailboxes, edge, ex->step_id, failed);
    return VF_OK;
}

/* After a failure: keeps every edge in step with the other workers, without computing. */
static void drain(struct vf_executor *ex, uint32_t from_action, uint64_t deadline_ns)
{
    for (uint32_t a = from_action; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        bool failed;
        enum vf_code code = VF_OK;
        if (act.kind == ACTION_RECEIVE)
            code = receive(ex, act.index, deadline_ns, &failed, NULL);
        else if (act.kind == ACTION_SEND)
            code = send(ex, act.index, true, deadline_ns, NULL);
        if (code == VF_ERR_PEER_LOST)
            return;
    }
}

static enum vf_code run_action(struct vf_executor *ex, struct action act, uint64_t deadline_ns,
                               bool *peer_failed, struct vf_err *err)
{
    if (act.kind == ACTION_SEND)
        return send(ex, act.index, false, deadline_ns, err);
    if (act.kind == ACTION_OP) {
        uint64_t began = vf_now_ns();
        enum vf_code code = run_op(ex, &ex->p.program->ops[act.index], err);
        ex->op_ns[act.index] += vf_now_ns() - began;
        return code;
    }
    enum vf_code code = receive(ex, act.index, deadline_ns, peer_failed, err);
    if (code == VF_OK && *peer_failed)
        code = vf_err_set(err, VF_ERR_PEER_LOST, "the step failed on stage worker %u",
                          ex->p.placement->edges[act.index].from);
    return code;
}

enum vf_code vf_executor_run(struct vf_executor *ex, const struct vf_step *step,
                             uint64_t deadline_ns, float *rows, uint32_t *row_count,
                             bool *peer_failed, struct vf_err *err)
{
    *peer_failed = false;
    *row_count = 0;
    enum vf_code code = check_step(ex, step, err);
    if (code != VF_OK)
        return code;
    uint64_t began = vf_now_ns();
    uint64_t waited = ex->stats.wait_ns + ex->stats.stall_ns;
    set_step(ex, step, rows);
    uint32_t a = 0;
    while (code == VF_OK && a < ex->action_count) {
        code = run_action(ex, ex->actions[a], deadline_ns, peer_failed, err);
        a++;
    }
    waited = ex->stats.wait_ns + ex->stats.stall_ns - waited;
    ex->stats.compute_ns += vf_now_ns() - began - waited;
    if (code != VF_OK)
        drain(ex, a, deadline_ns);
    else if (ex->p.placement->head_worker == ex->p.worker)
        *row_count = ex->row_count;
    return code;
}

/* ---- life -------------------------------------------------------------------------------------
 */

enum vf_code vf_executor_create(const struct vf_executor_params *params, struct vf_executor **out,
                                struct vf_err *err)
{
    struct vf_executor *ex = calloc(1, sizeof *ex);
    if (!ex)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an executor");
    ex->p = *params;
    ex->config = vf_model_file_config(params->file);
    ex->flows = ex->config->flow_count;
    ex->stride = pad32(ex->config->hidden_size);
    enum vf_code code = vf_pool_create(params->threads, &ex->pool, err);
    if (code == VF_OK)
        code = build_schedule(ex, err);
    if (code == VF_OK)
        code = assign_buffers(ex, err);
    if (code == VF_OK)
        code = load_weights(ex, err);
    if (code == VF_OK)
        code = create_kv(ex, err);
    if (code == VF_OK)
        code = alloc_scratch(ex, err);
    if (code != VF_OK) {
        vf_executor_destroy(ex);
        return code;
    }
    *out = ex;
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
    free(ex->value_buffer);
}

void vf_executor_destroy(struct vf_executor *ex)
{
    if (!ex)
        return;
    vf_pool_destroy(ex->pool);
    free_values(ex);
    vf_kv_cache_destroy(ex->kv);
    acts_free(&ex->acts);
    acts_free(&ex->acts2);
    acts_free(&ex->pair_acts);
    acts_free(&ex->pair_acts2);
    void *owned[] = {ex->op_ns,
                     ex->layers,
                     ex->kv_index,
                     ex->actions,
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
                     ex->outstanding,
                     ex->ready,
                     ex->ready_data,
                     ex->expert_views,
                     ex->expert_jobs};
    for (size_t i = 0; i < VF_ARRAY_LEN(owned); i++)
        free(owned[i]);
    free(ex);
}

/* Calls fn for every tensor outside the expert bank that this worker's operations read. */
typedef enum vf_code tensor_fn(const struct vf_executor *ex, struct vf_tensor_entry_view entry,
                               void *ctx, struct vf_err *err);

static bool op_reads(const struct vf_op *op, const struct vf_tensor_id *id, bool tied)
{
    switch (id->kind) {
    case VF_T_EMBED:
        return op->kind == VF_OP_EMBED || (tied && id->flow == 0 && op->kind == VF_OP_HEAD);
    case VF_T_HEAD:
        return op->kind == VF_OP_HEAD;
    case VF_T_FINAL_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_FINAL;
    case VF_T_ATTN_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_ATTN && op->layer == id->layer;
    case VF_T_FFN_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_FFN && op->layer == id->layer;
    case VF_T_GATE:
    case VF_T_UP:
    case VF_T_DOWN:
    case VF_T_HIDDEN_COUPLING:
    case VF_T_OUTPUT_COUPLING:
        return op->kind == VF_OP_DENSE && op->layer == id->layer;
    case VF_T_ROUTER:
        return op->kind == VF_OP_ROUTE && op->layer == id->layer;
    case VF_T_MOE_HIDDEN_COUPLING:
    case VF_T_MOE_OUTPUT_COUPLING:
        return op->kind == VF_OP_EXPERTS && op->layer == id->layer;
    default:
        return op->kind == VF_OP_ATTENTION && op->layer == id->layer;
    }
}

static enum vf_code each_tensor(const struct vf_executor *ex, tensor_fn *fn, void *ctx,
                                struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t t = 0; code == VF_OK && t < vf_model_file_tensor_count(ex->p.file); t++) {
        struct vf_tensor_entry_view entry = vf_model_file_tensor(ex->p.file, t);
        bool mine = false;
        for (uint32_t i = 0; !mine && i < ex->p.program->op_count; i++)
            mine = is_mine(ex, i) &&
                   op_reads(&ex->p.program->ops[i], &entry.spec.id, ex->config->tie_embeddings);
        if (mine)
            code = fn(ex, entry, ctx, err);
    }
    return code;
}

static enum vf_code add_bytes(const struct vf_executor *ex, struct vf_tensor_entry_view entry,
                              void *ctx, struct vf_err *err)
{
    (void)ex;
    (void)err;
    *(uint64_t *)ctx += entry.bytes;
    return VF_OK;
}

static enum vf_code verify_one(const struct vf_executor *ex, struct vf_tensor_entry_view entry,
                               void *ctx, struct vf_err *err)
{
    (void)ctx;
    return vf_model_file_verify_tensor(ex->p.file, entry.spec.id, err);
}

uint64_t vf_executor_weight_bytes(const struct vf_executor *ex)
{
    uint64_t bytes = 0;
    each_tensor(ex, add_bytes, &bytes, NULL);
    return bytes;
}

enum vf_code vf_executor_verify(const struct vf_executor *ex, struct vf_err *err)
{
    return each_tensor(ex, verify_one, NULL, err);
}

uint64_t vf_executor_kv_bytes(const struct vf_executor *ex)
{
    return vf_kv_cache_bytes(ex->kv);
}

const uint64_t *vf_executor_op_ns(const struct vf_executor *ex)
{
    return ex->op_ns;
}

void vf_executor_stats(const struct vf_executor *ex, struct vf_executor_stats *out)
{
    *out = ex->stats;
}
