/* The tensors a worker's operations read: resolved from the mapped file, counted, verified. */
#include "stage_worker/weights.h"

#include "stage_worker/executor.h"

#include <stdlib.h>

struct vf_matrix weights_matrix(const struct vf_model_file *f, enum vf_tensor_kind kind,
                                uint32_t layer, uint32_t flow)
{
    struct vf_matrix m = {0};
    struct vf_tensor_id id = {.kind = kind, .layer = layer, .flow = flow};
    if (!vf_model_file_matrix(f, id, &m) && flow > 0) {
        id.flow = 0;
        vf_model_file_matrix(f, id, &m);
    }
    return m;
}

const float *weights_vector(const struct vf_model_file *f, enum vf_tensor_kind kind, uint32_t layer,
                            uint32_t flow)
{
    struct vf_tensor_id id = {.kind = kind, .layer = layer, .flow = flow};
    return vf_model_file_vector(f, id);
}

enum vf_code weights_no_memory(const struct vf_config *c, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u layers", c->layer_count);
}

/* ---- which tensors are read ---- */

static bool worker_reads(const struct vf_executor_params *p, const struct vf_tensor_id *id)
{
    bool tied = vf_model_file_config(p->file)->tie_embeddings;
    for (uint32_t i = 0; i < p->program->op_count; i++)
        if (p->placement->op_worker[i] == p->worker && vf_op_reads(&p->program->ops[i], id, tied))
            return true;
    return false;
}

static void append(struct vf_weight_range *ranges, size_t *count, uint64_t *bytes, uint64_t offset,
                   uint64_t length)
{
    ranges[(*count)++] = (struct vf_weight_range){offset, length};
    *bytes += length;
}

static void append_experts(const struct vf_executor_params *p, struct vf_weight_range *ranges,
                           size_t *count, uint64_t *bytes)
{
    const struct vf_config *c = vf_model_file_config(p->file);
    for (uint32_t l = 0; l < c->layer_count; l++) {
        struct vf_tensor_id router = {.kind = VF_T_ROUTER, .layer = l};
        if (!worker_reads(p, &router))
            continue;
        for (uint32_t e = 0; e < c->expert_count; e++) {
            struct vf_expert_extent x = vf_model_file_expert(p->file, l, e);
            append(ranges, count, bytes, x.offset, x.bytes);
        }
    }
}

enum vf_code vf_executor_ranges(const struct vf_executor_params *p, bool with_experts,
                                struct vf_weight_range **ranges, size_t *count, uint64_t *bytes,
                                struct vf_err *err)
{
    const struct vf_config *c = vf_model_file_config(p->file);
    size_t most = vf_model_file_tensor_count(p->file) + (size_t)c->layer_count * c->expert_count;
    struct vf_weight_range *list = calloc(most, sizeof *list);
    if (!list)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu ranges", most);
    *count = 0;
    *bytes = 0;
    for (size_t t = 0; t < vf_model_file_tensor_count(p->file); t++) {
        struct vf_tensor_entry_view entry = vf_model_file_tensor(p->file, t);
        if (worker_reads(p, &entry.spec.id))
            append(list, count, bytes, entry.offset, entry.bytes);
    }
    if (with_experts)
        append_experts(p, list, count, bytes);
    *ranges = list;
    return VF_OK;
}

static void count_copied(void *ctx, uint64_t bytes)
{
    vf_run_state_add_loaded(ctx, bytes);
}

enum vf_code vf_executor_own_weights(const struct vf_executor_params *p, struct vf_model_file *file,
                                     bool with_experts, struct vf_err *err)
{
    struct vf_weight_range *ranges;
    size_t count;
    uint64_t bytes;
    enum vf_code code = vf_executor_ranges(p, with_experts, &ranges, &count, &bytes, err);
    if (code != VF_OK)
        return code;
    vf_run_state_expect(p->run_state, bytes);
    code = vf_model_file_own_weights(file, ranges, count, count_copied, p->run_state, err);
    free(ranges);
    return code;
}

uint64_t weights_bytes(const struct vf_executor_params *p)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < vf_model_file_tensor_count(p->file); t++) {
        struct vf_tensor_entry_view entry = vf_model_file_tensor(p->file, t);
        if (worker_reads(p, &entry.spec.id))
            bytes += entry.bytes;
    }
    return bytes;
}

/* Bytes of one layer's experts; 0 unless they are verified here. */
static uint64_t layer_experts_bytes(const struct vf_executor_params *p, bool with_experts)
{
    if (!with_experts || !p->experts || !p->experts->ops->verify)
        return 0;
    const struct vf_config *c = vf_model_file_config(p->file);
    return vf_model_file_expert_layout(p->file).bytes * c->expert_count;
}

/* What weights_verify will look at, for whoever shows how far it is. */
static uint64_t bytes_to_verify(const struct vf_executor_params *p, bool with_experts)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < vf_model_file_tensor_count(p->file); t++) {
        struct vf_tensor_entry_view entry = vf_model_file_tensor(p->file, t);
        bool reads = worker_reads(p, &entry.spec.id);
        bytes += reads ? entry.bytes : 0;
        if (reads && entry.spec.id.kind == VF_T_ROUTER)
            bytes += layer_experts_bytes(p, with_experts);
    }
    return bytes;
}

enum vf_code weights_verify(const struct vf_executor_params *p, bool with_experts,
                            struct vf_err *err)
{
    const struct vf_config *c = vf_model_file_config(p->file);
    uint64_t experts_bytes = layer_experts_bytes(p, with_experts);
    enum vf_code code = VF_OK;
    vf_run_state_expect(p->run_state, bytes_to_verify(p, with_experts));
    for (size_t t = 0; code == VF_OK && t < vf_model_file_tensor_count(p->file); t++) {
        struct vf_tensor_entry_view entry = vf_model_file_tensor(p->file, t);
        if (!worker_reads(p, &entry.spec.id))
            continue;
        code = vf_model_file_verify_tensor(p->file, entry.spec.id, err);
        vf_run_state_add_loaded(p->run_state, entry.bytes);
    }
    for (uint32_t l = 0; code == VF_OK && experts_bytes && l < c->layer_count; l++) {
        struct vf_tensor_id router = {.kind = VF_T_ROUTER, .layer = l};
        if (!worker_reads(p, &router))
            continue;
        p->experts->ops->verify(p->experts, l);
        vf_run_state_add_loaded(p->run_state, experts_bytes);
    }
    return code;
}
