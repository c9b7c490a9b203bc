/* The operations, and how a step runs: the schedule's actions (schedule.h) one behind the other.
 *
 * To add an operation: its struct, init and function in a file of its own (operation.h), a member
 * of struct vf_executor and a line of the table here, and what it needs of memory in
 * common/model/step_memory.c.
 */
#include "stage_worker/executor.h"

#include "stage_worker/attention.h"
#include "stage_worker/columns.h"
#include "stage_worker/dense.h"
#include "stage_worker/experts.h"
#include "stage_worker/fetch.h"
#include "stage_worker/head.h"
#include "stage_worker/route.h"
#include "stage_worker/schedule.h"
#include "stage_worker/weights.h"

#include "common/base/clock.h"
#include "common/base/util.h"

#include <stdlib.h>

#define HEAVY_KINDS 3u

struct vf_executor {
    struct core core;
    struct embed embed;
    struct norm norm;
    struct attention attention;
    struct dense dense;
    struct router router;
    struct fetch fetch;
    struct experts experts;
    struct sum sum;
    struct head head;
    struct schedule schedule;
    uint64_t compute_ns; /* see struct vf_executor_stats */
    uint64_t *op_ns;     /* [op_count] */
};

struct operation {
    size_t at; /* of its struct in the executor */
    init_fn *init;
    deinit_fn *deinit;         /* NULL: nothing to do */
    begin_step_fn *begin_step; /* NULL: nothing to do */
    /* One of: */
    column_fn *column;
    run_fn *run;
    phase_fn *phase;
};

#define SELF(member) .at = offsetof(struct vf_executor, member)
static const struct operation operations[VF_OP_KIND_COUNT] = {
    [VF_OP_EMBED] = {SELF(embed), .init = embed_init, .column = embed_column},
    [VF_OP_NORM] = {SELF(norm), .init = norm_init, .deinit = norm_deinit, .column = norm_column},
    [VF_OP_ATTENTION] = {SELF(attention), .init = attention_init, .deinit = attention_deinit,
                         .begin_step = attention_begin_step, .phase = attention_phase},
    [VF_OP_DENSE] = {SELF(dense), .init = dense_init, .deinit = dense_deinit, .phase = dense_phase},
    [VF_OP_ROUTE] = {SELF(router), .init = route_init, .deinit = route_deinit, .run = route_run},
    [VF_OP_FETCH] = {SELF(fetch), .init = fetch_init, .deinit = fetch_deinit,
                     .begin_step = fetch_begin_step, .run = fetch_run},
    [VF_OP_EXPERTS] = {SELF(experts), .init = experts_init, .deinit = experts_deinit,
                       .phase = experts_phase},
    [VF_OP_SUM] = {SELF(sum), .init = sum_init, .column = sum_column},
    [VF_OP_HEAD] = {SELF(head), .init = head_init, .run = head_run},
};

static const struct operation *operation_of(const struct vf_op *op)
{
    return &operations[op->kind];
}

/* The operation's struct. */
static void *self_of(struct vf_executor *ex, const struct operation *operation)
{
    return (uint8_t *)ex + operation->at;
}

/* The i-th of the part's operations, and its index in the program. */
static uint32_t op_idx_at(const struct vf_executor *ex, uint32_t i)
{
    return ex->core.part.order[i];
}
static const struct vf_op *op_at(const struct vf_executor *ex, uint32_t i)
{
    return &ex->core.p.program->ops[op_idx_at(ex, i)];
}

/* ---- columns and light operations -------------------------------------------------------------
 */

/* The operations of an ACTION_COLUMNS on one column after the other. */
static void run_columns(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct action *act = job->what;
    for (uint32_t c = begin; c < end; c++)
        for (uint32_t i = act->index; i < act->index + act->count; i++) {
            const struct vf_op *op = op_at(ex, i);
            operation_of(op)->column(self_of(ex, operation_of(op)), op, c);
        }
}

