/* The experts of a step are taken as they become ready, several at once where they are: each
 * (column, expert) pair writes its own output row, and the rows of a column are added in rank
 * order at the end, so the order of arrival never shows in the result. One that is still being read
 * is begun at its front: gate and up give its hidden activations, which stay until the whole record
 * is there, and are computed again if that turns out to be from another read.
 */
#include "stage_worker/experts.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "stage_worker/weights.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct vf_expert_front) == VF_EXPERT_FRONT_BYTES &&
                   sizeof(struct expert_view) == VF_EXPERT_VIEW_BYTES,
               "what the memory plan counts");

enum vf_code experts_init(void *self, struct core *core, struct vf_err *err)
{
    struct experts *x = self;
    x->core = core;
    x->config = core->config;
    x->kernels = core->kernels;
    x->step = &core->step;
    x->space = core->space.experts;
    x->acts.space = x->space.acts;
    x->pair_acts.space = x->space.pair_acts;
    x->hidden_acts.space = x->space.hidden_acts;
    x->set = (struct expert_set){.experts = x->space.set.experts, .index = x->space.set.index};
    x->refs = x->space.refs;
    x->got = x->space.got;
    x->fronts = x->space.fronts;
    x->views = x->space.views;
    x->layers = calloc(core->config->layer_count, sizeof *x->layers);
    if (!x->layers)
        return weights_no_memory(core->config, err);
    for (uint32_t l = 0; l < core->config->layer_count; l++)
        for (uint32_t j = 0; j < core->flows; j++) {
            struct experts_weights *w = &x->layers[l];
            w->hidden_coupling[j] = weights_vector(core->p.file, VF_T_MOE_HIDDEN_COUPLING, l, j);
            w->output_coupling[j] = weights_vector(core->p.file, VF_T_MOE_OUTPUT_COUPLING, l, j);
        }
    return VF_OK;
}

void experts_deinit(void *self)
{
    struct experts *x = self;
    free(x->layers);
}

/* ---- pairs --------------------------------------------------------------------------------------
 */

/* Groups the (column, rank) choices by expert: pairs [pair_begin[i], pair_begin[i + 1]) belong to
 * expert i of the set; pair_rank maps (column, rank) back to its pair. */
static void build_pairs(struct experts *x, const struct vf_route *r)
{
    uint32_t stride = vf_experts_top_max(x->config), distinct = x->set.count;
    uint32_t *begin = x->space.pair_begin;
    memset(begin, 0, (distinct + 1) * sizeof *begin);
    for (uint32_t col = 0; col < x->step->n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++)
            begin[x->set.index[r->experts[(size_t)col * stride + i]]]++;
    for (uint32_t i = 0; i < distinct; i++)
        begin[i + 1] += begin[i];
    for (uint32_t col = 0; col < x->step->n_col; col++)
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            size_t at = (size_t)col * stride + i;
            uint32_t pair = begin[x->set.index[r->experts[at]] - 1]++;
            x->space.pair_column[pair] = col;
            x->space.pair_rank[at] = pair;
        }
    for (uint32_t i = distinct; i > 0; i--) /* undo the advance of the fill */
        begin[i] = begin[i - 1];
    begin[0] = 0;
}

/* ---- phases of the experts operation ------------------------------------------------------------
 */

static uint32_t hidden_stride(const struct experts *x)
{
    return (uint32_t)vf_round_up(x->config->expert_ffn_size, 32);
}

static uint32_t pairs_of(const struct experts *x, uint32_t expert)
{
    return x->space.pair_begin[expert + 1] - x->space.pair_begin[expert];
}

static void list_experts(struct experts *x, const struct vf_op *op)
{
    const struct vf_route *r = value_route(x->core, op_input(x->core, op, 1));
    expert_set_collect(&x->set, x->core, r);
    build_pairs(x, r);
    expert_set_forget(&x->set);
    x->outstanding_count = x->set.count;
    for (uint32_t i = 0; i < x->set.count; i++) {
        x->refs[i] = (struct vf_expert_ref){op->layer, x->set.experts[i]};
        x->fronts[i] = (struct vf_expert_front){0};
        x->space.outstanding[i] = i;
    }
}

static void add_view(struct experts *x, uint32_t i, const uint8_t *data)
{
    struct expert_view *view = &x->views[x->view_count++];
    view->expert = x->space.outstanding[i];
    view->is_whole = x->got[i] != NULL;
    view->has_hidden = view->is_whole && x->fronts[i].load != 0;
    vf_expert_matrices(x->core->p.file, data, &view->gate, &view->up, &view->down);
}

