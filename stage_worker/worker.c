/* Hello -> Plan -> (build) -> Ready, then steps and heartbeats until Shutdown. A fault before Ready
 * is answered with an Error that carries its code, so the coordinator can exit with the right
 * status.
 */
#include "stage_worker/worker.h"

#include "common/base/cli.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/map_guard.h"
#include "common/base/util.h"
#include "common/experts/stripes.h"
#include "common/run/run_dir.h"
#include "common/run/shm.h"
#include "common/run/wire.h"
#include "stage_worker/executor.h"
#include "stage_worker/expert_source_stream.h"
#include "stage_worker/owner_watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A plan follows the hello at once; steps come whenever there is work. */
#define PLAN_WAIT_MS 30000
/* Longest wait inside one step for another worker or for the drive. The coordinator and the death
 * of any process end it sooner; this is the last resort. */
#define STEP_WAIT_NS VF_S(600)

struct worker {
    struct vf_run_dir *rd;
    struct vf_owner_watch *watch;
    void *context, *socket;
    uint32_t index;
    uint32_t epoch;
    uint64_t steps_past; /* steps up to this one are done */

    struct vf_model_file *file;
    struct vf_program program;
    struct vf_placement placement;
    const struct vf_kernels *kernels;
    struct vf_run_state *run_state;
    struct vf_mailboxes *mailboxes; /* NULL: no edges */
    struct vf_shm logits;
    uint32_t logits_slots, rows_max;
    struct vf_bank_stripes *stripes; /* NULL: the expert bank is in the file */
    struct vf_expert_source *experts;
    struct vf_executor *executor;
    struct vf_column *columns; /* [columns_max] */
    uint32_t columns_max;
    Vflow__SpeculationStats speculation; /* of the report being written */
};

static enum vf_code reply(struct worker *w, uint64_t request_id, Vflow__Envelope *body,
                          struct vf_err *err)
{
    body->version = VF_WIRE_VERSION;
    body->epoch = w->epoch;
    body->request_id = request_id;
    return vf_wire_send(w->socket, NULL, body, err);
}

static enum vf_code send_error(struct worker *w, uint64_t request_id, const struct vf_err *cause)
{
    Vflow__Error error = VFLOW__ERROR__INIT;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    vf_wire_error_fill(&error, cause);
    body.body_case = VFLOW__ENVELOPE__BODY_ERROR;
    body.error = &error;
    return reply(w, request_id, &body, NULL);
}

/* ---- building ------------------------------------------------------------------------------- */

static enum vf_code send_hello(struct worker *w, struct vf_err *err)
{
    Vflow__Hello hello = VFLOW__HELLO__INIT;
    hello.role = VFLOW__ROLE__ROLE_STAGE;
    hello.index = w->index;
    hello.pid = (uint64_t)getpid();
    hello.run_id = (char *)vf_run_dir_id(w->rd);
    hello.software = VFLOW_VERSION;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_HELLO;
    body.hello = &hello;
    return reply(w, 0, &body, err);
}

static enum vf_code choose_kernels(struct worker *w, const char *word, struct vf_err *err)
{
    for (int i = 0; vf_kernel_tier_words[i]; i++) {
        if (strcmp(vf_kernel_tier_words[i], word) != 0)
            continue;
        enum vf_code code = vf_kernels_get((enum vf_kernel_tier)i, &w->kernels, err);
        if (code == VF_ERR_UNSUPPORTED) /* a limit of this machine, not a fault of the file */
            err->code = code = VF_ERR_LIMIT;
        return code;
    }
    return vf_err_set(err, VF_ERR_PROTOCOL, "plan names an unknown kernel tier '%s'", word);
}

static enum vf_code check_plan(const struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    if (w->index >= plan->stage_workers || plan->stage_workers > VF_STAGE_WORKERS_MAX ||
        plan->context == 0 || plan->sequences == 0 || plan->columns_max == 0 ||
        plan->rows_max == 0 || plan->logits_slots == 0 || plan->threads == 0 ||
        plan->threads > 1024)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "plan is out of range: stage worker %u of %u, context %u, %u sequences, "
                          "%u columns, %u rows, %u logits slots, %u threads",
                          w->index, plan->stage_workers, plan->context, plan->sequences,
                          plan->columns_max, plan->rows_max, plan->logits_slots, plan->threads);
    return VF_OK;
}

