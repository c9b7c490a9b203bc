/* Sums saturate instead of overflowing: a plan that large is refused anyway. */
#include "coordinator/engine/budget.h"

#include "common/base/util.h"
#include "common/experts/cache.h"
#include "common/machine/drive.h"
#include "common/model/step_memory.h"
#include "common/run/mailbox.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of what is available this much stays free for everybody else and for what the kernel can't drop
 * at once: a 32nd, within these bounds. */
#define RESERVE_SHARE 32u
#define RESERVE_MIN   ((uint64_t)16 << 20)
#define RESERVE_MAX   ((uint64_t)1 << 30)
/* Of /dev/shm a 64th stays free. */
#define SHM_RESERVE_SHARE 64u

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* What processes take beside what is counted one by one; measured (docs/OPERATIONS.md, Memory) and
 * rounded up. */
#define PROGRAMS_BYTES      (12 * MIB) /* executables and libraries, shared by all processes */
#define COORDINATOR_BYTES   (3 * MIB)  /* heap, stacks, sockets */
#define STAGE_WORKER_BYTES  (2 * MIB)
#define THREAD_BYTES        (64 * KIB) /* stack, with the kernel's */
#define IO_WORKER_BYTES     (2 * MIB)
#define IO_DEPTH_BYTES      (32 * KIB) /* a read in flight: ring entries, or a thread of the pool */
#define IO_DEPTH_ASSUMED    64u        /* until the drive was probed */
#define KERNEL_BYTES        (512 * KIB) /* of a process: page tables of libraries, files, sockets */
#define TABLE_ENTRY_BYTES   128u        /* of a tensor or expert in a process's lists */
#define COLUMN_BYTES        512u        /* of a step's column in messages, in each process */
#define VOCAB_ENTRY_BYTES   384u        /* of a token in the tokenizer's tables */
#define TOKENIZER_BYTES     (2 * MIB)   /* its patterns */
#define SAMPLER_ENTRY_BYTES 32u         /* of a token in the sampler */

#define PTE_SHARE        512u /* a page table entry is 8 bytes for every mapped page */
#define INDEX_SHARE      400u /* the page cache's index: 576 bytes for every 64 pages */
#define REGISTERED_SHARE 256u /* a registered buffer keeps 16 bytes for every page */
#define HUGE_PAGE_BYTES  (2 * MIB)

static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t out;
    return vf_mul_u64(a, b, &out) ? out : UINT64_MAX;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t out;
    return vf_add_u64(a, b, &out) ? out : UINT64_MAX;
}

/* ---- sizes of a step --------------------------------------------------------------------------
 */

static enum vf_code decide_context(const Vflow__RunSettings *p, const struct vf_config *c,
                                   struct vf_budget *out, struct vf_err *err)
{
    if (p->ctx > c->context_max)
        return vf_err_set(err, VF_ERR_USAGE, "--ctx: %u found, the model has at most %u positions",
                          p->ctx, c->context_max);
    out->context = p->ctx ? p->ctx : c->context_max;
    if (!p->ctx && out->context > VF_CONTEXT_DEFAULT)
        out->context = VF_CONTEXT_DEFAULT;
    return VF_OK;
}

/* Rows of a step: one per sequence for decode, as many as a chunk has for scoring. */
static void decide_step(const Vflow__RunSettings *p, bool scores, const struct vf_config *c,
                        const struct vf_budget_machine *machine, struct vf_budget *out)
{
    out->chunk = (uint32_t)vf_min_u64(p->prefill_chunk, out->context);
    uint32_t columns = (uint32_t)vf_max_u64(out->chunk, p->batch);
    out->columns_max = columns * c->flow_count;
    uint64_t row_bytes = (uint64_t)c->vocab_size * sizeof(float);
    uint64_t slot_max = vf_min_u64(VF_LOGITS_SLOT_BYTES_MAX, machine->shm_bytes / 8);
    uint64_t rows = scores ? columns : p->batch;
    rows = vf_max_u64(1, vf_min_u64(rows, slot_max / row_bytes));
    out->rows_max = (uint32_t)rows;
    out->logits_bytes = rows * row_bytes * VF_LOGITS_SLOTS;
}

