#include "common/tokenizer/pre_tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum kind { SEQUENCE, BYTE_LEVEL, SPLIT, METASPACE, DIGITS };
static const char *const kinds[] = {"Sequence", "ByteLevel", "Split", "Metaspace", "Digits", NULL};

/* What becomes of a match, in the reference's words. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
static const char *const behaviors[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous", NULL};

#define GPT2_REGEX                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct vf_pre_tokenizer_step {
    enum kind kind;
    bool has_pattern; /* else nothing is cut */
    struct vf_pattern pattern;
    enum behavior behavior;
    bool invert;
    bool add_prefix_space;   /* BYTE_LEVEL */
    enum vf_prepend prepend; /* METASPACE */
};

/* --- loading --- */

enum vf_code vf_byte_level_read(const json_t *v, const struct vf_place *p, bool *add_prefix_space,
                                bool *use_regex, struct vf_err *err)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    bool trim_offsets = true;
    *add_prefix_space = true;
    *use_regex = true;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(v, "add_prefix_space", p, add_prefix_space, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(v, "trim_offsets", p, &trim_offsets, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(v, "use_regex", p, use_regex, err);
    return code;
}

/* Files without prepend_scheme have add_prefix_space instead; with both they must agree. */
static enum vf_code read_prepend(const json_t *v, const struct vf_place *p,
                                 enum vf_prepend *prepend, struct vf_err *err)
{
    static const char *const schemes[] = {"always", "first", "never", NULL};
    bool add_prefix_space = true;
    int scheme = VF_PREPEND_ALWAYS;
    enum vf_code code = vf_json_read_bool_or(v, "add_prefix_space", p, &add_prefix_space, err);
    const json_t *given = json_object_get(v, "prepend_scheme");
    if (code == VF_OK && given)
        code = vf_json_read_choice(v, "prepend_scheme", schemes, p, &scheme, err);
    if (code != VF_OK)
        return code;
    if (!add_prefix_space && given && scheme != VF_PREPEND_NEVER)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s.add_prefix_space: found false, must agree with prepend_scheme \"%s\"",
                          p->text, schemes[scheme]);
    *prepend = add_prefix_space ? (enum vf_prepend)scheme : VF_PREPEND_NEVER;
    return VF_OK;
}

enum vf_code vf_metaspace_read(const json_t *v, const struct vf_place *p, const char **s, size_t *n,
                               enum vf_prepend *prepend, bool *split, struct vf_err *err)
{
    static const char *const keys[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL};
    *split = true;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_read_char(v, "replacement", p, s, n, err);
    if (code == VF_OK)
        code = read_prepend(v, p, prepend, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(v, "split", p, split, err);
    return code;
}

static enum vf_code read_byte_level(struct vf_pre_tokenizer_step *s, const json_t *v,
                                    const struct vf_place *p, struct vf_err *err)
{
    enum vf_code code = vf_byte_level_read(v, p, &s->add_prefix_space, &s->has_pattern, err);
    if (code != VF_OK || !s->has_pattern)
        return code;
    s->behavior = ISOLATED;
    return vf_pattern_init_regex(&s->pattern, GPT2_REGEX, sizeof(GPT2_REGEX) - 1, p, err);
}

static enum vf_code read_split(struct vf_pre_tokenizer_step *s, const json_t *v,
                               const struct vf_place *p, struct vf_err *err)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    struct vf_place at = vf_place_key(p, "pattern");
    int behavior = ISOLATED;
    s->has_pattern = true;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_pattern_init_json(&s->pattern, json_object_get(v, "pattern"), true, &at, err);
    if (code == VF_OK)
        code = vf_json_read_choice(v, "behavior", behaviors, p, &behavior, err);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "invert", p, &s->invert, err);
    s->behavior = (enum behavior)behavior;
    return code;
}

static enum vf_code read_metaspace(struct vf_pre_tokenizer_step *s, const json_t *v,
                                   const struct vf_place *p, struct vf_err *err)
{
    const char *replacement;
    size_t n;
    enum vf_code code =
        vf_metaspace_read(v, p, &replacement, &n, &s->prepend, &s->has_pattern, err);
    s->behavior = MERGED_WITH_NEXT;
    return code != VF_OK ? code : vf_pattern_init_string(&s->pattern, replacement, n, p, err);
}

static enum vf_code read_digits(struct vf_pre_tokenizer_step *s, const json_t *v,
                                const struct vf_place *p, struct vf_err *err)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    s->has_pattern = true;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(v, "individual_digits", p, &individual, err);
    if (code == VF_OK)
        code = vf_pattern_init_regex(&s->pattern, "\\p{N}", 5, p, err);
    s->behavior = individual ? ISOLATED : CONTIGUOUS;
    return code;
}