static enum vf_code open_model(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    vf_map_guard_install(plan->model_path);
    enum vf_code code = vf_model_file_open(plan->model_path, &w->file, err);
    if (code == VF_OK && vf_model_file_fingerprint(w->file) != plan->model_fingerprint)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: the file changed since the run was planned",
                          plan->model_path);
    if (code == VF_OK)
        code = vf_program_compile(vf_model_file_config(w->file), &w->program, err);
    if (code == VF_OK)
        code = vf_placement_pipeline(vf_model_file_config(w->file), &w->program,
                                     plan->stage_workers, &w->placement, err);
    return code;
}

/* Streamed experts must not come into memory with the weights around them. `--weights huge`: this
 * worker's weights move from the page cache into its own huge pages; that they fit is planned. */
static enum vf_code prepare_weights(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    bool huge = strcmp(plan->weights, "huge") == 0, streamed = plan->cache_slots > 0;
    if (!huge && !streamed)
        return VF_OK;
    struct vf_executor_params params = {
        .file = w->file, .program = &w->program, .placement = &w->placement, .worker = w->index};
    struct vf_weight_range *ranges;
    size_t count;
    uint64_t bytes;
    enum vf_code code = VF_OK;
    if (streamed) {
        code = vf_executor_ranges(&params, false, &ranges, &count, &bytes, err);
        if (code != VF_OK)
            return code;
        vf_model_file_want_only(w->file, ranges, count);
        free(ranges);
    }
    return huge ? vf_executor_own_weights(&params, w->file, !streamed, err) : code;
}

static enum vf_code open_mailboxes(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    char name[VF_RUN_SHM_NAME_MAX];
    uint32_t width = (uint32_t)vf_round_up(vf_model_file_config(w->file)->hidden_size, 32);
    vf_run_dir_shm_name(w->rd, VF_RUN_SHM_STATE, name);
    enum vf_code code = vf_run_state_open(name, &w->run_state, err);
    if (code == VF_OK && w->placement.edge_count > 0) {
        vf_run_dir_shm_name(w->rd, VF_RUN_SHM_MAILBOXES, name);
        code = vf_mailboxes_open(name, w->placement.edge_count, plan->columns_max, width,
                                 w->run_state, &w->mailboxes, err);
    }
    if (code == VF_OK)
        vf_owner_watch_set_run(w->watch, w->run_state, w->mailboxes);
    return code;
}

static enum vf_code open_shared_memory(struct worker *w, const Vflow__Plan *plan,
                                       struct vf_err *err)
{
    char name[VF_RUN_SHM_NAME_MAX];
    enum vf_code code = open_mailboxes(w, plan, err);
    if (code != VF_OK)
        return code;
    if (w->placement.head_worker != w->index)
        return VF_OK;
    uint64_t bytes = (uint64_t)plan->rows_max * vf_model_file_config(w->file)->vocab_size;
    if (!vf_mul_u64(bytes, plan->logits_slots * sizeof(float), &bytes))
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan wants too many rows: %u", plan->rows_max);
    w->logits_slots = plan->logits_slots;
    vf_run_dir_shm_name(w->rd, VF_RUN_SHM_LOGITS, name);
    return vf_shm_open(name, bytes, &w->logits, err);
}

static enum vf_code open_experts(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    if (vf_model_file_config(w->file)->expert_count == 0)
        return VF_OK;
    if (plan->cache_slots == 0)
        return vf_expert_source_resident(w->file, &w->experts, err);
    struct vf_expert_bank bank;
    enum vf_code code = VF_OK;
    if (plan->n_expert_bank > 0)
        code = vf_bank_stripes_open(w->file, (const char *const *)plan->expert_bank,
                                    (uint32_t)plan->n_expert_bank, &w->stripes, err);
    if (code == VF_OK)
        code = vf_expert_bank_of(w->file, w->stripes, &bank, err);
    if (code != VF_OK)
        return code;
    struct vf_expert_stream_params params = {.zmq_context = w->context,
                                             .run_dir = w->rd,
                                             .bank = &bank,
                                             .process = w->index,
                                             .epoch = w->epoch,
                                             .run_state = w->run_state};
    return vf_expert_source_stream(&params, &w->experts, err);
}

static enum vf_experts_when experts_when(const Vflow__Plan *plan)
{
    if (strcmp(plan->overlap, "sync") == 0)
        return VF_EXPERTS_SYNC;
    return plan->cache_slots > 0 ? VF_EXPERTS_LATE : VF_EXPERTS_EARLY;
}

