#include "bench/experts/recording_source.h"

#include <stdlib.h>

struct recording_source {
    struct vf_expert_source base;
    struct vf_expert_source *inner;
    struct vf_routing_recorder *recorder;
};

static struct vf_expert_source *inner_of(const struct vf_expert_source *s)
{
    return ((const struct recording_source *)s)->inner;
}

static void recording_fetch(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                            uint32_t n, uint64_t deadline, enum vf_fetch_urgency urgency)
{
    uint32_t experts[VF_TRACE_TOP_MAX];
    if (urgency == VF_FETCH_SCHEDULED && n >= 1 && n <= VF_TRACE_TOP_MAX) {
        for (uint32_t i = 0; i < n; i++)
            experts[i] = refs[i].expert;
        vf_routing_recorder_add(((struct recording_source *)s)->recorder, refs[0].layer, experts, n,
                                1);
    }
    inner_of(s)->ops->fetch(inner_of(s), refs, n, deadline, urgency);
}

static enum vf_code recording_acquire(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                                      uint32_t n, uint64_t deadline, const uint8_t **got,
                                      struct vf_expert_front *fronts, struct vf_err *err)
{
    return inner_of(s)->ops->acquire(inner_of(s), refs, n, deadline, got, fronts, err);
}

static void recording_release(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                              uint32_t n, const uint8_t *const *got)
{
    inner_of(s)->ops->release(inner_of(s), refs, n, got);
}

static void recording_stats(const struct vf_expert_source *s, struct vf_expert_stats *out)
{
    inner_of(s)->ops->stats(inner_of(s), out);
}

static void recording_destroy(struct vf_expert_source *s)
{
    if (!s)
        return;
    inner_of(s)->ops->destroy(inner_of(s));
    free(s);
}

static const struct vf_expert_source_ops recording_ops = {
    .fetch = recording_fetch,
    .acquire = recording_acquire,
    .release = recording_release,
    .stats = recording_stats,
    .destroy = recording_destroy,
};

enum vf_code recording_source_wrap(struct vf_expert_source **source,
                                   struct vf_routing_recorder *recorder, struct vf_err *err)
{
    struct recording_source *s = calloc(1, sizeof *s);
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "routing trace: out of memory");
    *s = (struct recording_source){{&recording_ops}, *source, recorder};
    *source = &s->base;
    return VF_OK;
}
