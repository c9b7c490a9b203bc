/* Post-processors: the ids put before and behind a text's own when special tokens are wanted. */
#ifndef VF_COMMON_TOKENIZER_POST_PROCESSOR_H
#define VF_COMMON_TOKENIZER_POST_PROCESSOR_H

#include "common/tokenizer/vocab.h"

struct vf_post_processor {
    struct vf_ids prefix, suffix;
};

/* v: the value of "post_processor", may be null. */
enum vf_code vf_post_processor_init(struct vf_post_processor *pp, const json_t *v,
                                    const struct vf_place *p, const struct vf_vocab *vocab,
                                    struct vf_err *err);
void vf_post_processor_deinit(struct vf_post_processor *pp);

#endif
