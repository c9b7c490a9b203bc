/* A light operation belongs to the first stage in which its inputs exist; a heavy one joins the
 * last stage so far, or opens a new one if that has its kind already.
 */
#include "common/model/stages.h"

#include "common/base/util.h"

struct walk {
    const struct vf_program *p;
    enum vf_experts_when when;
    uint32_t *stage;
    uint32_t stage_count;                 /* stages with heavy operations so far */
    uint32_t kind_from[VF_OP_KIND_COUNT]; /* the first stage that is free of a heavy kind */
};

/* The first stage in which all inputs of an operation exist. */
static uint32_t ready_stage(const struct walk *w, const struct vf_op *op)
{
    uint32_t ready = 0;
    for (uint32_t k = 0; k < op->in_count; k++) {
        uint32_t producer = w->p->values[vf_op_inputs(w->p, op)[k]].producer;
        uint32_t from = w->stage[producer] + vf_op_is_heavy(&w->p->ops[producer]);
        ready = from > ready ? from : ready;
    }
    return ready;
}

/* Beside attention, the last layer's dense FFN would delay the token's last order of experts, whose
 * read has nothing else to hide behind. */
static bool covers_last_read(const struct walk *w, const struct vf_op *op)
{
    return op->kind == VF_OP_DENSE && op->step_layer + 1 == w->p->effective_layers;
}

static uint32_t heavy_stage(struct walk *w, const struct vf_op *op)
{
    uint32_t stage = ready_stage(w, op);
    uint32_t last = w->stage_count ? w->stage_count - 1 : 0;
    bool experts = op->kind == VF_OP_EXPERTS;
    if (w->when == VF_EXPERTS_LATE && (experts || covers_last_read(w, op)))
        last = w->stage_count;
    if (!(experts && w->when == VF_EXPERTS_SYNC))
        stage = (uint32_t)vf_max_u64(stage, last);
    stage = (uint32_t)vf_max_u64(stage, w->kind_from[op->kind]);
    w->kind_from[op->kind] = stage + 1;
    if (w->stage_count <= stage)
        w->stage_count = stage + 1;
    return stage;
}

/* Stages ascending, light before heavy and these behind sync experts, else in program order. */
static uint32_t rank(const struct walk *w, uint32_t op_idx)
{
    const struct vf_op *op = &w->p->ops[op_idx];
    bool alone = op->kind == VF_OP_EXPERTS && w->when == VF_EXPERTS_SYNC;
    return 3 * w->stage[op_idx] + (!vf_op_is_heavy(op) ? 0 : alone ? 1 : 2);
}

void vf_stages_order(const struct vf_program *p, enum vf_experts_when when, uint32_t *order,
                     uint32_t *slot)
{
    struct walk w = {.p = p, .when = when, .stage = slot};
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct vf_op *op = &p->ops[i];
        w.stage[i] = vf_op_is_heavy(op) ? heavy_stage(&w, op) : ready_stage(&w, op);
        uint32_t at = i; /* the program is nearly in this order, so insertion moves little */
        for (; at > 0 && rank(&w, order[at - 1]) > rank(&w, i); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    /* From stages to slots, in place. */
    uint32_t next = 0, heavy_rank = UINT32_MAX;
    for (uint32_t i = 0; i < p->op_count; i++) {
        bool heavy = vf_op_is_heavy(&p->ops[order[i]]);
        uint32_t of_stage = rank(&w, order[i]);
        slot[order[i]] = heavy && of_stage == heavy_rank ? next - 1 : next++;
        heavy_rank = heavy ? of_stage : UINT32_MAX;
    }
}