/* Takes whatever of the outstanding experts is ready, or has a front, waiting if nothing is. */
static enum vf_code take_experts(struct experts *x, const struct vf_op *op, struct vf_err *err)
{
    struct vf_expert_source *source = x->core->p.experts;
    uint64_t began = vf_now_ns();
    enum vf_code code = source->ops->acquire(source, x->refs, x->outstanding_count,
                                             deadline_rank(x->core, op), x->got, x->fronts, err);
    x->stall_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return code;
    x->view_count = 0;
    for (uint32_t i = 0; i < x->outstanding_count; i++) {
        const uint8_t *data = x->got[i] ? x->got[i] : x->fronts[i].data;
        if (data)
            add_view(x, i, data);
    }
    return VF_OK;
}

static void release_experts(struct experts *x)
{
    struct vf_expert_source *source = x->core->p.experts;
    source->ops->release(source, x->refs, x->outstanding_count, x->got);
    uint32_t rest = 0;
    for (uint32_t i = 0; i < x->outstanding_count; i++)
        if (!x->got[i]) {
            x->space.outstanding[rest] = x->space.outstanding[i];
            x->fronts[rest] = x->fronts[i];
            x->refs[rest++] = x->refs[i];
        }
    x->outstanding_count = rest;
}

/* Pairs whose columns are put side by side for the hidden activations. */
static uint32_t gathered_pairs(const struct experts *x, const struct expert_view *view)
{
    uint32_t n = pairs_of(x, view->expert);
    return n > 1 && !view->has_hidden ? n : 0;
}

/* Puts the columns of each expert at hand side by side; a single one is read where it is. */
static void gather_columns(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    const struct experts *x = job->ctx;
    const struct vf_acts *from = &x->acts.view;
    const struct acts *to = &x->pair_acts;
    for (uint32_t r = begin; r < end; r++) {
        const struct expert_view *view = &x->views[r];
        uint32_t first = x->space.pair_begin[view->expert], n = gathered_pairs(x, view);
        for (size_t i = first; i < first + n; i++) {
            size_t at = (size_t)x->space.pair_column[i] * from->stride, put = i * from->stride;
            memcpy(x->space.pair_in + put, from->x + at, from->stride * sizeof(float));
            if (!from->q)
                continue;
            memcpy(to->space.q + put, from->q + at, from->stride);
            memcpy(to->space.scale + put / 32, from->scale + at / 32,
                   from->stride / 32 * sizeof(float));
            memcpy(to->space.sum + put / 32, from->sum + at / 32,
                   from->stride / 32 * sizeof(int32_t));
        }
    }
}

static void add_gather(struct experts *x, const struct vf_op *op)
{
    uint32_t pairs = 0;
    for (uint32_t r = 0; r < x->view_count; r++)
        pairs += gathered_pairs(x, &x->views[r]);
    if (pairs)
        work_add_loop(&x->core->work, x, op, gather_columns, x->view_count,
                      vf_div_up(10ull * x->core->stride * pairs, x->view_count));
}

/* act(gate) * up, bm_j * H_0 for an expert that flow 0 chose at the same position, and quantised:
 * on the rows just computed. */
static void finish_hidden(const struct matmul *mm, uint32_t row_begin, uint32_t row_end)
{
    const struct experts *x = mm->self;
    uint32_t n = row_end - row_begin;
    for (uint32_t c = 0; c < mm->acts.n_col; c++) {
        float *gate = mm->y + c * mm->y_stride + row_begin;
        x->kernels->act_mul(x->config->activation, gate, mm->y2 + c * mm->y_stride + row_begin, n,
                            gate);
    }
    const struct experts_weights *w = &x->layers[mm->layer];
    const uint32_t *columns = x->space.pair_column + mm->index;
    for (uint32_t c = 0; x->step->n_col > x->step->n_primary && c < mm->acts.n_col; c++) {
        const struct vf_column *column = &x->step->columns[columns[c]];
        const float *coupling = w->hidden_coupling[column->flow];
        for (uint32_t k = 0; column->flow > 0 && coupling && k < mm->acts.n_col; k++)
            if (columns[k] == column->primary)
                x->kernels->mul_add(coupling + row_begin, mm->y + k * mm->y_stride + row_begin, n,
                                    mm->y + c * mm->y_stride + row_begin);
    }
    for (uint32_t c = 0; x->core->p.q8 && c < mm->acts.n_col; c++)
        work_quantize(&x->core->work, &x->hidden_acts, mm->index + c, row_begin, row_end);
}