static enum vf_speculate speculate(const Vflow__Plan *plan)
{
    if (plan->cache_slots == 0 || strcmp(plan->speculate, "off") == 0)
        return VF_SPECULATE_OFF;
    return strcmp(plan->speculate, "on") == 0 ? VF_SPECULATE_ON : VF_SPECULATE_AUTO;
}

static enum vf_code build(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    enum vf_code code = check_plan(w, plan, err);
    if (code == VF_OK)
        code = choose_kernels(w, plan->kernel, err);
    if (code == VF_OK)
        code = open_model(w, plan, err);
    if (code == VF_OK)
        code = prepare_weights(w, plan, err);
    if (code == VF_OK)
        code = open_shared_memory(w, plan, err);
    if (code == VF_OK)
        code = open_experts(w, plan, err);
    if (code != VF_OK)
        return code;
    w->rows_max = plan->rows_max;
    w->columns_max = plan->columns_max;
    w->columns = calloc(plan->columns_max, sizeof *w->columns);
    if (!w->columns)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u columns", plan->columns_max);
    struct vf_executor_params params = {.file = w->file,
                                        .program = &w->program,
                                        .placement = &w->placement,
                                        .worker = w->index,
                                        .kernels = w->kernels,
                                        .q8 = strcmp(plan->activations, "f32") != 0,
                                        .kv_f16 = strcmp(plan->kv, "f32") != 0,
                                        .experts_when = experts_when(plan),
                                        .context = plan->context,
                                        .sequences = plan->sequences,
                                        .columns_max = plan->columns_max,
                                        .rows_max = plan->rows_max,
                                        .threads = plan->threads,
                                        .experts = w->experts,
                                        .run_state = w->run_state,
                                        .mailboxes = w->mailboxes,
                                        .speculate = speculate(plan)};
    code = vf_executor_create(&params, &w->executor, err);
    if (code == VF_OK)
        code = vf_executor_verify(w->executor, strcmp(plan->weights, "huge") == 0, err);
    return code;
}

static enum vf_code send_ready(struct worker *w, uint32_t threads, struct vf_err *err)
{
    Vflow__Ready ready = VFLOW__READY__INIT;
    ready.weight_bytes = vf_executor_weight_bytes(w->executor);
    ready.kv_bytes = vf_executor_kv_bytes(w->executor);
    ready.kernel = (char *)w->kernels->name;
    ready.threads = threads;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_READY;
    body.ready = &ready;
    return reply(w, 0, &body, err);
}

/* Waits for the plan, builds, answers Ready or Error. */
static enum vf_code join_run(struct worker *w, struct vf_err *err)
{
    enum vf_code code = send_hello(w, err);
    if (code != VF_OK)
        return code;
    Vflow__Envelope *message;
    code = vf_wire_receive(w->socket, PLAN_WAIT_MS, NULL, &message, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "waiting for the coordinator's plan: ");
    if (message->body_case == VFLOW__ENVELOPE__BODY_PLAN) {
        w->epoch = message->epoch;
        code = build(w, message->plan, err);
        if (code == VF_OK)
            code = send_ready(w, message->plan->threads, err);
        else
            send_error(w, 0, err);
    } else {
        code = vf_err_set(err, VF_ERR_PROTOCOL, "message %d found where the plan was expected",
                          (int)message->body_case);
    }
    vflow__envelope__free_unpacked(message, NULL);
    return code;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void fill_speculation(const struct worker *w, Vflow__SpeculationStats *out)
{
    struct vf_speculation_stats s;
    vf_executor_speculation(w->executor, &s);
    vflow__speculation_stats__init(out);
    out->steps = s.steps;
    out->steps_guessed = s.steps_speculated;
    out->guess_ns = s.guess_ns;
    out->probes = s.probes;
    out->on = s.on;
    out->gain = s.gain;
    out->guessed = s.ahead[0].guessed;
    out->right = s.ahead[0].right;
    out->chosen = s.ahead[0].chosen;
    out->guessed_two = s.ahead[1].guessed;
    out->right_two = s.ahead[1].right;
    out->chosen_two = s.ahead[1].chosen;
}

static void fill_stats(struct worker *w, Vflow__StepStats *out)
{
    struct vf_executor_stats ex;
    vf_executor_stats(w->executor, &ex);
    out->compute_ns = ex.compute_ns;
    out->barrier_ns = ex.barrier_ns;
    out->wait_ns = ex.hop_ns;
    out->stall_ns = ex.stall_ns;
    out->weight_bytes = ex.weight_bytes;
    if (vf_executor_speculates(w->executor)) {
        fill_speculation(w, &w->speculation);
        out->speculation = &w->speculation;
    }
    if (w->experts) {
        struct vf_expert_stats s;
        w->experts->ops->stats(w->experts, &s);
        out->experts_wanted = s.wanted;
        out->expert_hits = s.hits;
        out->expert_late = s.late;
        out->expert_demand = s.demand;
        out->expert_early = s.early;
    }
}

static enum vf_code copy_columns(struct worker *w, const Vflow__Step *step, struct vf_err *err)
{
    if (step->n_columns == 0 || step->n_columns > w->columns_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu has %zu columns, allowed are 1 to %u",
                          (unsigned long long)step->step_id, step->n_columns, w->columns_max);
    for (size_t i = 0; i < step->n_columns; i++) {
        const Vflow__Column *c = step->columns[i];
        w->columns[i] = (struct vf_column){.token = c->token,
                                           .position = c->position,
                                           .sequence = c->sequence,
                                           .flow = c->flow,
                                           .primary = c->primary,
                                           .want_row = c->want_row};
    }
    return VF_OK;
}

static enum vf_code run_step(struct worker *w, const Vflow__Step *step, uint32_t *rows,
                             bool *peer_failed, struct vf_err *err)
{
    *rows = 0;
    *peer_failed = false;
    enum vf_code code = copy_columns(w, step, err);
    float *slot = NULL;
    if (code == VF_OK && w->logits.base) {
        if (step->logits_slot >= w->logits_slots)
            return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu names logits slot %u of %u",
                              (unsigned long long)step->step_id, step->logits_slot,
                              w->logits_slots);
        slot = (float *)w->logits.base +
               (size_t)step->logits_slot * w->rows_max * vf_model_file_config(w->file)->vocab_size;
    }
    if (code != VF_OK)
        return code;
    struct vf_step run = {step->step_id, w->columns, (uint32_t)step->n_columns};
    return vf_executor_run(w->executor, &run, vf_now_ns() + STEP_WAIT_NS, slot, rows, peer_failed,
                           err);
}

