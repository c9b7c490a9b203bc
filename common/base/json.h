/* JSON through jansson, with this project's checks: strict UTF-8, duplicate keys refused,
 * nesting capped, whole input consumed. Typed getters name the file and the field, what was
 * found and what is allowed.
 */
#ifndef VF_COMMON_BASE_JSON_H
#define VF_COMMON_BASE_JSON_H

#include "common/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses text[0..n). where names the input in messages ("model/config.json"). The caller
 * json_decref()s the result. VF_ERR_CORRUPT with line and column. */
enum vf_code vf_json_parse(const char *text, size_t n, const char *where, json_t **out,
                           struct vf_err *err);
enum vf_code vf_json_load(const char *path, size_t max_bytes, json_t **out, struct vf_err *err);
/* The same for a file that Python's json module may have written: NaN, Infinity and -Infinity are
 * values, which the getters below refuse by name; a key that nobody asks for may have them. Each is
 * a string that begins with a NUL, which no other string that a getter accepts does. */
enum vf_code vf_json_load_python(const char *path, size_t max_bytes, json_t **out,
                                 struct vf_err *err);
/* "NaN", "Infinity" or "-Infinity" for such a value, else NULL. */
const char *vf_json_not_finite(const json_t *v);

/* Getters for object fields. A missing key leaves *out unchanged and succeeds, unless required;
 * null counts as missing. found (may be NULL) tells whether the key was there. */
struct vf_json_field {
    const char *where; /* file name for messages */
    const char *key;
    bool required;
};
enum vf_code vf_json_get_int(const json_t *obj, struct vf_json_field f, int64_t min, int64_t max,
                             int64_t *out, bool *found, struct vf_err *err);
enum vf_code vf_json_get_real(const json_t *obj, struct vf_json_field f, double min, double max,
                              double *out, bool *found, struct vf_err *err);
enum vf_code vf_json_get_bool(const json_t *obj, struct vf_json_field f, bool *out, bool *found,
                              struct vf_err *err);
/* The string lives as long as obj. */
enum vf_code vf_json_get_string(const json_t *obj, struct vf_json_field f, const char **out,
                                bool *found, struct vf_err *err);

#endif
