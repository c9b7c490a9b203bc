/* Where a source's chat template and the texts of its beginning and end are found: the files beside
 * a checkpoint's config.json, as Hugging Face looks for them, or a GGUF file's metadata. */
#ifndef VF_CONVERT_CHAT_SOURCE_H
#define VF_CONVERT_CHAT_SOURCE_H

#include "common/format/chat.h"
#include "common/format/gguf.h"
#include "common/model/config.h"

/* Replaces the config's bos and eos by those of DIR/generation_config.json, where it has any. */
enum vf_code vf_directory_read_generation(const char *dir, struct vf_config *config,
                                          struct vf_err *err);
/* *chat is an object for a model file's config, or NULL where there is nothing to keep. The caller
 * json_decref()s it. */
enum vf_code vf_directory_read_chat(const char *dir, json_t **chat, struct vf_err *err);
enum vf_code vf_gguf_read_chat(const struct vf_gguf *g, const struct vf_config *config,
                               json_t **chat, struct vf_err *err);

#endif
