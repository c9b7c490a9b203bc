#include "common/tokenizer/added_tokens.h"

#include "common/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Longer than any marker in use; matching at one place costs at most this many steps. */
#define ADDED_TOKEN_BYTES_MAX 512u
/* \w of the reference's added tokens, which has the joiners as well. */
#define WORD_CHAR "[\\w\\u200C\\u200D]"

/* --- the tree --- */

static enum vf_code tree_init(struct vf_added_tree *t, struct vf_err *err)
{
    t->node_count = 1;
    enum vf_code code = vf_u64_map_init(&t->edges, 64, err);
    return code != VF_OK ? code : vf_u64_map_init(&t->ends, 16, err);
}

static void tree_deinit(struct vf_added_tree *t)
{
    vf_u64_map_deinit(&t->edges);
    vf_u64_map_deinit(&t->ends);
}

/* *taken: another token has the same text. */
static enum vf_code tree_add(struct vf_added_tree *t, const char *s, size_t n, uint32_t index,
                             bool *taken, struct vf_err *err)
{
    uint32_t node = 0;
    t->starts[(unsigned char)s[0]] = true;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = (uint64_t)node << 8 | (unsigned char)s[i];
        const struct vf_u64_entry *e = vf_u64_map_get(&t->edges, key);
        node = e ? e->b : t->node_count++;
        enum vf_code code = e ? VF_OK : vf_u64_map_put(&t->edges, key, 0, node, err);
        if (code != VF_OK)
            return code;
    }
    *taken = vf_u64_map_get(&t->ends, node) != NULL;
    return *taken ? VF_OK : vf_u64_map_put(&t->ends, node, 0, index, err);
}

/* The longest token that starts at s; false if none does. */
static bool tree_match(const struct vf_added_tree *t, const char *s, size_t n, size_t *len,
                       uint32_t *index)
{
    uint32_t node = 0;
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        const struct vf_u64_entry *e =
            vf_u64_map_get(&t->edges, (uint64_t)node << 8 | (unsigned char)s[i]);
        if (!e)
            break;
        node = e->b;
        const struct vf_u64_entry *end = vf_u64_map_get(&t->ends, node);
        if (end) {
            found = true;
            *len = i + 1;
            *index = end->b;
        }
    }
    return found;
}

/* --- loading --- */

enum vf_code vf_added_tokens_scan(const json_t *list, const struct vf_place *p, uint32_t *size,
                                  struct vf_err *err)
{
    *size = 0;
    if (!list || json_is_null(list))
        return VF_OK;
    enum vf_code code = vf_json_expect_array(list, VF_TOKENIZER_VOCAB_MAX, p, err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        struct vf_place at = vf_place_index(p, i);
        const json_t *token = json_array_get(list, i);
        struct vf_json_field id_field = {at.text, "id", true};
        int64_t id = 0;
        code = vf_json_expect_object(token, &at, err);
        if (code == VF_OK)
            code = vf_json_get_int(token, id_field, 0, VF_TOKENIZER_VOCAB_MAX - 1, &id, NULL, err);
        if (code == VF_OK && (uint32_t)id + 1 > *size)
            *size = (uint32_t)id + 1;
    }
    return code;
}

struct reader {
    struct vf_added_tokens *added;
    const struct vf_normalizer *normalizer;
    struct vf_vocab *vocab;
    bool *seen; /* [vocab->size] ids of added tokens so far */
    struct vf_err *err;
};

/* The id must be the vocabulary's own for this text, or free. */
static enum vf_code claim_id(struct reader *r, uint32_t id, const char *s, size_t n,
                             const struct vf_place *p)
{
    const char *other;
    size_t n_other;
    uint32_t known = vf_vocab_find(r->vocab, s, n);
    if (known != VF_NO_TOKEN && known != id)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s.id: found %u for %s, must be %u as in model.vocab", p->text, id,
                          vf_json_quote(s, n).text, known);
    if (r->seen[id] || (known == VF_NO_TOKEN && vf_vocab_text(r->vocab, id, &other, &n_other)))
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s.id: found %u for %s, but another token has it, ids must be unique",
                          p->text, id, vf_json_quote(s, n).text);
    r->seen[id] = true;
    return VF_OK;
}

