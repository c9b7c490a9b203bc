/* Experts from the mapped model file: always ready, checked against their checksum at first use. */
#include "common/experts/bank.h"
#include "stage_worker/expert_source.h"

#include <stdlib.h>

struct resident_source {
    struct vf_expert_source base;
    const struct vf_model_file *file;
    uint32_t layer_count, expert_count;
    struct vf_expert_stats stats;
    uint8_t *verified; /* [layer_count * expert_count] */
};

static void resident_fetch(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                           uint64_t deadline, enum vf_fetch_urgency urgency)
{
    (void)s, (void)refs, (void)n, (void)deadline, (void)urgency;
}

static enum vf_code take_one(struct resident_source *s, struct vf_expert_ref ref,
                             const uint8_t **data, struct vf_err *err)
{
    VF_ASSERT(ref.layer < s->layer_count && ref.expert < s->expert_count);
    size_t key = (size_t)ref.layer * s->expert_count + ref.expert;
    *data = vf_model_file_expert_data(s->file, ref.layer, ref.expert);
    if (s->verified[key])
        return VF_OK;
    enum vf_code code = vf_model_file_verify_expert(s->file, ref.layer, ref.expert, *data, err);
    s->verified[key] = code == VF_OK;
    return code;
}

static enum vf_code resident_acquire(struct vf_expert_source *base,
                                     const struct vf_expert_ref *refs, uint32_t n,
                                     uint64_t deadline, const uint8_t **got,
                                     struct vf_expert_front *fronts, struct vf_err *err)
{
    (void)deadline, (void)fronts;
    struct resident_source *s = (struct resident_source *)base;
    for (uint32_t i = 0; i < n; i++)
        got[i] = NULL;
    for (uint32_t i = 0; i < n; i++) {
        enum vf_code code = take_one(s, refs[i], &got[i], err);
        if (code != VF_OK) {
            for (uint32_t j = 0; j <= i; j++)
                got[j] = NULL;
            return code;
        }
    }
    s->stats.wanted += n;
    s->stats.hits += n;
    return VF_OK;
}

static void resident_release(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                             uint32_t n, const uint8_t *const *got)
{
    (void)s, (void)refs, (void)n, (void)got;
}

static void resident_verify(struct vf_expert_source *base, uint32_t layer)
{
    struct resident_source *s = (struct resident_source *)base;
    for (uint32_t e = 0; e < s->expert_count; e++) {
        const uint8_t *ignored;
        take_one(s, (struct vf_expert_ref){layer, e}, &ignored, NULL);
    }
}

static void resident_stats(const struct vf_expert_source *base, struct vf_expert_stats *out)
{
    *out = ((const struct resident_source *)base)->stats;
}

static void resident_destroy(struct vf_expert_source *base)
{
    struct resident_source *s = (struct resident_source *)base;
    if (!s)
        return;
    free(s->verified);
    free(s);
}

static const struct vf_expert_source_ops resident_ops = {
    .fetch = resident_fetch,
    .acquire = resident_acquire,
    .release = resident_release,
    .verify = resident_verify,
    .stats = resident_stats,
    .destroy = resident_destroy,
};

enum vf_code vf_expert_source_resident(const struct vf_model_file *f, struct vf_expert_source **out,
                                       struct vf_err *err)
{
    *out = NULL;
    struct vf_expert_bank bank;
    enum vf_code code = vf_expert_bank_from_model(f, &bank, err);
    if (code != VF_OK)
        return code;
    struct resident_source *s = calloc(1, sizeof *s);
    uint8_t *verified = calloc((size_t)bank.layer_count * bank.expert_count, 1);
    if (!s || !verified) {
        free(s);
        free(verified);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "resident experts: out of memory");
    }
    s->base.ops = &resident_ops;
    s->file = f;
    s->layer_count = bank.layer_count;
    s->expert_count = bank.expert_count;
    s->verified = verified;
    *out = &s->base;
    return VF_OK;
}
