/* Loading is in three passes over model.vocab (largest id, texts, hash table), then the merges.
 * The string table is open addressing over XXH64 with a secret seed. */
#include "common/tokenizer/vocab.h"

#include "common/base/progress.h"
#include "common/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static enum vf_code no_memory(struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for the vocabulary");
}

static enum vf_code check_entry(const char *token, const json_t *id, const struct vf_place *p,
                                struct vf_err *err)
{
    size_t n = strlen(token);
    if (n > VF_TOKENIZER_TOKEN_BYTES_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: found a token of %zu bytes, at most %u are "
                          "allowed: %s",
                          p->text, n, VF_TOKENIZER_TOKEN_BYTES_MAX, vf_json_quote(token, n).text);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= VF_TOKENIZER_VOCAB_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: token %s has the id %s, must be an integer from 0 to %u", p->text,
                          vf_json_quote(token, n).text, vf_json_describe(id).text,
                          VF_TOKENIZER_VOCAB_MAX - 1);
    return VF_OK;
}

/* Checks all entries and finds the size of the id range. */
static enum vf_code scan_vocab(const json_t *vocab, const struct vf_place *p, uint32_t *size,
                               struct vf_err *err)
{
    enum vf_code code = vf_json_expect_object(vocab, p, err);
    if (code != VF_OK)
        return code;
    if (json_object_size(vocab) == 0)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found no tokens, at least one is needed",
                          p->text);
    const char *token;
    json_t *id;
    json_object_foreach((json_t *)vocab, token, id)
    {
        code = check_entry(token, id, p, err);
        if (code != VF_OK)
            return code;
        uint32_t end = (uint32_t)json_integer_value(id) + 1;
        *size = end > *size ? end : *size;
    }
    return VF_OK;
}

static enum vf_code alloc_tokens(struct vf_vocab *v, struct vf_err *err)
{
    v->tokens = malloc(v->size * sizeof(*v->tokens));
    if (!v->tokens)
        return no_memory(err);
    for (uint32_t i = 0; i < v->size; i++)
        v->tokens[i] = (struct vf_token){.offset = VF_NO_TOKEN};
    return VF_OK;
}

static enum vf_code store_texts(struct vf_vocab *v, const json_t *vocab, const struct vf_place *p,
                                struct vf_err *err)
{
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)vocab, token, value)
    {
        uint32_t id = (uint32_t)json_integer_value(value);
        const char *other;
        size_t n_other;
        if (vf_vocab_text(v, id, &other, &n_other))
            return vf_err_set(err, VF_ERR_CORRUPT,
                              "%s: id %u is given to both %s and %s, ids must be unique", p->text,
                              id, vf_json_quote(other, n_other).text,
                              vf_json_quote(token, strlen(token)).text);
        enum vf_code code = vf_vocab_set_text(v, id, token, strlen(token), err);
        if (code != VF_OK)
            return code;
        v->tokens[id].key_offset = v->tokens[id].offset;
        v->tokens[id].key_len = v->tokens[id].len;
    }
    return VF_OK;
}

static uint32_t *slot_of(const struct vf_vocab *v, const char *s, size_t n)
{
    uint32_t i = (uint32_t)XXH64(s, n, v->seed) & v->slot_mask;
    for (;; i = (i + 1) & v->slot_mask) {
        uint32_t id = v->slots[i];
        if (id == VF_NO_TOKEN)
            return &v->slots[i];
        const struct vf_token *t = &v->tokens[id];
        if (t->key_len == n && memcmp(v->bytes.data + t->key_offset, s, n) == 0)
            return &v->slots[i];
    }
}

static enum vf_code index_texts(struct vf_vocab *v, size_t count, struct vf_err *err)
{
    enum vf_code code = vf_hash_seed(&v->seed, 1, err);
    if (code != VF_OK)
        return code;
    size_t slot_count = 16;
    while (slot_count < count * 2)
        slot_count *= 2;
    v->slots = malloc(slot_count * sizeof(*v->slots));
    if (!v->slots)
        return no_memory(err);
    memset(v->slots, 0xff, slot_count * sizeof(*v->slots));
    v->slot_mask = (uint32_t)slot_count - 1;
    for (uint32_t id = 0; id < v->size; id++) {
        const char *s;
        size_t n;
        if (vf_vocab_text(v, id, &s, &n))
            *slot_of(v, s, n) = id;
    }
    return VF_OK;
}

/* The direct table that turns a word into its first symbols without hashing. */
static enum vf_code index_char(struct vf_vocab *v, uint32_t id, struct vf_err *err)
{
    const char *s;
    size_t n, pos = 0;
    if (!vf_vocab_text(v, id, &s, &n) || n == 0 || n > 4)
        return VF_OK;
    uint32_t cp = vf_utf8_next(s, &pos);
    if (pos != n)
        return VF_OK;
    uint32_t **page = &v->char_pages[cp >> 8];
    if (!*page) {
        *page = malloc(256 * sizeof(**page));
        if (!*page)
            return no_memory(err);
        memset(*page, 0xff, 256 * sizeof(**page));
    }
    (*page)[cp & 0xff] = id;
    return VF_OK;
}

struct merge_text {
    const char *part[2];
    size_t len[2];
};

