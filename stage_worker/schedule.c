/* One worker's schedule: the program restricted to its operations, with a receive before the first
 * reader of each incoming edge and a send right after each producer, and a buffer for every value
 * it holds, assigned by liveness.
 */
#include "stage_worker/internal.h"

#include <stdlib.h>

bool is_mine(const struct vf_executor *ex, uint32_t op_idx)
{
    return ex->p.placement->op_worker[op_idx] == ex->p.worker;
}

/* Appends an operation with the receives in front of it and the sends behind it. */
static void schedule_op(struct vf_executor *ex, uint32_t op_idx, bool *received)
{
    const struct vf_placement *pl = ex->p.placement;
    const struct vf_op *op = &ex->p.program->ops[op_idx];
    const vf_value *in = vf_op_inputs(ex->p.program, op);
    for (uint32_t e = 0; e < pl->edge_count; e++)
        for (uint32_t i = 0; i < op->in_count; i++)
            if (pl->edges[e].to == ex->p.worker && pl->edges[e].value == in[i] && !received[e]) {
                received[e] = true;
                ex->actions[ex->action_count++] = (struct action){ACTION_RECEIVE, e};
            }
    ex->actions[ex->action_count++] = (struct action){ACTION_OP, op_idx};
    for (uint32_t e = 0; e < pl->edge_count; e++)
        if (pl->edges[e].from == ex->p.worker && pl->edges[e].value == op->out)
            ex->actions[ex->action_count++] = (struct action){ACTION_SEND, e};
}

/* The EXPERTS operation of a FETCH: the one that reads the same routing decision. */
static uint32_t experts_of_fetch(const struct vf_program *p, const struct vf_op *fetch)
{
    vf_value route = vf_op_inputs(p, fetch)[0];
    for (uint32_t i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == VF_OP_EXPERTS && vf_op_inputs(p, &p->ops[i])[1] == route)
            return i;
    VF_ASSERT(!"every fetch has its experts");
    return 0;
}

static enum vf_code list_actions(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    ex->op_ns = calloc(p->op_count, sizeof *ex->op_ns);
    ex->actions = calloc(p->op_count + 2ull * ex->p.placement->edge_count, sizeof *ex->actions);
    bool *received = calloc(ex->p.placement->edge_count + 1ull, sizeof *received);
    if (!ex->op_ns || !ex->actions || !received) {
        free(received);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the schedule");
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!is_mine(ex, i) || (ex->p.sync && p->ops[i].kind == VF_OP_EXPERTS))
            continue;
        schedule_op(ex, i, received);
        if (ex->p.sync && p->ops[i].kind == VF_OP_FETCH)
            schedule_op(ex, experts_of_fetch(p, &p->ops[i]), received);
    }
    free(received);
    return VF_OK;
}

/* Last action that reads or sends each value; UINT32_MAX for values this worker never holds. */
static void find_last_uses(const struct vf_executor *ex, uint32_t *last)
{
    const struct vf_program *p = ex->p.program;
    for (uint32_t a = 0; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        if (act.kind != ACTION_OP) {
            last[ex->p.placement->edges[act.index].value] = a;
            continue;
        }
        const struct vf_op *op = &p->ops[act.index];
        if (op->out != VF_VALUE_NONE)
            last[op->out] = a;
        for (uint32_t i = 0; i < op->in_count; i++)
            last[vf_op_inputs(p, op)[i]] = a;
    }
}

/* Buffers of one kind while they are handed out. */
struct slots {
    uint32_t *free_after; /* [count]: the slot is free from this action on */
    uint32_t count;
};

static uint32_t slot_take(struct slots *s, uint32_t now, uint32_t last)
{
    uint32_t i = 0;
    while (i < s->count && s->free_after[i] >= now)
        i++;
    if (i == s->count)
        s->count++;
    s->free_after[i] = last;
    return i;
}

/* Gives every value a buffer, reusing those whose value is dead. */
static enum vf_code assign_buffers(struct vf_executor *ex, struct vf_err *err)
{
    const struct vf_program *p = ex->p.program;
    uint32_t *last = calloc(p->value_count + 1ull, sizeof *last);
    struct slots data = {calloc(p->value_count + 1ull, sizeof(uint32_t)), 0};
    struct slots routes = {calloc(p->value_count + 1ull, sizeof(uint32_t)), 0};
    ex->value_buffer = calloc(p->value_count + 1ull, sizeof *ex->value_buffer);
    enum vf_code code = VF_OK;
    if (!last || !data.free_after || !routes.free_after || !ex->value_buffer) {
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u values", p->value_count);
        goto out;
    }
    find_last_uses(ex, last);
    for (uint32_t a = 0; a < ex->action_count; a++) {
        struct action act = ex->actions[a];
        vf_value v = act.kind == ACTION_OP        ? p->ops[act.index].out
                     : act.kind == ACTION_RECEIVE ? ex->p.placement->edges[act.index].value
                                                  : VF_VALUE_NONE;
        if (v != VF_VALUE_NONE)
            ex->value_buffer[v] = slot_take(p->values[v].is_route ? &routes : &data, a, last[v]);
    }
    ex->buffer_count = data.count;
    ex->route_count = routes.count;
out:
    free(last);
    free(data.free_after);
    free(routes.free_after);
    return code;
}

enum vf_code schedule_build(struct vf_executor *ex, struct vf_err *err)
{
    enum vf_code code = list_actions(ex, err);
    if (code == VF_OK)
        code = assign_buffers(ex, err);
    return code;
}