static void columns_action(struct vf_executor *ex, const struct action *act)
{
    uint64_t began = vf_now_ns();
    struct work *work = &ex->core.work;
    region_add(&work->region,
               (struct region_job){.run = run_columns,
                                   .ctx = ex,
                                   .what = act,
                                   .item_count = ex->core.step.n_col,
                                   .item_cost = 12ull * ex->core.stride * act->count});
    work_run(work);
    uint64_t each = (vf_now_ns() - began) / act->count;
    for (uint32_t i = act->index; i < act->index + act->count; i++)
        ex->op_ns[op_idx_at(ex, i)] += each;
}

static void light_action(struct vf_executor *ex, const struct action *act)
{
    const struct vf_op *op = op_at(ex, act->index);
    uint64_t began = vf_now_ns();
    operation_of(op)->run(self_of(ex, operation_of(op)), op);
    ex->op_ns[op_idx_at(ex, act->index)] += vf_now_ns() - began;
}

/* ---- heavy operations -------------------------------------------------------------------------
 */

/* A heavy operation under way. */
struct task {
    const struct vf_op *op;
    phase_fn *phase_fn;
    void *self;
    uint32_t phase;
    uint64_t cost; /* of what it added to the region */
    uint64_t *ns;
};

static struct task task_of(struct vf_executor *ex, uint32_t i)
{
    const struct vf_op *op = op_at(ex, i);
    return (struct task){.op = op,
                         .phase_fn = operation_of(op)->phase,
                         .self = self_of(ex, operation_of(op)),
                         .ns = &ex->op_ns[op_idx_at(ex, i)]};
}

/* Runs phases of a task until one has added jobs to the region or was the last. */
static enum vf_code advance(const struct region *region, struct task *t, struct vf_err *err)
{
    uint64_t began = vf_now_ns(), cost = region->cost;
    uint32_t jobs = region->count;
    enum vf_code code = VF_OK;
    while (code == VF_OK && t->phase != PHASE_END && region->count == jobs) {
        uint32_t next = t->phase + 1;
        code = t->phase_fn(t->self, t->op, t->phase, &next, err);
        t->phase = next;
    }
    t->cost = region->cost - cost;
    *t->ns += vf_now_ns() - began;
    return code;
}

/* Runs the operations of a stage side by side: each region has the next jobs of all. */
static enum vf_code heavy_action(struct vf_executor *ex, const struct action *act,
                                 struct vf_err *err)
{
    struct task tasks[HEAVY_KINDS];
    struct work *work = &ex->core.work;
    VF_ASSERT(act->count <= HEAVY_KINDS);
    for (uint32_t i = 0; i < act->count; i++)
        tasks[i] = task_of(ex, act->index + i);
    for (;;) {
        for (uint32_t i = 0; i < act->count; i++) {
            enum vf_code code = advance(&work->region, &tasks[i], err);
            if (code != VF_OK) {
                work_drop(work);
                return code;
            }
        }
        if (work->region.count == 0)
            return VF_OK;
        uint64_t began = vf_now_ns(), cost = vf_max_u64(work->region.cost, 1);
        work_run(work);
        double elapsed = (double)(vf_now_ns() - began);
        for (uint32_t i = 0; i < act->count; i++)
            *tasks[i].ns += (uint64_t)(elapsed * (double)tasks[i].cost / (double)cost);
    }
}

/* ---- running ----------------------------------------------------------------------------------
 */

static enum vf_code run_operations(struct vf_executor *ex, const struct action *act,
                                   uint64_t deadline_ns, struct vf_err *err)
{
    for (uint32_t i = act->index; i < act->index + act->count; i++) {
        enum vf_code code = values_claim(&ex->core.values, op_at(ex, i)->out, deadline_ns, err);
        if (code != VF_OK)
            return code;
    }
    if (act->kind == ACTION_HEAVY)
        return heavy_action(ex, act, err);
    if (act->kind == ACTION_COLUMNS)
        columns_action(ex, act);
    else
        light_action(ex, act);
    return VF_OK;
}

/* ---- numbers that left their range --------------------------------------------------------------
 */