/* ---- what is there whatever happens to the experts ---------------------------------------------
 */

static bool is_huge(const Vflow__RunSettings *p)
{
    return p->weights == VFLOW__WEIGHTS__WEIGHTS_HUGE;
}

/* KV caches and scratch of all stage workers. */
static enum vf_code count_steps(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                                uint32_t threads, struct vf_budget *out, struct vf_err *err)
{
    struct vf_step_shape shape = {.columns_max = out->columns_max,
                                  .rows_max = out->rows_max,
                                  .context = out->context,
                                  .sequences = p->batch,
                                  .threads = threads,
                                  .kv_f16 = p->kv != VFLOW__KV__KV_F32,
                                  .sync = p->overlap == VFLOW__OVERLAP__OVERLAP_SYNC};
    uint64_t *bytes = out->memory.bytes;
    for (uint32_t w = 0; w < m->placement->worker_count; w++) {
        struct vf_step_memory step;
        enum vf_code code =
            vf_step_memory_count(m->config, m->program, m->placement, w, &shape, &step, err);
        if (code)
            return vf_err_append(err, ": lower --ctx, --batch or --prefill-chunk");
        bytes[VF_MEMORY_KV] = add(bytes[VF_MEMORY_KV], step.kv_bytes);
        bytes[VF_MEMORY_BUFFERS] = add(bytes[VF_MEMORY_BUFFERS], step.scratch_bytes);
    }
    uint64_t messages = mul(out->columns_max, COLUMN_BYTES);
    bytes[VF_MEMORY_BUFFERS] =
        add(bytes[VF_MEMORY_BUFFERS], mul(messages, m->placement->worker_count + 1ull));
    return VF_OK;
}

static enum vf_code count_shared(const struct vf_budget_model *m, struct vf_budget *out,
                                 struct vf_err *err)
{
    uint64_t mailboxes = 0;
    enum vf_code code =
        vf_mailboxes_bytes(m->placement->edge_count, out->columns_max,
                           (uint32_t)vf_round_up(m->config->hidden_size, 32), &mailboxes, err);
    out->memory.bytes[VF_MEMORY_SHARED] = add(mailboxes + VF_RUN_STATE_BYTES, out->logits_bytes);
    return code;
}

static void count_tokenizer(const struct vf_budget_model *m, struct vf_memory_plan *out)
{
    uint64_t vocab = m->config->vocab_size, bytes = vocab * SAMPLER_ENTRY_BYTES;
    if (m->tokenizer_bytes)
        bytes += m->tokenizer_bytes + TOKENIZER_BYTES + vocab * VOCAB_ENTRY_BYTES;
    out->bytes[VF_MEMORY_TOKENIZER] = bytes;
}

static uint64_t all_experts(const struct vf_budget_model *m)
{
    return (uint64_t)m->config->expert_count * m->config->layer_count;
}

/* Heaps, stacks, programs; io_workers is 0 when nothing streams. */
static uint64_t processes_bytes(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                                uint32_t threads, uint32_t io_workers)
{
    uint64_t stages = m->placement->worker_count;
    uint64_t tables = mul(add(m->tensor_count, all_experts(m)), TABLE_ENTRY_BYTES);
    uint64_t bytes = PROGRAMS_BYTES + COORDINATOR_BYTES;
    uint32_t depth = p->io_depth ? p->io_depth : VF_DRIVE_DEPTH_MAX;
    bytes += stages * (STAGE_WORKER_BYTES + (uint64_t)threads * THREAD_BYTES);
    bytes += io_workers * (IO_WORKER_BYTES + (uint64_t)depth * IO_DEPTH_BYTES);
    return add(bytes, mul(tables, 1 + stages + io_workers));
}

/* ---- what depends on them -----------------------------------------------------------------------
 */

