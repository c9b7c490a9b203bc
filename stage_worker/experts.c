/* Routing, fetch orders and the experts operation.
 *
 * The experts of a step are taken as they become ready, several at once where they are: each
 * (column, expert) pair writes its own output row, and the rows of a column are added in rank
 * order at the end, so the order of arrival never shows in the result.
 */
#include "stage_worker/internal.h"

#include "common/clock.h"
#include "common/util.h"

#include <math.h>
#include <string.h>

/* ---- routing ------------------------------------------------------------------------------------
 */

/* The k largest logits, best first, ties to the lower index; NaN counts as the smallest. */
static void select_top_k(const float *logits, uint32_t n, uint32_t k, uint32_t *chosen)
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

static void weigh(const struct vf_executor *ex, const float *logits, const uint32_t *chosen,
                  uint32_t k, float *weights)
{
    const struct vf_config *c = ex->config;
    const struct vf_kernels *kernels = ex->p.kernels;
    for (uint32_t i = 0; i < k; i++)
        weights[i] = logits[chosen[i]];
    const float *all = c->norm_topk_prob ? weights : logits;
    uint32_t n = c->norm_topk_prob ? k : c->expert_count;
    float max = kernels->max(all, n);
    float sum = kernels->exp_sum(all, max, n, NULL);
    for (uint32_t i = 0; i < k; i++)
        weights[i] = vf_expf(weights[i] - max) / sum;
}

void op_route(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_config *c = ex->config;
    struct route *r = value_route(ex, op->out);
    uint32_t stride = top_k_max(c);
    struct matmul_job job = {.m = &ex->layers[op->layer].router,
                             .acts = {.x = value_data(ex, vf_op_inputs(ex->p.program, op)[0]),
                                      .n_col = ex->n_col,
                                      .cols = c->hidden_size,
                                      .stride = ex->stride},
                             .y = ex->router_logits,
                             .y_stride = c->expert_count,
                             .exact_f32 = true};
    run_matmuls(ex, &job, 1);
    for (uint32_t col = 0; col < ex->n_col; col++) {
        const struct vf_column *column = &ex->columns[col];
        bool replay = column->flow > 0 && c->flow_router == VF_ROUTER_REPLAY;
        const float *own = ex->router_logits + (size_t)col * c->expert_count;
        const float *ranking =
            replay ? ex->router_logits + (size_t)column->primary * c->expert_count : own;
        r->counts[col] = column->flow == 0 ? c->expert_top_k : c->expert_top_k_aux;
        select_top_k(ranking, c->expert_count, r->counts[col], r->experts + (size_t)col * stride);
        weigh(ex, own, r->experts + (size_t)col * stride, r->counts[col],
              r->weights + (size_t)col * stride);
    }
}

/* Distinct experts of all columns in order of first choice into ex->union_experts;
 * ex->expert_seen[e] becomes its index + 1. */
static uint32_t collect_experts(struct vf_executor *ex, const struct route *r)
{
    uint32_t stride = top_k_max(ex->config), n = 0;
    for (uint32_t col = 0; col < ex->n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            uint32_t e = r->experts[(size_t)col * stride + i];
            if (ex->expert_seen[e])
                continue;
            ex->union_experts[n++] = e;
            ex->expert_seen[e] = n;
        }
    return n;
}

static void forget_experts(struct vf_executor *ex, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ex->expert_seen[ex->union_experts[i]] = 0;
}

/* Orders by when their consumer runs; a later step's orders rank behind. */
static uint64_t deadline_rank(const struct vf_executor *ex, const struct vf_op *op)
{
    return ex->step_id * (ex->p.program->effective_layers + 1ull) + op->due_layer;
}

void op_fetch(struct vf_executor *ex, const struct vf_op *op)
{
    const struct route *r = value_route(ex, vf_op_inputs(ex->p.program, op)[0]);
    uint32_t n = collect_experts(ex, r);
    for (uint32_t i = 0; i < n; i++)
        ex->refs[i] = (struct vf_expert_ref){op->layer, ex->union_experts[i]};
    forget_experts(ex, n);
    ex->p.experts->ops->fetch(ex->p.experts, ex->refs, n, deadline_rank(ex, op));
}

/* ---- pairs --------------------------------------------------------------------------------------
 */

/* Groups the (column, rank) choices by expert: pairs [pair_begin[i], pair_begin[i + 1]) belong to
 * union_experts[i]; pair_rank maps (column, rank) back to its pair. */
static void build_pairs(struct vf_executor *ex, const struct route *r, uint32_t distinct)
{
    uint32_t stride = top_k_max(ex->config);
    memset(ex->pair_begin, 0, (distinct + 1) * sizeof *ex->pair_begin);
    for (uint32_t col = 0; col < ex->n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++)
            ex->pair_begin[ex->expert_seen[r->experts[(size_t)col * stride + i]]]++;
    for (uint32_t i = 0; i < distinct; i++)
        ex->pair_begin[i + 1] += ex->pair_begin[i];
    for (uint32_t col = 0; col < ex->n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            size_t at = (size_t)col * stride + i;
            uint32_t pair = ex->pair_begin[ex->expert_seen[r->experts[at]] - 1]++;
            ex->pair_column[pair] = col;
            ex->pair_rank[at] = pair;
        }
    for (uint32_t i = distinct; i > 0; i--) /* undo the advance of the fill */
        ex->pair_begin[i] = ex->pair_begin[i - 1];
    ex->pair_begin[0] = 0;
}

