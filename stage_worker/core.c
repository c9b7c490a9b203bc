#include "stage_worker/core.h"

#include <stdlib.h>
#include <string.h>

/* Zeroed, so that all of it is resident from now on. */
static enum vf_code allocate(struct core *core, struct vf_err *err)
{
    enum vf_code code =
        vf_step_space_bytes(core->config, &core->part, &core->shape, &core->memory_bytes, err);
    if (code != VF_OK)
        return code;
    core->memory = aligned_alloc(VF_ARENA_ALIGN, core->memory_bytes);
    if (!core->memory)
        return vf_err_set(err, VF_ERR_NO_MEMORY,
                          "no memory for the buffers of %u columns (try a smaller --prefill-chunk)",
                          core->p.columns_max);
    memset(core->memory, 0, core->memory_bytes);
    struct vf_arena arena = {.base = core->memory};
    vf_step_space_lay(core->config, &core->part, &core->shape, &arena, &core->space);
    VF_ASSERT(arena.used == core->memory_bytes);
    return VF_OK;
}

enum vf_code core_init(struct core *core, const struct vf_executor_params *params,
                       struct vf_err *err)
{
    core->p = *params;
    core->config = vf_model_file_config(params->file);
    core->kernels = params->kernels;
    core->flows = core->config->flow_count;
    core->shape = (struct vf_step_shape){.columns_max = params->columns_max,
                                         .rows_max = params->rows_max,
                                         .context = params->context,
                                         .sequences = params->sequences,
                                         .threads = params->threads,
                                         .kv_f16 = params->kv_f16,
                                         .sync = params->experts_when == VF_EXPERTS_SYNC};
    enum vf_code code = vf_part_make(params->program, params->placement, params->worker,
                                     params->experts_when, &core->part, err);
    if (code == VF_OK)
        code = allocate(core, err);
    if (code == VF_OK)
        code = vf_pool_create(params->threads, &core->pool, err);
    core->stride = core->space.stride;
    if (code == VF_OK)
        code = work_init(&core->work, core->pool, params->kernels, params->q8, &core->space.region,
                         err);
    if (code == VF_OK)
        code = values_init(&core->values, &core->p, &core->part, &core->space, err);
    return code;
}

void core_deinit(struct core *core)
{
    vf_pool_destroy(core->pool);
    work_deinit(&core->work);
    values_deinit(&core->values);
    vf_part_deinit(&core->part);
    free(core->memory);
}

uint64_t deadline_rank(const struct core *core, const struct vf_op *op)
{
    return core->step.id * (core->p.program->effective_layers + 1ull) + op->due_layer;
}

void couple_column(const struct core *core, const float *const *coupling, float *x, uint32_t n,
                   uint32_t stride, uint32_t column)
{
    const struct vf_column *col = &core->step.columns[column];
    const float *factors = coupling[col->flow];
    if (column >= core->step.n_primary && factors)
        core->kernels->mul_add(factors, x + (size_t)col->primary * stride, n,
                               x + (size_t)column * stride);
}
