/* One worker's schedule: the execution order (common/model/stages.h) restricted to its operations,
 * with a receive before the first reader of each incoming edge and a send right after each
 * producer, and a buffer for every value it holds, assigned by liveness.
 */
#include "stage_worker/internal.h"

#include <stdlib.h>

bool is_mine(const struct vf_executor *ex, uint32_t op_idx)
{
    return ex->p.placement->op_worker[op_idx] == ex->p.worker;
}

static void append(struct vf_executor *ex, enum action_kind kind, uint32_t index, uint32_t count)
{
    ex->actions[ex->action_count++] = (struct action){kind, index, count};
}

/* Receives what an operation reads and this worker doesn't have yet. */
static void receive_inputs(struct vf_executor *ex, const struct vf_op *op, bool *received)
{
    const struct vf_placement *pl = ex->p.placement;
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    for (uint32_t e = 0; e < pl->edge_count; e++)
        for (uint32_t i = 0; i < op->in_count; i++)
            if (pl->edges[e].to == ex->p.worker && pl->edges[e].value == in[i] && !received[e]) {
                received[e] = true;
                append(ex, ACTION_RECEIVE, e, 0);
            }
}

static void send_output(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_placement *pl = ex->p.placement;
    for (uint32_t e = 0; e < pl->edge_count; e++)
        if (pl->edges[e].from == ex->p.worker && pl->edges[e].value == op->out)
            append(ex, ACTION_SEND, e, 0);
}

static enum action_kind kind_of(const struct vf_op *op)
{
    if (vf_op_is_heavy(op))
        return ACTION_HEAVY;
    return op->kind == VF_OP_EMBED || op->kind == VF_OP_NORM || op->kind == VF_OP_SUM
               ? ACTION_COLUMNS
               : ACTION_OP;
}

/* Appends operations [begin, end) of the order, which share a slot: as one more of the columns in
 * front of it, where there's nothing to receive or send in between, else as an action. */
static void schedule_slot(struct vf_executor *ex, uint32_t begin, uint32_t end, bool *received)
{
    const struct vf_op *ops = ex->p.program->ops;
    for (uint32_t i = begin; i < end; i++)
        receive_inputs(ex, &ops[ex->order[i]], received);
    enum action_kind kind = kind_of(&ops[ex->order[begin]]);
    struct action *last = ex->action_count ? &ex->actions[ex->action_count - 1] : NULL;
    if (last && kind == ACTION_COLUMNS && last->kind == kind)
        last->count++;
    else
        append(ex, kind, begin, end - begin);
    for (uint32_t i = begin; i < end; i++)
        send_output(ex, &ops[ex->order[i]]);
}

/* The order restricted to this worker's operations. */
static uint32_t keep_mine(struct vf_executor *ex)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ex->p.program->op_count; i++)
        if (is_mine(ex, ex->order[i]))
            ex->order[n++] = ex->order[i];
    return n;
}

static enum vf_code list_actions(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    ex->op_ns = calloc(p->op_count, sizeof *ex->op_ns);
    ex->order = calloc(p->op_count, sizeof *ex->order);
    ex->slot = calloc(p->op_count, sizeof *ex->slot);
    ex->actions = calloc(p->op_count + 2ull * ex->p.placement->edge_count, sizeof *ex->actions);
    bool *received = calloc(ex->p.placement->edge_count + 1ull, sizeof *received);
    if (!ex->op_ns || !ex->order || !ex->slot || !ex->actions || !received) {
        free(received);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the schedule");
    }
    vf_stages_order(p, ex->p.experts_when, ex->order, ex->slot);
    uint32_t count = keep_mine(ex);
    for (uint32_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1;
             end < count && ex->slot[ex->order[end]] == ex->slot[ex->order[begin]];)
            end++;
        schedule_slot(ex, begin, end, received);
    }
    free(received);
    return VF_OK;
}

/* ---- buffers ----------------------------------------------------------------------------------
 */

/* The last slot in which this worker reads, makes or sends each value. */
static void find_last_uses(const struct vf_executor *ex, uint32_t *last)
{
    const struct vf_program *p = ex->p.program;
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!is_mine(ex, i))
            continue;
        const struct vf_op *op = &p->ops[i];
        if (op->out != VF_VALUE_NONE && last[op->out] < ex->slot[i])
            last[op->out] = ex->slot[i];
        for (uint32_t k = 0; k < op->in_count; k++) {
            vf_value v = vf_op_inputs(p, op)[k];
            last[v] = last[v] < ex->slot[i] ? ex->slot[i] : last[v];
        }
    }
}

/* Buffers of one kind while they are handed out. */
struct buffers {
    uint32_t *busy_until; /* [count]: the last slot in which it is used */
    uint32_t count;
};

static uint32_t buffer_take(struct buffers *b, uint32_t slot, uint32_t last)
{
    uint32_t i = 0;
    while (i < b->count && b->busy_until[i] >= slot)
        i++;
    if (i == b->count)
        b->count++;
    b->busy_until[i] = last;
    return i;
}

/* pools: residuals and routing decisions. */
static void assign_buffer(struct vf_executor *ex, vf_value v, uint32_t slot, const uint32_t *last,
                          struct buffers *pools)
{
    if (v != VF_VALUE_NONE)
        ex->value_buffer[v] = buffer_take(&pools[ex->p.program->values[v].is_route], slot, last[v]);
}

/* Gives every value a buffer, reusing those whose value is dead. A value lives from the slot that
 * makes it, or that first reads what was received. */
static enum vf_code assign_buffers(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    uint32_t *last = calloc(p->value_count + 1ull, sizeof *last);
    struct buffers pools[2] = {{calloc(p->value_count + 1ull, sizeof(uint32_t)), 0},
                               {calloc(p->value_count + 1ull, sizeof(uint32_t)), 0}};
    ex->value_buffer = calloc(p->value_count + 1ull, sizeof *ex->value_buffer);
    enum vf_code code = VF_OK;
    if (!last || !pools[0].busy_until || !pools[1].busy_until || !ex->value_buffer) {
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u values", p->value_count);
        goto out;
    }
    find_last_uses(ex, last);
    uint32_t next = 0; /* the first operation in the order that isn't passed */
    for (uint32_t a = 0; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        if (act.kind == ACTION_RECEIVE)
            assign_buffer(ex, ex->p.placement->edges[act.index].value, ex->slot[ex->order[next]],
                          last, pools);
        for (uint32_t i = 0; act.kind != ACTION_RECEIVE && i < act.count; i++, next++)
            assign_buffer(ex, p->ops[ex->order[next]].out, ex->slot[ex->order[next]], last, pools);
    }
    ex->buffer_count = pools[false].count;
    ex->route_count = pools[true].count;
out:
    free(last);
    free(pools[0].busy_until);
    free(pools[1].busy_until);
    return code;
}

enum vf_code schedule_build(struct vf_executor *ex, struct vf_err *err)
{
    enum vf_code code = list_actions(ex, err);
    if (code == VF_OK)
        code = assign_buffers(ex, err);
    return code;
}