/* The input columns of one expert: in place when there is just one, else gathered. */
static struct vf_acts expert_input(struct vf_executor *ex, const struct vf_acts *acts, uint32_t idx)
{
    uint32_t begin = ex->pair_begin[idx], n = ex->pair_begin[idx + 1] - begin;
    if (n == 1)
        return slice_acts(acts, ex->pair_column[begin], 1);
    struct acts_space *space = &ex->pair_acts;
    uint32_t groups = acts->stride / 32;
    for (uint32_t i = begin; i < begin + n; i++) {
        size_t from = ex->pair_column[i];
        memcpy(ex->pair_in + (size_t)i * acts->stride, acts->x + from * acts->stride,
               acts->stride * sizeof(float));
        if (!acts->q)
            continue;
        memcpy(space->q + (size_t)i * acts->stride, acts->q + from * acts->stride, acts->stride);
        memcpy(space->scale + (size_t)i * groups, acts->scale + from * groups,
               groups * sizeof(float));
        memcpy(space->sum + (size_t)i * groups, acts->sum + from * groups,
               groups * sizeof(int32_t));
    }
    struct vf_acts all = {.x = ex->pair_in, .cols = acts->cols, .stride = acts->stride};
    if (acts->q) {
        all.q = space->q;
        all.scale = space->scale;
        all.sum = space->sum;
    }
    return slice_acts(&all, begin, n);
}

/* ---- computing what has arrived
 * -------------------------------------------------------------------- */

static void finish_pair_hidden(struct vf_executor *ex, const struct matmul_job *job,
                               uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t c = 0; c < job->acts.n_col; c++) {
        float *gate = job->y + (size_t)c * job->y_stride + row_begin;
        ex->p.kernels->act_mul(ex->config->activation, gate,
                               job->y2 + (size_t)c * job->y_stride + row_begin, row_end - row_begin,
                               gate);
    }
}

/* bm_j * H_0 for an expert that flow 0 chose at the same position. */
static void couple_hidden(struct vf_executor *ex, const struct layer_weights *w, uint32_t idx,
                          uint32_t wide)
{
    for (uint32_t i = ex->pair_begin[idx]; i < ex->pair_begin[idx + 1]; i++) {
        const struct vf_column *column = &ex->columns[ex->pair_column[i]];
        if (column->flow == 0 || !w->moe_hidden_coupling[column->flow])
            continue;
        for (uint32_t k = ex->pair_begin[idx]; k < ex->pair_begin[idx + 1]; k++)
            if (ex->pair_column[k] == column->primary)
                ex->p.kernels->mul_add(
                    w->moe_hidden_coupling[column->flow], ex->pair_hidden + (size_t)k * wide,
                    ex->config->expert_ffn_size, ex->pair_hidden + (size_t)i * wide);
    }
}

struct pair_quantize {
    struct vf_executor *ex;
    const uint32_t *indices; /* of the experts at hand */
    uint32_t wide;
};

static void quantize_expert(void *ctx, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct pair_quantize *j = ctx;
    struct vf_executor *ex = j->ex;
    uint32_t idx = j->indices[item];
    for (size_t i = ex->pair_begin[idx]; i < ex->pair_begin[idx + 1]; i++)
        ex->p.kernels->quantize_q8(
            ex->pair_hidden + i * j->wide, j->wide, ex->pair_acts2.q + i * j->wide,
            ex->pair_acts2.scale + i * (j->wide / 32), ex->pair_acts2.sum + i * (j->wide / 32));
}