static enum vf_code add_step(struct vf_pre_tokenizer *pt, enum kind kind, const json_t *v,
                             const struct vf_place *p, struct vf_err *err)
{
    if (pt->count == VF_SEQUENCE_LENGTH_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found more than %d pre-tokenizers", p->text,
                          VF_SEQUENCE_LENGTH_MAX);
    struct vf_pre_tokenizer_step *s = &pt->steps[pt->count++];
    s->kind = kind;
    return kind == BYTE_LEVEL  ? read_byte_level(s, v, p, err)
           : kind == SPLIT     ? read_split(s, v, p, err)
           : kind == METASPACE ? read_metaspace(s, v, p, err)
                               : read_digits(s, v, p, err);
}

static enum vf_code load(struct vf_pre_tokenizer *pt, const json_t *v, const struct vf_place *p,
                         int depth, struct vf_err *err)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    int kind;
    enum vf_code code = vf_json_read_kind(v, kinds, p, &kind, err);
    if (code != VF_OK)
        return code;
    if (kind != SEQUENCE)
        return add_step(pt, (enum kind)kind, v, p, err);
    if (depth == VF_SEQUENCE_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found sequences nested deeper than %d",
                          p->text, VF_SEQUENCE_DEPTH_MAX);
    struct vf_place list_at = vf_place_key(p, "pretokenizers");
    const json_t *list = json_object_get(v, "pretokenizers");
    code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_expect_array(list, VF_SEQUENCE_LENGTH_MAX, &list_at, err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        struct vf_place at = vf_place_index(&list_at, i);
        code = load(pt, json_array_get(list, i), &at, depth + 1, err);
    }
    return code;
}

enum vf_code vf_pre_tokenizer_init(struct vf_pre_tokenizer *pt, const json_t *v,
                                   const struct vf_place *p, struct vf_err *err)
{
    *pt = (struct vf_pre_tokenizer){0};
    if (!v || json_is_null(v))
        return VF_OK;
    pt->steps = calloc(VF_SEQUENCE_LENGTH_MAX, sizeof(*pt->steps));
    if (!pt->steps)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", p->text);
    return load(pt, v, p, 0, err);
}

void vf_pre_tokenizer_deinit(struct vf_pre_tokenizer *pt)
{
    for (size_t i = 0; i < pt->count; i++)
        vf_pattern_deinit(&pt->steps[i].pattern);
    free(pt->steps);
    *pt = (struct vf_pre_tokenizer){0};
}

/* --- bytes as characters --- */