static void add_hidden(struct experts *x, const struct vf_op *op)
{
    uint32_t width = hidden_stride(x);
    for (uint32_t r = 0; r < x->view_count; r++) {
        const struct expert_view *view = &x->views[r];
        uint32_t first = x->space.pair_begin[view->expert], n = pairs_of(x, view->expert);
        if (view->has_hidden)
            continue;
        struct matmul mm = {.m = view->gate,
                            .acts = n == 1
                                        ? slice_acts(&x->acts.view, x->space.pair_column[first], 1)
                                        : slice_acts(&x->pair_acts.view, first, n),
                            .y = x->space.pair_hidden + (size_t)first * width,
                            .y_stride = width,
                            .m2 = view->up,
                            .y2 = x->space.pair_up + (size_t)first * width,
                            .finish = finish_hidden,
                            .self = x,
                            .layer = op->layer,
                            .index = first};
        work_add_matmul(&x->core->work, &mm);
    }
}

static void add_down(struct experts *x)
{
    for (uint32_t r = 0; r < x->view_count; r++) {
        const struct expert_view *view = &x->views[r];
        uint32_t first = x->space.pair_begin[view->expert];
        if (!view->is_whole)
            continue;
        struct matmul mm = {.m = view->down,
                            .acts =
                                slice_acts(&x->hidden_acts.view, first, pairs_of(x, view->expert)),
                            .y = x->space.pair_out + (size_t)first * x->core->stride,
                            .y_stride = x->core->stride};
        work_add_matmul(&x->core->work, &mm);
    }
}

static void add_ranks(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    const struct experts *x = job->ctx;
    const struct vf_op *op = job->what;
    const struct vf_route *r = value_route(x->core, op_input(x->core, op, 1));
    uint32_t stride = vf_experts_top_max(x->config), d = x->config->hidden_size;
    for (uint32_t col = begin; col < end; col++) {
        float *out = value_out(x->core, op->out) + (size_t)col * x->core->stride;
        memset(out, 0, d * sizeof *out);
        for (uint32_t i = 0; i < r->counts[col]; i++) {
            size_t at = (size_t)col * stride + i;
            x->kernels->axpy(r->weights[at],
                             x->space.pair_out + (size_t)x->space.pair_rank[at] * x->core->stride,
                             d, out);
        }
    }
}

static void couple_output(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    const struct experts *x = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(x->core, x->layers[op->layer].output_coupling, value_out(x->core, op->out),
                      x->config->hidden_size, x->core->stride, x->step->n_primary + c);
}

enum vf_code experts_phase(void *self, const struct vf_op *op, uint32_t phase, uint32_t *next,
                           struct vf_err *err)
{
    struct experts *x = self;
    struct work *work = &x->core->work;
    enum { INPUT, TAKE, GATHER, HIDDEN, DOWN, RELEASE, ADD, COUPLE };
    const struct vf_config *c = x->config;
    switch (phase) {
    case INPUT:
        work_add_acts(work, &x->acts, value_in(x->core, op_input(x->core, op, 0)), x->step->n_col,
                      c->hidden_size, x->core->stride);
        list_experts(x, op);
        break;
    case TAKE:
        return take_experts(x, op, err);
    case GATHER:
        work_view_acts(work, &x->pair_acts, x->space.pair_in, 0, c->hidden_size, x->core->stride);
        add_gather(x, op);
        break;
    case HIDDEN:
        work_view_acts(work, &x->hidden_acts, x->space.pair_hidden, 0, c->expert_ffn_size,
                       hidden_stride(x));
        add_hidden(x, op);
        break;
    case DOWN:
        add_down(x);
        break;
    case RELEASE:
        release_experts(x);
        *next = x->outstanding_count ? TAKE : ADD;
        break;
    case ADD:
        work_add_loop(&x->core->work, x, op, add_ranks, x->step->n_col,
                      4ull * x->core->stride * (vf_experts_top_max(c) + 1));
        break;
    default:
        work_add_loop(&x->core->work, x, op, couple_output, x->step->n_col - x->step->n_primary,
                      12ull * c->hidden_size);
        *next = PHASE_END;
    }
    return VF_OK;
}