static enum vf_code read_merge(const json_t *m, const struct vf_place *at, struct merge_text *out,
                               struct vf_err *err)
{
    if (json_is_string(m)) {
        const char *s = json_string_value(m);
        size_t n = json_string_length(m);
        const char *space = memchr(s, ' ', n);
        size_t left = space ? (size_t)(space - s) : n;
        if (space && !memchr(space + 1, ' ', n - left - 1)) {
            *out = (struct merge_text){{s, space + 1}, {left, n - left - 1}};
            return VF_OK;
        }
    } else if (json_is_array(m) && json_array_size(m) == 2 &&
               json_is_string(json_array_get(m, 0)) && json_is_string(json_array_get(m, 1))) {
        for (size_t i = 0; i < 2; i++) {
            out->part[i] = json_string_value(json_array_get(m, i));
            out->len[i] = json_string_length(json_array_get(m, i));
        }
        return VF_OK;
    }
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: found %s, must be \"left right\" or [\"left\", \"right\"]", at->text,
                      vf_json_describe(m).text);
}

static enum vf_code find_merge_token(const struct vf_vocab *v, const char *s, size_t n,
                                     const struct vf_place *at, uint32_t *id, struct vf_err *err)
{
    *id = vf_vocab_find(v, s, n);
    if (*id != VF_NO_TOKEN)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: found the token %s, which must be one of model.vocab", at->text,
                      vf_json_quote(s, n).text);
}

static enum vf_code add_merge(struct vf_vocab *v, const json_t *merge, uint32_t rank,
                              const struct vf_place *at, struct vf_err *err)
{
    struct merge_text t;
    enum vf_code code = read_merge(merge, at, &t, err);
    if (code != VF_OK)
        return code;
    uint32_t left, right, merged;
    code = find_merge_token(v, t.part[0], t.len[0], at, &left, err);
    if (code == VF_OK)
        code = find_merge_token(v, t.part[1], t.len[1], at, &right, err);
    if (code != VF_OK)
        return code;
    /* Both are tokens, so neither is longer than a token may be. */
    char joined[2 * VF_TOKENIZER_TOKEN_BYTES_MAX];
    memcpy(joined, t.part[0], t.len[0]);
    memcpy(joined + t.len[0], t.part[1], t.len[1]);
    code = find_merge_token(v, joined, t.len[0] + t.len[1], at, &merged, err);
    if (code != VF_OK)
        return code;
    return vf_u64_map_put(&v->merges, (uint64_t)left << 32 | right, rank, merged, err);
}

/* "#version: 0.2" heads the merges of some old files. */
static bool is_version_line(const json_t *merge)
{
    return json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0;
}

static enum vf_code load_merges(struct vf_vocab *v, const json_t *merges, const struct vf_place *p,
                                struct vf_err *err)
{
    enum vf_code code = vf_json_expect_array(merges, VF_TOKENIZER_VOCAB_MAX, p, err);
    if (code != VF_OK)
        return code;
    code = vf_u64_map_init(&v->merges, json_array_size(merges), err);
    uint32_t rank = 0;
    for (size_t i = 0; i < json_array_size(merges) && code == VF_OK; i++) {
        if (i % 1024 == 0)
            vf_progress("tokenizer", VF_PROGRESS_ITEMS, i, json_array_size(merges));
        const json_t *m = json_array_get(merges, i);
        if (json_typeof(m) != json_typeof(json_array_get(merges, 0)))
            return vf_err_set(err, VF_ERR_CORRUPT,
                              "%s[%zu]: found %s, all merges must be of one kind", p->text, i,
                              vf_json_describe(m).text);
        if (is_version_line(m))
            continue;
        struct vf_place at = vf_place_index(p, i);
        code = add_merge(v, m, rank++, &at, err);
    }
    return code;
}

enum vf_code vf_vocab_init(struct vf_vocab *v, const json_t *model, const struct vf_place *p,
                           uint32_t size_min, struct vf_err *err)
{
    *v = (struct vf_vocab){.size = size_min};
    const json_t *vocab = json_object_get(model, "vocab");
    struct vf_place at_vocab = vf_place_key(p, "vocab"), at_merges = vf_place_key(p, "merges");
    enum vf_code code = scan_vocab(vocab, &at_vocab, &v->size, err);
    if (code == VF_OK)
        code = alloc_tokens(v, err);
    if (code == VF_OK)
        code = store_texts(v, vocab, &at_vocab, err);
    if (code == VF_OK)
        code = index_texts(v, json_object_size(vocab), err);
    for (uint32_t id = 0; id < v->size && code == VF_OK; id++)
        code = index_char(v, id, err);
    if (code == VF_OK)
        code = load_merges(v, json_object_get(model, "merges"), &at_merges, err);
    return code;
}

void vf_vocab_deinit(struct vf_vocab *v)
{
    vf_text_buf_deinit(&v->bytes);
    free(v->tokens);
    free(v->slots);
    for (size_t i = 0; i < sizeof(v->char_pages) / sizeof(v->char_pages[0]); i++)
        free(v->char_pages[i]);
    vf_u64_map_deinit(&v->merges);
    *v = (struct vf_vocab){0};
}

uint32_t vf_vocab_find(const struct vf_vocab *v, const char *s, size_t n)
{
    return *slot_of(v, s, n);
}

bool vf_vocab_text(const struct vf_vocab *v, uint32_t id, const char **s, size_t *n)
{
    if (id >= v->size || v->tokens[id].offset == VF_NO_TOKEN)
        return false;
    *s = v->bytes.data + v->tokens[id].offset;
    *n = v->tokens[id].len;
    return true;
}

enum vf_code vf_vocab_set_text(struct vf_vocab *v, uint32_t id, const char *s, size_t n,
                               struct vf_err *err)
{
    struct vf_token *t = &v->tokens[id];
    uint32_t offset = (uint32_t)v->bytes.len;
    enum vf_code code = vf_text_append(&v->bytes, s, n, err);
    if (code != VF_OK)
        return code;
    t->offset = offset;
    t->len = (uint32_t)n;
    return VF_OK;
}
