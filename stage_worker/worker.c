/* Builds what the plan says, then runs steps until the membership is over. A failure while building
 * goes to the coordinator with its code, so that it can exit with the right status.
 */
#include "stage_worker/worker.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "common/experts/stripes.h"
#include "common/run/mailbox.h"
#include "common/run/member.h"
#include "common/run/run_dir.h"
#include "common/run/shm.h"
#include "common/settings/settings.h"
#include "stage_worker/executor.h"
#include "stage_worker/expert_source_stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Longest wait inside one step for another worker or for the drive. The coordinator and the death
 * of any process end it sooner; this is the last resort. */
#define STEP_WAIT_NS VF_S(600)

struct worker {
    struct vf_member *member;
    uint32_t index;
    uint64_t steps_past; /* steps up to this one are done */

    struct vf_model_file *file;
    struct vf_program program;
    struct vf_placement placement;
    const struct vf_kernels *kernels;
    pthread_mutex_t orphan_lock; /* guards the next two for the thread that watches */
    struct vf_run_state *run_state;
    struct vf_mailboxes *mailboxes; /* NULL: no edges */
    struct vf_shm logits;
    uint32_t logits_slots, rows_max;
    struct vf_bank_stripes *stripes; /* NULL: the expert bank is in the file */
    struct vf_expert_source *experts;
    struct vf_executor *executor;
    struct vf_column *columns; /* [columns_max] */
    uint32_t columns_max;
    uint64_t columns_run;   /* of all steps */
    Vflow__StepStats stats; /* of the report being written */
    Vflow__SpeculationStats speculation;
};

/* ---- building ------------------------------------------------------------------------------- */

_Static_assert((int)VFLOW__KERNEL__KERNEL_AUTO == (int)VF_KERNEL_AUTO &&
                   (int)VFLOW__KERNEL__KERNEL_VNNI == (int)VF_KERNEL_AVX512_VNNI,
               "the kernels' words are in the order of their tiers");

static enum vf_code choose_kernels(struct worker *w, Vflow__Kernel kernel, struct vf_err *err)
{
    enum vf_code code = vf_kernels_get((enum vf_kernel_tier)kernel, &w->kernels, err);
    if (code == VF_ERR_UNSUPPORTED) /* a limit of this machine, not a fault of the file */
        err->code = code = VF_ERR_LIMIT;
    return code;
}

static enum vf_code check_plan(const struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    const Vflow__RunSettings *s = plan->settings;
    if (!s)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: no settings found");
    enum vf_code code = vf_run_settings_check(s, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "plan: ");
    if (w->index >= s->stage_workers || s->ctx == 0 || s->batch == 0 || plan->columns_max == 0 ||
        plan->rows_max == 0 || plan->logits_slots == 0 || s->threads == 0 ||
        s->kv == VFLOW__KV__KV_AUTO)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "plan is out of range: stage worker %u of %u, context %u, %u sequences, "
                          "%u columns, %u rows, %u logits slots, %u threads, KV caches in %s",
                          w->index, s->stage_workers, s->ctx, s->batch, plan->columns_max,
                          plan->rows_max, plan->logits_slots, s->threads,
                          vf_run_settings_word("kv", (int)s->kv));
    return VF_OK;
}

static enum vf_code open_model(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    enum vf_code code = vf_model_file_open(plan->model_path, &w->file, err);
    if (code == VF_OK && vf_model_file_fingerprint(w->file) != plan->model_fingerprint)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: the file changed since the run was planned",
                          plan->model_path);
    if (code == VF_OK)
        code = vf_program_compile(vf_model_file_config(w->file), &w->program, err);
    if (code == VF_OK)
        code = vf_placement_from(&w->program, plan->settings->stage_workers, plan->op_worker,
                                 plan->n_op_worker, &w->placement, err);
    return code;
}

/* Streamed experts must not come into memory with the weights around them. `--weights huge`: this
 * worker's weights move from the page cache into its own huge pages; that they fit is planned. */
