/* The symbols of a word are a doubly linked list in an array; a binary heap orders the possible
 * merges by (rank, position). A merge makes heap entries stale instead of removing them: an entry
 * counts only if the pair now at its position still merges into its id. */
#include "common/tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SYMBOL UINT32_MAX

struct vf_bpe_symbol {
    uint32_t id; /* VF_NO_TOKEN once merged into its left neighbour */
    uint32_t prev, next;
};
struct vf_bpe_merge {
    uint32_t rank, pos, id;
};

void vf_bpe_scratch_deinit(struct vf_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (struct vf_bpe_scratch){0};
}

/* --- loading --- */

static const char *const model_keys[] = {"type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "vocab",
                                         "merges",
                                         NULL};

static enum vf_code refuse_affix(const json_t *model, const char *key, const struct vf_place *p,
                                 struct vf_err *err)
{
    const json_t *v = json_object_get(model, key);
    if (!v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0))
        return VF_OK;
    return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s.%s: found %s, allowed are null and \"\"",
                      p->text, key, vf_json_describe(v).text);
}

static enum vf_code refuse_dropout(const json_t *model, const struct vf_place *p,
                                   struct vf_err *err)
{
    const json_t *v = json_object_get(model, "dropout");
    if (!v || json_is_null(v) || (json_is_number(v) && json_number_value(v) == 0))
        return VF_OK;
    return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s.dropout: found %s, allowed are null and 0",
                      p->text, vf_json_describe(v).text);
}

static enum vf_code read_type(const json_t *model, const struct vf_place *p, struct vf_err *err)
{
    static const char *const kinds[] = {"BPE", NULL};
    int kind;
    /* The oldest files have no type; BPE was the only model with merges. */
    if (json_is_object(model) && !json_object_get(model, "type") &&
        json_object_get(model, "merges"))
        return VF_OK;
    return vf_json_read_kind(model, kinds, p, &kind, err);
}

static enum vf_code read_unk(struct vf_bpe *b, const json_t *model, const struct vf_place *p,
                             struct vf_err *err)
{
    const json_t *v = json_object_get(model, "unk_token");
    b->unk_id = VF_NO_TOKEN;
    if (!v || json_is_null(v))
        return VF_OK;
    struct vf_place at = vf_place_key(p, "unk_token");
    const char *s;
    size_t n;
    enum vf_code code = vf_json_expect_string(v, &at, &s, &n, err);
    if (code != VF_OK)
        return code;
    b->unk_id = vf_vocab_find(&b->vocab, s, n);
    if (b->unk_id == VF_NO_TOKEN)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %s, which must be one of model.vocab",
                          at.text, vf_json_describe(v).text);
    return VF_OK;
}

static void find_byte_tokens(struct vf_bpe *b, bool byte_fallback)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        int n = snprintf(name, sizeof(name), "<0x%02X>", i);
        b->byte_ids[i] = byte_fallback ? vf_vocab_find(&b->vocab, name, (size_t)n) : VF_NO_TOKEN;
    }
}