static enum vf_code normalized_text(const struct reader *r, const char *s, size_t n,
                                    struct vf_work *w)
{
    enum vf_code code = vf_text_append(&w->text, s, n, r->err);
    if (code == VF_OK)
        code = vf_work_add(w, (struct vf_piece){0, n, VF_PIECE_TEXT, true}, r->err);
    if (code == VF_OK)
        vf_work_commit_pieces(w);
    return code != VF_OK ? code : vf_normalizer_apply(r->normalizer, w, r->err);
}

/* Puts the text to look for into its tree; it is also what the id decodes from. */
static enum vf_code plant(struct reader *r, uint32_t index, bool normalized, const char *s,
                          size_t n, const struct vf_place *p)
{
    struct vf_work w = {0};
    uint32_t id = r->added->tokens[index].id;
    enum vf_code code = VF_OK;
    bool taken = false;
    if (normalized) {
        code = normalized_text(r, s, n, &w);
        s = w.text.data;
        n = w.text.len;
    }
    if (code == VF_OK && n == 0)
        code = vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s.content: found a text that normalizes to nothing", p->text);
    if (code == VF_OK)
        code = tree_add(normalized ? &r->added->normalized : &r->added->raw, s, n, index, &taken,
                        r->err);
    if (code == VF_OK && taken)
        code = vf_err_set(r->err, VF_ERR_CORRUPT, "%s.content: found %s a second time", p->text,
                          vf_json_quote(s, n).text);
    if (code == VF_OK && (normalized || r->vocab->tokens[id].offset == VF_NO_TOKEN))
        code = vf_vocab_set_text(r->vocab, id, s, n, r->err);
    vf_work_deinit(&w);
    return code;
}

static enum vf_code read_token(struct reader *r, uint32_t index, const json_t *v,
                               const struct vf_place *p)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    struct vf_added_token *t = &r->added->tokens[index];
    bool normalized = false, special = false;
    const char *s;
    size_t n;
    t->id = (uint32_t)json_integer_value(json_object_get(v, "id"));
    enum vf_code code = vf_json_expect_keys(v, keys, p, r->err);
    if (code == VF_OK)
        code = vf_json_read_string(v, "content", p, &s, &n, r->err);
    if (code == VF_OK && (n == 0 || n > ADDED_TOKEN_BYTES_MAX))
        code = vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s.content: found a text of %zu bytes, allowed are 1 to %u", p->text, n,
                          ADDED_TOKEN_BYTES_MAX);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "single_word", p, &t->single_word, r->err);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "lstrip", p, &t->lstrip, r->err);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "rstrip", p, &t->rstrip, r->err);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "normalized", p, &normalized, r->err);
    if (code == VF_OK)
        code = vf_json_read_bool(v, "special", p, &special, r->err);
    if (code == VF_OK)
        code = claim_id(r, t->id, s, n, p);
    if (code == VF_OK)
        code = plant(r, index, normalized, s, n, p);
    if (code == VF_OK)
        r->vocab->tokens[t->id].special = special;
    return code;
}

enum vf_code vf_added_tokens_init(struct vf_added_tokens *a, const json_t *list,
                                  const struct vf_place *p, const struct vf_normalizer *nz,
                                  struct vf_vocab *v, struct vf_err *err)
{
    *a = (struct vf_added_tokens){0};
    size_t count = json_array_size(list);
    struct reader r = {a, nz, v, calloc(v->size, sizeof(bool)), err};
    a->tokens = calloc(count + 1, sizeof(*a->tokens));
    enum vf_code code = VF_OK;
    if (!r.seen || !a->tokens)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for %zu tokens", p->text, count);
    if (code == VF_OK)
        code = tree_init(&a->raw, err);
    if (code == VF_OK)
        code = tree_init(&a->normalized, err);
    if (code == VF_OK)
        code = vf_pattern_init_regex(&a->word_char, WORD_CHAR, sizeof(WORD_CHAR) - 1, p, err);
    for (; code == VF_OK && a->count < count; a->count++) {
        struct vf_place at = vf_place_index(p, a->count);
        code = read_token(&r, (uint32_t)a->count, json_array_get(list, a->count), &at);
    }
    free(r.seen);
    return code;
}

void vf_added_tokens_deinit(struct vf_added_tokens *a)
{
    free(a->tokens);
    tree_deinit(&a->raw);
    tree_deinit(&a->normalized);
    vf_pattern_deinit(&a->word_char);
    *a = (struct vf_added_tokens){0};
}

/* --- finding --- */

struct splitter {
    const struct vf_added_tokens *added;
    struct vf_work *work;
    struct vf_piece piece;
    const char *s;
    size_t n;
    size_t done;                /* end of what has been handed on */
    struct vf_match_iter words; /* over word_char */
};