static enum vf_code prepare_weights(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    bool huge = plan->settings->weights == VFLOW__WEIGHTS__WEIGHTS_HUGE,
         streamed = plan->cache_slots > 0;
    if (!huge && !streamed)
        return VF_OK;
    struct vf_executor_params params = {.file = w->file,
                                        .program = &w->program,
                                        .placement = &w->placement,
                                        .worker = w->index,
                                        .run_state = w->run_state};
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
    const struct vf_run_dir *rd = vf_member_run_dir(w->member);
    uint32_t width = (uint32_t)vf_round_up(vf_model_file_config(w->file)->hidden_size, 32);
    struct vf_run_state *state = NULL;
    struct vf_mailboxes *mailboxes = NULL;
    vf_run_dir_shm_name(rd, VF_RUN_SHM_STATE, name);
    enum vf_code code = vf_run_state_open(name, &state, err);
    if (code == VF_OK && w->placement.edge_count > 0) {
        vf_run_dir_shm_name(rd, VF_RUN_SHM_MAILBOXES, name);
        code = vf_mailboxes_open(name, w->placement.edge_count, plan->columns_max, width, state,
                                 &mailboxes, err);
    }
    pthread_mutex_lock(&w->orphan_lock);
    w->run_state = state;
    w->mailboxes = mailboxes;
    pthread_mutex_unlock(&w->orphan_lock);
    return code;
}

/* The coordinator has died: whoever waits in a step is woken. */
static void end_run(void *ctx)
{
    struct worker *w = ctx;
    pthread_mutex_lock(&w->orphan_lock);
    if (w->run_state)
        vf_run_state_end(w->run_state);
    vf_mailboxes_wake(w->mailboxes);
    pthread_mutex_unlock(&w->orphan_lock);
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
    vf_run_dir_shm_name(vf_member_run_dir(w->member), VF_RUN_SHM_LOGITS, name);
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
    struct vf_expert_stream_params params = {.zmq_context = vf_member_zmq(w->member),
                                             .run_dir = vf_member_run_dir(w->member),
                                             .bank = &bank,
                                             .file = w->file,
                                             .process = w->index,
                                             .epoch = vf_member_epoch(w->member),
                                             .run_state = w->run_state};
    return vf_expert_source_stream(&params, &w->experts, err);
}

static enum vf_experts_when experts_when(const Vflow__Plan *plan)
{
    if (plan->settings->overlap == VFLOW__OVERLAP__OVERLAP_SYNC)
        return VF_EXPERTS_SYNC;
    return plan->cache_slots > 0 ? VF_EXPERTS_LATE : VF_EXPERTS_EARLY;
}

static enum vf_speculate speculate(const Vflow__Plan *plan)
{
    if (plan->cache_slots == 0 || plan->settings->speculate == VFLOW__SPECULATE__SPECULATE_OFF)
        return VF_SPECULATE_OFF;
    return plan->settings->speculate == VFLOW__SPECULATE__SPECULATE_ON ? VF_SPECULATE_ON
                                                                       : VF_SPECULATE_AUTO;
}

static enum vf_code build(struct worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    const Vflow__RunSettings *s = plan->settings;
    enum vf_code code = check_plan(w, plan, err);
    if (code == VF_OK)
        code = choose_kernels(w, s->kernel, err);
    if (code == VF_OK)
        code = open_model(w, plan, err);
    if (code == VF_OK)
        code = open_shared_memory(w, plan, err);
    if (code == VF_OK)
        code = prepare_weights(w, plan, err);
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
                                        .q8 = s->activations == VFLOW__ACTIVATIONS__ACTIVATIONS_Q8,
                                        .kv_f16 = s->kv == VFLOW__KV__KV_F16,
                                        .experts_when = experts_when(plan),
                                        .context = s->ctx,
                                        .sequences = s->batch,
                                        .columns_max = plan->columns_max,
                                        .rows_max = plan->rows_max,
                                        .threads = s->threads,
                                        .experts = w->experts,
                                        .run_state = w->run_state,
                                        .mailboxes = w->mailboxes,
                                        .speculate = speculate(plan)};
    code = vf_executor_create(&params, &w->executor, err);
    if (code == VF_OK)
        code = vf_executor_verify(w->executor,
                                  plan->settings->weights == VFLOW__WEIGHTS__WEIGHTS_HUGE, err);
    return code;
}

