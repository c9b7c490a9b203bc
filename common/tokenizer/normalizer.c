#include "common/tokenizer/normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum kind { SEQUENCE, PREPEND, REPLACE, NFC, NFD, NFKC, NFKD };
static const char *const kinds[] = {"Sequence", "Prepend", "Replace", "NFC",
                                    "NFD",      "NFKC",    "NFKD",    NULL};

struct vf_normalizer_step {
    enum kind kind;
    char *content; /* PREPEND, REPLACE */
    size_t n_content;
    struct vf_pattern pattern; /* REPLACE */
};

/* --- loading --- */

static enum vf_code read_content(struct vf_normalizer_step *s, const json_t *v, const char *key,
                                 const struct vf_place *p, struct vf_err *err)
{
    const char *text;
    size_t n;
    enum vf_code code = vf_json_read_string(v, key, p, &text, &n, err);
    if (code != VF_OK)
        return code;
    if (n > VF_PATTERN_STRING_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s.%s: found a string of %zu bytes, at most %u are allowed", p->text,
                          key, n, VF_PATTERN_STRING_MAX);
    s->content = malloc(n + 1);
    if (!s->content)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", p->text);
    memcpy(s->content, text, n);
    s->n_content = n;
    return VF_OK;
}

static enum vf_code read_step(struct vf_normalizer_step *s, const json_t *v,
                              const struct vf_place *p, struct vf_err *err)
{
    static const char *const prepend_keys[] = {"type", "prepend", NULL};
    static const char *const replace_keys[] = {"type", "pattern", "content", NULL};
    static const char *const form_keys[] = {"type", NULL};
    if (s->kind == PREPEND) {
        enum vf_code code = vf_json_expect_keys(v, prepend_keys, p, err);
        return code != VF_OK ? code : read_content(s, v, "prepend", p, err);
    }
    if (s->kind != REPLACE)
        return vf_json_expect_keys(v, form_keys, p, err);
    struct vf_place at = vf_place_key(p, "pattern");
    enum vf_code code = vf_json_expect_keys(v, replace_keys, p, err);
    if (code == VF_OK)
        code = vf_pattern_init_json(&s->pattern, json_object_get(v, "pattern"), true, &at, err);
    if (code == VF_OK)
        code = read_content(s, v, "content", p, err);
    return code;
}

static enum vf_code add_step(struct vf_normalizer *nz, enum kind kind, const json_t *v,
                             const struct vf_place *p, struct vf_err *err)
{
    if (nz->count == VF_SEQUENCE_LENGTH_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found more than %d normalizers", p->text,
                          VF_SEQUENCE_LENGTH_MAX);
    struct vf_normalizer_step *s = &nz->steps[nz->count++];
    s->kind = kind;
    return read_step(s, v, p, err);
}

static enum vf_code load(struct vf_normalizer *nz, const json_t *v, const struct vf_place *p,
                         int depth, struct vf_err *err)
{
    static const char *const keys[] = {"type", "normalizers", NULL};
    int kind;
    enum vf_code code = vf_json_read_kind(v, kinds, p, &kind, err);
    if (code != VF_OK)
        return code;
    if (kind != SEQUENCE)
        return add_step(nz, (enum kind)kind, v, p, err);
    if (depth == VF_SEQUENCE_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found sequences nested deeper than %d",
                          p->text, VF_SEQUENCE_DEPTH_MAX);
    struct vf_place list_at = vf_place_key(p, "normalizers");
    const json_t *list = json_object_get(v, "normalizers");
    code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_expect_array(list, VF_SEQUENCE_LENGTH_MAX, &list_at, err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        struct vf_place at = vf_place_index(&list_at, i);
        code = load(nz, json_array_get(list, i), &at, depth + 1, err);
    }
    return code;
}

