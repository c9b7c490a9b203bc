/* Normalizers: a list of steps applied to a text, in order. */
#ifndef VF_COMMON_TOKENIZER_NORMALIZER_H
#define VF_COMMON_TOKENIZER_NORMALIZER_H

#include "common/tokenizer/pattern.h"
#include "common/tokenizer/text.h"

struct vf_normalizer_step;
struct vf_normalizer {
    struct vf_normalizer_step *steps;
    size_t count;
};

/* v: the value of "normalizer", may be null. */
enum vf_code vf_normalizer_init(struct vf_normalizer *nz, const json_t *v, const struct vf_place *p,
                                struct vf_err *err);
void vf_normalizer_deinit(struct vf_normalizer *nz);
/* Normalizes every text piece of w. */
enum vf_code vf_normalizer_apply(const struct vf_normalizer *nz, struct vf_work *w,
                                 struct vf_err *err);

#endif
