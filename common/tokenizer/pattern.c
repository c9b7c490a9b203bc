#include "common/tokenizer/pattern.h"

#include "common/tokenizer/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer than any tokenizer's expression by far; keeps compilation short. */
#define REGEX_BYTES_MAX 8192u
/* Backtracking steps at one position of a subject of n bytes: linear use is always allowed. */
#define STEPS_BASE     1000000u
#define STEPS_PER_BYTE 64u
/* Memory of the interpreter, used where the compiled code runs out of stack. */
#define HEAP_KIB_MAX (256u << 10)
/* \w of the reference. */
#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* --- from the reference's dialect to PCRE2's --- */

struct rewrite {
    const char *s;
    size_t n, i;
    bool in_class;
    struct vf_text_buf out;
    const struct vf_place *place;
    struct vf_err *err;
};

static enum vf_code refuse(const struct rewrite *r, size_t at, size_t len, const char *why)
{
    len = len < r->n - at ? len : r->n - at;
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                      "%s: found %s at byte %zu of the regular expression, %s", r->place->text,
                      vf_json_quote(r->s + at, len).text, at, why);
}

static enum vf_code put(struct rewrite *r, const char *s)
{
    return vf_text_append(&r->out, s, strlen(s), r->err);
}

static enum vf_code copy(struct rewrite *r, size_t n)
{
    enum vf_code code = vf_text_append(&r->out, r->s + r->i, n, r->err);
    r->i += n;
    return code;
}

