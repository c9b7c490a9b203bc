/* Buffers are handed out in the order in which values are made, each the first that is free: no
 * more than the most values that live at once.
 */
#include "common/model/part.h"

#include <stdlib.h>
#include <string.h>

/* The order restricted to the worker's operations. */
static void keep_own(const struct vf_program *p, const struct vf_placement *pl,
                     struct vf_part *part)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        uint32_t op = part->order[i];
        if (pl->op_worker[op] != part->worker)
            continue;
        part->order[part->op_count++] = op;
        part->op_counts[p->ops[op].kind]++;
    }
}

static void widen(struct vf_span *s, uint32_t slot)
{
    s->begin = slot < s->begin ? slot : s->begin;
    s->end = slot > s->end ? slot : s->end;
}

static void find_spans(const struct vf_program *p, struct vf_part *part)
{
    for (uint32_t v = 0; v < p->value_count; v++)
        part->spans[v] = (struct vf_span){UINT32_MAX, 0};
    for (uint32_t i = 0; i < part->op_count; i++) {
        const struct vf_op *op = &p->ops[part->order[i]];
        uint32_t slot = part->slot[part->order[i]];
        if (op->out != VF_VALUE_NONE)
            widen(&part->spans[op->out], slot);
        for (uint32_t k = 0; k < op->in_count; k++)
            widen(&part->spans[vf_op_inputs(p, op)[k]], slot);
    }
}

/* crosses [value_count]: those that come from another worker or go there. */
static void mark_crossing(const struct vf_placement *pl, uint32_t worker, bool *crosses)
{
    for (uint32_t e = 0; e < pl->edge_count; e++)
        if (pl->edges[e].from == worker || pl->edges[e].to == worker)
            crosses[pl->edges[e].value] = true;
}

/* busy_until [count]: the last slot in which a buffer is used. */
static uint32_t take_buffer(uint32_t *busy_until, uint32_t *count, struct vf_span span)
{
    uint32_t i = 0;
    while (i < *count && busy_until[i] >= span.begin)
        i++;
    if (i == *count)
        (*count)++;
    busy_until[i] = span.end;
    return i;
}

/* busy: room for two lists of value_count. */
static void assign_buffers(const struct vf_program *p, const bool *crosses, uint32_t *busy,
                           struct vf_part *part)
{
    memset(part->buffer, 0xff, p->value_count * sizeof *part->buffer);
    for (uint32_t i = 0; i < part->op_count; i++) {
        vf_value v = p->ops[part->order[i]].out;
        if (v == VF_VALUE_NONE || crosses[v])
            continue;
        bool route = p->values[v].is_route;
        part->buffer[v] =
            take_buffer(route ? busy + p->value_count : busy,
                        route ? &part->route_buffers : &part->value_buffers, part->spans[v]);
    }
}

enum vf_code vf_part_make(const struct vf_program *p, const struct vf_placement *placement,
                          uint32_t worker, enum vf_experts_when when, struct vf_part *out,
                          struct vf_err *err)
{
    *out = (struct vf_part){.worker = worker};
    size_t ops = p->op_count + 1u, values = p->value_count + 1u;
    bool *crosses = calloc(values, sizeof *crosses);
    uint32_t *busy = calloc(2 * values, sizeof *busy);
    out->order = calloc(ops, sizeof *out->order);
    out->slot = calloc(ops, sizeof *out->slot);
    out->spans = calloc(values, sizeof *out->spans);
    out->buffer = calloc(values, sizeof *out->buffer);
    bool whole = crosses && busy && out->order && out->slot && out->spans && out->buffer;
    if (whole) {
        vf_stages_order(p, when, out->order, out->slot);
        keep_own(p, placement, out);
        find_spans(p, out);
        mark_crossing(placement, worker, crosses);
        assign_buffers(p, crosses, busy, out);
    }
    free(crosses);
    free(busy);
    if (whole)
        return VF_OK;
    vf_part_deinit(out);
    return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u operations and %u values",
                      p->op_count, p->value_count);
}

void vf_part_deinit(struct vf_part *part)
{
    free(part->order);
    free(part->slot);
    free(part->spans);
    free(part->buffer);
    *part = (struct vf_part){0};
}
