/* The dense FFN: gate and up with everything up to the quantised hidden activations fused behind
 * them, then down.
 *
 * An auxiliary flow's hidden activations take b_j * H_0 and its output c_j * M_0 (MODEL.md
 * section 3). Flow 0's columns of the same rows are in the same item, unless flows have matrices
 * of their own: then the hidden coupling is a phase of its own.
 */
#include "stage_worker/internal.h"

#include "common/base/util.h"

void couple_column(const struct vf_executor *ex, const float *const *coupling, float *x, uint32_t n,
                   uint32_t stride, uint32_t column)
{
    const float *factors = coupling[ex->columns[column].flow];
    if (column >= ex->n_primary && factors)
        ex->p.kernels->mul_add(factors, x + (size_t)ex->columns[column].primary * stride, n,
                               x + (size_t)column * stride);
}

static bool couples_apart(const struct vf_executor *ex)
{
    return ex->config->flow_specific_dense && ex->n_col > ex->n_primary;
}

static uint32_t hidden_stride(const struct vf_executor *ex)
{
    return (uint32_t)vf_round_up(ex->config->ffn_size, 32);
}

/* act(gate) * up on the rows just computed, for every column of the product. */
static void finish_hidden(struct vf_executor *ex, const struct matmul *mm, uint32_t row_begin,
                          uint32_t row_end)
{
    uint32_t n = row_end - row_begin;
    for (uint32_t c = 0; c < mm->acts.n_col; c++) {
        float *gate = mm->y + c * mm->y_stride + row_begin;
        const float *up = mm->y2 ? mm->y2 + c * mm->y_stride + row_begin : NULL;
        ex->p.kernels->act_mul(ex->config->activation, gate, up, n, gate);
    }
    if (couples_apart(ex))
        return;
    const struct layer_weights *w = &ex->layers[mm->layer];
    for (uint32_t c = ex->n_primary; c < ex->n_col; c++) {
        const float *coupling = w->hidden_coupling[ex->columns[c].flow];
        if (coupling)
            ex->p.kernels->mul_add(coupling + row_begin,
                                   mm->y + ex->columns[c].primary * mm->y_stride + row_begin, n,
                                   mm->y + c * mm->y_stride + row_begin);
    }
    for (uint32_t c = 0; ex->p.q8 && c < ex->n_col; c++)
        quantize_part(ex, &ex->hidden_acts, c, row_begin, row_end);
}

/* One product per flow with its own matrices, or one for all. */
static void add_hidden(struct vf_executor *ex, const struct vf_op *op)
{
    const struct layer_weights *w = &ex->layers[op->layer];
    uint32_t width = hidden_stride(ex), sets = ex->config->flow_specific_dense ? ex->flows : 1;
    bool gated = ex->config->mlp_gated;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? ex->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? ex->flow_begin[j + 1] : ex->n_col) - begin;
        if (count == 0)
            continue;
        struct matmul mm = {
            .m = gated ? w->gate[j] : w->up[j],
            .acts = slice_acts(&ex->dense_acts.view, begin, count),
            .y = ex->hidden + (size_t)begin * width,
            .y_stride = width,
            .m2 = gated ? w->up[j] : (struct vf_matrix){0},
            .y2 = gated ? ex->hidden_up + (size_t)begin * width : NULL,
            .finish = finish_hidden,
            .layer = op->layer,
        };
        add_matmul(ex, &mm);
    }
}

static void couple_hidden(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(ex, ex->layers[op->layer].hidden_coupling, ex->hidden, ex->config->ffn_size,
                      hidden_stride(ex), ex->n_primary + c);
}

static void add_down(struct vf_executor *ex, const struct vf_op *op)
{
    const struct layer_weights *w = &ex->layers[op->layer];
    float *out = value_data(ex, op->out);
    uint32_t sets = ex->config->flow_specific_dense ? ex->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? ex->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? ex->flow_begin[j + 1] : ex->n_col) - begin;
        struct matmul mm = {.m = w->down[j],
                            .acts = slice_acts(&ex->hidden_acts.view, begin, count),
                            .y = out + (size_t)begin * ex->stride,
                            .y_stride = ex->stride};
        if (count)
            add_matmul(ex, &mm);
    }
}

static void couple_output(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    for (uint32_t c = begin; c < end; c++)
        couple_column(ex, ex->layers[op->layer].output_coupling, value_data(ex, op->out),
                      ex->config->hidden_size, ex->stride, ex->n_primary + c);
}

enum vf_code dense_phase(struct vf_executor *ex, const struct vf_op *op, uint32_t phase,
                         uint32_t *next, struct vf_err *err)
{
    (void)err;
    const struct vf_config *c = ex->config;
    uint32_t aux = ex->n_col - ex->n_primary, width = hidden_stride(ex);
    switch (phase) {
    case 0:
        add_acts(ex, &ex->dense_acts, value_data(ex, vf_op_inputs(ex->p.program, op)[0]), ex->n_col,
                 c->hidden_size, ex->stride);
        break;
    case 1:
        view_acts(ex, &ex->hidden_acts, ex->hidden, ex->n_col, c->ffn_size, width);
        add_hidden(ex, op);
        break;
    case 2:
        if (couples_apart(ex))
            add_loop(ex, op, couple_hidden, aux, 12ull * c->ffn_size);
        break;
    case 3:
        if (couples_apart(ex))
            add_acts(ex, &ex->hidden_acts, ex->hidden, ex->n_col, c->ffn_size, width);
        break;
    case 4:
        add_down(ex, op);
        break;
    default:
        add_loop(ex, op, couple_output, aux, 12ull * c->hidden_size);
        *next = PHASE_END;
    }
    return VF_OK;
}
