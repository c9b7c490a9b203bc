#include "stage_worker/schedule.h"

#include <stdlib.h>

/* Building a schedule. */
struct build {
    const struct vf_program *program;
    const struct vf_placement *placement;
    const struct vf_part *part;
    struct schedule *schedule;
    enum { NOT_RECEIVED, RECEIVED, RELEASED } * edges; /* [edge_count]: those to this worker */
};

static void append(struct schedule *s, enum action_kind kind, uint32_t index, uint32_t count)
{
    s->actions[s->count++] = (struct action){kind, index, count};
}

static const struct vf_op *op_at(const struct build *b, uint32_t i)
{
    return &b->program->ops[b->part->order[i]];
}

static uint32_t slot_at(const struct build *b, uint32_t i)
{
    return b->part->slot[b->part->order[i]];
}

/* Receives what an operation reads and this worker doesn't have yet. */
static void receive_inputs(const struct build *b, const struct vf_op *op)
{
    const struct vf_edge *edges = b->placement->edges;
    const vf_value *in = vf_op_inputs(b->program, op);
    for (uint32_t e = 0; e < b->placement->edge_count; e++)
        for (uint32_t i = 0; i < op->in_count; i++)
            if (edges[e].to == b->part->worker && edges[e].value == in[i] &&
                b->edges[e] == NOT_RECEIVED) {
                b->edges[e] = RECEIVED;
                append(b->schedule, ACTION_RECEIVE, e, 0);
            }
}

/* Releases what was read for the last time before a slot. */
static void release_before(const struct build *b, uint32_t slot)
{
    const struct vf_edge *edges = b->placement->edges;
    for (uint32_t e = 0; e < b->placement->edge_count; e++)
        if (b->edges[e] == RECEIVED && b->part->spans[edges[e].value].end < slot) {
            b->edges[e] = RELEASED;
            append(b->schedule, ACTION_RELEASE, e, 0);
        }
}

static void send_output(const struct build *b, const struct vf_op *op)
{
    const struct vf_edge *edges = b->placement->edges;
    for (uint32_t e = 0; e < b->placement->edge_count; e++)
        if (edges[e].from == b->part->worker && edges[e].value == op->out)
            append(b->schedule, ACTION_SEND, e, 0);
}

static enum action_kind kind_of(const struct vf_op *op)
{
    if (vf_op_is_heavy(op))
        return ACTION_HEAVY;
    return op->kind == VF_OP_EMBED || op->kind == VF_OP_NORM || op->kind == VF_OP_SUM
               ? ACTION_COLUMNS
               : ACTION_OP;
}

/* The last action, if it goes column by column. */
static struct action *last_columns(const struct schedule *s)
{
    struct action *last = s->count ? &s->actions[s->count - 1] : NULL;
    return last && last->kind == ACTION_COLUMNS ? last : NULL;
}

/* Appends operations [begin, end) of the order, which share a slot: as one more of the columns in
 * front of it, where there's nothing to receive or send in between, else as an action. */
static void schedule_slot(const struct build *b, uint32_t begin, uint32_t end)
{
    enum action_kind kind = kind_of(op_at(b, begin));
    if (kind != ACTION_COLUMNS || !last_columns(b->schedule))
        release_before(b, slot_at(b, begin));
    for (uint32_t i = begin; i < end; i++)
        receive_inputs(b, op_at(b, i));
    struct action *columns = kind == ACTION_COLUMNS ? last_columns(b->schedule) : NULL;
    if (columns)
        columns->count++;
    else
        append(b->schedule, kind, begin, end - begin);
    for (uint32_t i = begin; i < end; i++)
        send_output(b, op_at(b, i));
}

enum vf_code schedule_init(struct schedule *s, const struct vf_program *program,
                           const struct vf_placement *placement, const struct vf_part *part,
                           struct vf_err *err)
{
    struct build b = {.program = program, .placement = placement, .part = part, .schedule = s};
    s->count = 0;
    s->actions = calloc(part->op_count + 3ull * placement->edge_count, sizeof *s->actions);
    b.edges = calloc(placement->edge_count + 1ull, sizeof *b.edges);
    if (!s->actions || !b.edges) {
        free(b.edges);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the schedule");
    }
    for (uint32_t begin = 0, end; begin < part->op_count; begin = end) {
        for (end = begin + 1; end < part->op_count && slot_at(&b, end) == slot_at(&b, begin);)
            end++;
        schedule_slot(&b, begin, end);
    }
    release_before(&b, UINT32_MAX);
    free(b.edges);
    return VF_OK;
}

void schedule_deinit(struct schedule *s)
{
    free(s->actions);
}