static enum vf_code blame(struct vf_executor *ex, const char *what, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (ex->attention.kv)
        code = attention_blame(&ex->attention, err);
    return code ? code
                : vf_err_set(err, VF_ERR_LIMIT,
                             "%s isn't finite: the model's numbers leave the range of f32", what);
}

/* Whether a column ends in a row; a flow that doesn't speak may be what it likes. */
static bool leads_to_row(const struct core *core, uint32_t c)
{
    const struct vf_column *column = &core->step.columns[c];
    bool speaks = column->flow == 0 || core->config->flow_readout != VF_READOUT_PRIMARY;
    return speaks && core->step.columns[column->primary].want_row;
}

static bool is_finite(const struct core *core, const float *x)
{
    bool bad = false;
    for (uint32_t c = 0; c < core->step.n_col; c++)
        for (uint32_t i = 0; leads_to_row(core, c) && i < core->stride; i++)
            bad |= !(x[(size_t)c * core->stride + i] - x[(size_t)c * core->stride + i] == 0.0f);
    return !bad;
}

/* A value for another worker: what isn't finite would stay so until the head, and only here is it
 * known whence it came. */
static enum vf_code send(struct vf_executor *ex, uint32_t edge, uint64_t deadline_ns,
                         struct vf_err *err)
{
    const struct core *core = &ex->core;
    vf_value value = core->p.placement->edges[edge].value;
    bool bad = !is_finite(core, core->values.in[value]);
    enum vf_code code = values_send(&ex->core.values, &core->step, edge, bad, deadline_ns, err);
    return code || !bad ? code : blame(ex, core->p.program->values[value].name, err);
}

static enum vf_code run_action(struct vf_executor *ex, const struct action *act,
                               uint64_t deadline_ns, bool *peer_failed, struct vf_err *err)
{
    struct values *values = &ex->core.values;
    const struct step *step = &ex->core.step;
    enum vf_code code;
    switch (act->kind) {
    case ACTION_SEND:
        return send(ex, act->index, deadline_ns, err);
    case ACTION_RECEIVE:
        code = values_receive(values, step, act->index, deadline_ns, peer_failed, err);
        if (code == VF_OK && *peer_failed)
            code = vf_err_set(err, VF_ERR_PEER_LOST, "the step failed on stage worker %u",
                              ex->core.p.placement->edges[act->index].from);
        return code;
    case ACTION_RELEASE:
        values_release(values, act->index);
        return VF_OK;
    default:
        return run_operations(ex, act, deadline_ns, err);
    }
}

/* After a failure: keeps every edge in step with the other workers, without computing. */
static void drain(struct vf_executor *ex, uint32_t from_action, uint64_t deadline_ns)
{
    struct values *values = &ex->core.values;
    const struct step *step = &ex->core.step;
    values_release_all(values);
    for (uint32_t a = from_action; a < ex->schedule.count; a++) {
        const struct action *act = &ex->schedule.actions[a];
        bool failed;
        enum vf_code code = VF_OK;
        if (act->kind == ACTION_RECEIVE)
            code = values_receive(values, step, act->index, deadline_ns, &failed, NULL);
        else if (act->kind == ACTION_SEND)
            code = values_send(values, step, act->index, true, deadline_ns, NULL);
        values_release_all(values);
        if (code == VF_ERR_PEER_LOST)
            return;
    }
}

static uint64_t waits(const struct vf_executor *ex)
{
    return ex->core.work.region.barrier_ns + ex->core.values.wait_ns + ex->experts.stall_ns;
}

static void begin_step(struct vf_executor *ex, const struct vf_step *step, float *rows)
{
    step_set(&ex->core.step, step, ex->core.flows, rows);
    for (int k = 0; k < VF_OP_KIND_COUNT; k++)
        if (operations[k].begin_step && ex->core.part.op_counts[k])
            operations[k].begin_step(self_of(ex, &operations[k]));
}