static enum vf_code handle_step(struct worker *w, const Vflow__Envelope *message,
                                struct vf_err *err)
{
    const Vflow__Step *step = message->step;
    if (step->step_id <= w->steps_past)
        return VF_OK; /* doubled or late */
    w->steps_past = step->step_id;
    struct vf_err cause = {0};
    uint32_t rows;
    bool peer_failed;
    enum vf_code code = run_step(w, step, &rows, &peer_failed, &cause);
    bool head = w->placement.head_worker == w->index;
    if (!head && (code == VF_OK || peer_failed))
        return VF_OK;
    Vflow__StepResult result = VFLOW__STEP_RESULT__INIT;
    Vflow__StepStats stats = VFLOW__STEP_STATS__INIT;
    Vflow__Error error = VFLOW__ERROR__INIT;
    result.step_id = step->step_id;
    result.rows = rows;
    result.failed = code != VF_OK;
    fill_stats(w, &stats);
    result.stats = &stats;
    if (code != VF_OK && !peer_failed) {
        vf_wire_error_fill(&error, &cause);
        result.error = &error;
    }
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_STEP_RESULT;
    body.step_result = &result;
    return reply(w, message->request_id, &body, err);
}

static enum vf_code handle_heartbeat(struct worker *w, const Vflow__Envelope *message,
                                     struct vf_err *err)
{
    Vflow__Heartbeat beat = VFLOW__HEARTBEAT__INIT;
    Vflow__StepStats stats = VFLOW__STEP_STATS__INIT;
    beat.sent_ns = message->heartbeat->sent_ns;
    fill_stats(w, &stats);
    beat.stats = &stats;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    body.heartbeat = &beat;
    return reply(w, message->request_id, &body, err);
}

static enum vf_code handle(struct worker *w, const Vflow__Envelope *message, bool *stop,
                           struct vf_err *err)
{
    if (message->epoch != w->epoch) {
        vf_debug("dropped a message of epoch %u, this is %u", message->epoch, w->epoch);
        return VF_OK;
    }
    switch (message->body_case) {
    case VFLOW__ENVELOPE__BODY_STEP:
        return handle_step(w, message, err);
    case VFLOW__ENVELOPE__BODY_HEARTBEAT:
        return handle_heartbeat(w, message, err);
    case VFLOW__ENVELOPE__BODY_SHUTDOWN:
        *stop = true;
        return VF_OK;
    default:
        vf_warn("dropped a message of unknown kind %d", (int)message->body_case);
        return VF_OK;
    }
}

