/* Runs one worker's schedule step by step; the other rooms build what it runs on (schedule.c,
 * weights.c, scratch.c) and do the work (attention.c, ffn.c, experts.c, head.c, work.c).
 */
#include "stage_worker/internal.h"

#include "common/base/clock.h"
#include "common/base/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAVY_KINDS 3u
/* Of attention (a query matrix of each flow, keys, values) and dense (a matrix of each flow). */
#define JOBS_BESIDE_EXPERTS (2u * VF_FLOWS_MAX + 8u)

/* ---- light operations --------------------------------------------------------------------------
 */

static void embed_column(const struct vf_executor *ex, const struct vf_op *op, uint32_t c)
{
    float *x = value_data(ex, op->out) + (size_t)c * ex->stride;
    uint32_t d = ex->config->hidden_size;
    vf_tile_unpack_row(&ex->embed[ex->columns[c].flow], ex->columns[c].token, x);
    if (ex->config->embedding_scale)
        ex->p.kernels->scale(sqrtf((float)d), d, x);
}

static void norm_column(const struct vf_executor *ex, const struct vf_op *op, uint32_t c)
{
    const float *w = op->norm == VF_NORM_FINAL  ? ex->final_norm
                     : op->norm == VF_NORM_ATTN ? ex->layers[op->layer].attn_norm
                                                : ex->layers[op->layer].ffn_norm;
    size_t at = (size_t)c * ex->stride;
    ex->p.kernels->rmsnorm(value_data(ex, vf_op_inputs(ex->p.program, op)[0]) + at, w,
                           ex->config->norm_weight_offset ? 1.0f : 0.0f, ex->config->norm_eps,
                           ex->config->hidden_size, value_data(ex, op->out) + at);
}

static void sum_column(const struct vf_executor *ex, const struct vf_op *op, uint32_t c)
{
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    uint32_t d = ex->config->hidden_size;
    size_t at = (size_t)c * ex->stride;
    float *out = value_data(ex, op->out) + at;
    memcpy(out, value_data(ex, in[0]) + at, d * sizeof *out);
    for (uint32_t i = 1; i < op->in_count; i++)
        ex->p.kernels->add(out, value_data(ex, in[i]) + at, d, out);
    if (op->scale != 1.0f)
        ex->p.kernels->scale(op->scale, d, out);
}

/* The operations of an ACTION_COLUMNS on one column after the other. */
static void run_columns(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    const struct vf_executor *ex = job->ctx;
    const struct action *act = job->what;
    for (uint32_t c = begin; c < end; c++)
        for (uint32_t i = act->index; i < act->index + act->count; i++) {
            const struct vf_op *op = &ex->p.program->ops[ex->order[i]];
            if (op->kind == VF_OP_EMBED)
                embed_column(ex, op, c);
            else if (op->kind == VF_OP_NORM)
                norm_column(ex, op, c);
            else
                sum_column(ex, op, c);
        }
}

static void columns_action(struct vf_executor *ex, const struct action *act)
{
    uint64_t began = vf_now_ns();
    region_add(&ex->region, (struct region_job){.run = run_columns,
                                                .ctx = ex,
                                                .what = act,
                                                .item_count = ex->n_col,
                                                .item_cost = 12ull * ex->stride * act->count});
    run_region(ex);
    uint64_t each = (vf_now_ns() - began) / act->count;
    for (uint32_t i = act->index; i < act->index + act->count; i++)
        ex->op_ns[ex->order[i]] += each;
}

static void light_action(struct vf_executor *ex, const struct action *act)
{
    const struct vf_op *op = &ex->p.program->ops[ex->order[act->index]];
    uint64_t began = vf_now_ns();
    if (op->kind == VF_OP_ROUTE)
        op_route(ex, op);
    else if (op->kind == VF_OP_FETCH)
        op_fetch(ex, op);
    else
        op_head(ex, op);
    ex->op_ns[ex->order[act->index]] += vf_now_ns() - began;
}

/* ---- heavy operations -------------------------------------------------------------------------
 */

/* A heavy operation under way. */
struct task {
    const struct vf_op *op;
    phase_fn *phase_fn;
    uint32_t phase;
    uint64_t cost; /* of what it added to the region */
    uint64_t *ns;
};