enum vf_code vf_bpe_init(struct vf_bpe *b, const json_t *model, const struct vf_place *p,
                         uint32_t size_min, struct vf_err *err)
{
    memset(b, 0, sizeof(*b));
    bool byte_fallback = false;
    enum vf_code code = read_type(model, p, err);
    if (code == VF_OK)
        code = vf_json_expect_keys(model, model_keys, p, err);
    if (code == VF_OK)
        code = refuse_dropout(model, p, err);
    if (code == VF_OK)
        code = refuse_affix(model, "continuing_subword_prefix", p, err);
    if (code == VF_OK)
        code = refuse_affix(model, "end_of_word_suffix", p, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(model, "fuse_unk", p, &b->fuse_unk, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(model, "byte_fallback", p, &byte_fallback, err);
    if (code == VF_OK)
        code = vf_json_read_bool_or(model, "ignore_merges", p, &b->ignore_merges, err);
    if (code == VF_OK)
        code = vf_vocab_init(&b->vocab, model, p, size_min, err);
    if (code == VF_OK)
        code = read_unk(b, model, p, err);
    if (code == VF_OK)
        find_byte_tokens(b, byte_fallback);
    return code;
}

void vf_bpe_deinit(struct vf_bpe *b)
{
    vf_vocab_deinit(&b->vocab);
}

/* --- the heap --- */

static bool before(const struct vf_bpe_merge *a, const struct vf_bpe_merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

/* Room is reserved for the most entries a word can have. */
static void heap_push(struct vf_bpe_scratch *s, struct vf_bpe_merge m)
{
    size_t i = s->heap_count++;
    while (i > 0 && before(&m, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = m;
}

static struct vf_bpe_merge heap_pop(struct vf_bpe_scratch *s)
{
    struct vf_bpe_merge top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* --- a word --- */

/* A word of n bytes has at most n symbols; each pair enters the heap once at the start, and a
 * merge, of which there are fewer than n, adds at most two. */
static enum vf_code reserve(struct vf_bpe_scratch *s, size_t n, struct vf_err *err)
{
    if (n <= s->symbols_cap)
        return VF_OK;
    n = n < 256 ? 256 : n + n / 2;
    struct vf_bpe_symbol *symbols = malloc(n * sizeof(*symbols));
    struct vf_bpe_merge *heap = malloc(3 * n * sizeof(*heap));
    if (!symbols || !heap) {
        free(symbols);
        free(heap);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", n);
    }
    vf_bpe_scratch_deinit(s);
    s->symbols = symbols;
    s->heap = heap;
    s->symbols_cap = n;
    s->heap_cap = 3 * n;
    return VF_OK;
}

static void add_symbol(struct vf_bpe_scratch *s, uint32_t *count, uint32_t id)
{
    uint32_t i = (*count)++;
    s->symbols[i] = (struct vf_bpe_symbol){id, i == 0 ? NO_SYMBOL : i - 1, i + 1};
}

static bool add_byte_symbols(const struct vf_bpe *b, const char *s, size_t n,
                             struct vf_bpe_scratch *scratch, uint32_t *count)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_ids[(unsigned char)s[i]] == VF_NO_TOKEN)
            return false;
    for (size_t i = 0; i < n; i++)
        add_symbol(scratch, count, b->byte_ids[(unsigned char)s[i]]);
    return true;
}

/* The word's characters as tokens. An unknown one waits in `unk`, so that a run can be fused; as
 * in the reference, byte tokens don't end such a run. */
static uint32_t split_characters(const struct vf_bpe *b, const char *word, size_t n,
                                 struct vf_bpe_scratch *s)
{
    uint32_t count = 0;
    bool unk = false;
    for (size_t pos = 0; pos < n;) {
        size_t begin = pos;
        uint32_t id = vf_vocab_find_char(&b->vocab, vf_utf8_next(word, &pos));
        if (id == VF_NO_TOKEN && add_byte_symbols(b, word + begin, pos - begin, s, &count))
            continue;
        if (id == VF_NO_TOKEN && b->unk_id == VF_NO_TOKEN)
            continue;
        if (unk && (id != VF_NO_TOKEN || !b->fuse_unk))
            add_symbol(s, &count, b->unk_id);
        unk = id == VF_NO_TOKEN;
        if (!unk)
            add_symbol(s, &count, id);
    }
    if (unk)
        add_symbol(s, &count, b->unk_id);
    if (count > 0)
        s->symbols[count - 1].next = NO_SYMBOL;
    return count;
}

static const struct vf_u64_entry *merge_at(const struct vf_bpe *b, const struct vf_bpe_scratch *s,
                                           uint32_t pos)
{
    uint64_t left = s->symbols[pos].id, right = s->symbols[s->symbols[pos].next].id;
    return vf_u64_map_get(&b->vocab.merges, left << 32 | right);
}

static void push_merge_at(const struct vf_bpe *b, struct vf_bpe_scratch *s, uint32_t pos)
{
    const struct vf_u64_entry *m = merge_at(b, s, pos);
    if (m)
        heap_push(s, (struct vf_bpe_merge){m->a, pos, m->b});
}

static void merge_symbols(const struct vf_bpe *b, struct vf_bpe_scratch *s, uint32_t count)
{
    s->heap_count = 0;
    for (uint32_t i = 0; i + 1 < count; i++)
        push_merge_at(b, s, i);
    while (s->heap_count > 0) {
        struct vf_bpe_merge top = heap_pop(s);
        struct vf_bpe_symbol *left = &s->symbols[top.pos];
        if (left->id == VF_NO_TOKEN || left->next == NO_SYMBOL)
            continue;
        const struct vf_u64_entry *now = merge_at(b, s, top.pos);
        if (!now || now->b != top.id)
            continue;
        struct vf_bpe_symbol *right = &s->symbols[left->next];
        left->id = top.id;
        left->next = right->next;
        right->id = VF_NO_TOKEN;
        if (left->next != NO_SYMBOL)
            s->symbols[left->next].prev = top.pos;
        if (left->prev != NO_SYMBOL)
            push_merge_at(b, s, left->prev);
        if (left->next != NO_SYMBOL)
            push_merge_at(b, s, top.pos);
    }
}

enum vf_code vf_bpe_encode(const struct vf_bpe *b, const char *word, size_t n,
                           struct vf_bpe_scratch *s, struct vf_ids *ids, struct vf_err *err)
{
    uint32_t whole = b->ignore_merges ? vf_vocab_find(&b->vocab, word, n) : VF_NO_TOKEN;
    if (whole != VF_NO_TOKEN)
        return vf_ids_append(ids, &whole, 1, err);
    enum vf_code code = reserve(s, n, err);
    if (code != VF_OK)
        return code;
    uint32_t count = split_characters(b, word, n, s);
    merge_symbols(b, s, count);
    for (uint32_t i = 0; i < count && code == VF_OK; i++)
        if (s->symbols[i].id != VF_NO_TOKEN)
            code = vf_ids_append(ids, &s->symbols[i].id, 1, err);
    return code;
}
