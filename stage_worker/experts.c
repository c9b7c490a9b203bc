/* Routing, fetch orders and the experts operation.
 *
 * The experts of a step are taken as they become ready, several at once where they are: each
 * (column, expert) pair writes its own output row, and the rows of a column are added in rank
 * order at the end, so the order of arrival never shows in the result. One that is still being read
 * is begun at its front: gate and up give its hidden activations, which stay until the whole record
 * is there, and are computed again if that turns out to be from another read.
 */
#include "stage_worker/internal.h"

#include "common/base/clock.h"
#include "common/base/util.h"

#include <math.h>
#include <string.h>

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

static void choose_experts(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    const struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    const struct vf_config *c = ex->config;
    struct route *r = value_route(ex, op->out);
    uint32_t stride = top_k_max(c);
    for (uint32_t col = begin; col < end; col++) {
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

/* Light: a small matrix, and what it decides is wanted as soon as possible. */
void op_route(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_config *c = ex->config;
    struct matmul mm = {.m = ex->layers[op->layer].router,
                        .acts = {.x = value_data(ex, vf_op_inputs(ex->p.program, op)[0]),
                                 .n_col = ex->n_col,
                                 .cols = c->hidden_size,
                                 .stride = ex->stride},
                        .y = ex->router_logits,
                        .y_stride = c->expert_count,
                        .exact_f32 = true};
    add_matmul(ex, &mm);
    run_region(ex);
    /* Each expert's logit is looked at a few times. */
    add_loop(ex, op, choose_experts, ex->n_col, 16ull * c->expert_count);
    run_region(ex);
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

uint64_t deadline_rank(const struct vf_executor *ex, const struct vf_op *op)
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
    ex->p.experts->ops->fetch(ex->p.experts, ex->refs, n, deadline_rank(ex, op),
                              VF_FETCH_SCHEDULED);
    speculation_after_fetch(ex, op, n);
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

/* ---- phases of the experts operation ------------------------------------------------------------
 */

static uint32_t hidden_stride(const struct vf_executor *ex)
{
    return (uint32_t)vf_round_up(ex->config->expert_ffn_size, 32);
}

static uint32_t pairs_of(const struct vf_executor *ex, uint32_t expert)
{
    return ex->pair_begin[expert + 1] - ex->pair_begin[expert];
}

static void list_experts(struct vf_executor *ex, const struct vf_op *op)
{
    const struct route *r = value_route(ex, vf_op_inputs(ex->p.program, op)[1]);
    uint32_t distinct = collect_experts(ex, r);
    build_pairs(ex, r, distinct);
    forget_experts(ex, distinct);
    ex->distinct_count = ex->outstanding_count = distinct;
    for (uint32_t i = 0; i < distinct; i++) {
        ex->refs[i] = (struct vf_expert_ref){op->layer, ex->union_experts[i]};
        ex->fronts[i] = (struct vf_expert_front){0};
        ex->outstanding[i] = i;
    }
}

static void add_view(struct vf_executor *ex, uint32_t i, const uint8_t *data)
{
    struct expert_view *view = &ex->expert_views[ex->view_count++];
    view->expert = ex->outstanding[i];
    view->is_whole = ex->got[i] != NULL;
    view->has_hidden = view->is_whole && ex->fronts[i].load != 0;
    vf_expert_matrices(ex->p.file, data, &view->gate, &view->up, &view->down);
}

/* Takes whatever of the outstanding experts is ready, or has a front, waiting if nothing is. */
static enum vf_code take_experts(struct vf_executor *ex, const struct vf_op *op, struct vf_err *err)
{
    struct vf_expert_source *source = ex->p.experts;
    uint64_t began = vf_now_ns();
    enum vf_code code = source->ops->acquire(source, ex->refs, ex->outstanding_count,
                                             deadline_rank(ex, op), ex->got, ex->fronts, err);
    ex->stats.stall_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return code;
    ex->view_count = 0;
    for (uint32_t i = 0; i < ex->outstanding_count; i++) {
        const uint8_t *data = ex->got[i] ? ex->got[i] : ex->fronts[i].data;
        if (data)
            add_view(ex, i, data);
    }
    return VF_OK;
}

static void release_experts(struct vf_executor *ex)
{
    struct vf_expert_source *source = ex->p.experts;
    source->ops->release(source, ex->refs, ex->outstanding_count, ex->got);
    uint32_t rest = 0;
    for (uint32_t i = 0; i < ex->outstanding_count; i++)
        if (!ex->got[i]) {
            ex->outstanding[rest] = ex->outstanding[i];
            ex->fronts[rest] = ex->fronts[i];
            ex->refs[rest++] = ex->refs[i];
        }
    ex->outstanding_count = rest;
}

/* Pairs whose columns are put side by side for the hidden activations. */
static uint32_t gathered_pairs(const struct vf_executor *ex, const struct expert_view *view)
{
    uint32_t n = pairs_of(ex, view->expert);
    return n > 1 && !view->has_hidden ? n : 0;
}

/* Puts the columns of each expert at hand side by side; a single one is read where it is. */
static void gather_columns(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    const struct vf_executor *ex = job->ctx;
    const struct vf_acts *from = &ex->expert_acts.view;
    const struct acts *to = &ex->pair_acts;
    for (uint32_t r = begin; r < end; r++) {
        const struct expert_view *view = &ex->expert_views[r];
        uint32_t first = ex->pair_begin[view->expert], n = gathered_pairs(ex, view);
        for (size_t i = first; i < first + n; i++) {
            size_t at = (size_t)ex->pair_column[i] * from->stride, put = i * from->stride;
            memcpy(ex->pair_in + put, from->x + at, from->stride * sizeof(float));
            if (!from->q)
                continue;
            memcpy(to->q + put, from->q + at, from->stride);
            memcpy(to->scale + put / 32, from->scale + at / 32, from->stride / 32 * sizeof(float));
            memcpy(to->sum + put / 32, from->sum + at / 32, from->stride / 32 * sizeof(int32_t));
        }
    }
}

static void add_gather(struct vf_executor *ex, const struct vf_op *op)
{
    uint32_t pairs = 0;
    for (uint32_t r = 0; r < ex->view_count; r++)
        pairs += gathered_pairs(ex, &ex->expert_views[r]);
    if (pairs)
        add_loop(ex, op, gather_columns, ex->view_count,
                 vf_div_up(10ull * ex->stride * pairs, ex->view_count));
}

/* act(gate) * up, bm_j * H_0 for an expert that flow 0 chose at the same position, and quantised:
 * on the rows just computed. */
static void finish_hidden(struct vf_executor *ex, const struct matmul *mm, uint32_t row_begin,
                          uint32_t row_end)
{
    uint32_t n = row_end - row_begin;
    for (uint32_t c = 0; c < mm->acts.n_col; c++) {
        float *gate = mm->y + c * mm->y_stride + row_begin;
        ex->p.kernels->act_mul(ex->config->activation, gate, mm->y2 + c * mm->y_stride + row_begin,
                               n, gate);
    }
    const struct layer_weights *w = &ex->layers[mm->layer];
    const uint32_t *columns = ex->pair_column + mm->index;
    for (uint32_t c = 0; ex->n_col > ex->n_primary && c < mm->acts.n_col; c++) {
        const struct vf_column *column = &ex->columns[columns[c]];
        const float *coupling = w->moe_hidden_coupling[column->flow];
        for (uint32_t k = 0; column->flow > 0 && coupling && k < mm->acts.n_col; k++)
            if (columns[k] == column->primary)
                ex->p.kernels->mul_add(coupling + row_begin, mm->y + k * mm->y_stride + row_begin,
                                       n, mm->y + c * mm->y_stride + row_begin);
    }
    for (uint32_t c = 0; ex->p.q8 && c < mm->acts.n_col; c++)
        quantize_part(ex, &ex->pair_hidden_acts, mm->index + c, row_begin, row_end);
}

static void add_hidden(struct vf_executor *ex, const struct vf_op *op)
{
    uint32_t width = hidden_stride(ex);
    for (uint32_t r = 0; r < ex->view_count; r++) {
        const struct expert_view *view = &ex->expert_views[r];
        uint32_t first = ex->pair_begin[view->expert], n = pairs_of(ex, view->expert);
        if (view->has_hidden)
            continue;
        struct matmul mm = {
            .m = view->gate,
            .acts = n == 1 ? slice_acts(&ex->expert_acts.view, ex->pair_column[first], 1)
                           : slice_acts(&ex->pair_acts.view, first, n),
            .y = ex->pair_hidden + (size_t)first * width,
            .y_stride = width,
            .m2 = view->up,
            .y2 = ex->pair_up + (size_t)first * width,
            .finish = finish_hidden,
            .layer = op->layer,
            .index = first};
        add_matmul(ex, &mm);
    }
}

static void add_down(struct vf_executor *ex)
{
    for (uint32_t r = 0; r < ex->view_count; r++) {
        const struct expert_view *view = &ex->expert_views[r];
        uint32_t first = ex->pair_begin[view->expert];
        if (!view->is_whole)
            continue;
        struct matmul mm = {
            .m = view->down,
            .acts = slice_acts(&ex->pair_hidden_acts.view, first, pairs_of(ex, view->expert)),
            .y = ex->pair_out + (size_t)first * ex->stride,
            .y_stride = ex->stride};
        add_matmul(ex, &mm);
    }
}

static void add_ranks(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    const struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    const struct route *r = value_route(ex, vf_op_inputs(ex->p.program, op)[1]);
    uint32_t stride = top_k_max(ex->config), d = ex->config->hidden_size;
    for (uint32_t col = begin; col < end; col++) {
        float *out = value_data(ex, op->out) + (size_t)col * ex->stride;
        memset(out, 0, d * sizeof *out);
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            size_t at = (size_t)col * stride + i;
            ex->p.kernels->axpy(r->weights[at],
                                ex->pair_out + (size_t)ex->pair_rank[at] * ex->stride, d, out);
        }
    }
}

static void couple_output(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    const struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(ex, ex->layers[op->layer].moe_output_coupling, value_data(ex, op->out),
                      ex->config->hidden_size, ex->stride, ex->n_primary + c);
}

enum vf_code experts_phase(struct vf_executor *ex, const struct vf_op *op, uint32_t phase,
                           uint32_t *next, struct vf_err *err)
{
    enum { INPUT, TAKE, GATHER, HIDDEN, DOWN, RELEASE, ADD, COUPLE };
    const struct vf_config *c = ex->config;
    switch (phase) {
    case INPUT:
        add_acts(ex, &ex->expert_acts, value_data(ex, vf_op_inputs(ex->p.program, op)[0]),
                 ex->n_col, c->hidden_size, ex->stride);
        list_experts(ex, op);
        break;
    case TAKE:
        return take_experts(ex, op, err);
    case GATHER:
        view_acts(ex, &ex->pair_acts, ex->pair_in, 0, c->hidden_size, ex->stride);
        add_gather(ex, op);
        break;
    case HIDDEN:
        view_acts(ex, &ex->pair_hidden_acts, ex->pair_hidden, 0, c->expert_ffn_size,
                  hidden_stride(ex));
        add_hidden(ex, op);
        break;
    case DOWN:
        add_down(ex);
        break;
    case RELEASE:
        release_experts(ex);
        *next = ex->outstanding_count ? TAKE : ADD;
        break;
    case ADD:
        add_loop(ex, op, add_ranks, ex->n_col, 4ull * ex->stride * (top_k_max(c) + 1));
        break;
    default:
        add_loop(ex, op, couple_output, ex->n_col - ex->n_primary, 12ull * c->hidden_size);
        *next = PHASE_END;
    }
    return VF_OK;
}