/* Whether the character [begin, end) is a letter, digit or the like. */
static enum vf_code is_word_char(struct splitter *sp, size_t begin, size_t end, bool *is_word,
                                 struct vf_err *err)
{
    vf_match_iter_reset(&sp->words, sp->s + begin, end - begin);
    return vf_match_iter_next(&sp->words, is_word, err);
}

/* A single_word token counts only between characters that aren't part of words. */
static enum vf_code stands_alone(struct splitter *sp, size_t begin, size_t end, bool *alone,
                                 struct vf_err *err)
{
    bool before = false, after = false;
    enum vf_code code = VF_OK;
    if (begin > 0)
        code = is_word_char(sp, vf_utf8_prev(sp->s, begin), begin, &before, err);
    if (code == VF_OK && end < sp->n) {
        size_t next = end;
        (void)vf_utf8_next(sp->s, &next);
        code = is_word_char(sp, end, next, &after, err);
    }
    *alone = !before && !after;
    return code;
}

static size_t skip_spaces_back(const struct splitter *sp, size_t pos)
{
    while (pos > 0) {
        size_t prev = vf_utf8_prev(sp->s, pos), at = prev;
        if (!vf_utf8_is_space(vf_utf8_next(sp->s, &at)))
            break;
        pos = prev;
    }
    return pos;
}

static size_t skip_spaces(const struct splitter *sp, size_t pos)
{
    while (pos < sp->n) {
        size_t at = pos;
        if (!vf_utf8_is_space(vf_utf8_next(sp->s, &at)))
            break;
        pos = at;
    }
    return pos;
}

static enum vf_code add_text(struct splitter *sp, size_t begin, size_t end, struct vf_err *err)
{
    struct vf_piece text = {sp->piece.begin + begin, sp->piece.begin + end, VF_PIECE_TEXT,
                            sp->piece.at_start && begin == 0};
    return vf_work_add(sp->work, text, err);
}

static enum vf_code add_match(struct splitter *sp, size_t begin, size_t end,
                              const struct vf_added_token *t, struct vf_err *err)
{
    if (t->single_word) {
        bool alone;
        enum vf_code code = stands_alone(sp, begin, end, &alone, err);
        if (code != VF_OK || !alone)
            return code;
    }
    if (t->lstrip) {
        size_t stripped = skip_spaces_back(sp, begin);
        begin = stripped > sp->done ? stripped : sp->done;
    }
    if (t->rstrip)
        end = skip_spaces(sp, end);
    enum vf_code code = begin > sp->done ? add_text(sp, sp->done, begin, err) : VF_OK;
    struct vf_piece piece = {0, 0, t->id, false};
    sp->done = end;
    return code != VF_OK ? code : vf_work_add(sp->work, piece, err);
}

static enum vf_code split_piece(struct splitter *sp, const struct vf_added_tree *tree,
                                struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < sp->n && code == VF_OK;) {
        size_t len;
        uint32_t index;
        if (!tree->starts[(unsigned char)sp->s[i]] ||
            !tree_match(tree, sp->s + i, sp->n - i, &len, &index)) {
            i++;
            continue;
        }
        code = add_match(sp, i, i + len, &sp->added->tokens[index], err);
        i += len;
    }
    if (code == VF_OK && sp->done < sp->n)
        code = add_text(sp, sp->done, sp->n, err);
    return code;
}

enum vf_code vf_added_tokens_split(const struct vf_added_tokens *a,
                                   const struct vf_added_tree *tree, struct vf_work *w,
                                   struct vf_err *err)
{
    if (tree->ends.count == 0)
        return VF_OK;
    struct splitter sp = {.added = a, .work = w};
    enum vf_code code = vf_match_iter_init(&sp.words, &a->word_char, err);
    for (size_t i = 0; i < w->pieces.count && code == VF_OK; i++) {
        sp.piece = w->pieces.v[i];
        sp.s = w->text.data + sp.piece.begin;
        sp.n = sp.piece.end - sp.piece.begin;
        sp.done = 0;
        code = sp.piece.id == VF_PIECE_TEXT ? split_piece(&sp, tree, err)
                                            : vf_work_add(w, sp.piece, err);
    }
    vf_match_iter_deinit(&sp.words);
    if (code == VF_OK)
        vf_work_commit_pieces(w);
    return code;
}
