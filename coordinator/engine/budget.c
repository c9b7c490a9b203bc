#include "coordinator/engine/budget.h"

#include "common/util.h"

#include <inttypes.h>
#include <string.h>

static uint64_t mul_or_max(uint64_t a, uint64_t b)
{
    uint64_t out;
    return vf_mul_u64(a, b, &out) ? out : UINT64_MAX;
}

static uint64_t add_or_max(uint64_t a, uint64_t b)
{
    uint64_t out;
    return vf_add_u64(a, b, &out) ? out : UINT64_MAX;
}

static enum vf_code decide_context(const struct vf_engine_params *p,
                                   const struct vf_budget_model *m, struct vf_budget *out,
                                   struct vf_err *err)
{
    if (p->context > m->context_max)
        return vf_err_set(err, VF_ERR_USAGE, "--ctx: %u found, the model has at most %u positions",
                          p->context, m->context_max);
    out->context = p->context ? p->context : m->context_max;
    if (!p->context && out->context > VF_CONTEXT_DEFAULT)
        out->context = VF_CONTEXT_DEFAULT;
    return VF_OK;
}

static enum vf_code decide_kv(const struct vf_engine_params *p, const struct vf_budget_model *m,
                              const struct vf_budget_machine *machine, struct vf_budget *out,
                              struct vf_err *err)
{
    uint64_t width = strcmp(p->kv, "f16") == 0 ? 2 : 4;
    uint64_t positions = (uint64_t)out->context * p->sequences;
    out->kv_bytes = mul_or_max(mul_or_max(m->kv_values, width), positions);
    if (out->kv_bytes > machine->memory_bytes)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "the KV caches of %u sequences of %u positions need %" PRIu64
                          " MiB, %" PRIu64 " MiB are available: lower --ctx or --batch",
                          p->sequences, out->context, out->kv_bytes >> 20,
                          machine->memory_bytes >> 20);
    return VF_OK;
}

/* Rows of a step: one per sequence for decode, as many as a chunk has for scoring. */
static void decide_step(const struct vf_engine_params *p, const struct vf_budget_model *m,
                        const struct vf_budget_machine *machine, struct vf_budget *out)
{
    out->chunk = (uint32_t)vf_min_u64(p->prefill_chunk, out->context);
    uint32_t columns = (uint32_t)vf_max_u64(out->chunk, p->sequences);
    out->columns_max = columns * m->flow_count;
    uint64_t row_bytes = (uint64_t)m->vocab_size * sizeof(float);
    uint64_t slot_max = vf_min_u64(VF_LOGITS_SLOT_BYTES_MAX, machine->shm_bytes / 8);
    uint64_t rows = p->scores ? columns : p->sequences;
    rows = vf_max_u64(1, vf_min_u64(rows, slot_max / row_bytes));
    out->rows_max = (uint32_t)rows;
    out->logits_bytes = rows * row_bytes * VF_LOGITS_SLOTS;
}

/* An eighth of what is free stays free: for the processes' own buffers and everybody else. */
static uint64_t keep_reserve(uint64_t bytes)
{
    return bytes - bytes / 8;
}

static enum vf_code decide_experts(const struct vf_engine_params *p,
                                   const struct vf_budget_model *m,
                                   const struct vf_budget_machine *machine, struct vf_budget *out,
                                   struct vf_err *err)
{
    uint64_t experts = (uint64_t)m->expert_count * m->expert_layers;
    out->stream = false;
    out->cache_slots = 0;
    if (experts == 0 || p->experts == VF_EXPERTS_RESIDENT)
        return VF_OK;
    if (p->expert_cache_bytes && p->expert_cache_bytes < m->record_bytes)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--expert-cache: %" PRIu64
                          " bytes found, one expert of this model needs %" PRIu64,
                          p->expert_cache_bytes, m->record_bytes);
    uint64_t expert_bytes = mul_or_max(experts, m->record_bytes);
    uint64_t memory = keep_reserve(machine->memory_bytes);
    uint64_t need = add_or_max(m->file_bytes, add_or_max(out->kv_bytes, out->logits_bytes));
    uint64_t given = p->expert_cache_bytes;
    if (p->experts == VF_EXPERTS_AUTO && (given ? given >= expert_bytes : need <= memory))
        return VF_OK; /* a budget that holds every expert: the model is simply resident */

    uint64_t others = need - vf_min_u64(expert_bytes, need);
    uint64_t room = vf_min_u64(memory, keep_reserve(machine->shm_bytes));
    room -= vf_min_u64(others, room);
    uint64_t slots = (given ? given : room) / m->record_bytes;
    out->stream = true;
    out->cache_slots = vf_max_u64(1, vf_min_u64(slots, experts));
    return VF_OK;
}

enum vf_code vf_budget_decide(const struct vf_engine_params *params,
                              const struct vf_budget_model *model,
                              const struct vf_budget_machine *machine, struct vf_budget *out,
                              struct vf_err *err)
{
    enum vf_code code = decide_context(params, model, out, err);
    if (!code)
        code = decide_kv(params, model, machine, out, err);
    if (code)
        return code;
    decide_step(params, model, machine, out);
    return decide_experts(params, model, machine, out, err);
}
