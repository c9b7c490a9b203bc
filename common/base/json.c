#include "common/base/json.h"

#include "common/base/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson recurses per level up to its own fixed 2048; other readers of these files stop at 128. */
#define JSON_DEPTH_MAX 128
#define QUOTED_BYTES   18 /* "\u0000-Infinity" with quotes and the NUL behind it */

static enum vf_code check_depth(const char *text, size_t n, const char *where, struct vf_err *err)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH_MAX)
                return vf_err_set(err, VF_ERR_CORRUPT,
                                  "%s: JSON nested deeper than %d levels at byte %zu", where,
                                  JSON_DEPTH_MAX, i);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return VF_OK;
}

enum vf_code vf_json_parse(const char *text, size_t n, const char *where, json_t **out,
                           struct vf_err *err)
{
    enum vf_code code = check_depth(text, n, where, err);
    if (code != VF_OK)
        return code;
    json_error_t jerr;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &jerr);
    if (!root)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: not valid JSON at line %d, column %d: %s",
                          where, jerr.line, jerr.column, jerr.text);
    *out = root;
    return VF_OK;
}

enum vf_code vf_json_load(const char *path, size_t max_bytes, json_t **out, struct vf_err *err)
{
    char *text;
    size_t n;
    enum vf_code code = vf_read_file(path, max_bytes, &text, &n, err);
    if (code != VF_OK)
        return code;
    code = vf_json_parse(text, n, path, out, err);
    free(text);
    return code;
}

/* ---- what Python writes ---- */

static const char *const not_finite[] = {"NaN", "Infinity", "-Infinity"};

const char *vf_json_not_finite(const json_t *v)
{
    const char *text = json_string_value(v);
    if (!text || *text || json_string_length(v) == 0)
        return NULL;
    for (size_t i = 0; i < VF_ARRAY_LEN(not_finite); i++)
        if (json_string_length(v) == 1 + strlen(not_finite[i]) &&
            memcmp(text + 1, not_finite[i], strlen(not_finite[i])) == 0)
            return not_finite[i];
    return NULL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The word at text[i], where a whole value stands: behind a colon, bracket or comma, in front of a
 * comma or bracket. Anything else is left to the parser, which refuses it. */
static const char *word_at(const char *text, size_t n, size_t i)
{
    size_t before = i;
    while (before > 0 && is_space(text[before - 1]))
        before--;
    if (before == 0 || !strchr(":[,", text[before - 1]))
        return NULL;
    for (size_t k = 0; k < VF_ARRAY_LEN(not_finite); k++) {
        size_t length = strlen(not_finite[k]), after = i + length;
        if (n - i < length || memcmp(text + i, not_finite[k], length) != 0)
            continue;
        while (after < n && is_space(text[after]))
            after++;
        return after < n && text[after] && strchr(",]}", text[after]) ? not_finite[k] : NULL;
    }
    return NULL;
}

/* Writes text with those words as strings to out, which may be NULL, and returns its length. */
static size_t quote_words(const char *text, size_t n, char *out)
{
    bool in_string = false;
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        const char *word = NULL;
        if (!in_string && (text[i] == 'N' || text[i] == 'I' || text[i] == '-'))
            word = word_at(text, n, i);
        if (word) {
            length += (size_t)snprintf(out ? out + length : NULL, out ? QUOTED_BYTES : 0,
                                       "\"\\u0000%s\"", word);
            i += strlen(word);
            continue;
        }
        if (text[i] == '"')
            in_string = !in_string;
        size_t step = in_string && text[i] == '\\' && i + 1 < n ? 2 : 1;
        if (out)
            memcpy(out + length, text + i, step);
        length += step;
        i += step;
    }
    return length;
}

static enum vf_code parse_quoted(const char *text, size_t n, const char *where, json_t **out,
                                 struct vf_err *err)
{
    size_t length = quote_words(text, n, NULL);
    if (length == n)
        return vf_json_parse(text, n, where, out, err);
    char *quoted = malloc(length + QUOTED_BYTES);
    if (!quoted)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for %zu bytes", where, length);
    quote_words(text, n, quoted);
    enum vf_code code = vf_json_parse(quoted, length, where, out, err);
    free(quoted);
    return code;
}

enum vf_code vf_json_load_python(const char *path, size_t max_bytes, json_t **out,
                                 struct vf_err *err)
{
    char *text;
    size_t n;
    enum vf_code code = vf_read_file(path, max_bytes, &text, &n, err);
    if (code != VF_OK)
        return code;
    code = parse_quoted(text, n, path, out, err);
    free(text);
    return code;
}

/* ---- fields ---- */

static const char *type_word(const json_t *v)
{
    static const char *const words[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",     [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    const char *word = vf_json_not_finite(v);
    return word ? word : words[json_typeof(v)];
}

/* Finds the field; *value is NULL when it is missing or null and not required. */
static enum vf_code find(const json_t *obj, struct vf_json_field f, const json_t **value,
                         bool *found, struct vf_err *err)
{
    const json_t *v = json_object_get(obj, f.key);
    if (v && json_is_null(v))
        v = NULL;
    *value = v;
    if (found)
        *found = v != NULL;
    if (!v && f.required)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s is missing", f.where, f.key);
    return VF_OK;
}

static enum vf_code wrong_type(const json_t *v, struct vf_json_field f, const char *allowed,
                               struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s is %s, must be %s", f.where, f.key, type_word(v),
                      allowed);
}

enum vf_code vf_json_get_int(const json_t *obj, struct vf_json_field f, int64_t min, int64_t max,
                             int64_t *out, bool *found, struct vf_err *err)
{
    const json_t *v;
    enum vf_code code = find(obj, f, &v, found, err);
    if (code != VF_OK || !v)
        return code;
    if (!json_is_integer(v))
        return wrong_type(v, f, "an integer", err);
    int64_t n = json_integer_value(v);
    if (n < min || n > max)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s is %lld, must be from %lld to %lld", f.where,
                          f.key, (long long)n, (long long)min, (long long)max);
    *out = n;
    return VF_OK;
}

enum vf_code vf_json_get_real(const json_t *obj, struct vf_json_field f, double min, double max,
                              double *out, bool *found, struct vf_err *err)
{
    const json_t *v;
    enum vf_code code = find(obj, f, &v, found, err);
    if (code != VF_OK || !v)
        return code;
    if (!json_is_number(v))
        return wrong_type(v, f, "a number", err);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s is %g, must be from %g to %g", f.where,
                          f.key, x, min, max);
    *out = x;
    return VF_OK;
}

enum vf_code vf_json_get_bool(const json_t *obj, struct vf_json_field f, bool *out, bool *found,
                              struct vf_err *err)
{
    const json_t *v;
    enum vf_code code = find(obj, f, &v, found, err);
    if (code != VF_OK || !v)
        return code;
    if (!json_is_boolean(v))
        return wrong_type(v, f, "true or false", err);
    *out = json_is_true(v);
    return VF_OK;
}

enum vf_code vf_json_get_string(const json_t *obj, struct vf_json_field f, const char **out,
                                bool *found, struct vf_err *err)
{
    const json_t *v;
    enum vf_code code = find(obj, f, &v, found, err);
    if (code != VF_OK || !v)
        return code;
    if (!json_is_string(v) || vf_json_not_finite(v))
        return wrong_type(v, f, "a string", err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s contains a NUL character", f.where, f.key);
    *out = json_string_value(v);
    return VF_OK;
}
