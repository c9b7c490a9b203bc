/* Byte pair encoding of one word: its characters, merged by rank, leftmost first. */
#ifndef VF_COMMON_TOKENIZER_BPE_H
#define VF_COMMON_TOKENIZER_BPE_H

#include "common/tokenizer/vocab.h"

struct vf_bpe {
    struct vf_vocab vocab;
    uint32_t unk_id;        /* VF_NO_TOKEN: unknown characters give nothing */
    uint32_t byte_ids[256]; /* "<0x00>" ... of byte_fallback, VF_NO_TOKEN where missing */
    bool fuse_unk;          /* a run of unknown characters is one unk_token */
    bool ignore_merges;     /* a word that is a token needs no merging */
};

/* Reusable working memory of one thread. */
struct vf_bpe_symbol;
struct vf_bpe_merge;
struct vf_bpe_scratch {
    struct vf_bpe_symbol *symbols;
    size_t symbols_cap;
    struct vf_bpe_merge *heap;
    size_t heap_cap, heap_count;
};
void vf_bpe_scratch_deinit(struct vf_bpe_scratch *s);

/* From the object "model"; size_min as for vf_vocab_init. */
enum vf_code vf_bpe_init(struct vf_bpe *b, const json_t *model, const struct vf_place *p,
                         uint32_t size_min, struct vf_err *err);
void vf_bpe_deinit(struct vf_bpe *b);

/* Appends the ids of word[0..n), valid UTF-8. O(n log n). */
enum vf_code vf_bpe_encode(const struct vf_bpe *b, const char *word, size_t n,
                           struct vf_bpe_scratch *s, struct vf_ids *ids, struct vf_err *err);

#endif
