#include "bench/decode/loaded.h"

#include "bench/experts/recording_source.h"

#include "common/base/clock.h"

#include <stdlib.h>

static enum vf_code own_weights(struct loaded *l, struct vf_err *err)
{
    struct vf_executor_params params = {
        .file = l->file, .program = &l->program, .placement = &l->placement};
    return vf_executor_own_weights(&params, l->file, true, err);
}

static enum vf_code open_executor(struct loaded *l, const struct loaded_params *p,
                                  struct vf_err *err)
{
    uint32_t flows = vf_model_file_config(l->file)->flow_count;
    struct vf_executor_params params = {.file = l->file,
                                        .program = &l->program,
                                        .placement = &l->placement,
                                        .kernels = l->kernels,
                                        .q8 = true,
                                        .kv_f16 = true,
                                        .context = p->context,
                                        .sequences = 1,
                                        .columns_max = p->chunk * flows,
                                        .rows_max = 1,
                                        .threads = p->threads,
                                        .experts = l->experts};
    enum vf_code code = vf_executor_create(&params, &l->executor, err);
    if (code == VF_OK)
        code = vf_executor_verify(l->executor, p->huge, err);
    return code;
}

enum vf_code loaded_open(struct loaded *l, const struct loaded_params *p, struct vf_err *err)
{
    *l = (struct loaded){.chunk = p->chunk};
    enum vf_code code = vf_model_file_open(p->path, &l->file, err);
    if (code != VF_OK)
        return code;
    const struct vf_config *config = vf_model_file_config(l->file);
    code = vf_program_compile(config, &l->program, err);
    if (code == VF_OK)
        code = vf_placement_make(VF_PLACEMENT_PIPELINE, config, &l->program, 1, &l->placement, err);
    if (code == VF_OK)
        code = vf_kernels_get(p->tier, &l->kernels, err);
    if (code == VF_OK && p->huge)
        code = own_weights(l, err);
    if (code == VF_OK && config->expert_count > 0)
        code = vf_expert_source_resident(l->file, &l->experts, err);
    if (code == VF_OK && p->recorder && l->experts)
        code = recording_source_wrap(&l->experts, p->recorder, err);
    if (code != VF_OK)
        return code;
    l->rows = malloc((size_t)config->vocab_size * sizeof *l->rows);
    l->columns = calloc((size_t)p->chunk * config->flow_count, sizeof *l->columns);
    if (!l->rows || !l->columns)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u logits", config->vocab_size);
    return open_executor(l, p, err);
}

void loaded_close(struct loaded *l)
{
    vf_executor_destroy(l->executor);
    if (l->experts)
        l->experts->ops->destroy(l->experts);
    vf_placement_deinit(&l->placement);
    vf_program_deinit(&l->program);
    vf_model_file_close(l->file);
    free(l->rows);
    free(l->columns);
}

void loaded_rewind(struct loaded *l)
{
    l->position = 0;
}

enum vf_code loaded_step(struct loaded *l, uint32_t n, bool want_row, bool all_flows, double *ms,
                         struct vf_err *err)
{
    const struct vf_config *config = vf_model_file_config(l->file);
    uint32_t flows = all_flows ? config->flow_count : 1;
    VF_ASSERT(n <= l->chunk && (!want_row || all_flows));
    for (uint32_t j = 0; j < flows; j++)
        for (uint32_t i = 0; i < n; i++)
            l->columns[j * n + i] =
                (struct vf_column){.token = (l->position + i) * 7919u % config->vocab_size,
                                   .position = l->position + i,
                                   .flow = j,
                                   .primary = i,
                                   .want_row = want_row && j == 0 && i == n - 1};
    struct vf_step step = {++l->steps, l->columns, n * flows};
    uint32_t rows;
    bool peer_failed;
    uint64_t began = vf_now_ns();
    enum vf_code code =
        vf_executor_run(l->executor, &step, UINT64_MAX, l->rows, &rows, &peer_failed, err);
    *ms = (double)(vf_now_ns() - began) / 1e6;
    l->position += n;
    return code;
}