/* Runs the experts union_experts[indices[0..n)], whose records are data[0..n). */
static void run_experts(struct vf_executor *ex, const struct vf_op *op, const struct vf_acts *acts,
                        const uint32_t *indices, const uint8_t *const *data, uint32_t n)
{
    const struct layer_weights *w = &ex->layers[op->layer];
    uint32_t wide = (uint32_t)vf_round_up(ex->config->expert_ffn_size, 32), pairs = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t begin = ex->pair_begin[indices[i]];
        struct expert_view *view = &ex->expert_views[i];
        vf_expert_matrices(ex->p.file, data[i], &view->gate, &view->up, &view->down);
        ex->expert_jobs[i] = (struct matmul_job){.m = &view->gate,
                                                 .acts = expert_input(ex, acts, indices[i]),
                                                 .y = ex->pair_hidden + (size_t)begin * wide,
                                                 .y_stride = wide,
                                                 .m2 = view->up,
                                                 .y2 = ex->pair_up + (size_t)begin * wide,
                                                 .finish = finish_pair_hidden};
        pairs += ex->pair_begin[indices[i] + 1] - begin;
    }
    run_matmuls(ex, ex->expert_jobs, n);
    for (uint32_t i = 0; i < n && ex->n_col > ex->n_primary; i++)
        couple_hidden(ex, w, indices[i], wide);

    struct vf_acts hidden = {
        .x = ex->pair_hidden, .cols = ex->config->expert_ffn_size, .stride = wide};
    if (ex->p.q8) {
        struct pair_quantize q = {ex, indices, wide};
        run_parallel(ex, quantize_expert, &q, n, (uint64_t)pairs * wide * 4);
        hidden.q = ex->pair_acts2.q;
        hidden.scale = ex->pair_acts2.scale;
        hidden.sum = ex->pair_acts2.sum;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t begin = ex->pair_begin[indices[i]];
        ex->expert_jobs[i] = (struct matmul_job){
            .m = &ex->expert_views[i].down,
            .acts = slice_acts(&hidden, begin, ex->pair_begin[indices[i] + 1] - begin),
            .y = ex->pair_out + (size_t)begin * ex->stride,
            .y_stride = ex->stride};
    }
    run_matmuls(ex, ex->expert_jobs, n);
}

/* Takes and runs whatever of the outstanding experts is ready, until none is left. */
static enum vf_code take_experts(struct vf_executor *ex, const struct vf_op *op,
                                 const struct vf_acts *acts, uint32_t distinct, struct vf_err *err)
{
    struct vf_expert_source *source = ex->p.experts;
    uint32_t left = distinct;
    for (uint32_t i = 0; i < distinct; i++) {
        ex->refs[i] = (struct vf_expert_ref){op->layer, ex->union_experts[i]};
        ex->outstanding[i] = i;
    }
    while (left > 0) {
        uint64_t began = vf_now_ns();
        enum vf_code code =
            source->ops->acquire(source, ex->refs, left, deadline_rank(ex, op), ex->got, err);
        ex->stats.stall_ns += vf_now_ns() - began;
        if (code != VF_OK)
            return code;
        uint32_t ready = 0, rest = 0;
        for (uint32_t i = 0; i < left; i++)
            if (ex->got[i]) {
                ex->ready[ready] = ex->outstanding[i];
                ex->ready_data[ready++] = ex->got[i];
            }
        run_experts(ex, op, acts, ex->ready, ex->ready_data, ready);
        source->ops->release(source, ex->refs, left, ex->got);
        for (uint32_t i = 0; i < left; i++)
            if (!ex->got[i]) {
                ex->outstanding[rest] = ex->outstanding[i];
                ex->refs[rest++] = ex->refs[i];
            }
        left = rest;
    }
    return VF_OK;
}

/* ---- adding up
 * ------------------------------------------------------------------------------------- */

struct add_job {
    struct vf_executor *ex;
    const struct route *route;
    float *out;
};

static void add_ranks(void *ctx, uint32_t col, uint32_t thread)
{
    (void)thread;
    struct add_job *j = ctx;
    struct vf_executor *ex = j->ex;
    uint32_t stride = top_k_max(ex->config), d = ex->config->hidden_size;
    float *out = j->out + (size_t)col * ex->stride;
    memset(out, 0, d * sizeof *out);
    for (uint32_t i = 0; i < j->route->counts[col]; i++) {
        size_t at = (size_t)col * stride + i;
        ex->p.kernels->axpy(j->route->weights[at],
                            ex->pair_out + (size_t)ex->pair_rank[at] * ex->stride, d, out);
    }
}

static void couple_output(struct vf_executor *ex, const struct layer_weights *w, float *out)
{
    for (uint32_t c = ex->n_primary; c < ex->n_col; c++) {
        const float *coupling = w->moe_output_coupling[ex->columns[c].flow];
        if (coupling)
            ex->p.kernels->mul_add(coupling, out + (size_t)ex->columns[c].primary * ex->stride,
                                   ex->config->hidden_size, out + (size_t)c * ex->stride);
    }
}

enum vf_code op_experts(struct vf_executor *ex, const struct vf_op *op, struct vf_err *err)
{
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    const struct route *r = value_route(ex, in[1]);
    struct vf_acts acts = prepare_acts(ex, value_data(ex, in[0]), ex->n_col,
                                       ex->config->hidden_size, ex->stride, &ex->acts);
    uint32_t distinct = collect_experts(ex, r);
    build_pairs(ex, r, distinct);
    forget_experts(ex, distinct);
    enum vf_code code = take_experts(ex, op, &acts, distinct, err);
    if (code != VF_OK)
        return code;
    struct add_job add = {ex, r, value_data(ex, op->out)};
    run_parallel(ex, add_ranks, &add, ex->n_col,
                 (uint64_t)ex->n_col * ex->stride * 4 * (top_k_max(ex->config) + 1));
    couple_output(ex, &ex->layers[op->layer], add.out);
    return VF_OK;
}
