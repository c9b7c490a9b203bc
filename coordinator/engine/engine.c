/* Building and tearing down a run. Everything is created in one order and released in reverse by
 * vf_engine_destroy, which accepts any half-built engine.
 */
#include "coordinator/engine/engine.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "coordinator/engine/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static enum vf_code open_model(struct vf_engine *e, struct vf_err *err)
{
    enum vf_code code = vf_model_file_open(e->params.settings.model, &e->file, err);
    if (code)
        return code;
    e->model_path = realpath(e->params.settings.model, NULL);
    if (!e->model_path)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't resolve '%s'", e->params.settings.model);
    e->config = vf_model_file_config(e->file);
    return vf_program_compile(e->config, &e->program, err);
}

static void log_plan(const struct vf_memory_plan *m)
{
    char text[VF_MEMORY_ITEM_COUNT][VF_BYTES_TEXT], need[VF_BYTES_TEXT], allowed[VF_BYTES_TEXT];
    for (int i = 0; i < VF_MEMORY_ITEM_COUNT; i++)
        vf_bytes_text(m->bytes[i], text[i]);
    vf_info("memory: %s planned of %s %s: weights %s, experts %s, KV caches %s, buffers %s, shared "
            "%s, kernel %s, tokenizer %s, processes %s",
            vf_bytes_text(m->need, need), vf_bytes_text(m->allowed, allowed),
            m->given ? "allowed by --memory" : "that may be used", text[VF_MEMORY_WEIGHTS],
            text[VF_MEMORY_EXPERTS], text[VF_MEMORY_KV], text[VF_MEMORY_BUFFERS],
            text[VF_MEMORY_SHARED], text[VF_MEMORY_KERNEL], text[VF_MEMORY_TOKENIZER],
            text[VF_MEMORY_PROCESSES]);
}

static void warn_plan(const struct vf_memory_plan *m)
{
    char a[VF_BYTES_TEXT], b[VF_BYTES_TEXT];
    if (m->given && m->allowed > m->available && m->need > m->available)
        vf_warn("the run needs %s of memory and --memory allows it, but only %s are available",
                vf_bytes_text(m->need, a), vf_bytes_text(m->available, b));
    if (m->shm_limits)
        vf_warn("/dev/shm has %s free, which makes the expert cache smaller than memory allows: "
                "mount -o remount,size=SIZE /dev/shm gives it more (a container: --shm-size)",
                vf_bytes_text(m->shm_available, a));
}

static void describe(struct vf_engine *e)
{
    const struct vf_config *c = e->config;
    const struct vf_run_shape *shape = &e->shape;
    const Vflow__RunSettings *s = &shape->settings;
    const struct vf_budget *b = &shape->budget;
    char text[VF_RUN_SHAPE_TEXT];
    vf_info("the run: %s", vf_run_shape_text(shape, c, text));
    warn_plan(&b->memory);
    log_plan(&b->memory);
    e->info = (struct vf_engine_info){
        .stage_workers = s->stage_workers,
        .io_workers = s->io_workers,
        .threads = shape->threads[0],
        .context = s->ctx,
        .sequences = s->batch,
        .chunk = s->prefill_chunk,
        .rows_max = b->rows_max,
        /* One step per worker, and one more so that nobody waits for the coordinator. */
        .depth = (uint32_t)vf_min_u64(s->stage_workers + 1, VF_MAILBOX_DEPTH),
        .experts = vf_run_shape_experts(shape, c),
        .cache_bytes = b->cache_slots * shape->record_bytes,
        .expert_bytes = (uint64_t)c->expert_count * c->layer_count * shape->record_bytes,
        .memory_bytes = b->memory.need,
        .memory_allowed = b->memory.allowed,
        .io_depth = b->stream ? s->io_depth : 0,
        .io_read_bytes = shape->drive.read_bytes,
        .drive_bytes_per_s = shape->drive.bytes_per_s,
        .drive_latency_ms = shape->drive.latency_ms,
    };
}

static enum vf_code decide(struct vf_engine *e, struct vf_err *err)
{
    const struct vf_shape_model model = {
        .file = e->file, .config = e->config, .program = &e->program};
    enum vf_code code = vf_run_shape_place(&e->params.settings, &model, &e->shape, err);
    if (!code)
        code = vf_run_shape_decide(&e->shape, e->params.scores, &model, err);
    if (!code)
        code = vf_run_shape_probe(&e->shape, &model, err);
    if (!code)
        describe(e);
    return code;
}

static enum vf_code create_cache(struct vf_engine *e, struct vf_err *err)
{
    struct vf_expert_bank bank;
    enum vf_code code = vf_expert_bank_of(e->file, e->shape.stripes.stripes, &bank, err);
    if (code)
        return code;
    struct vf_cache_geometry g = {
        .layer_count = bank.layer_count,
        .expert_count = bank.expert_count,
        .slot_count = (uint32_t)e->shape.budget.cache_slots,
        .io_worker_count = e->info.io_workers,
        .record_bytes = bank.record_bytes,
        .fingerprint = bank.fingerprint,
    };
    code = vf_expert_cache_create(e->run_dir, &g, &e->cache, err);
    return code ? vf_err_prepend(err, "expert cache: ") : VF_OK;
}