static char peek(const struct rewrite *r, size_t ahead)
{
    return r->i + ahead < r->n ? r->s[r->i + ahead] : 0;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* \p{...} or \x{...}, whose braces are no interval. */
static enum vf_code copy_braced(struct rewrite *r)
{
    const char *close = memchr(r->s + r->i, '}', r->n - r->i);
    if (!close)
        return refuse(r, r->i, 3, "a closing brace is missing");
    return copy(r, (size_t)(close - r->s) + 1 - r->i);
}

/* \uHHHH becomes \x{HHHH}; \xHH is copied below 0x80, where both mean the character. */
static enum vf_code rewrite_code_point(struct rewrite *r)
{
    if (peek(r, 1) == 'u' && is_hex(peek(r, 2)) && is_hex(peek(r, 3)) && is_hex(peek(r, 4)) &&
        is_hex(peek(r, 5))) {
        char hex[16];
        snprintf(hex, sizeof(hex), "\\x{%.4s}", r->s + r->i + 2);
        r->i += 6;
        return put(r, hex);
    }
    if (peek(r, 1) == 'x' && peek(r, 2) == '{')
        return copy_braced(r);
    if (peek(r, 1) == 'x' && peek(r, 2) >= '0' && peek(r, 2) <= '7' && is_hex(peek(r, 3)))
        return copy(r, 4);
    return refuse(r, r->i, 4, "allowed are \\uHHHH, \\x{H...} and \\x00 to \\x7f");
}

static enum vf_code rewrite_class_escape(struct rewrite *r, const char *to)
{
    r->i += 2;
    return put(r, to);
}

static enum vf_code rewrite_escape(struct rewrite *r)
{
    char c = peek(r, 1);
    switch (c) {
    case 's':
        return rewrite_class_escape(r, "\\p{White_Space}");
    case 'S':
        return rewrite_class_escape(r, "\\P{White_Space}");
    case 'w':
        return rewrite_class_escape(r, r->in_class ? WORD_CLASS : "[" WORD_CLASS "]");
    case 'W':
        if (!r->in_class)
            return rewrite_class_escape(r, "[^" WORD_CLASS "]");
        break;
    case 'v':
        return rewrite_class_escape(r, "\\x0b");
    case 'p':
    case 'P':
        if (peek(r, 2) == '{')
            return copy_braced(r);
        break;
    case 'x':
    case 'u':
        return rewrite_code_point(r);
    case 'A':
    case 'z':
        if (!r->in_class)
            return copy(r, 2);
        break;
    case 'd':
    case 'D':
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return copy(r, 2);
    default:
        if (c > 0x20 && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
            !(c >= 'a' && c <= 'z'))
            return copy(r, 2);
        break;
    }
    return refuse(r, r->i, 2,
                  "allowed escapes are \\s \\S \\w \\W \\d \\D \\p{..} \\P{..} \\x{..} \\uHHHH \\r "
                  "\\n \\t \\f \\v \\A \\z and escaped punctuation");
}

static enum vf_code rewrite_in_class(struct rewrite *r)
{
    char c = peek(r, 0);
    if (c == '[')
        return refuse(r, r->i, 2, "allowed in a class is \\[ only");
    if (c == '&' && peek(r, 1) == '&')
        return refuse(r, r->i, 2, "class intersections are not supported");
    if (c == ']')
        r->in_class = false;
    return copy(r, 1);
}

static enum vf_code rewrite_group(struct rewrite *r)
{
    static const char *const allowed[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:"};
    const char *rest = r->s + r->i + 1;
    size_t n = r->n - r->i - 1;
    if (n == 0 || (rest[0] != '?' && rest[0] != '*'))
        return copy(r, 1);
    for (size_t k = 0; k < sizeof(allowed) / sizeof(allowed[0]); k++) {
        size_t len = strlen(allowed[k]);
        if (n >= len && memcmp(rest, allowed[k], len) == 0)
            return copy(r, 1 + len);
    }
    /* Elsewhere the two dialects differ in what (?i) covers. */
    if (r->i == 0 && n >= 3 && memcmp(rest, "?i)", 3) == 0)
        return copy(r, 4);
    return refuse(r, r->i, 4,
                  "allowed groups are ( (?: (?= (?! (?> (?<= (?<! (?i: and (?i) at the start");
}

static enum vf_code rewrite_one(struct rewrite *r)
{
    char c = peek(r, 0), next = peek(r, 1);
    if (c == '\\')
        return rewrite_escape(r);
    if (r->in_class)
        return rewrite_in_class(r);
    if (c == '[') {
        r->in_class = true;
        /* A ']' or '^' in front is part of the class's head. */
        size_t head = next == '^' ? 2 : 1;
        return copy(r, head + (peek(r, head) == ']'));
    }
    if (c == '(')
        return rewrite_group(r);
    if (c == '{' && next == ',')
        return refuse(r, r->i, 2, "allowed intervals are {n}, {n,} and {n,m}");
    if (c == '}' && (next == '+' || next == '?'))
        return refuse(r, r->i, 2, "possessive and lazy intervals are not supported");
    return copy(r, 1);
}

/* --- compiling --- */

static enum vf_code compile(struct vf_pattern *pat, const struct vf_text_buf *regex,
                            const struct vf_place *p, struct vf_err *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory to compile", p->text);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int number;
    PCRE2_SIZE offset;
    /* ^ and $ match at line ends in the reference, always. */
    pat->code = pcre2_compile((PCRE2_SPTR)regex->data, regex->len,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &number, &offset, context);
    pcre2_compile_context_free(context);
    if (pat->code) {
        /* Without JIT memory the interpreter gives the same matches. */
        (void)pcre2_jit_compile(pat->code, PCRE2_JIT_COMPLETE);
        return VF_OK;
    }
    char why[128];
    pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof(why));
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: found the regular expression %s, which is invalid: "
                      "%s",
                      p->text, vf_json_quote(regex->data, regex->len).text, why);
}

enum vf_code vf_pattern_init_regex(struct vf_pattern *pat, const char *regex, size_t n,
                                   const struct vf_place *p, struct vf_err *err)
{
    *pat = (struct vf_pattern){0};
    if (n > REGEX_BYTES_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: found a regular expression of %zu bytes, at most %u are allowed",
                          p->text, n, REGEX_BYTES_MAX);
    struct rewrite r = {.s = regex, .n = n, .place = p, .err = err};
    enum vf_code code = vf_text_append(&r.out, "", 0, err);
    while (r.i < r.n && code == VF_OK)
        code = rewrite_one(&r);
    if (code == VF_OK)
        code = compile(pat, &r.out, p, err);
    vf_text_buf_deinit(&r.out);
    return code;
}

enum vf_code vf_pattern_init_string(struct vf_pattern *pat, const char *s, size_t n,
                                    const struct vf_place *p, struct vf_err *err)
{
    *pat = (struct vf_pattern){0};
    if (n == 0 || n > VF_PATTERN_STRING_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: found a string of %zu bytes, allowed are 1 to %u", p->text, n,
                          VF_PATTERN_STRING_MAX);
    pat->string = malloc(n);
    if (!pat->string)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", p->text);
    memcpy(pat->string, s, n);
    pat->n_string = n;
    return VF_OK;
}