enum vf_code vf_normalizer_init(struct vf_normalizer *nz, const json_t *v, const struct vf_place *p,
                                struct vf_err *err)
{
    *nz = (struct vf_normalizer){0};
    if (!v || json_is_null(v))
        return VF_OK;
    nz->steps = calloc(VF_SEQUENCE_LENGTH_MAX, sizeof(*nz->steps));
    if (!nz->steps)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", p->text);
    return load(nz, v, p, 0, err);
}

void vf_normalizer_deinit(struct vf_normalizer *nz)
{
    for (size_t i = 0; i < nz->count; i++) {
        free(nz->steps[i].content);
        vf_pattern_deinit(&nz->steps[i].pattern);
    }
    free(nz->steps);
    *nz = (struct vf_normalizer){0};
}

/* --- Unicode normalization forms --- */

/* A long run of combining marks must not cost quadratic time, which utf8proc's own ordering
 * would; so the marks are ordered here, and utf8proc decomposes and composes. */
struct mark {
    uint32_t index; /* keeps equal classes in place */
    int32_t cp;
    uint32_t combining_class;
};

static int compare_marks(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    if (x->combining_class != y->combining_class)
        return x->combining_class < y->combining_class ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static uint32_t combining_class(int32_t cp)
{
    return (uint32_t)utf8proc_get_property(cp)->combining_class;
}

static void order_run(int32_t *cps, size_t n, struct mark *marks)
{
    for (size_t i = 0; i < n; i++)
        marks[i] = (struct mark){(uint32_t)i, cps[i], combining_class(cps[i])};
    qsort(marks, n, sizeof(*marks), compare_marks);
    for (size_t i = 0; i < n; i++)
        cps[i] = marks[i].cp;
}

static enum vf_code order_marks(int32_t *cps, size_t n, struct vf_err *err)
{
    struct mark *marks = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < n;) {
        size_t begin = i;
        while (i < n && combining_class(cps[i]) != 0)
            i++;
        size_t run = i - begin;
        if (run > cap) {
            free(marks);
            cap = run * 2;
            marks = malloc(cap * sizeof(*marks));
            if (!marks)
                return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for %zu marks", run);
        }
        if (run > 1)
            order_run(cps + begin, run, marks);
        if (run == 0)
            i++;
    }
    free(marks);
    return VF_OK;
}

/* The longest decomposition of one character, U+FDFA under NFKD, has 18. */
#define DECOMPOSED_MAX 32

static enum vf_code decompose(const char *s, size_t n, int options, struct vf_text_buf *out,
                              struct vf_err *err)
{
    for (size_t pos = 0; pos < n;) {
        int32_t cps[DECOMPOSED_MAX];
        uint32_t cp = vf_utf8_next(s, &pos);
        utf8proc_ssize_t count =
            utf8proc_decompose_char((int32_t)cp, cps, DECOMPOSED_MAX, options, NULL);
        if (count < 0 || count > DECOMPOSED_MAX)
            return vf_err_set(err, VF_ERR_INTERNAL, "tokenizer: U+%04X doesn't decompose: %s", cp,
                              utf8proc_errmsg(count));
        enum vf_code code = vf_text_append(out, (char *)cps, (size_t)count * sizeof(*cps), err);
        if (code != VF_OK)
            return code;
    }
    return VF_OK;
}

static bool is_ascii(const char *s, size_t n)
{
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++)
        any |= (unsigned char)s[i];
    return any < 0x80;
}

