/* CURVE key pairs in small text files, for client connections over tcp.
 *
 * A key is 32 bytes, written as 40 characters of Z85. A file has one entry a line, "public KEY"
 * or "secret KEY"; blank lines and lines that start with "#" don't count, words behind the key
 * are a comment. NAME.key holds a pair (mode 0600), NAME.pub the public half, and a list of
 * allowed clients is any number of .pub files behind each other. docs/PROTOCOL.md has the grammar.
 */
#ifndef VF_COMMON_RUN_CURVE_KEYS_H
#define VF_COMMON_RUN_CURVE_KEYS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_CURVE_KEY_BYTES 32
#define VF_CURVE_KEY_CHARS 40
#define VF_CURVE_LIST_MAX  65536 /* keys in one list */

struct vf_curve_keys {
    char public_key[VF_CURVE_KEY_CHARS + 1];
    char secret_key[VF_CURVE_KEY_CHARS + 1];
};

enum vf_code vf_curve_keys_generate(struct vf_curve_keys *out, struct vf_err *err);
/* Writes NAME.key and NAME.pub; an existing file is VF_ERR_USAGE and left as it is. */
enum vf_code vf_curve_keys_write(const struct vf_curve_keys *keys, const char *name,
                                 struct vf_err *err);
/* A file with exactly one pair whose halves belong together. VF_ERR_DENIED when anybody but the
 * owner may read it. */
enum vf_code vf_curve_keys_read(const char *path, struct vf_curve_keys *out, struct vf_err *err);
/* A file with exactly one public key and no secret one. */
enum vf_code vf_curve_public_read(const char *path, char key[VF_CURVE_KEY_CHARS + 1],
                                  struct vf_err *err);

struct vf_curve_list {
    uint8_t (*keys)[VF_CURVE_KEY_BYTES];
    size_t count;
};
/* At least one public key, no secret one. The caller deinits the list. */
enum vf_code vf_curve_list_read(const char *path, struct vf_curve_list *out, struct vf_err *err);
void vf_curve_list_deinit(struct vf_curve_list *list);
bool vf_curve_list_has(const struct vf_curve_list *list, const uint8_t key[VF_CURVE_KEY_BYTES]);

#endif
