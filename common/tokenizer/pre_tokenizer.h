/* Pre-tokenizers: a list of steps that cut a text into the words BPE sees. */
#ifndef VF_COMMON_TOKENIZER_PRE_TOKENIZER_H
#define VF_COMMON_TOKENIZER_PRE_TOKENIZER_H

#include "common/tokenizer/pattern.h"
#include "common/tokenizer/text.h"

struct vf_pre_tokenizer_step;
struct vf_pre_tokenizer {
    struct vf_pre_tokenizer_step *steps;
    size_t count;
};

/* v: the value of "pre_tokenizer", may be null. */
enum vf_code vf_pre_tokenizer_init(struct vf_pre_tokenizer *pt, const json_t *v,
                                   const struct vf_place *p, struct vf_err *err);
void vf_pre_tokenizer_deinit(struct vf_pre_tokenizer *pt);
/* Cuts every text piece of w. */
enum vf_code vf_pre_tokenizer_apply(const struct vf_pre_tokenizer *pt, struct vf_work *w,
                                    struct vf_err *err);

/* Checks the fields of an object of type ByteLevel (pre-tokenizer, post-processor or decoder). */
enum vf_code vf_byte_level_read(const json_t *v, const struct vf_place *p, bool *add_prefix_space,
                                bool *use_regex, struct vf_err *err);
/* The same for Metaspace; *s is the replacement character. */
enum vf_prepend { VF_PREPEND_ALWAYS, VF_PREPEND_FIRST, VF_PREPEND_NEVER };
enum vf_code vf_metaspace_read(const json_t *v, const struct vf_place *p, const char **s, size_t *n,
                               enum vf_prepend *prepend, bool *split, struct vf_err *err);

/* GPT-2's visible character for each byte, and the byte of a character (-1: none). */
uint32_t vf_byte_level_char(unsigned char byte);
int vf_byte_level_byte(uint32_t cp);

#endif