static enum vf_code normalize_form(enum kind kind, const char *s, size_t n, struct vf_text_buf *out,
                                   struct vf_err *err)
{
    if (is_ascii(s, n))
        return vf_text_append(out, s, n, err);
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (kind == NFKC || kind == NFKD)
        options |= UTF8PROC_COMPAT;
    struct vf_text_buf buf = {0};
    enum vf_code code = decompose(s, n, options, &buf, err);
    int32_t *cps = (int32_t *)(void *)buf.data;
    size_t count = buf.len / sizeof(*cps);
    if (code == VF_OK)
        code = order_marks(cps, count, err);
    if (code == VF_OK && (kind == NFC || kind == NFKC)) {
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)count,
                                                             UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        count = composed < 0 ? 0 : (size_t)composed;
        if (composed < 0)
            code = vf_err_set(err, VF_ERR_INTERNAL, "tokenizer: the text doesn't compose: %s",
                              utf8proc_errmsg(composed));
    }
    for (size_t i = 0; i < count && code == VF_OK; i++) {
        char utf8[4];
        code = vf_text_append(out, utf8, vf_utf8_put((uint32_t)cps[i], utf8), err);
    }
    vf_text_buf_deinit(&buf);
    return code;
}

/* --- applying --- */

static enum vf_code replace(const struct vf_normalizer_step *step, struct vf_match_iter *it,
                            const char *s, size_t n, struct vf_text_buf *out, struct vf_err *err)
{
    size_t copied = 0;
    bool found;
    vf_match_iter_reset(it, s, n);
    for (;;) {
        enum vf_code code = vf_match_iter_next(it, &found, err);
        if (code != VF_OK || !found)
            return code != VF_OK ? code : vf_text_append(out, s + copied, n - copied, err);
        code = vf_text_append(out, s + copied, it->begin - copied, err);
        if (code == VF_OK)
            code = vf_text_append(out, step->content, step->n_content, err);
        if (code != VF_OK)
            return code;
        copied = it->end;
    }
}

static enum vf_code apply_to_text(const struct vf_normalizer_step *step, struct vf_match_iter *it,
                                  const char *s, size_t n, struct vf_text_buf *out,
                                  struct vf_err *err)
{
    if (step->kind == REPLACE)
        return replace(step, it, s, n, out, err);
    if (step->kind != PREPEND)
        return normalize_form(step->kind, s, n, out, err);
    enum vf_code code = vf_text_append(out, step->content, step->n_content, err);
    return code != VF_OK ? code : vf_text_append(out, s, n, err);
}

static enum vf_code check_growth(const struct vf_work *w, size_t bytes_given, struct vf_err *err)
{
    if (w->next_text.len <= vf_text_growth_max(bytes_given))
        return VF_OK;
    return vf_err_set(err, VF_ERR_UNSUPPORTED,
                      "normalizer: makes more than %zu bytes of a text of %zu, which no sound "
                      "tokenizer.json does",
                      vf_text_growth_max(bytes_given), bytes_given);
}

static enum vf_code apply_step(const struct vf_normalizer_step *step, struct vf_work *w,
                               size_t bytes_given, struct vf_err *err)
{
    struct vf_match_iter it = {0};
    enum vf_code code =
        step->kind == REPLACE ? vf_match_iter_init(&it, &step->pattern, err) : VF_OK;
    for (size_t i = 0; i < w->pieces.count && code == VF_OK; i++) {
        struct vf_piece piece = w->pieces.v[i];
        const char *s = w->text.data + piece.begin;
        size_t n = piece.end - piece.begin;
        piece.begin = w->next_text.len;
        if (piece.id == VF_PIECE_TEXT)
            code = apply_to_text(step, &it, s, n, &w->next_text, err);
        piece.end = w->next_text.len;
        if (code == VF_OK)
            code = vf_work_add(w, piece, err);
        if (code == VF_OK)
            code = check_growth(w, bytes_given, err);
    }
    vf_match_iter_deinit(&it);
    if (code == VF_OK)
        vf_work_commit_text(w);
    return code;
}

enum vf_code vf_normalizer_apply(const struct vf_normalizer *nz, struct vf_work *w,
                                 struct vf_err *err)
{
    enum vf_code code = VF_OK;
    size_t bytes_given = w->text.len;
    for (size_t i = 0; i < nz->count && code == VF_OK; i++)
        code = apply_step(&nz->steps[i], w, bytes_given, err);
    return code;
}
