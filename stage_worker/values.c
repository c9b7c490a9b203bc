#include "stage_worker/values.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

static const struct vf_edge *edge_of(const struct values *v, uint32_t edge)
{
    return &v->p->placement->edges[edge];
}

/* Values with a buffer of this worker's own lie there for good. */
static void place_own(struct values *v)
{
    const struct vf_program *p = v->p->program;
    for (uint32_t i = 0; i < p->value_count; i++)
        if (!p->values[i].is_route && v->part->buffer[i] != VF_BUFFER_NONE)
            v->in[i] = v->out[i] = v->space.buffers[v->part->buffer[i]];
}

static void list_edges(struct values *v)
{
    const struct vf_placement *pl = v->p->placement;
    memset(v->edge_out, 0xff, v->p->program->value_count * sizeof *v->edge_out);
    for (uint32_t e = pl->edge_count; e-- > 0;)
        if (pl->edges[e].from == v->p->worker)
            v->edge_out[pl->edges[e].value] = e;
}

enum vf_code values_init(struct values *v, const struct vf_executor_params *p,
                         const struct vf_part *part, const struct vf_step_space *space,
                         struct vf_err *err)
{
    *v = (struct values){.p = p, .part = part, .space = space->values, .stride = space->stride};
    uint32_t count = p->program->value_count;
    v->in = calloc(count, sizeof *v->in);
    v->out = calloc(count, sizeof *v->out);
    v->edge_out = calloc(count, sizeof *v->edge_out);
    v->held = calloc(p->placement->edge_count + 1ull, sizeof *v->held);
    if (!v->in || !v->out || !v->edge_out || !v->held)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u values", count);
    place_own(v);
    list_edges(v);
    return VF_OK;
}

void values_deinit(struct values *v)
{
    free(v->in);
    free(v->out);
    free(v->edge_out);
    free(v->held);
}

static enum vf_code claim(struct values *v, uint32_t edge, uint64_t deadline_ns, float **data,
                          struct vf_err *err)
{
    uint64_t began = vf_now_ns();
    enum vf_code code = vf_mailbox_claim(v->p->mailboxes, edge, deadline_ns, data, err);
    v->wait_ns += vf_now_ns() - began;
    if (code == VF_OK)
        return VF_OK;
    return vf_err_prepend(err, "stage worker %u sending %s to stage worker %u: ", v->p->worker,
                          v->p->program->values[edge_of(v, edge)->value].name,
                          edge_of(v, edge)->to);
}

enum vf_code values_claim(struct values *v, vf_value value, uint64_t deadline_ns,
                          struct vf_err *err)
{
    if (value == VF_VALUE_NONE || v->edge_out[value] == EDGE_NONE)
        return VF_OK;
    enum vf_code code = claim(v, v->edge_out[value], deadline_ns, &v->out[value], err);
    v->in[value] = v->out[value];
    return code;
}

enum vf_code values_send(struct values *v, const struct step *step, uint32_t edge, bool failed,
                         uint64_t deadline_ns, struct vf_err *err)
{
    vf_value value = edge_of(v, edge)->value;
    if (failed || edge != v->edge_out[value]) {
        float *data;
        enum vf_code code = claim(v, edge, deadline_ns, &data, err);
        if (code != VF_OK)
            return code;
        if (!failed)
            memcpy(data, v->in[value], step->n_col * v->stride * sizeof *data);
    }
    vf_mailbox_post(v->p->mailboxes, edge, step->id, failed);
    return VF_OK;
}

enum vf_code values_receive(struct values *v, const struct step *step, uint32_t edge,
                            uint64_t deadline_ns, bool *failed, struct vf_err *err)
{
    const struct vf_edge *e = edge_of(v, edge);
    uint64_t began = vf_now_ns();
    enum vf_code code = vf_mailbox_take(v->p->mailboxes, edge, step->id, deadline_ns,
                                        &v->in[e->value], failed, err);
    v->wait_ns += vf_now_ns() - began;
    if (code != VF_OK)
        return vf_err_prepend(err,
                              "stage worker %u waiting for %s from stage worker %u: ", v->p->worker,
                              v->p->program->values[e->value].name, e->from);
    v->held[edge] = true;
    if (*failed)
        values_release(v, edge);
    return VF_OK;
}

void values_release(struct values *v, uint32_t edge)
{
    if (!v->held[edge])
        return;
    v->held[edge] = false;
    vf_mailbox_release(v->p->mailboxes, edge);
}

void values_release_all(struct values *v)
{
    for (uint32_t e = 0; e < v->p->placement->edge_count; e++)
        values_release(v, e);
}
