#include "stage_worker/fetch.h"

_Static_assert(sizeof(struct vf_expert_ref) == VF_EXPERT_REF_BYTES, "what the memory plan counts");

enum vf_code fetch_init(void *self, struct core *core, struct vf_err *err)
{
    struct fetch *f = self;
    const struct vf_fetch_space *space = &core->space.fetch;
    f->core = core;
    f->set = (struct expert_set){.experts = space->set.experts, .index = space->set.index};
    f->refs = space->refs;
    return speculation_init(&f->speculation, core, err);
}

void fetch_deinit(void *self)
{
    struct fetch *f = self;
    speculation_deinit(&f->speculation);
}

void fetch_begin_step(void *self)
{
    struct fetch *f = self;
    speculation_begin_step(&f->speculation);
}

void fetch_run(void *self, const struct vf_op *op)
{
    struct fetch *f = self;
    struct vf_expert_source *source = f->core->p.experts;
    expert_set_collect(&f->set, f->core, value_route(f->core, op_input(f->core, op, 0)));
    for (uint32_t i = 0; i < f->set.count; i++)
        f->refs[i] = (struct vf_expert_ref){op->layer, f->set.experts[i]};
    source->ops->fetch(source, f->refs, f->set.count, deadline_rank(f->core, op),
                       VF_FETCH_SCHEDULED);
    speculation_after_fetch(&f->speculation, op, f->refs, f->set.count);
    expert_set_forget(&f->set);
}