static enum vf_code create_mailboxes(struct vf_engine *e, struct vf_err *err)
{
    char name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_shm_name(e->run_dir, VF_RUN_SHM_STATE, name);
    enum vf_code code = vf_run_state_create(name, &e->run_state, err);
    if (code)
        return vf_err_prepend(err, "the run's state: ");
    if (e->shape.placement.edge_count == 0)
        return VF_OK;
    vf_run_dir_shm_name(e->run_dir, VF_RUN_SHM_MAILBOXES, name);
    code = vf_mailboxes_create(name, e->shape.placement.edge_count, e->shape.budget.columns_max,
                               (uint32_t)vf_round_up(e->config->hidden_size, VF_RECORD_COLS),
                               e->run_state, &e->mailboxes, err);
    return code ? vf_err_prepend(err, "mailboxes of the stage workers: ") : VF_OK;
}

static enum vf_code create_memory(struct vf_engine *e, struct vf_err *err)
{
    char name[VF_RUN_SHM_NAME_MAX];
    enum vf_code code = create_mailboxes(e, err);
    if (code)
        return code;
    vf_run_dir_shm_name(e->run_dir, VF_RUN_SHM_LOGITS, name);
    code = vf_shm_create(name, e->shape.budget.logits_bytes, &e->logits, err);
    if (code == VF_ERR_NO_MEMORY)
        vf_err_append(err,
                      "; a smaller --batch or --prefill-chunk or a larger /dev/shm would help");
    if (code)
        return vf_err_prepend(err, "log-probabilities: ");
    return e->shape.budget.stream ? create_cache(e, err) : VF_OK;
}

static enum vf_code create_messages(struct vf_engine *e, struct vf_err *err)
{
    uint32_t n = e->shape.budget.columns_max;
    e->columns = calloc(n, sizeof *e->columns);
    e->column_list = calloc(n, sizeof(Vflow__Column *));
    if (!e->columns || !e->column_list)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for steps of %u columns", n);
    for (uint32_t i = 0; i < n; i++) {
        vflow__column__init(&e->columns[i]);
        e->column_list[i] = &e->columns[i];
    }
    e->zmq = vf_wire_context_create(err);
    if (!e->zmq)
        return err->code;
    struct vf_wire_options options = {.type = VF_WIRE_ROUTER};
    enum vf_code code = vf_wire_open(e->zmq, &options, &e->router, err);
    if (code)
        return code;
    char endpoint[VF_RUN_ENDPOINT_MAX];
    vf_run_dir_endpoint(e->run_dir, VF_RUN_CONTROL, endpoint);
    return vf_wire_bind(e->router, endpoint, err);
}

static void sum_ready(struct vf_engine *e)
{
    for (uint32_t i = 0; i < e->info.stage_workers; i++) {
        e->info.weight_bytes += e->workers[i].weight_bytes;
        e->info.kv_bytes += e->workers[i].kv_bytes;
    }
    e->idle_since_ns = vf_now_ns();
}

static enum vf_code build(struct vf_engine *e, struct vf_err *err)
{
    int swept = vf_run_dir_sweep();
    if (swept > 0)
        vf_info("removed %d leftovers of dead runs", swept);
    enum vf_code code = open_model(e, err);
    if (!code)
        code = decide(e, err);
    if (!code)
        code = vf_run_dir_create(&e->run_dir, err);
    if (!code)
        code = create_memory(e, err);
    if (!code)
        code = create_messages(e, err);
    if (!code)
        code = engine_start_workers(e, err);
    if (code)
        return code;
    code = engine_wait_ready(e, err);
    if (!code)
        sum_ready(e);
    return code;
}

enum vf_code vf_engine_create(const struct vf_engine_params *params, struct vf_engine **out,
                              struct vf_err *err)
{
    *out = NULL;
    struct vf_engine *e = calloc(1, sizeof *e);
    if (!e)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the engine");
    e->params = *params;
    e->next_step_id = 1;
    enum vf_code code = build(e, err);
    if (code) {
        vf_engine_destroy(e);
        return code;
    }
    *out = e;
    return VF_OK;
}

void vf_engine_destroy(struct vf_engine *e)
{
    if (!e)
        return;
    if (!e->broken)
        engine_shutdown_workers(e, "the run is over");
    vf_wire_close(e->router);
    vf_wire_context_destroy(e->zmq);
    free(e->column_list);
    free(e->columns);
    vf_expert_cache_close(e->cache);
    vf_shm_close(&e->logits);
    vf_mailboxes_close(e->mailboxes);
    vf_run_state_close(e->run_state);
    if (e->run_dir)
        vf_run_dir_remove(e->run_dir);
    vf_run_dir_close(e->run_dir);
    vf_run_shape_deinit(&e->shape);
    vf_program_deinit(&e->program);
    vf_model_file_close(e->file);
    free(e->model_path);
    free(e);
}

const struct vf_model_file *vf_engine_model(const struct vf_engine *e)
{
    return e->file;
}

const struct vf_engine_info *vf_engine_info(const struct vf_engine *e)
{
    return &e->info;
}

const struct vf_run_dir *vf_engine_run_dir(const struct vf_engine *e)
{
    return e->run_dir;
}

uint32_t vf_engine_worker_count(const struct vf_engine *e)
{
    return e->worker_count;
}

void vf_engine_worker(const struct vf_engine *e, uint32_t i, struct vf_worker_view *out)
{
    static const char *const states[] = {"starting", "loading", "ready", "lost"};
    const struct worker *w = &e->workers[i];
    *out = (struct vf_worker_view){
        .role = w->role,
        .index = w->index,
        .pid = (int)w->pid,
        .state = states[w->state],
        .heard_ms_ago = (vf_now_ns() - vf_min_u64(vf_now_ns(), w->heard_ns)) / 1000000,
    };
}