static enum vf_code serve_steps(struct worker *w, struct vf_err *err)
{
    bool stop = false;
    while (!stop) {
        Vflow__Envelope *message;
        enum vf_code code = vf_wire_receive(w->socket, -1, NULL, &message, err);
        if (code == VF_ERR_PROTOCOL) {
            vf_warn("%s", err->text);
            continue;
        }
        if (code == VF_ERR_TIMEOUT)
            continue;
        if (code != VF_OK)
            return code;
        code = handle(w, message, &stop, err);
        vflow__envelope__free_unpacked(message, NULL);
        if (code != VF_OK)
            return code;
    }
    return VF_OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum vf_code connect_control(struct worker *w, struct vf_err *err)
{
    char identity[32], endpoint[VF_RUN_ENDPOINT_MAX];
    snprintf(identity, sizeof identity, "stage-%u", w->index);
    w->context = vf_wire_context_create(err);
    if (!w->context)
        return err->code;
    struct vf_wire_options options = {.type = VF_WIRE_DEALER, .identity = identity};
    enum vf_code code = vf_wire_open(w->context, &options, &w->socket, err);
    if (code != VF_OK)
        return code;
    vf_run_dir_endpoint(w->rd, VF_RUN_CONTROL, endpoint);
    return vf_wire_connect(w->socket, endpoint, err);
}

static void deinit(struct worker *w)
{
    vf_executor_destroy(w->executor);
    if (w->experts)
        w->experts->ops->destroy(w->experts);
    if (w->watch)
        vf_owner_watch_set_run(w->watch, NULL, NULL);
    vf_mailboxes_close(w->mailboxes);
    vf_run_state_close(w->run_state);
    vf_shm_close(&w->logits);
    vf_placement_deinit(&w->placement);
    vf_program_deinit(&w->program);
    vf_bank_stripes_close(w->stripes);
    vf_model_file_close(w->file);
    free(w->columns);
    vf_wire_close(w->socket);
    vf_wire_context_destroy(w->context);
    vf_owner_watch_stop(w->watch);
    vf_run_dir_close(w->rd);
}

int vf_stage_worker_main(int argc, char **argv)
{
    const char *run_dir = NULL;
    int64_t index = 0;
    int verbosity = 0;
    const struct vf_opt opts[] = {
        {.name = "run-dir",
         .type = VF_OPT_STRING,
         .value = &run_dir,
         .metavar = "DIR",
         .help = "run directory of the coordinator to join"},
        {.name = "index",
         .type = VF_OPT_INT,
         .value = &index,
         .metavar = "N",
         .min = 0,
         .max = VF_STAGE_WORKERS_MAX - 1,
         .help = "which stage worker this is, from 0"},
        {.name = "verbose",
         .short_name = 'v',
         .type = VF_OPT_COUNT,
         .value = &verbosity,
         .help = "say more; twice: even more"},
    };
    const struct vf_cli cli = {.program = "vflow-stage-worker",
                               .usage = "--run-dir DIR [--index N]",
                               .summary = "Computes the operations of one group of layers. Started "
                                          "by vflow-coordinator, or by hand to join its run.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts)};
    struct vf_err err = {0};
    if (vf_cli_parse(&cli, argc, argv, NULL, NULL, &err) != VF_OK)
        return vf_cli_fail(cli.program, &err);
    if (!run_dir) {
        vf_err_set(&err, VF_ERR_USAGE, "--run-dir is missing");
        return vf_cli_fail(cli.program, &err);
    }
    char role[32];
    snprintf(role, sizeof role, "stage-%u", (unsigned)index);
    vf_log_init(role, (enum vf_log_level)(VF_LOG_WARN + (verbosity > 3 ? 3 : verbosity)));
    /* Ctrl-C reaches the whole process group; the coordinator decides what it means. */
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);

    struct worker w = {.index = (uint32_t)index};
    enum vf_code code = vf_run_dir_open(run_dir, &w.rd, &err);
    if (code == VF_OK)
        code = vf_owner_watch_start(w.rd, &w.watch, &err);
    if (code == VF_OK)
        code = connect_control(&w, &err);
    if (code == VF_OK)
        code = join_run(&w, &err);
    if (code == VF_OK)
        code = serve_steps(&w, &err);
    if (code != VF_OK && code != VF_ERR_PEER_LOST && w.epoch == 0)
        vf_error("%s", err.text); /* the coordinator was told everything later than the plan */
    deinit(&w);
    return vf_exit_status(code);
}
