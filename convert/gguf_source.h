/* The two halves of a GGUF file's metadata that a conversion needs, turned into what a checkpoint
 * directory has: a config and a tokenizer.json.
 */
#ifndef VF_CONVERT_GGUF_SOURCE_H
#define VF_CONVERT_GGUF_SOURCE_H

#include "common/format/gguf.h"
#include "common/format/gguf_model.h"

/* Reads the architecture and its keys. Keys of the architecture that aren't known are refused:
 * they might change the mathematics. *arch is one of vf_gguf_archs; config is the caller's. */
enum vf_code vf_gguf_read_config(const struct vf_gguf *g, const struct vf_gguf_arch **arch,
                                 struct vf_config *config, struct vf_err *err);

/* tokenizer.json from tokenizer.ggml.*: kind "llama" (BPE by scores) or "gpt2" (BPE by merges).
 * *text is NULL when the file has no tokenizer. vocab_size bounds the ids. */
enum vf_code vf_gguf_read_tokenizer(const struct vf_gguf *g, uint32_t vocab_size, char **text,
                                    size_t *bytes, struct vf_err *err);

#endif
