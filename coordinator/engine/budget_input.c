/* What a budget is told: the model's bytes, this machine, and how its numbers are written. */
#include "common/base/util.h"
#include "common/format/layout.h"
#include "coordinator/engine/budget.h"

#include <stdio.h>
#include <stdlib.h>

/* Parts of the file that lie closer together than this are one: the gap fits their last page. */
#define GAP_BYTES 4096u
/* Of a file that doesn't exist yet: attention, dense, vectors and embeddings of a worker. */
#define RUNS_OF_CONFIG 4u

struct part {
    uint64_t begin, end;
};

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static uint64_t count_runs(struct part *parts, size_t count)
{
    uint64_t runs = 0;
    qsort(parts, count, sizeof *parts, compare_parts);
    for (size_t i = 0; i < count; i++)
        runs += i == 0 || parts[i].begin > parts[i - 1].end + GAP_BYTES;
    return runs;
}

static bool worker_reads(const struct vf_budget_model *m, uint32_t worker,
                         const struct vf_tensor_id *id)
{
    for (uint32_t i = 0; i < m->program->op_count; i++)
        if (m->placement->op_worker[i] == worker &&
            vf_op_reads(&m->program->ops[i], id, m->config->tie_embeddings))
            return true;
    return false;
}

enum vf_code vf_budget_model_from_file(const struct vf_model_file *file,
                                       const struct vf_program *program,
                                       const struct vf_placement *placement,
                                       struct vf_budget_model *out, struct vf_err *err)
{
    size_t n = vf_model_file_tensor_count(file), tokenizer_bytes;
    vf_model_file_tokenizer(file, &tokenizer_bytes);
    *out = (struct vf_budget_model){.config = vf_model_file_config(file),
                                    .program = program,
                                    .placement = placement,
                                    .tensor_count = n,
                                    .tokenizer_bytes = tokenizer_bytes};
    if (out->config->expert_count)
        out->record_bytes = vf_model_file_expert_layout(file).bytes;
    struct part *parts = calloc(n + 1, sizeof *parts);
    bool *read = calloc(n + 1, sizeof *read);
    bool whole = parts && read;
    for (uint32_t w = 0; whole && w < placement->worker_count; w++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            struct vf_tensor_entry_view t = vf_model_file_tensor(file, i);
            if (!worker_reads(out, w, &t.spec.id))
                continue;
            parts[count++] = (struct part){t.offset, t.offset + t.bytes};
            out->worker_weight_bytes += t.bytes;
            out->weight_bytes += read[i] ? 0 : t.bytes;
            read[i] = true;
        }
        out->worker_runs += count_runs(parts, count);
    }
    free(parts);
    free(read);
    return whole ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu tensors", n);
}

static uint64_t spec_bytes(const struct vf_tensor_spec *s, enum vf_quant quant)
{
    if (s->is_vector)
        return (uint64_t)s->cols * sizeof(float);
    return vf_matrix_bytes(s->id.kind == VF_T_ROUTER ? VF_QUANT_F32 : quant, s->rows, s->cols);
}

enum vf_code vf_budget_model_from_config(const struct vf_config *config, enum vf_quant quant,
                                         const struct vf_program *program,
                                         const struct vf_placement *placement,
                                         struct vf_budget_model *out, struct vf_err *err)
{
    struct vf_tensor_spec *specs;
    struct vf_expert_parts expert;
    size_t n;
    *out = (struct vf_budget_model){.config = config, .program = program, .placement = placement};
    enum vf_code code = vf_tensors_list(config, false, &specs, &n, err);
    if (code)
        return code;
    vf_expert_parts_init(config, quant, &expert);
    out->record_bytes = expert.layout.bytes;
    out->tensor_count = n;
    out->worker_runs = (uint64_t)placement->worker_count * RUNS_OF_CONFIG;
    for (size_t i = 0; i < n; i++) {
        uint64_t readers = 0, bytes = spec_bytes(&specs[i], quant);
        for (uint32_t w = 0; w < placement->worker_count; w++)
            readers += worker_reads(out, w, &specs[i].id);
        out->weight_bytes += readers ? bytes : 0;
        out->worker_weight_bytes += readers * bytes;
    }
    free(specs);
    return VF_OK;
}

void vf_budget_machine_read(const struct vf_topology *topology, struct vf_budget_machine *out)
{
    *out = (struct vf_budget_machine){.memory_bytes = vf_memory_available(),
                                      .shm_bytes = vf_shm_available()};
    for (uint32_t i = 0; i < topology->node_count; i++)
        out->threads = (uint32_t)vf_max_u64(out->threads, vf_topology_threads(topology, i));
}

const char *vf_memory_item_name(enum vf_memory_item item)
{
    static const char *const names[VF_MEMORY_ITEM_COUNT] = {
        "weights", "experts", "kv", "buffers", "shared", "kernel", "tokenizer", "processes"};
    return names[item];
}

const char *vf_bytes_text(uint64_t bytes, char text[VF_BYTES_TEXT])
{
    double mib = (double)bytes / 1048576.0;
    if (mib < 10240.0)
        snprintf(text, VF_BYTES_TEXT, "%.1f MiB", mib);
    else
        snprintf(text, VF_BYTES_TEXT, "%.1f GiB", mib / 1024.0);
    return text;
}
