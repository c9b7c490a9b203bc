/* Added tokens: found in the text before BPE sees it, longest first at each place. Those not
 * marked normalized are looked for in the text as given, the others in the normalized text.
 */
#ifndef VF_COMMON_TOKENIZER_ADDED_TOKENS_H
#define VF_COMMON_TOKENIZER_ADDED_TOKENS_H

#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/vocab.h"

struct vf_added_token {
    uint32_t id;
    bool single_word, lstrip, rstrip;
};

/* A tree over the bytes of its tokens. */
struct vf_added_tree {
    struct vf_u64_map edges; /* node << 8 | byte -> b: node; node 0 is the root */
    struct vf_u64_map ends;  /* node -> b: index into tokens */
    uint32_t node_count;
    bool starts[256]; /* bytes some token begins with */
};
struct vf_added_tokens {
    struct vf_added_token *tokens;
    size_t count;
    struct vf_added_tree raw, normalized;
    struct vf_pattern word_char; /* one character of \w */
};

/* The smallest vocabulary size that has room for every id of list, the value of "added_tokens"
 * (may be missing); checks that list is an array of objects with ids in range. */
enum vf_code vf_added_tokens_scan(const json_t *list, const struct vf_place *p, uint32_t *size,
                                  struct vf_err *err);
/* Reads the list and gives every token its text and special mark in v. */
enum vf_code vf_added_tokens_init(struct vf_added_tokens *a, const json_t *list,
                                  const struct vf_place *p, const struct vf_normalizer *nz,
                                  struct vf_vocab *v, struct vf_err *err);
void vf_added_tokens_deinit(struct vf_added_tokens *a);
/* Turns what tree finds in the text pieces of w into id pieces. */
enum vf_code vf_added_tokens_split(const struct vf_added_tokens *a,
                                   const struct vf_added_tree *tree, struct vf_work *w,
                                   struct vf_err *err);

#endif
