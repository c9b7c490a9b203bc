#include "common/tokenizer/json_read.h"

#include <stdio.h>
#include <string.h>

void vf_place_init(struct vf_place *p, const char *where)
{
    snprintf(p->text, sizeof(p->text), "%s:", where);
}

struct vf_place vf_place_key(const struct vf_place *p, const char *key)
{
    struct vf_place r;
    size_t n = strlen(p->text);
    bool first = n > 0 && p->text[n - 1] == ':';
    if (snprintf(r.text, sizeof(r.text), "%s%s%s", p->text, first ? " " : ".", key) >=
        (int)sizeof(r.text))
        r = *p;
    return r;
}

struct vf_place vf_place_index(const struct vf_place *p, size_t i)
{
    struct vf_place r;
    if (snprintf(r.text, sizeof(r.text), "%s[%zu]", p->text, i) >= (int)sizeof(r.text))
        r = *p;
    return r;
}

struct vf_json_word vf_json_quote(const char *s, size_t n)
{
    enum { SHOWN = 40 };
    struct vf_json_word w;
    char shown[SHOWN + 1];
    size_t len = n < SHOWN ? n : SHOWN;
    while (n > SHOWN && len > 0 && ((unsigned char)s[len] & 0xc0) == 0x80)
        len--;
    for (size_t i = 0; i < len; i++)
        shown[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    shown[len] = 0;
    snprintf(w.text, sizeof(w.text), "\"%s\"%s", shown, n > SHOWN ? "..." : "");
    return w;
}

struct vf_json_word vf_json_describe(const json_t *v)
{
    struct vf_json_word w;
    if (json_is_string(v))
        return vf_json_quote(json_string_value(v), json_string_length(v));
    if (!v)
        snprintf(w.text, sizeof(w.text), "nothing");
    else if (json_is_integer(v))
        snprintf(w.text, sizeof(w.text), "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(w.text, sizeof(w.text), "%g", json_real_value(v));
    else
        snprintf(w.text, sizeof(w.text), "%s",
                 json_is_object(v)  ? "an object"
                 : json_is_array(v) ? "an array"
                 : json_is_true(v)  ? "true"
                 : json_is_false(v) ? "false"
                                    : "null");
    return w;
}

static enum vf_code wrong(const json_t *v, const struct vf_place *p, const char *allowed,
                          struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %s, must be %s", p->text,
                      vf_json_describe(v).text, allowed);
}

enum vf_code vf_json_expect_object(const json_t *v, const struct vf_place *p, struct vf_err *err)
{
    return json_is_object(v) ? VF_OK : wrong(v, p, "an object", err);
}

enum vf_code vf_json_expect_array(const json_t *v, size_t count_max, const struct vf_place *p,
                                  struct vf_err *err)
{
    if (!json_is_array(v))
        return wrong(v, p, "an array", err);
    if (json_array_size(v) > count_max)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %zu entries, at most %zu are allowed",
                          p->text, json_array_size(v), count_max);
    return VF_OK;
}

static void join(const char *const words[], char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; words[i] && n < cap; i++) {
        int put = snprintf(out + n, cap - n, "%s%s", i ? ", " : "", words[i]);
        n += put > 0 ? (size_t)put : 0;
    }
}

static bool listed(const char *const words[], const char *word, size_t n, int *index)
{
    for (int i = 0; words[i]; i++)
        if (strlen(words[i]) == n && memcmp(words[i], word, n) == 0) {
            *index = i;
            return true;
        }
    return false;
}

enum vf_code vf_json_expect_keys(const json_t *obj, const char *const keys[],
                                 const struct vf_place *p, struct vf_err *err)
{
    const char *key;
    json_t *value;
    int index;
    json_object_foreach((json_t *)obj, key, value)
    {
        if (listed(keys, key, strlen(key), &index))
            continue;
        char allowed[256];
        join(keys, allowed, sizeof(allowed));
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found the unknown field %s, allowed are %s",
                          p->text, vf_json_quote(key, strlen(key)).text, allowed);
    }
    return VF_OK;
}

enum vf_code vf_json_expect_string(const json_t *v, const struct vf_place *p, const char **s,
                                   size_t *n, struct vf_err *err)
{
    if (!json_is_string(v))
        return wrong(v, p, "a string", err);
    *s = json_string_value(v);
    *n = json_string_length(v);
    return VF_OK;
}

enum vf_code vf_json_read_string(const json_t *obj, const char *key, const struct vf_place *p,
                                 const char **s, size_t *n, struct vf_err *err)
{
    struct vf_place at = vf_place_key(p, key);
    return vf_json_expect_string(json_object_get(obj, key), &at, s, n, err);
}

enum vf_code vf_json_read_char(const json_t *obj, const char *key, const struct vf_place *p,
                               const char **s, size_t *n, struct vf_err *err)
{
    struct vf_place at = vf_place_key(p, key);
    const json_t *v = json_object_get(obj, key);
    enum vf_code code = vf_json_expect_string(v, &at, s, n, err);
    if (code != VF_OK)
        return code;
    size_t characters = 0;
    for (size_t i = 0; i < *n; i++)
        characters += ((unsigned char)(*s)[i] & 0xc0) != 0x80;
    return characters == 1 ? VF_OK : wrong(v, &at, "a single character", err);
}

enum vf_code vf_json_read_bool(const json_t *obj, const char *key, const struct vf_place *p,
                               bool *out, struct vf_err *err)
{
    struct vf_place at = vf_place_key(p, key);
    const json_t *v = json_object_get(obj, key);
    if (!json_is_boolean(v))
        return wrong(v, &at, "true or false", err);
    *out = json_is_true(v);
    return VF_OK;
}

enum vf_code vf_json_read_bool_or(const json_t *obj, const char *key, const struct vf_place *p,
                                  bool *out, struct vf_err *err)
{
    const json_t *v = json_object_get(obj, key);
    if (!v || json_is_null(v))
        return VF_OK;
    return vf_json_read_bool(obj, key, p, out, err);
}

enum vf_code vf_json_read_choice(const json_t *obj, const char *key, const char *const choices[],
                                 const struct vf_place *p, int *choice, struct vf_err *err)
{
    const char *s;
    size_t n;
    enum vf_code code = vf_json_read_string(obj, key, p, &s, &n, err);
    if (code != VF_OK)
        return code;
    if (listed(choices, s, n, choice))
        return VF_OK;
    char allowed[256];
    join(choices, allowed, sizeof(allowed));
    struct vf_place at = vf_place_key(p, key);
    return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found %s, allowed are %s", at.text,
                      vf_json_describe(json_object_get(obj, key)).text, allowed);
}

enum vf_code vf_json_read_kind(const json_t *obj, const char *const kinds[],
                               const struct vf_place *p, int *kind, struct vf_err *err)
{
    enum vf_code code = vf_json_expect_object(obj, p, err);
    return code != VF_OK ? code : vf_json_read_choice(obj, "type", kinds, p, kind, err);
}