static struct vf_cache_geometry geometry(const struct vf_budget_model *m, uint64_t slots,
                                         uint32_t io_workers)
{
    return (struct vf_cache_geometry){.layer_count = m->config->layer_count,
                                      .expert_count = m->config->expert_count,
                                      .slot_count = (uint32_t)slots,
                                      .io_worker_count = io_workers,
                                      .record_bytes = m->record_bytes};
}

/* The shared-memory object of a cache of so many slots; UINT64_MAX when there can't be one. */
static uint64_t cache_object_bytes(const struct vf_budget_model *m, uint64_t slots,
                                   uint32_t io_workers)
{
    struct vf_cache_geometry g = geometry(m, slots, io_workers);
    uint64_t bytes;
    struct vf_err ignored;
    return vf_expert_cache_bytes(&g, &bytes, &ignored) ? UINT64_MAX : bytes;
}

static uint64_t kernel_bytes(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                             const struct vf_memory_plan *plan, uint64_t cache_bytes,
                             uint64_t resident_experts, uint32_t io_workers)
{
    uint64_t stages = m->placement->worker_count;
    uint64_t own = add(plan->bytes[VF_MEMORY_KV], plan->bytes[VF_MEMORY_BUFFERS]);
    uint64_t weights = add(m->worker_weight_bytes, resident_experts);
    uint64_t files = is_huge(p) ? 0 : add(m->weight_bytes, resident_experts);
    uint64_t mapped = add(add(own, weights), mul(cache_bytes, stages + io_workers));
    uint64_t bytes = (1 + stages + io_workers) * KERNEL_BYTES;
    bytes = add(bytes, mapped / PTE_SHARE);
    bytes = add(bytes, add(files, plan->shm_bytes) / INDEX_SHARE);
    return add(bytes, mul(cache_bytes, io_workers) / REGISTERED_SHARE);
}

/* Completes the plan for resident experts (slots 0) or a cache of so many slots. */
static void complete(const Vflow__RunSettings *p, const struct vf_budget_model *m, uint32_t threads,
                     uint64_t slots, const struct vf_memory_plan *fixed, struct vf_budget *out)
{
    struct vf_memory_plan *plan = &out->memory;
    *plan = *fixed;
    out->stream = slots > 0;
    out->cache_slots = slots;
    out->io_workers = !out->stream ? 0 : p->io_workers ? p->io_workers : 1;
    uint64_t resident = out->stream ? 0 : mul(all_experts(m), m->record_bytes);
    uint64_t cache = out->stream ? cache_object_bytes(m, slots, out->io_workers) : 0;
    uint64_t data = mul(slots, m->record_bytes);
    plan->shm_bytes = add(plan->bytes[VF_MEMORY_SHARED], cache);
    plan->bytes[VF_MEMORY_EXPERTS] = add(resident, data);
    plan->bytes[VF_MEMORY_SHARED] =
        add(plan->bytes[VF_MEMORY_SHARED], cache - vf_min_u64(data, cache));
    plan->bytes[VF_MEMORY_WEIGHTS] = m->weight_bytes;
    if (is_huge(p)) /* a copy in every worker; the ends of a part fill a huge page each */
        plan->bytes[VF_MEMORY_WEIGHTS] =
            add(m->worker_weight_bytes, mul(m->worker_runs, 2 * HUGE_PAGE_BYTES));
    plan->bytes[VF_MEMORY_KERNEL] = kernel_bytes(p, m, plan, cache, resident, out->io_workers);
    plan->bytes[VF_MEMORY_PROCESSES] = processes_bytes(p, m, threads, out->io_workers);
    plan->need = 0;
    for (int i = 0; i < VF_MEMORY_ITEM_COUNT; i++)
        plan->need = add(plan->need, plan->bytes[i]);
}

/* ---- refusals
 * ------------------------------------------------------------------------------------ */

static const char *allowed_text(const struct vf_memory_plan *plan, char *text, size_t n)
{
    char bytes[VF_BYTES_TEXT], available[VF_BYTES_TEXT];
    vf_bytes_text(plan->allowed, bytes);
    if (plan->given)
        snprintf(text, n, "--memory allows %s", bytes);
    else
        snprintf(text, n, "%s of the %s available here may be used", bytes,
                 vf_bytes_text(plan->available, available));
    return text;
}