enum vf_code vf_pattern_init_json(struct vf_pattern *pat, const json_t *v, bool allow_regex,
                                  const struct vf_place *p, struct vf_err *err)
{
    static const char *const both[] = {"String", "Regex", NULL};
    static const char *const one[] = {"String", NULL};
    enum vf_code code = vf_json_expect_object(v, p, err);
    if (code == VF_OK)
        code = vf_json_expect_keys(v, allow_regex ? both : one, p, err);
    if (code != VF_OK)
        return code;
    if (json_object_size(v) != 1)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %zu fields, must be exactly one of %s",
                          p->text, json_object_size(v), allow_regex ? "String, Regex" : "String");
    const char *key = json_object_get(v, "String") ? "String" : "Regex";
    struct vf_place at = vf_place_key(p, key);
    const char *s;
    size_t n;
    code = vf_json_expect_string(json_object_get(v, key), &at, &s, &n, err);
    if (code != VF_OK)
        return code;
    return key[0] == 'S' ? vf_pattern_init_string(pat, s, n, &at, err)
                         : vf_pattern_init_regex(pat, s, n, &at, err);
}

void vf_pattern_deinit(struct vf_pattern *pat)
{
    free(pat->string);
    pcre2_code_free(pat->code);
    *pat = (struct vf_pattern){0};
}

/* --- matching --- */

enum vf_code vf_match_iter_init(struct vf_match_iter *it, const struct vf_pattern *pat,
                                struct vf_err *err)
{
    *it = (struct vf_match_iter){.pattern = pat};
    if (pat->string)
        return VF_OK;
    it->data = pcre2_match_data_create(1, NULL);
    it->context = pcre2_match_context_create(NULL);
    if (it->data && it->context) {
        pcre2_set_heap_limit(it->context, HEAP_KIB_MAX);
        return VF_OK;
    }
    return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for matching");
}

void vf_match_iter_deinit(struct vf_match_iter *it)
{
    pcre2_match_data_free(it->data);
    pcre2_match_context_free(it->context);
    *it = (struct vf_match_iter){0};
}

void vf_match_iter_reset(struct vf_match_iter *it, const char *subject, size_t n)
{
    it->subject = subject;
    it->n = n;
    it->next = 0;
    it->last_end = SIZE_MAX;
    if (it->context)
        pcre2_set_match_limit(it->context, STEPS_BASE + STEPS_PER_BYTE * (uint32_t)n);
}

static enum vf_code search_regex(struct vf_match_iter *it, bool *found, struct vf_err *err)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)it->subject;
    int rc = pcre2_match(it->pattern->code, subject, it->n, it->next, PCRE2_NO_UTF_CHECK, it->data,
                         it->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(it->pattern->code, subject, it->n, it->next,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, it->data, it->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(it->data);
        it->begin = ovector[0];
        it->end = ovector[1];
        return VF_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return VF_OK;
    char why[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
    return vf_err_set(err, VF_ERR_LIMIT,
                      "tokenizer: the regular expression fails behind byte %zu of %zu: %s",
                      it->next, it->n, why);
}

static void search_string(struct vf_match_iter *it, bool *found)
{
    const struct vf_pattern *pat = it->pattern;
    it->begin = vf_text_find(it->subject, it->n, it->next, pat->string, pat->n_string);
    it->end = it->begin + pat->n_string;
    *found = it->begin < it->n;
}

enum vf_code vf_match_iter_next(struct vf_match_iter *it, bool *found, struct vf_err *err)
{
    for (;;) {
        *found = false;
        if (it->next > it->n || it->n == 0)
            return VF_OK;
        if (it->pattern->string) {
            search_string(it, found);
        } else {
            enum vf_code code = search_regex(it, found, err);
            if (code != VF_OK)
                return code;
        }
        if (!*found)
            return VF_OK;
        it->next = it->end;
        if (it->begin != it->end || it->begin != it->last_end)
            break;
        /* An empty match right behind the last one doesn't count: try one character on. */
        if (it->next < it->n)
            (void)vf_utf8_next(it->subject, &it->next);
        else
            it->next++;
    }
    it->last_end = it->end;
    return VF_OK;
}