static enum vf_code say_ready(struct worker *w, uint32_t threads, struct vf_err *err)
{
    Vflow__Ready ready = VFLOW__READY__INIT;
    ready.weight_bytes = vf_executor_weight_bytes(w->executor);
    ready.kv_bytes = vf_executor_kv_bytes(w->executor);
    ready.kernel = (char *)w->kernels->name;
    ready.threads = threads;
    return vf_member_ready(w->member, &ready, err);
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

static const Vflow__StepStats *fill_stats(void *ctx)
{
    struct worker *w = ctx;
    Vflow__StepStats *out = &w->stats;
    struct vf_executor_stats ex;
    vflow__step_stats__init(out);
    vf_executor_stats(w->executor, &ex);
    out->compute_ns = ex.compute_ns;
    out->barrier_ns = ex.barrier_ns;
    out->wait_ns = ex.hop_ns;
    out->stall_ns = ex.stall_ns;
    out->weight_bytes = ex.weight_bytes;
    out->columns = w->columns_run;
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
    return out;
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
    w->columns_run += run.column_count;
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
    enum vf_code code = vf_model_file_check_unchanged(w->file, err);
    if (code != VF_OK)
        return code; /* and no other step can be run either */
    code = run_step(w, step, &rows, &peer_failed, &cause);
    if (vf_model_file_check_unchanged(w->file, err) != VF_OK)
        return err->code;
    bool head = w->placement.head_worker == w->index;
    if (!head && (code == VF_OK || peer_failed))
        return VF_OK;
    Vflow__StepResult result = VFLOW__STEP_RESULT__INIT;
    Vflow__Error error = VFLOW__ERROR__INIT;
    result.step_id = step->step_id;
    result.rows = rows;
    result.failed = code != VF_OK;
    result.stats = (Vflow__StepStats *)fill_stats(w);
    if (code != VF_OK && !peer_failed) {
        vf_wire_error_fill(&error, &cause);
        result.error = &error;
    }
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_STEP_RESULT;
    body.step_result = &result;
    return vf_member_send(w->member, message->request_id, &body, err);
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum vf_code serve_steps(struct worker *w, struct vf_err *err)
{
    for (;;) {
        enum vf_member_event event;
        const Vflow__Envelope *message;
        enum vf_code code = vf_member_next(w->member, -1, &event, &message, err);
        if (code == VF_OK && event == VF_MEMBER_STEP)
            code = handle_step(w, message, err);
        if (code != VF_OK || event == VF_MEMBER_OVER)
            return code;
    }
}

static enum vf_code follow_plan(struct worker *w, struct vf_err *err)
{
    const Vflow__Plan *plan;
    enum vf_code code = vf_member_wait_plan(w->member, &plan, err);
    if (code != VF_OK || !plan)
        return code;
    code = build(w, plan, err);
    if (code == VF_OK)
        code = say_ready(w, plan->settings->threads, err);
    return code == VF_OK ? serve_steps(w, err) : code;
}

static void deinit(struct worker *w)
{
    vf_executor_destroy(w->executor);
    if (w->experts)
        w->experts->ops->destroy(w->experts);
    pthread_mutex_lock(&w->orphan_lock);
    vf_mailboxes_close(w->mailboxes);
    vf_run_state_close(w->run_state);
    w->mailboxes = NULL;
    w->run_state = NULL;
    pthread_mutex_unlock(&w->orphan_lock);
    vf_shm_close(&w->logits);
    vf_placement_deinit(&w->placement);
    vf_program_deinit(&w->program);
    vf_bank_stripes_close(w->stripes);
    vf_model_file_close(w->file);
    free(w->columns);
    vf_member_destroy(w->member);
    pthread_mutex_destroy(&w->orphan_lock);
}

enum vf_code vf_stage_worker_run(const char *run_dir, uint32_t index, struct vf_err *err)
{
    struct worker w = {.index = index, .orphan_lock = PTHREAD_MUTEX_INITIALIZER};
    struct vf_member_params params = {.run_dir = run_dir,
                                      .role = VFLOW__ROLE__ROLE_STAGE,
                                      .index = index,
                                      .stop_fd = -1,
                                      .on_orphaned = end_run,
                                      .stats = fill_stats,
                                      .ctx = &w};
    enum vf_code code = vf_member_create(&params, &w.member, err);
    if (code != VF_OK)
        return code;
    code = follow_plan(&w, err);
    if (code != VF_OK)
        vf_member_fail(w.member, err);
    deinit(&w);
    return code;
}