static struct task task_of(struct vf_executor *ex, uint32_t op_idx)
{
    const struct vf_op *op = &ex->p.program->ops[op_idx];
    phase_fn *fn = op->kind == VF_OP_ATTENTION ? attention_phase
                   : op->kind == VF_OP_DENSE   ? dense_phase
                                               : experts_phase;
    return (struct task){.op = op, .phase_fn = fn, .ns = &ex->op_ns[op_idx]};
}

/* Runs phases of a task until one has added jobs to the region or was the last. */
static enum vf_code advance(struct vf_executor *ex, struct task *t, struct vf_err *err)
{
    uint64_t began = vf_now_ns(), cost = ex->region.cost;
    uint32_t jobs = ex->region.count;
    enum vf_code code = VF_OK;
    while (code == VF_OK && t->phase != PHASE_END && ex->region.count == jobs) {
        uint32_t next = t->phase + 1;
        code = t->phase_fn(ex, t->op, t->phase, &next, err);
        t->phase = next;
    }
    t->cost = ex->region.cost - cost;
    *t->ns += vf_now_ns() - began;
    return code;
}

/* Runs the operations of a stage side by side: each region has the next jobs of all. */
static enum vf_code heavy_action(struct vf_executor *ex, const struct action *act,
                                 struct vf_err *err)
{
    struct task tasks[HEAVY_KINDS];
    VF_ASSERT(act->count <= HEAVY_KINDS);
    for (uint32_t i = 0; i < act->count; i++)
        tasks[i] = task_of(ex, ex->order[act->index + i]);
    for (;;) {
        for (uint32_t i = 0; i < act->count; i++) {
            enum vf_code code = advance(ex, &tasks[i], err);
            if (code != VF_OK) {
                drop_region(ex);
                return code;
            }
        }
        if (ex->region.count == 0)
            return VF_OK;
        uint64_t began = vf_now_ns(), cost = vf_max_u64(ex->region.cost, 1);
        run_region(ex);
        double elapsed = (double)(vf_now_ns() - began);
        for (uint32_t i = 0; i < act->count; i++)
            *tasks[i].ns += (uint64_t)(elapsed * (double)tasks[i].cost / (double)cost);
    }
}

/* ---- life: the KV cache -----------------------------------------------------------------------
 */

static enum vf_code create_kv(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    ex->kv_index = calloc(ex->p.program->effective_layers, sizeof *ex->kv_index);
    if (!ex->kv_index)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the KV cache index");
    uint32_t count = 0;
    for (uint32_t i = 0; i < ex->p.program->op_count; i++)
        if (is_mine(ex, i) && ex->p.program->ops[i].kind == VF_OP_ATTENTION)
            ex->kv_index[ex->p.program->ops[i].kv] = count++;
    struct vf_kv_shape shape = {.layers = count,
                                .sequences = ex->p.sequences,
                                .kv_heads = c->kv_head_count,
                                .head_dim = c->head_dim,
                                .context = ex->p.context,
                                .f16 = ex->p.kv_f16};
    return vf_kv_cache_create(&shape, &ex->kv, err);
}

/* ---- running ----------------------------------------------------------------------------------
 */

/* The contract of struct vf_step; what arrives came over a socket. */
static enum vf_code check_step(const struct vf_executor *ex, const struct vf_step *step,
                               struct vf_err *err)
{
    const struct vf_config *c = ex->config;
    uint32_t rows = 0, flow = 0, row_flows = 0;
    if (step->column_count == 0 || step->column_count > ex->p.columns_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu has %u columns, allowed are 1 to %u",
                          (unsigned long long)step->id, step->column_count, ex->p.columns_max);
    for (uint32_t i = 0; i < step->column_count; i++) {
        const struct vf_column *col = &step->columns[i];
        bool primary_fits = col->flow == 0
                                ? col->primary == i
                                : col->primary < i && step->columns[col->primary].flow == 0 &&
                                      step->columns[col->primary].position == col->position &&
                                      step->columns[col->primary].sequence == col->sequence;
        if (col->token >= c->vocab_size || col->position >= ex->p.context ||
            col->sequence >= ex->p.sequences || col->flow >= ex->flows || col->flow < flow ||
            !primary_fits || (col->want_row && col->flow != 0))
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "step %llu column %u is out of place: token %u, position %u, "
                              "sequence %u, flow %u, primary %u",
                              (unsigned long long)step->id, i, col->token, col->position,
                              col->sequence, col->flow, col->primary);
        flow = col->flow;
        rows += col->want_row;
        row_flows += col->flow > 0 && step->columns[col->primary].want_row;
    }
    if (row_flows != rows * (ex->flows - 1))
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "step %llu wants %u rows, but has %u auxiliary columns for them, not %u",
                          (unsigned long long)step->id, rows, row_flows, rows * (ex->flows - 1));
    if (rows > ex->p.rows_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu wants %u rows, allowed are %u",
                          (unsigned long long)step->id, rows, ex->p.rows_max);
    return VF_OK;
}