static bool is_visible(uint32_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* Bytes without a visible Latin-1 character get the characters from U+0100 on, in order:
 * 0x00-0x20, 0x7f-0xa0, 0xad. */
uint32_t vf_byte_level_char(unsigned char b)
{
    if (is_visible(b))
        return b;
    return b <= 0x20 ? 0x100u + b : b == 0xad ? 0x143u : 0x121u + (b - 0x7fu);
}

int vf_byte_level_byte(uint32_t cp)
{
    if (cp < 0x100)
        return is_visible(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

/* --- cutting --- */

/* Consecutive spans of a piece, matches and what lies between them. */
struct cutter {
    const struct vf_pre_tokenizer_step *step;
    struct vf_work *work;
    struct vf_piece piece; /* being cut */
    struct vf_piece open;  /* the piece that further spans may still join */
    bool has_open, previous_match;
};

static enum vf_code close_open(struct cutter *c, struct vf_err *err)
{
    if (!c->has_open)
        return VF_OK;
    c->has_open = false;
    return vf_work_add(c->work, c->open, err);
}

/* Whether this span is one with the open piece. MERGED_WITH_NEXT looks the other way round: a
 * span that isn't a match joins a match before it. */
static bool joins_open(const struct cutter *c, bool is_match)
{
    switch (c->step->behavior) {
    case MERGED_WITH_PREVIOUS:
        return c->has_open && is_match && !c->previous_match;
    case MERGED_WITH_NEXT:
        return c->has_open && !is_match && c->previous_match;
    case CONTIGUOUS:
        return c->has_open && is_match == c->previous_match;
    case REMOVED:
    case ISOLATED:
        break;
    }
    return false;
}

static enum vf_code add_span(struct cutter *c, size_t begin, size_t end, bool is_match,
                             struct vf_err *err)
{
    is_match ^= c->step->invert;
    if (is_match && c->step->behavior == REMOVED)
        return VF_OK;
    enum vf_code code = VF_OK;
    if (!joins_open(c, is_match)) {
        code = close_open(c, err);
        c->open = (struct vf_piece){.begin = c->piece.begin + begin,
                                    .id = VF_PIECE_TEXT,
                                    .at_start = c->piece.at_start && begin == 0};
        c->has_open = true;
    }
    c->open.end = c->piece.begin + end;
    c->previous_match = is_match;
    return code;
}

static enum vf_code cut_piece(struct cutter *c, struct vf_match_iter *it, struct vf_err *err)
{
    size_t n = c->piece.end - c->piece.begin, done = 0;
    bool found;
    vf_match_iter_reset(it, c->work->text.data + c->piece.begin, n);
    for (;;) {
        enum vf_code code = vf_match_iter_next(it, &found, err);
        size_t begin = found ? it->begin : n;
        if (code == VF_OK && begin > done)
            code = add_span(c, done, begin, false, err);
        if (code == VF_OK && found)
            code = add_span(c, it->begin, it->end, true, err);
        if (code != VF_OK || !found)
            return code != VF_OK ? code : close_open(c, err);
        done = it->end;
    }
}

static enum vf_code cut(const struct vf_pre_tokenizer_step *step, struct vf_work *w,
                        struct vf_err *err)
{
    struct vf_match_iter it;
    enum vf_code code = vf_match_iter_init(&it, &step->pattern, err);
    for (size_t i = 0; i < w->pieces.count && code == VF_OK; i++) {
        struct cutter c = {.step = step, .work = w, .piece = w->pieces.v[i]};
        if (c.piece.id == VF_PIECE_TEXT)
            code = cut_piece(&c, &it, err);
        else
            code = vf_work_add(w, c.piece, err);
    }
    vf_match_iter_deinit(&it);
    if (code == VF_OK)
        vf_work_commit_pieces(w);
    return code;
}

/* --- rewriting --- */

typedef enum vf_code rewrite_fn(const struct vf_pre_tokenizer_step *step, const char *s, size_t n,
                                bool at_start, struct vf_text_buf *out, struct vf_err *err);

static enum vf_code rewrite(const struct vf_pre_tokenizer_step *step, rewrite_fn *fn,
                            struct vf_work *w, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < w->pieces.count && code == VF_OK; i++) {
        struct vf_piece piece = w->pieces.v[i];
        const char *s = w->text.data + piece.begin;
        size_t n = piece.end - piece.begin;
        piece.begin = w->next_text.len;
        if (piece.id == VF_PIECE_TEXT)
            code = fn(step, s, n, piece.at_start, &w->next_text, err);
        piece.end = w->next_text.len;
        if (code == VF_OK)
            code = vf_work_add(w, piece, err);
    }
    if (code == VF_OK)
        vf_work_commit_text(w);
    return code;
}

static enum vf_code add_prefix_space(const struct vf_pre_tokenizer_step *step, const char *s,
                                     size_t n, bool at_start, struct vf_text_buf *out,
                                     struct vf_err *err)
{
    (void)step;
    (void)at_start;
    enum vf_code code = s[0] == ' ' ? VF_OK : vf_text_append(out, " ", 1, err);
    return code != VF_OK ? code : vf_text_append(out, s, n, err);
}

static enum vf_code bytes_to_chars(const struct vf_pre_tokenizer_step *step, const char *s,
                                   size_t n, bool at_start, struct vf_text_buf *out,
                                   struct vf_err *err)
{
    (void)step;
    (void)at_start;
    for (size_t i = 0; i < n;) {
        char chunk[512];
        size_t len = 0;
        for (; i < n && len + 2 <= sizeof(chunk); i++)
            len += vf_utf8_put(vf_byte_level_char((unsigned char)s[i]), chunk + len);
        enum vf_code code = vf_text_append(out, chunk, len, err);
        if (code != VF_OK)
            return code;
    }
    return VF_OK;
}

/* Spaces become the replacement character, and one is put in front where the scheme says so. */
static enum vf_code mark_spaces(const struct vf_pre_tokenizer_step *step, const char *s, size_t n,
                                bool at_start, struct vf_text_buf *out, struct vf_err *err)
{
    const char *mark = step->pattern.string;
    size_t n_mark = step->pattern.n_string;
    bool marked = s[0] == ' ' || (n >= n_mark && memcmp(s, mark, n_mark) == 0);
    bool wanted =
        step->prepend == VF_PREPEND_ALWAYS || (step->prepend == VF_PREPEND_FIRST && at_start);
    enum vf_code code = wanted && !marked ? vf_text_append(out, mark, n_mark, err) : VF_OK;
    for (size_t i = 0; i < n && code == VF_OK;) {
        const char *space = memchr(s + i, ' ', n - i);
        size_t end = space ? (size_t)(space - s) : n;
        code = vf_text_append(out, s + i, end - i, err);
        if (code == VF_OK && space)
            code = vf_text_append(out, mark, n_mark, err);
        i = end + 1;
    }
    return code;
}

static enum vf_code apply_step(const struct vf_pre_tokenizer_step *step, struct vf_work *w,
                               struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (step->kind == METASPACE)
        code = rewrite(step, mark_spaces, w, err);
    if (step->kind == BYTE_LEVEL && step->add_prefix_space)
        code = rewrite(step, add_prefix_space, w, err);
    if (code == VF_OK && step->has_pattern)
        code = cut(step, w, err);
    if (code == VF_OK && step->kind == BYTE_LEVEL)
        code = rewrite(step, bytes_to_chars, w, err);
    return code;
}

enum vf_code vf_pre_tokenizer_apply(const struct vf_pre_tokenizer *pt, struct vf_work *w,
                                    struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < pt->count && code == VF_OK; i++)
        code = apply_step(&pt->steps[i], w, err);
    return code;
}
