/* Typed reads from tokenizer.json that name the place: "tokenizer.json: decoder.decoders[3]".
 * On top of common/base/json.h; adds strings with a length, kinds, and refusal of unknown fields.
 */
#ifndef VF_COMMON_TOKENIZER_JSON_READ_H
#define VF_COMMON_TOKENIZER_JSON_READ_H

#include "common/base/err.h"
#include "common/base/json.h"

#include <stdbool.h>
#include <stddef.h>

/* Components nest (a Sequence in a Sequence); nobody needs more. */
#define VF_SEQUENCE_DEPTH_MAX 4
/* Members of one list of components. */
#define VF_SEQUENCE_LENGTH_MAX 64

struct vf_place {
    char text[256];
};
void vf_place_init(struct vf_place *p, const char *where);
struct vf_place vf_place_key(const struct vf_place *p, const char *key);
struct vf_place vf_place_index(const struct vf_place *p, size_t i);

/* `found` for messages: a type word, with the value where it is short. */
struct vf_json_word {
    char text[96];
};
struct vf_json_word vf_json_describe(const json_t *v);
/* A string in quotes, cut when long, without control characters. */
struct vf_json_word vf_json_quote(const char *s, size_t n);

enum vf_code vf_json_expect_object(const json_t *v, const struct vf_place *p, struct vf_err *err);
enum vf_code vf_json_expect_array(const json_t *v, size_t count_max, const struct vf_place *p,
                                  struct vf_err *err);
/* Refuses (unsupported) a field that isn't in the NULL-terminated list. */
enum vf_code vf_json_expect_keys(const json_t *obj, const char *const keys[],
                                 const struct vf_place *p, struct vf_err *err);
/* v itself as a string. */
enum vf_code vf_json_expect_string(const json_t *v, const struct vf_place *p, const char **s,
                                   size_t *n, struct vf_err *err);
/* obj[key], required. */
enum vf_code vf_json_read_string(const json_t *obj, const char *key, const struct vf_place *p,
                                 const char **s, size_t *n, struct vf_err *err);
/* A required string that is exactly one character. */
enum vf_code vf_json_read_char(const json_t *obj, const char *key, const struct vf_place *p,
                               const char **s, size_t *n, struct vf_err *err);
/* A required boolean, and one that keeps its value when absent or null. */
enum vf_code vf_json_read_bool(const json_t *obj, const char *key, const struct vf_place *p,
                               bool *out, struct vf_err *err);
enum vf_code vf_json_read_bool_or(const json_t *obj, const char *key, const struct vf_place *p,
                                  bool *out, struct vf_err *err);
/* obj["type"], looked up in the NULL-terminated list of kinds; *kind is its index. */
enum vf_code vf_json_read_kind(const json_t *obj, const char *const kinds[],
                               const struct vf_place *p, int *kind, struct vf_err *err);
/* The same for another string field. */
enum vf_code vf_json_read_choice(const json_t *obj, const char *key, const char *const choices[],
                                 const struct vf_place *p, int *choice, struct vf_err *err);

#endif