static const char *experts_text(const struct vf_budget_model *m, const struct vf_budget *b,
                                char *text, size_t n)
{
    char bytes[VF_BYTES_TEXT];
    vf_bytes_text(b->memory.bytes[VF_MEMORY_EXPERTS], bytes);
    *text = 0;
    if (b->stream)
        snprintf(text, n, ", %s for %" PRIu64 " experts at a time (one layer wants %u)", bytes,
                 b->cache_slots, vf_experts_per_token(m->config));
    else if (m->config->expert_count)
        snprintf(text, n, ", %s for all %" PRIu64 " experts", bytes, all_experts(m));
    return text;
}

static const char *remedy(const Vflow__RunSettings *p, const struct vf_budget *b)
{
    if (!b->stream && p->experts == VFLOW__EXPERTS__EXPERTS_RESIDENT)
        return "--experts stream needs less, and so do a lower --ctx, --batch or --prefill-chunk";
    if (b->stream && p->expert_cache)
        return "lower --expert-cache, --ctx, --batch or --prefill-chunk";
    return "lower --ctx, --batch or --prefill-chunk";
}

static enum vf_code refuse_memory(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                                  const struct vf_budget *b, struct vf_err *err)
{
    const struct vf_memory_plan *plan = &b->memory;
    char need[VF_BYTES_TEXT], weights[VF_BYTES_TEXT], kv[VF_BYTES_TEXT], buffers[VF_BYTES_TEXT];
    char rest[VF_BYTES_TEXT], experts[128], allowed[128];
    uint64_t named = add(add(plan->bytes[VF_MEMORY_WEIGHTS], plan->bytes[VF_MEMORY_EXPERTS]),
                         add(plan->bytes[VF_MEMORY_KV], plan->bytes[VF_MEMORY_BUFFERS]));
    return vf_err_set(
        err, plan->given ? VF_ERR_USAGE : VF_ERR_LIMIT,
        "the run needs at least %s of memory: %s for weights%s, %s for KV caches of %u x %u "
        "positions, %s for buffers of %u columns, %s for the rest; %s: %s%s",
        vf_bytes_text(plan->need, need), vf_bytes_text(plan->bytes[VF_MEMORY_WEIGHTS], weights),
        experts_text(m, b, experts, sizeof experts), vf_bytes_text(plan->bytes[VF_MEMORY_KV], kv),
        p->batch, b->context, vf_bytes_text(plan->bytes[VF_MEMORY_BUFFERS], buffers),
        b->columns_max, vf_bytes_text(plan->need - vf_min_u64(named, plan->need), rest),
        allowed_text(plan, allowed, sizeof allowed), plan->given ? "raise it, or " : "",
        remedy(p, b));
}

static enum vf_code refuse_shm(const struct vf_budget *b, struct vf_err *err)
{
    char need[VF_BYTES_TEXT], there[VF_BYTES_TEXT];
    uint64_t mib = (b->memory.shm_bytes + b->memory.shm_bytes / SHM_RESERVE_SHARE) / MIB + 2;
    return vf_err_set(err, VF_ERR_LIMIT,
                      "the run needs %s of shared memory, /dev/shm has %s free: mount -o "
                      "remount,size=%" PRIu64 "M /dev/shm gives it more (a container: --shm-size), "
                      "a lower --batch, --prefill-chunk or --expert-cache takes less",
                      vf_bytes_text(b->memory.shm_bytes, need),
                      vf_bytes_text(b->memory.shm_available, there), mib);
}

/* ---- deciding
 * ------------------------------------------------------------------------------------ */

static uint64_t shm_allowed(const struct vf_memory_plan *plan)
{
    return plan->shm_available - plan->shm_available / SHM_RESERVE_SHARE;
}