static void set_step(struct vf_executor *ex, const struct vf_step *step, float *rows)
{
    ex->columns = step->columns;
    ex->n_col = step->column_count;
    ex->step_id = step->id;
    ex->rows = rows;
    ex->row_count = 0;
    uint32_t c = 0;
    for (uint32_t j = 0; j < ex->flows; j++) {
        ex->flow_begin[j] = c;
        while (c < ex->n_col && ex->columns[c].flow == j)
            c++;
    }
    ex->flow_begin[ex->flows] = c;
    ex->n_primary = ex->flows > 1 ? ex->flow_begin[1] : c;
    for (uint32_t i = 0; i < ex->n_primary; i++)
        ex->row_count += ex->columns[i].want_row;
    attention_prepare_step(ex);
}

static enum vf_code receive(struct vf_executor *ex, uint32_t edge, uint64_t deadline_ns,
                            bool *failed, struct vf_err *err)
{
    const float *data;
    uint64_t began = vf_now_ns();
    enum vf_code code =
        vf_mailbox_take(ex->p.mailboxes, edge, ex->step_id, deadline_ns, &data, failed, err);
    ex->stats.hop_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return vf_err_prepend(err,
                              "stage worker %u waiting for %s from stage worker %u: ", ex->p.worker,
                              ex->p.program->values[ex->p.placement->edges[edge].value].name,
                              ex->p.placement->edges[edge].from);
    if (!*failed)
        memcpy(value_data(ex, ex->p.placement->edges[edge].value), data,
               (size_t)ex->n_col * ex->stride * sizeof *data);
    vf_mailbox_release(ex->p.mailboxes, edge);
    return VF_OK;
}

static enum vf_code send(struct vf_executor *ex, uint32_t edge, bool failed, uint64_t deadline_ns,
                         struct vf_err *err)
{
    float *data;
    uint64_t began = vf_now_ns();
    enum vf_code code = vf_mailbox_claim(ex->p.mailboxes, edge, deadline_ns, &data, err);
    ex->stats.hop_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return vf_err_prepend(err, "stage worker %u sending %s to stage worker %u: ", ex->p.worker,
                              ex->p.program->values[ex->p.placement->edges[edge].value].name,
                              ex->p.placement->edges[edge].to);
    if (!failed)
        memcpy(data, value_data(ex, ex->p.placement->edges[edge].value),
               (size_t)ex->n_col * ex->stride * sizeof *data);
    vf_mailbox_post(ex->p.mailboxes, edge, ex->step_id, failed);
    return VF_OK;
}

/* After a failure: keeps every edge in step with the other workers, without computing. */
static void drain(struct vf_executor *ex, uint32_t from_action, uint64_t deadline_ns)
{
    for (uint32_t a = from_action; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        bool failed;
        enum vf_code code = VF_OK;
        if (act.kind == ACTION_RECEIVE)
            code = receive(ex, act.index, deadline_ns, &failed, NULL);
        else if (act.kind == ACTION_SEND)
            code = send(ex, act.index, true, deadline_ns, NULL);
        if (code == VF_ERR_PEER_LOST)
            return;
    }
}

