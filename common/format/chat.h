/* What a chat is written with: the template that turns messages into a prompt, and the texts of the
 * tokens that begin and end it. It lies in a model file's config as the object "chat"
 * (docs/FORMAT.md); nothing here renders templates.
 */
#ifndef VF_COMMON_FORMAT_CHAT_H
#define VF_COMMON_FORMAT_CHAT_H

#include "common/base/json.h"

#define VF_CHAT_TEMPLATE_BYTES_MAX (1u << 20) /* of each; the longest known has 30 KB */
#define VF_CHAT_TEMPLATES_MAX      64u        /* beside the default */

/* Refuses, by field, what isn't one of its keys or of the wrong type. VF_ERR_CORRUPT. */
enum vf_code vf_chat_check(const json_t *chat, const char *where, struct vf_err *err);

#endif
