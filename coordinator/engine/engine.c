/* Building and tearing down a run. Everything is created in one order and released in reverse by
 * vf_engine_destroy, which accepts any half-built engine.
 */
#include "coordinator/engine/engine.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/map_guard.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "coordinator/engine/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static enum vf_code open_model(struct vf_engine *e, struct vf_err *err)
{
    vf_map_guard_install(e->params.model_path);
    enum vf_code code = vf_model_file_open(e->params.model_path, &e->file, err);
    if (code)
        return code;
    e->model_path = realpath(e->params.model_path, NULL);
    if (!e->model_path)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't resolve '%s'", e->params.model_path);
    e->config = vf_model_file_config(e->file);
    return vf_program_compile(e->config, &e->program, err);
}

static enum vf_code place(struct vf_engine *e, struct vf_err *err)
{
    enum vf_code code = vf_topology_read(&e->topology, err);
    if (code)
        return code;
    uint32_t n = e->params.stage_workers;
    if (n == 0)
        n = (uint32_t)vf_min_u64(e->topology.node_count, e->program.effective_layers);
    if (n > VF_STAGE_WORKERS_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "--stage-workers: %u found, at most %u are allowed", n,
                          VF_STAGE_WORKERS_MAX);
    e->info.stage_workers = n;
    return vf_placement_pipeline(e->config, &e->program, n, &e->placement, err);
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

static enum vf_code decide_sizes(struct vf_engine *e, struct vf_err *err)
{
    const struct vf_config *c = e->config;
    struct vf_budget_model model;
    struct vf_budget_machine machine;
    vf_budget_machine_read(&e->topology, &machine);
    enum vf_code code = vf_budget_model_from_file(e->file, &e->program, &e->placement, &model, err);
    if (!code)
        code = vf_budget_decide(&e->params, &model, &machine, &e->budget, err);
    if (code)
        return code;
    const struct vf_budget *b = &e->budget;
    warn_plan(&b->memory);
    log_plan(&b->memory);
    e->info.io_workers = b->io_workers;
    e->info.context = b->context;
    e->info.sequences = e->params.sequences;
    e->info.chunk = b->chunk;
    e->info.rows_max = b->rows_max;
    /* One step per worker, and one more so that nobody waits for the coordinator. */
    e->info.depth = (uint32_t)vf_min_u64(e->info.stage_workers + 1, VF_MAILBOX_DEPTH);
    e->info.experts = c->expert_count == 0 ? "none" : b->stream ? "streamed" : "resident";
    e->info.cache_bytes = b->cache_slots * model.record_bytes;
    e->info.expert_bytes = (uint64_t)c->expert_count * c->layer_count * model.record_bytes;
    e->info.memory_bytes = b->memory.need;
    e->info.memory_allowed = b->memory.allowed;
    return VF_OK;
}

static enum vf_code create_cache(struct vf_engine *e, struct vf_err *err)
{
    struct vf_expert_bank bank;
    enum vf_code code = vf_expert_bank_of(e->file, e->stripes.stripes, &bank, err);
    if (code)
        return code;
    struct vf_cache_geometry g = {
        .layer_count = bank.layer_count,
        .expert_count = bank.expert_count,
        .slot_count = (uint32_t)e->budget.cache_slots,
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
    if (e->placement.edge_count == 0)
        return VF_OK;
    vf_run_dir_shm_name(e->run_dir, VF_RUN_SHM_MAILBOXES, name);
    code = vf_mailboxes_create(name, e->placement.edge_count, e->budget.columns_max,
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
    code = vf_shm_create(name, e->budget.logits_bytes, &e->logits, err);
    if (code == VF_ERR_NO_MEMORY)
        vf_err_append(err,
                      "; a smaller --batch or --prefill-chunk or a larger /dev/shm would help");
    if (code)
        return vf_err_prepend(err, "log-probabilities: ");
    return e->budget.stream ? create_cache(e, err) : VF_OK;
}

static enum vf_code create_messages(struct vf_engine *e, struct vf_err *err)
{
    uint32_t n = e->budget.columns_max;
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

/* Threads of each stage worker: what was asked for, else every core of its node. Workers of a
 * pipeline that share a node share its cores: those that wait sleep. */
static void assign_threads(struct vf_engine *e)
{
    for (uint32_t i = 0; i < e->info.stage_workers; i++)
        e->workers[i].threads =
            e->params.threads ? e->params.threads : vf_topology_threads(&e->topology, i);
    e->info.threads = e->workers[0].threads;
}

static void sum_ready(struct vf_engine *e)
{
    for (uint32_t i = 0; i < e->info.stage_workers; i++) {
        e->info.weight_bytes += e->workers[i].weight_bytes;
        e->info.kv_bytes += e->workers[i].kv_bytes;
    }
    e->idle_since_ns = vf_now_ns();
}

static enum vf_code open_bank(struct vf_engine *e, struct vf_err *err)
{
    enum vf_code code =
        vf_stripe_set_open(&e->stripes, e->file, e->params.model_path, e->params.expert_bank, err);
    if (!code && !e->params.io_workers) /* one for each drive; 0 where the model file is read */
        e->params.io_workers = e->stripes.count;
    return code;
}

static enum vf_code choose_reads(struct vf_engine *e, struct vf_err *err)
{
    struct vf_expert_bank bank;
    enum vf_code code = vf_expert_bank_of(e->file, e->stripes.stripes, &bank, err);
    if (!code)
        engine_choose_reads(e, &bank);
    return code;
}

static enum vf_code build(struct vf_engine *e, struct vf_err *err)
{
    int swept = vf_run_dir_sweep();
    if (swept > 0)
        vf_info("removed %d leftovers of dead runs", swept);
    enum vf_code code = open_model(e, err);
    if (!code)
        code = place(e, err);
    if (!code)
        code = open_bank(e, err);
    if (!code)
        code = decide_sizes(e, err);
    if (!code && e->budget.stream)
        code = choose_reads(e, err);
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
    assign_threads(e);
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
    vf_placement_deinit(&e->placement);
    vf_program_deinit(&e->program);
    vf_stripe_set_close(&e->stripes);
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
