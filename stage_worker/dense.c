/* The dense FFN: gate and up with everything up to the quantised hidden activations fused behind
 * them, then down.
 *
 * An auxiliary flow's hidden activations take b_j * H_0 and its output c_j * M_0 (MODEL.md
 * section 3). Flow 0's columns of the same rows are in the same item, unless flows have matrices
 * of their own: then the hidden coupling is a phase of its own.
 */
#include "stage_worker/dense.h"

#include "common/base/util.h"
#include "stage_worker/weights.h"

#include <stdlib.h>

static void load_layer(struct dense_weights *w, const struct core *core, uint32_t l)
{
    const struct vf_model_file *f = core->p.file;
    for (uint32_t j = 0; j < core->flows; j++) {
        w->gate[j] = weights_matrix(f, VF_T_GATE, l, j);
        w->up[j] = weights_matrix(f, VF_T_UP, l, j);
        w->down[j] = weights_matrix(f, VF_T_DOWN, l, j);
        w->hidden_coupling[j] = weights_vector(f, VF_T_HIDDEN_COUPLING, l, j);
        w->output_coupling[j] = weights_vector(f, VF_T_OUTPUT_COUPLING, l, j);
    }
}

enum vf_code dense_init(void *self, struct core *core, struct vf_err *err)
{
    struct dense *d = self;
    d->core = core;
    d->config = core->config;
    d->step = &core->step;
    d->space = core->space.dense;
    d->acts.space = d->space.acts;
    d->hidden_acts.space = d->space.hidden_acts;
    d->layers = calloc(core->config->layer_count, sizeof *d->layers);
    if (!d->layers)
        return weights_no_memory(core->config, err);
    for (uint32_t l = 0; l < core->config->layer_count; l++)
        load_layer(&d->layers[l], core, l);
    return VF_OK;
}

void dense_deinit(void *self)
{
    struct dense *d = self;
    free(d->layers);
}

static bool couples_apart(const struct dense *d)
{
    return d->config->flow_specific_dense && d->step->n_col > d->step->n_primary;
}

static uint32_t hidden_stride(const struct dense *d)
{
    return (uint32_t)vf_round_up(d->config->ffn_size, 32);
}

/* act(gate) * up on the rows just computed, for every column of the product. */
static void finish_hidden(const struct matmul *mm, uint32_t row_begin, uint32_t row_end)
{
    struct dense *d = mm->self;
    const struct core *core = d->core;
    uint32_t n = row_end - row_begin;
    for (uint32_t c = 0; c < mm->acts.n_col; c++) {
        float *gate = mm->y + c * mm->y_stride + row_begin;
        const float *up = mm->y2 ? mm->y2 + c * mm->y_stride + row_begin : NULL;
        core->kernels->act_mul(d->config->activation, gate, up, n, gate);
    }
    if (couples_apart(d))
        return;
    const struct dense_weights *w = &d->layers[mm->layer];
    for (uint32_t c = d->step->n_primary; c < d->step->n_col; c++) {
        const float *coupling = w->hidden_coupling[d->step->columns[c].flow];
        if (coupling)
            core->kernels->mul_add(coupling + row_begin,
                                   mm->y + d->step->columns[c].primary * mm->y_stride + row_begin,
                                   n, mm->y + c * mm->y_stride + row_begin);
    }
    for (uint32_t c = 0; core->p.q8 && c < d->step->n_col; c++)
        work_quantize(&core->work, &d->hidden_acts, c, row_begin, row_end);
}

/* One product per flow with its own matrices, or one for all. */
static void add_hidden(struct dense *d, const struct vf_op *op)
{
    const struct dense_weights *w = &d->layers[op->layer];
    uint32_t width = hidden_stride(d), sets = d->config->flow_specific_dense ? d->core->flows : 1;
    bool gated = d->config->mlp_gated;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? d->step->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? d->step->flow_begin[j + 1] : d->step->n_col) - begin;
        if (count == 0)
            continue;
        struct matmul mm = {
            .m = gated ? w->gate[j] : w->up[j],
            .acts = slice_acts(&d->acts.view, begin, count),
            .y = d->space.hidden + (size_t)begin * width,
            .y_stride = width,
            .m2 = gated ? w->up[j] : (struct vf_matrix){0},
            .y2 = gated ? d->space.up + (size_t)begin * width : NULL,
            .finish = finish_hidden,
            .self = d,
            .layer = op->layer,
        };
        work_add_matmul(&d->core->work, &mm);
    }
}

static void couple_hidden(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct dense *d = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(d->core, d->layers[op->layer].hidden_coupling, d->space.hidden,
                      d->config->ffn_size, hidden_stride(d), d->step->n_primary + c);
}

static void add_down(struct dense *d, const struct vf_op *op)
{
    const struct dense_weights *w = &d->layers[op->layer];
    float *out = value_out(d->core, op->out);
    uint32_t sets = d->config->flow_specific_dense ? d->core->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? d->step->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? d->step->flow_begin[j + 1] : d->step->n_col) - begin;
        struct matmul mm = {.m = w->down[j],
                            .acts = slice_acts(&d->hidden_acts.view, begin, count),
                            .y = out + (size_t)begin * d->core->stride,
                            .y_stride = d->core->stride};
        if (count)
            work_add_matmul(&d->core->work, &mm);
    }
}

static void couple_output(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct dense *d = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(d->core, d->layers[op->layer].output_coupling, value_out(d->core, op->out),
                      d->config->hidden_size, d->core->stride, d->step->n_primary + c);
}

enum vf_code dense_phase(void *self, const struct vf_op *op, uint32_t phase, uint32_t *next,
                         struct vf_err *err)
{
    (void)err;
    struct dense *d = self;
    const struct core *core = d->core;
    struct work *work = &d->core->work;
    const struct vf_config *c = d->config;
    uint32_t aux = d->step->n_col - d->step->n_primary, width = hidden_stride(d);
    switch (phase) {
    case 0:
        work_add_acts(work, &d->acts, value_in(core, op_input(core, op, 0)), d->step->n_col,
                      c->hidden_size, d->core->stride);
        break;
    case 1:
        work_view_acts(work, &d->hidden_acts, d->space.hidden, d->step->n_col, c->ffn_size, width);
        add_hidden(d, op);
        break;
    case 2:
        if (couples_apart(d))
            work_add_loop(work, d, op, couple_hidden, aux, 12ull * c->ffn_size);
        break;
    case 3:
        if (couples_apart(d))
            work_add_acts(work, &d->hidden_acts, d->space.hidden, d->step->n_col, c->ffn_size,
                          width);
        break;
    case 4:
        add_down(d, op);
        break;
    default:
        work_add_loop(work, d, op, couple_output, aux, 12ull * c->hidden_size);
        *next = PHASE_END;
    }
    return VF_OK;
}