/* The most slots in [1, most] whose plan stays below both limits; 1 when none does. */
static uint64_t most_slots(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                           uint32_t threads, uint64_t most, uint64_t memory, uint64_t shm,
                           const struct vf_memory_plan *fixed, struct vf_budget *scratch)
{
    uint64_t low = 1, high = most;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        complete(p, m, threads, middle, fixed, scratch);
        if (scratch->memory.need <= memory && scratch->memory.shm_bytes <= shm)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void fill_cache(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                       uint32_t threads, const struct vf_memory_plan *fixed, struct vf_budget *out)
{
    uint64_t most = vf_min_u64(all_experts(m), VF_CACHE_SLOTS_MAX);
    uint64_t least = vf_min_u64(most, vf_experts_per_token(m->config));
    uint64_t slots = p->expert_cache / vf_max_u64(m->record_bytes, 1);
    bool limited = false;
    if (!p->expert_cache) {
        struct vf_budget scratch = *out;
        slots = most_slots(p, m, threads, most, fixed->allowed, UINT64_MAX, fixed, &scratch);
        uint64_t in_shm =
            most_slots(p, m, threads, slots, fixed->allowed, shm_allowed(fixed), fixed, &scratch);
        limited = in_shm < slots;
        slots = vf_max_u64(in_shm, least); /* what doesn't hold one layer is refused */
    }
    complete(p, m, threads, vf_max_u64(1, vf_min_u64(slots, most)), fixed, out);
    out->memory.shm_limits = limited;
}

static enum vf_code decide_experts(const Vflow__RunSettings *p, const struct vf_budget_model *m,
                                   uint32_t threads, struct vf_budget *out, struct vf_err *err)
{
    const struct vf_memory_plan fixed = out->memory;
    complete(p, m, threads, 0, &fixed, out);
    if (m->config->expert_count == 0 || p->experts == VFLOW__EXPERTS__EXPERTS_RESIDENT)
        return VF_OK;
    uint64_t given = p->expert_cache;
    if (given && given < m->record_bytes)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--expert-cache: %" PRIu64
                          " bytes found, one expert of this model needs %" PRIu64,
                          given, m->record_bytes);
    bool fits = out->memory.need <= fixed.allowed;
    bool all = !given || given >= mul(all_experts(m), m->record_bytes);
    if (p->io_workers > VF_CACHE_IO_WORKERS_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "--io-workers: %u found, at most %u are allowed",
                          p->io_workers, VF_CACHE_IO_WORKERS_MAX);
    if (p->experts == VFLOW__EXPERTS__EXPERTS_AUTO && fits && all)
        return VF_OK; /* a budget that holds every expert: the model is simply resident */
    fill_cache(p, m, threads, &fixed, out);
    return VF_OK;
}

static void decide_allowed(const Vflow__RunSettings *p, const struct vf_budget_machine *machine,
                           struct vf_memory_plan *out)
{
    uint64_t there = machine->memory_bytes;
    uint64_t reserve = vf_min_u64(vf_max_u64(there / RESERVE_SHARE, RESERVE_MIN), RESERVE_MAX);
    *out = (struct vf_memory_plan){.available = there, .shm_available = machine->shm_bytes};
    out->given = p->memory != 0;
    out->allowed = out->given ? p->memory : there - vf_min_u64(reserve, there);
}

enum vf_code vf_budget_decide(const Vflow__RunSettings *settings, bool scores,
                              const struct vf_budget_model *model,
                              const struct vf_budget_machine *machine, struct vf_budget *out,
                              struct vf_err *err)
{
    uint32_t threads = settings->threads ? settings->threads : machine->threads;
    *out = (struct vf_budget){0};
    decide_allowed(settings, machine, &out->memory);
    enum vf_code code = decide_context(settings, model->config, out, err);
    if (code)
        return code;
    decide_step(settings, scores, model->config, machine, out);
    code = count_steps(settings, model, threads, out, err);
    if (!code)
        code = count_shared(model, out, err);
    if (code)
        return code;
    count_tokenizer(model, &out->memory);
    code = decide_experts(settings, model, threads, out, err);
    if (code)
        return code;
    if (out->memory.need > out->memory.allowed)
        return refuse_memory(settings, model, out, err);
    return out->memory.shm_bytes > out->memory.shm_available ? refuse_shm(out, err) : VF_OK;
}
