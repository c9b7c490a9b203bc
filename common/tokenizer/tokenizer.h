/* Text to token ids and back: BPE tokenizers in the `tokenizers` library's tokenizer.json.
 *
 * Understood: model BPE (string or pair merges, byte_fallback, fuse_unk, ignore_merges);
 * normalizers Prepend, Replace, NFC, NFD, NFKC, NFKD; pre-tokenizers ByteLevel, Split, Metaspace,
 * Digits; post-processors ByteLevel and TemplateProcessing; decoders ByteLevel, Metaspace,
 * Replace, ByteFallback, Fuse, Strip; sequences of each; added tokens with all their flags.
 * Anything else in the file is refused by name, but for the sections truncation and padding, which
 * are settings of whoever wrote the file: a text is never cut or filled up. Within that, ids and
 * texts equal the reference library's.
 *
 * A tokenizer is immutable after create: any number of threads may use it at once. A
 * detokenizer belongs to one stream and is used by one thread at a time; its tokenizer must
 * outlive it. Returned arrays are the caller's to free() unless said otherwise.
 */
#ifndef VF_COMMON_TOKENIZER_TOKENIZER_H
#define VF_COMMON_TOKENIZER_TOKENIZER_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Largest accepted tokenizer.json, id + 1, token and text; several times what is in use today. */
#define VF_TOKENIZER_JSON_BYTES_MAX  (128u << 20)
#define VF_TOKENIZER_VOCAB_MAX       (1u << 22)
#define VF_TOKENIZER_TOKEN_BYTES_MAX 4096u
#define VF_TOKENIZER_TEXT_BYTES_MAX  (64u << 20)

struct vf_tokenizer;
struct vf_detokenizer;

/* json[0..n) is read and not kept. where names the file in messages. VF_ERR_CORRUPT or
 * VF_ERR_UNSUPPORTED with file, field, what was found and what is allowed. */
enum vf_code vf_tokenizer_create(const char *json, size_t n, const char *where,
                                 struct vf_tokenizer **out, struct vf_err *err);
void vf_tokenizer_destroy(struct vf_tokenizer *t);

/* Largest id + 1. A model's vocabulary may be larger (padded). */
uint32_t vf_tokenizer_vocab_size(const struct vf_tokenizer *t);
/* True when the file has a truncation or a padding section, which are ignored. */
bool vf_tokenizer_cuts_or_pads(const struct vf_tokenizer *t);
/* True for added tokens marked special; false for ids without a token. */
bool vf_tokenizer_token_is_special(const struct vf_tokenizer *t, uint32_t id);

/* text[0..n) must be UTF-8 (otherwise VF_ERR_CORRUPT with the byte offset) and may be NULL when
 * n is 0. Added tokens written in the text become their ids. add_special adds what the
 * post-processor adds (<s> and the like). A character that the vocabulary can't express at all
 * (no byte token, no unk_token) gives no token, as in the reference. *ids is never NULL. */
enum vf_code vf_tokenizer_encode(const struct vf_tokenizer *t, const char *text, size_t n,
                                 bool add_special, uint32_t **ids, size_t *count,
                                 struct vf_err *err);

/* The same for a prompt. What the post-processor puts in front (<s> and the like) is there once:
 * not a second time before a text that begins with it, and not at all without add_prefix.
 * *left_out (may be NULL) tells whether it was left out for that text's sake. */
enum vf_code vf_tokenizer_encode_prompt(const struct vf_tokenizer *t, const char *text, size_t n,
                                        bool add_prefix, uint32_t **ids, size_t *count,
                                        bool *left_out, struct vf_err *err);

/* Valid UTF-8 of n_text bytes with a NUL behind them: broken byte sequences become U+FFFD where
 * the reference puts it. Ids without a token contribute nothing. */
enum vf_code vf_tokenizer_decode(const struct vf_tokenizer *t, const uint32_t *ids, size_t n,
                                 bool skip_special, char **text, size_t *n_text,
                                 struct vf_err *err);

/* The same text in pieces: the concatenation of every push and the flush is exactly what decode
 * returns for the whole. A piece never ends inside a character; what later ids could still
 * change (an incomplete character, a run of byte-fallback tokens) is held back. */
enum vf_code vf_detokenizer_create(const struct vf_tokenizer *t, bool skip_special,
                                   struct vf_detokenizer **out, struct vf_err *err);
void vf_detokenizer_destroy(struct vf_detokenizer *d);
/* *text[0..*n) (possibly empty) stays valid until the next call on d. */
enum vf_code vf_detokenizer_push(struct vf_detokenizer *d, uint32_t id, const char **text,
                                 size_t *n, struct vf_err *err);
/* Whatever is held back; ends the stream. */
enum vf_code vf_detokenizer_flush(struct vf_detokenizer *d, const char **text, size_t *n,
                                  struct vf_err *err);

#endif
