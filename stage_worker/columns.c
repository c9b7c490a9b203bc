#include "stage_worker/columns.h"

#include "stage_worker/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- embed ------------------------------------------------------------------------------------
 */

enum vf_code embed_init(void *self, struct core *core, struct vf_err *err)
{
    (void)err;
    struct embed *e = self;
    e->core = core;
    for (uint32_t j = 0; j < core->flows; j++)
        e->tables[j] = weights_matrix(core->p.file, VF_T_EMBED, VF_LAYER_NONE, j);
    return VF_OK;
}

void embed_column(const void *self, const struct vf_op *op, uint32_t column)
{
    const struct embed *e = self;
    const struct vf_column *col = &e->core->step.columns[column];
    float *x = value_out(e->core, op->out) + (size_t)column * e->core->stride;
    uint32_t d = e->core->config->hidden_size;
    vf_tile_unpack_row(&e->tables[col->flow], col->token, x);
    if (e->core->config->embedding_scale)
        e->core->kernels->scale(sqrtf((float)d), d, x);
}

/* ---- norm -------------------------------------------------------------------------------------
 */

enum vf_code norm_init(void *self, struct core *core, struct vf_err *err)
{
    struct norm *n = self;
    uint32_t layers = core->config->layer_count;
    n->core = core;
    n->attn = calloc(layers, sizeof *n->attn);
    n->ffn = calloc(layers, sizeof *n->ffn);
    if (!n->attn || !n->ffn)
        return weights_no_memory(core->config, err);
    for (uint32_t l = 0; l < layers; l++) {
        n->attn[l] = weights_vector(core->p.file, VF_T_ATTN_NORM, l, 0);
        n->ffn[l] = weights_vector(core->p.file, VF_T_FFN_NORM, l, 0);
    }
    n->final = weights_vector(core->p.file, VF_T_FINAL_NORM, VF_LAYER_NONE, 0);
    return VF_OK;
}

void norm_deinit(void *self)
{
    struct norm *n = self;
    free(n->attn);
    free(n->ffn);
}

void norm_column(const void *self, const struct vf_op *op, uint32_t column)
{
    const struct norm *n = self;
    const struct core *core = n->core;
    const struct vf_config *c = core->config;
    const float *w = op->norm == VF_NORM_FINAL  ? n->final
                     : op->norm == VF_NORM_ATTN ? n->attn[op->layer]
                                                : n->ffn[op->layer];
    size_t at = (size_t)column * core->stride;
    core->kernels->rmsnorm(value_in(core, op_input(core, op, 0)) + at, w,
                           c->norm_weight_offset ? 1.0f : 0.0f, c->norm_eps, c->hidden_size,
                           value_out(core, op->out) + at);
}

/* ---- sum --------------------------------------------------------------------------------------
 */

enum vf_code sum_init(void *self, struct core *core, struct vf_err *err)
{
    (void)err;
    ((struct sum *)self)->core = core;
    return VF_OK;
}

void sum_column(const void *self, const struct vf_op *op, uint32_t column)
{
    const struct core *core = ((const struct sum *)self)->core;
    uint32_t d = core->config->hidden_size;
    size_t at = (size_t)column * core->stride;
    float *out = value_out(core, op->out) + at;
    memcpy(out, value_in(core, op_input(core, op, 0)) + at, d * sizeof *out);
    for (uint32_t i = 1; i < op->in_count; i++)
        core->kernels->add(out, value_in(core, op_input(core, op, i)) + at, d, out);
    if (op->scale != 1.0f)
        core->kernels->scale(op->scale, d, out);
}