enum vf_code vf_executor_run(struct vf_executor *ex, const struct vf_step *step,
                             uint64_t deadline_ns, float *rows, uint32_t *row_count,
                             bool *peer_failed, struct vf_err *err)
{
    *peer_failed = false;
    *row_count = 0;
    enum vf_code code = step_check(&ex->core.p, step, err);
    if (code != VF_OK)
        return code;
    uint64_t began = vf_now_ns(), waited = waits(ex), hops = ex->core.values.wait_ns;
    begin_step(ex, step, rows);
    uint32_t a = 0;
    for (; code == VF_OK && a < ex->schedule.count; a++) {
        code = vf_run_state_check(ex->core.p.run_state, err);
        if (code == VF_OK)
            code = run_action(ex, &ex->schedule.actions[a], deadline_ns, peer_failed, err);
    }
    if (code == VF_OK && ex->head.not_finite)
        code = blame(ex, "a row of log-probabilities", err);
    uint64_t took = vf_now_ns() - began;
    ex->compute_ns += took - (waits(ex) - waited);
    if (code == VF_OK)
        speculation_end_step(&ex->fetch.speculation, took - (ex->core.values.wait_ns - hops));
    else
        drain(ex, a, deadline_ns);
    if (code == VF_OK && ex->core.p.placement->head_worker == ex->core.p.worker)
        *row_count = ex->core.step.row_count;
    return code;
}

/* ---- life -------------------------------------------------------------------------------------
 */

static enum vf_code init_operations(struct vf_executor *ex, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int k = 0; code == VF_OK && k < VF_OP_KIND_COUNT; k++)
        if (ex->core.part.op_counts[k])
            code = operations[k].init(self_of(ex, &operations[k]), &ex->core, err);
    return code;
}

enum vf_code vf_executor_create(const struct vf_executor_params *params, struct vf_executor **out,
                                struct vf_err *err)
{
    struct vf_executor *ex = calloc(1, sizeof *ex);
    if (!ex)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an executor");
    enum vf_code code = core_init(&ex->core, params, err);
    if (code == VF_OK)
        code =
            schedule_init(&ex->schedule, params->program, params->placement, &ex->core.part, err);
    ex->op_ns = calloc(params->program->op_count, sizeof *ex->op_ns);
    if (code == VF_OK && !ex->op_ns)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an executor");
    if (code == VF_OK)
        code = init_operations(ex, err);
    if (code != VF_OK) {
        vf_executor_destroy(ex);
        return code;
    }
    *out = ex;
    return VF_OK;
}

void vf_executor_destroy(struct vf_executor *ex)
{
    if (!ex)
        return;
    for (int k = 0; k < VF_OP_KIND_COUNT; k++)
        if (operations[k].deinit)
            operations[k].deinit(self_of(ex, &operations[k]));
    schedule_deinit(&ex->schedule);
    core_deinit(&ex->core);
    free(ex->op_ns);
    free(ex);
}

uint64_t vf_executor_weight_bytes(const struct vf_executor *ex)
{
    return weights_bytes(&ex->core.p);
}

uint64_t vf_executor_kv_bytes(const struct vf_executor *ex)
{
    return ex->attention.kv ? vf_kv_cache_bytes(ex->attention.kv) : 0;
}

uint64_t vf_executor_buffer_bytes(const struct vf_executor *ex)
{
    return ex->core.memory_bytes;
}

enum vf_code vf_executor_verify(const struct vf_executor *ex, bool with_experts, struct vf_err *err)
{
    return weights_verify(&ex->core.p, with_experts, err);
}

const uint64_t *vf_executor_op_ns(const struct vf_executor *ex)
{
    return ex->op_ns;
}

void vf_executor_stats(const struct vf_executor *ex, struct vf_executor_stats *out)
{
    *out = (struct vf_executor_stats){.compute_ns = ex->compute_ns,
                                      .barrier_ns = ex->core.work.region.barrier_ns,
                                      .hop_ns = ex->core.values.wait_ns,
                                      .stall_ns = ex->experts.stall_ns,
                                      .weight_bytes = ex->core.work.weight_bytes};
}

bool vf_executor_speculates(const struct vf_executor *ex)
{
    return ex->fetch.speculation.any;
}

void vf_executor_speculation(const struct vf_executor *ex, struct vf_speculation_stats *out)
{
    speculation_stats(&ex->fetch.speculation, out);
}