static enum vf_code run_action(struct vf_executor *ex, struct action act, uint64_t deadline_ns,
                               bool *peer_failed, struct vf_err *err)
{
    if (act.kind == ACTION_SEND)
        return send(ex, act.index, false, deadline_ns, err);
    if (act.kind == ACTION_HEAVY)
        return heavy_action(ex, &act, err);
    if (act.kind == ACTION_COLUMNS)
        columns_action(ex, &act);
    else if (act.kind == ACTION_OP)
        light_action(ex, &act);
    if (act.kind != ACTION_RECEIVE)
        return VF_OK;
    enum vf_code code = receive(ex, act.index, deadline_ns, peer_failed, err);
    if (code == VF_OK && *peer_failed)
        code = vf_err_set(err, VF_ERR_PEER_LOST, "the step failed on stage worker %u",
                          ex->p.placement->edges[act.index].from);
    return code;
}

static uint64_t waits(const struct vf_executor *ex)
{
    return ex->region.barrier_ns + ex->stats.hop_ns + ex->stats.stall_ns;
}

enum vf_code vf_executor_run(struct vf_executor *ex, const struct vf_step *step,
                             uint64_t deadline_ns, float *rows, uint32_t *row_count,
                             bool *peer_failed, struct vf_err *err)
{
    *peer_failed = false;
    *row_count = 0;
    enum vf_code code = check_step(ex, step, err);
    if (code != VF_OK)
        return code;
    uint64_t began = vf_now_ns();
    uint64_t waited = waits(ex), hops = ex->stats.hop_ns;
    set_step(ex, step, rows);
    speculation_begin_step(ex);
    uint32_t a = 0;
    for (; code == VF_OK && a < ex->action_count; a++) {
        code = vf_run_state_check(ex->p.run_state, err);
        if (code == VF_OK)
            code = run_action(ex, ex->actions[a], deadline_ns, peer_failed, err);
    }
    ex->stats.compute_ns += vf_now_ns() - began - (waits(ex) - waited);
    if (code == VF_OK)
        speculation_end_step(ex, vf_now_ns() - began - (ex->stats.hop_ns - hops));
    else
        drain(ex, a, deadline_ns);
    if (code == VF_OK && ex->p.placement->head_worker == ex->p.worker)
        *row_count = ex->row_count;
    return code;
}

/* ---- life -------------------------------------------------------------------------------------
 */

enum vf_code vf_executor_create(const struct vf_executor_params *params, struct vf_executor **out,
                                struct vf_err *err)
{
    struct vf_executor *ex = calloc(1, sizeof *ex);
    if (!ex)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an executor");
    ex->p = *params;
    ex->config = vf_model_file_config(params->file);
    ex->flows = ex->config->flow_count;
    ex->stride = (uint32_t)vf_round_up(ex->config->hidden_size, 32);
    uint32_t jobs = ex->config->expert_count + JOBS_BESIDE_EXPERTS;
    enum vf_code code = vf_pool_create(params->threads, &ex->pool, err);
    if (code == VF_OK)
        code = region_init(&ex->region, ex->pool, jobs, err);
    ex->matmuls = calloc(jobs, sizeof *ex->matmuls);
    if (code == VF_OK && !ex->matmuls)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an executor");
    if (code == VF_OK)
        code = schedule_build(ex, err);
    if (code == VF_OK)
        code = weights_load(ex, err);
    if (code == VF_OK)
        code = create_kv(ex, err);
    if (code == VF_OK)
        code = scratch_alloc(ex, err);
    if (code == VF_OK)
        code = speculation_create(ex, err);
    if (code != VF_OK) {
        vf_executor_destroy(ex);
        return code;
    }
    attention_init(ex);
    *out = ex;
    return VF_OK;
}

void vf_executor_destroy(struct vf_executor *ex)
{
    if (!ex)
        return;
    vf_pool_destroy(ex->pool);
    region_deinit(&ex->region);
    free(ex->matmuls);
    scratch_free(ex);
    speculation_destroy(ex);
    vf_kv_cache_destroy(ex->kv);
    free(ex->value_buffer);
    free(ex->layers);
    free(ex->kv_index);
    free(ex->order);
    free(ex->slot);
    free(ex->actions);
    free(ex->op_ns);
    free(ex);
}

uint64_t vf_executor_kv_bytes(const struct vf_executor *ex)
{
    return vf_kv_cache_bytes(ex->kv);
}

const uint64_t *vf_executor_op_ns(const struct vf_executor *ex)
{
    return ex->op_ns;
}

void vf_executor_stats(const struct vf_executor *ex, struct vf_executor_stats *out)
{
    *out = ex->stats;
    out->barrier_ns = ex->region.barrier_ns;
}
