/* The tokens: the model's vocabulary (string to id, single characters to id, merges) and the
 * text of every id, added tokens included.
 */
#ifndef VF_COMMON_TOKENIZER_VOCAB_H
#define VF_COMMON_TOKENIZER_VOCAB_H

#include "common/tokenizer/json_read.h"
#include "common/tokenizer/text.h"
#include "common/tokenizer/u64_map.h"

#define VF_NO_TOKEN UINT32_MAX

struct vf_token {
    uint32_t offset, len;         /* its text in bytes; offset VF_NO_TOKEN: no such token */
    uint32_t key_offset, key_len; /* its text in model.vocab; the same but for added tokens */
    bool special;
};
struct vf_vocab {
    struct vf_text_buf bytes;
    struct vf_token *tokens; /* [size] */
    uint32_t size;           /* largest id + 1 */
    uint32_t *slots;         /* hash table of model token ids, VF_NO_TOKEN is empty */
    uint32_t slot_mask;
    uint64_t seed;
    uint32_t *char_pages[0x110000 / 256]; /* id of a one-character token, or VF_NO_TOKEN */
    struct vf_u64_map merges;             /* left << 32 | right -> a: rank, b: merged id */
};

/* From model.vocab and model.merges (model is the object at p); ids of added tokens may reach to
 * size_min. */
enum vf_code vf_vocab_init(struct vf_vocab *v, const json_t *model, const struct vf_place *p,
                           uint32_t size_min, struct vf_err *err);
void vf_vocab_deinit(struct vf_vocab *v);

/* The model's token with these bytes, VF_NO_TOKEN if there is none. Added tokens don't count. */
uint32_t vf_vocab_find(const struct vf_vocab *v, const char *s, size_t n);
static inline uint32_t vf_vocab_find_char(const struct vf_vocab *v, uint32_t cp)
{
    const uint32_t *page = v->char_pages[cp >> 8];
    return page ? page[cp & 0xff] : VF_NO_TOKEN;
}
/* True when id has a token; *s is its text. */
bool vf_vocab_text(const struct vf_vocab *v, uint32_t id, const char **s, size_t *n);
/* Gives id (below size) a text, for added tokens. vf_vocab_find doesn't know it. */
enum vf_code vf_vocab_set_text(struct vf_vocab *v, uint32_t id, const char *s, size_t n,
                               struct vf_err *err);

#endif
