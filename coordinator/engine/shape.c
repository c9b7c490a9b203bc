#include "coordinator/engine/shape.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/bank.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)VFLOW__PLACEMENT__PLACEMENT_PIPELINE == (int)VF_PLACEMENT_PIPELINE,
               "the placements' words are in the order of their kinds");

/* Threads of each stage worker: what was asked for, else every core of its node. Workers of a
 * pipeline that share a node share its cores: those that wait sleep. */
static void assign_threads(struct vf_run_shape *s)
{
    for (uint32_t i = 0; i < s->settings.stage_workers; i++)
        s->threads[i] =
            s->settings.threads ? s->settings.threads : vf_topology_threads(&s->topology, i);
}

/* Threads of one worker meet at the end of every region: with fewer cores than threads each meeting
 * waits for a turn of the scheduler. */
static void warn_crowded(const struct vf_run_shape *s)
{
    uint32_t quota = s->topology.quota, cores = s->topology.cores;
    bool limited = quota && quota < cores;
    if (limited)
        cores = quota;
    if (s->settings.threads > cores)
        vf_warn("--threads %u on the %u core%s that this process may use (%s): they wait for one "
                "another, and many times slower than with --threads %u is usual",
                s->settings.threads, cores, cores == 1 ? "" : "s",
                limited ? "the CPU quota" : "its cpuset", cores);
}

enum vf_code vf_run_shape_place(const Vflow__RunSettings *asked, const struct vf_shape_model *model,
                                struct vf_run_shape *out, struct vf_err *err)
{
    *out = (struct vf_run_shape){.settings = *asked};
    Vflow__RunSettings *s = &out->settings;
    enum vf_code code = vf_topology_read(&out->topology, err);
    if (code)
        return code;
    if (s->stage_workers == 0)
        s->stage_workers =
            (uint32_t)vf_min_u64(out->topology.node_count, model->program->effective_layers);
    if (s->kv == VFLOW__KV__KV_AUTO)
        s->kv = s->activations == VFLOW__ACTIVATIONS__ACTIVATIONS_F32 ? VFLOW__KV__KV_F32
                                                                      : VFLOW__KV__KV_F16;
    code = vf_placement_make((enum vf_placement_kind)s->placement, model->config, model->program,
                             s->stage_workers, &out->placement, err);
    if (!code) {
        assign_threads(out);
        warn_crowded(out);
    }
    return code;
}

static enum vf_code open_bank(struct vf_run_shape *s, const struct vf_shape_model *model,
                              struct vf_err *err)
{
    if (!model->file)
        return VF_OK;
    enum vf_code code = vf_stripe_set_open(&s->stripes, model->file, s->settings.model,
                                           s->settings.expert_bank, err);
    if (!code && !s->settings.io_workers) /* one for each drive; 0 where the model file is read */
        s->settings.io_workers = s->stripes.count;
    return code;
}

static enum vf_code describe_model(const struct vf_run_shape *s, const struct vf_shape_model *model,
                                   struct vf_budget_model *out, struct vf_err *err)
{
    if (model->file)
        return vf_budget_model_from_file(model->file, model->program, &s->placement, out, err);
    return vf_budget_model_from_config(model->config, model->quant, model->program, &s->placement,
                                       out, err);
}

enum vf_code vf_run_shape_decide(struct vf_run_shape *s, bool scores,
                                 const struct vf_shape_model *model, struct vf_err *err)
{
    struct vf_budget_model counted;
    struct vf_budget_machine machine;
    enum vf_code code = open_bank(s, model, err);
    if (!code)
        code = describe_model(s, model, &counted, err);
    if (code)
        return code;
    vf_budget_machine_read(&s->topology, &machine);
    code = vf_budget_decide(&s->settings, scores, &counted, &machine, &s->budget, err);
    s->record_bytes = counted.record_bytes;
    s->settings.io_workers = s->budget.io_workers;
    s->settings.ctx = s->budget.context;
    s->settings.prefill_chunk = s->budget.chunk;
    return code;
}

enum vf_code vf_run_shape_probe(struct vf_run_shape *s, const struct vf_shape_model *model,
                                struct vf_err *err)
{
    struct vf_expert_bank bank;
    if (!model->file || !s->budget.stream || s->settings.io_depth || s->settings.io_throttle ||
        s->settings.io != VFLOW__IO__IO_DIRECT)
        return VF_OK;
    enum vf_code code = vf_expert_bank_of(model->file, s->stripes.stripes, &bank, err);
    if (code)
        return code;
    vf_drive_probe_bank(&bank, &s->drive);
    s->settings.io_depth = s->drive.depth;
    if (s->drive.depth)
        vf_info("drive: %.2f GB/s in reads of %" PRIu64 " KiB, %u at a time, %.2f ms each",
                s->drive.bytes_per_s * 1e-9, s->drive.read_bytes >> 10, s->drive.depth,
                s->drive.latency_ms);
    return VF_OK;
}

void vf_run_shape_deinit(struct vf_run_shape *s)
{
    vf_placement_deinit(&s->placement);
    vf_stripe_set_close(&s->stripes);
}

const char *vf_run_shape_experts(const struct vf_run_shape *s, const struct vf_config *config)
{
    return config->expert_count == 0 ? "none" : s->budget.stream ? "streamed" : "resident";
}

/* "4" when all have as many, else "4 to 8". */
static void threads_text(const struct vf_run_shape *s, char *text, size_t n)
{
    uint32_t least = s->threads[0], most = s->threads[0];
    for (uint32_t i = 1; i < s->settings.stage_workers; i++) {
        least = (uint32_t)vf_min_u64(least, s->threads[i]);
        most = (uint32_t)vf_max_u64(most, s->threads[i]);
    }
    if (least == most)
        snprintf(text, n, "%u", most);
    else
        snprintf(text, n, "%u to %u", least, most);
}

const char *vf_run_shape_text(const struct vf_run_shape *shape, const struct vf_config *config,
                              char text[VF_RUN_SHAPE_TEXT])
{
    const Vflow__RunSettings *s = &shape->settings;
    char threads[32], experts[64];
    threads_text(shape, threads, sizeof threads);
    snprintf(experts, sizeof experts, "%s", vf_run_shape_experts(shape, config));
    if (shape->budget.stream)
        snprintf(experts, sizeof experts, "streamed, %" PRIu64 " in the cache",
                 shape->budget.cache_slots);
    snprintf(text, VF_RUN_SHAPE_TEXT,
             "%u stage worker%s of %s thread%s (%s), %u I/O worker%s, %u sequence%s of %u "
             "positions with KV caches in %s, steps of %u columns, experts %s",
             s->stage_workers, s->stage_workers == 1 ? "" : "s", threads,
             strcmp(threads, "1") == 0 ? "" : "s",
             vf_run_settings_word("placement", (int)s->placement), s->io_workers,
             s->io_workers == 1 ? "" : "s", s->batch, s->batch == 1 ? "" : "s", s->ctx,
             vf_run_settings_word("kv", (int)s->kv), shape->budget.columns_max, experts);
    return text;
}
