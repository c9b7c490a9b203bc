/* The dense FFN: gate and up in one region with the activation fused behind them, then down.
 *
 * An auxiliary flow's hidden activations take b_j * H_0 and its output c_j * M_0 (MODEL.md
 * section 3); flow 0's columns of the same rows are in the same item of the region, so the hidden
 * coupling is fused as well.
 */
#include "stage_worker/internal.h"

#include "common/util.h"

/* act(gate) * up on the rows just computed, for every column of the job. */
static void finish_hidden(struct vf_executor *ex, const struct matmul_job *job, uint32_t row_begin,
                          uint32_t row_end)
{
    for (uint32_t c = 0; c < job->acts.n_col; c++) {
        float *gate = job->y + (size_t)c * job->y_stride + row_begin;
        const float *up = job->y2 ? job->y2 + (size_t)c * job->y_stride + row_begin : NULL;
        ex->p.kernels->act_mul(ex->config->activation, gate, up, row_end - row_begin, gate);
    }
}

/* One job per flow with its own matrices, or one for all. */
static void hidden_region(struct vf_executor *ex, const struct layer_weights *w,
                          const struct vf_acts *acts, uint32_t width)
{
    struct matmul_job jobs[VF_FLOWS_MAX];
    uint32_t n = 0, sets = ex->config->flow_specific_dense ? ex->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? ex->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? ex->flow_begin[j + 1] : ex->n_col) - begin;
        if (count == 0)
            continue;
        bool gated = ex->config->mlp_gated;
        jobs[n++] = (struct matmul_job){
            .m = gated ? &w->gate[j] : &w->up[j],
            .acts = slice_acts(acts, begin, count),
            .y = ex->hidden + (size_t)begin * width,
            .y_stride = width,
            .m2 = gated ? w->up[j] : (struct vf_matrix){0},
            .y2 = gated ? ex->hidden_up + (size_t)begin * width : NULL,
            .finish = finish_hidden,
        };
    }
    run_matmuls(ex, jobs, n);
}

static void couple(struct vf_executor *ex, const float *const *coupling, float *x, uint32_t n,
                   uint32_t stride)
{
    for (uint32_t c = ex->n_primary; c < ex->n_col; c++)
        if (coupling[ex->columns[c].flow])
            ex->p.kernels->mul_add(coupling[ex->columns[c].flow],
                                   x + (size_t)ex->columns[c].primary * stride, n,
                                   x + (size_t)c * stride);
}

void op_dense(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_config *c = ex->config;
    const struct layer_weights *w = &ex->layers[op->layer];
    const float *y = value_data(ex, vf_op_inputs(ex->p.program, op)[0]);
    float *out = value_data(ex, op->out);
    uint32_t width = (uint32_t)vf_round_up(c->ffn_size, 32);
    struct vf_acts acts = prepare_acts(ex, y, ex->n_col, c->hidden_size, ex->stride, &ex->acts);
    hidden_region(ex, w, &acts, width);
    couple(ex, w->hidden_coupling, ex->hidden, c->ffn_size, width);

    struct vf_acts hidden = prepare_acts(ex, ex->hidden, ex->n_col, c->ffn_size, width, &ex->acts2);
    struct matmul_job jobs[VF_FLOWS_MAX];
    uint32_t n = 0, sets = c->flow_specific_dense ? ex->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? ex->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? ex->flow_begin[j + 1] : ex->n_col) - begin;
        if (count)
            jobs[n++] = (struct matmul_job){.m = &w->down[j],
                                            .acts = slice_acts(&hidden, begin, count),
                                            .y = out + (size_t)begin * ex->stride,
                                            .y_stride = ex->stride};
    }
    run_matmuls(ex, jobs, n);
    couple(ex, w->output_coupling, out, c->hidden_size, ex->stride);
}
