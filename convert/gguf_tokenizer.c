/* From tokenizer.ggml.* to a tokenizer.json.
 *
 * Kind "gpt2" has tokens and merges already; the name in tokenizer.ggml.pre says how a text is cut
 * into words. Kind "llama" has a score for each token instead: two neighbours merge when their
 * concatenation is a token, the highest score first. So every way to cut a token into two tokens is
 * a merge, ordered by the score of the whole. Where two tokens have the same score, the longer left
 * part comes first; that is the reference library's order when it converts such a vocabulary.
 */
#include "convert/gguf_source.h"

#include "common/base/util.h"
#include "common/format/layout.h"
#include "common/format/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a tokenizer.json's reader takes. */
#define TOKEN_BYTES_MAX  4096u
#define MARKER_BYTES_MAX 512u /* of a token that is found in the raw text */
#define MERGES_MAX       (1u << 22)
/* Of a token that is cut into all its pairs of parts. */
#define SCORED_BYTES_MAX 512u

#define SPACE_MARK "\xe2\x96\x81" /* U+2581, a space in kind "llama" */
#define NO_ID      UINT32_MAX

enum token_type { /* the format's numbers */
                  TOKEN_NORMAL = 1,
                  TOKEN_UNKNOWN = 2,
                  TOKEN_CONTROL = 3,
                  TOKEN_USER_DEFINED = 4,
                  TOKEN_UNUSED = 5,
                  TOKEN_BYTE = 6,
};

#define GPT2_WORDS                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_WORDS                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                      \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2_WORDS                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"                           \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN_WORDS                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"   \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"   \
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* A way to cut text into words: each pattern cuts the pieces that the one before left. */
struct pre {
    const char *name;
    const char *patterns[4];
    bool nfc;           /* the vocabulary's own tokenizer composes characters first */
    bool ignore_merges; /* a word that is a token is taken whole */
    bool add_bos;       /* unless add_bos_token says otherwise */
};

static const struct pre pres[] = {
    {.name = "gpt-2", .patterns = {GPT2_WORDS}},
    {.name = "phi-2", .patterns = {GPT2_WORDS}},
    {.name = "olmo", .patterns = {GPT2_WORDS}, .nfc = true},
    {.name = "llama-bpe", .patterns = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .patterns = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = {LLAMA3_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "dbrx", .patterns = {LLAMA3_WORDS}},
    {.name = "smaug-bpe", .patterns = {LLAMA3_WORDS}},
    {.name = "qwen2", .patterns = {QWEN2_WORDS}, .nfc = true},
    {.name = "deepseek-r1-qwen", .patterns = {QWEN2_WORDS}},
    {.name = "tekken", .patterns = {TEKKEN_WORDS}, .ignore_merges = true, .add_bos = true},
    {.name = "starcoder", .patterns = {"\\p{N}", GPT2_WORDS}},
    {.name = "smollm", .patterns = {"\\p{N}", GPT2_WORDS}},
    {.name = "default",
     .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

struct maker {
    const struct vf_gguf *g;
    struct vf_err *err;
    bool scored; /* kind "llama" */
    const struct pre *pre;
    struct vf_gguf_string *tokens;
    size_t count;
    int32_t *types;         /* [count] */
    float *scores;          /* [count], kind "llama" */
    uint32_t *sorted;       /* [count] ids by text */
    uint32_t bos, eos, unk; /* NO_ID: none */
    bool add_bos, add_eos, add_space_prefix;
};

static enum vf_code no_memory(const struct maker *m)
{
    return vf_err_set(m->err, VF_ERR_NO_MEMORY, "%s: no memory for its tokenizer",
                      vf_gguf_path(m->g));
}

static enum vf_code bad_key(const struct maker *m, enum vf_code code, const char *key,
                            const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static enum vf_code bad_key(const struct maker *m, enum vf_code code, const char *key,
                            const char *fmt, ...)
{
    char text[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vf_err_set(m->err, code, "%s: metadata key \"%s\": %s", vf_gguf_path(m->g), key, text);
}

/* A token's text for a message. */
struct quoted {
    char text[80];
};
static struct quoted quote(struct vf_gguf_string s)
{
    char whole[256];
    struct quoted q;
    snprintf(whole, sizeof whole, "%.*s", (int)vf_min_u64(s.n, sizeof whole - 1), s.s);
    vf_name_printable(whole, q.text, sizeof q.text);
    return q;
}

/* ---- reading ---- */

static enum vf_code read_types(struct maker *m)
{
    static const char key[] = "tokenizer.ggml.token_type";
    size_t count = 0;
    enum vf_code code =
        vf_gguf_get_ints(m->g, (struct vf_gguf_field){key, false}, &m->types, &count, m->err);
    if (code)
        return code;
    if (!m->types) {
        m->types = malloc((m->count + 1) * sizeof *m->types);
        for (size_t i = 0; m->types && i < m->count; i++)
            m->types[i] = TOKEN_NORMAL;
        return m->types ? VF_OK : no_memory(m);
    }
    if (count != m->count)
        return bad_key(m, VF_ERR_CORRUPT, key,
                       "has %zu elements, must have one for each of the "
                       "%zu tokens",
                       count, m->count);
    for (size_t i = 0; i < count; i++)
        if (m->types[i] < TOKEN_NORMAL || m->types[i] > TOKEN_BYTE)
            return bad_key(m, VF_ERR_CORRUPT, key, "element %zu is %d, must be from %d to %d", i,
                           m->types[i], TOKEN_NORMAL, TOKEN_BYTE);
    return VF_OK;
}

static enum vf_code read_scores(struct maker *m)
{
    static const char key[] = "tokenizer.ggml.scores";
    size_t count = 0;
    enum vf_code code =
        vf_gguf_get_floats(m->g, (struct vf_gguf_field){key, true}, &m->scores, &count, m->err);
    if (!code && count != m->count)
        code =
            bad_key(m, VF_ERR_CORRUPT, key,
                    "has %zu elements, must have one for each of the %zu tokens", count, m->count);
    return code;
}

static int compare_strings(struct vf_gguf_string a, struct vf_gguf_string b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

static int compare_ids(const void *a, const void *b, void *ctx)
{
    const struct maker *m = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int c = compare_strings(m->tokens[x], m->tokens[y]);
    return c ? c : x < y ? -1 : x > y;
}

static enum vf_code sort_tokens(struct maker *m)
{
    m->sorted = malloc((m->count + 1) * sizeof *m->sorted);
    if (!m->sorted)
        return no_memory(m);
    for (size_t i = 0; i < m->count; i++)
        m->sorted[i] = (uint32_t)i;
    qsort_r(m->sorted, m->count, sizeof *m->sorted, compare_ids, m);
    for (size_t i = 1; i < m->count; i++) {
        uint32_t a = m->sorted[i - 1], b = m->sorted[i];
        if (compare_strings(m->tokens[a], m->tokens[b]) == 0)
            return bad_key(m, VF_ERR_CORRUPT, "tokenizer.ggml.tokens",
                           "elements %u and %u are both \"%s\", must be different", a, b,
                           quote(m->tokens[a]).text);
    }
    return VF_OK;
}

/* The id of a text, NO_ID if it is no token. */
static uint32_t find_token(const struct maker *m, struct vf_gguf_string s)
{
    size_t low = 0, high = m->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = compare_strings(m->tokens[m->sorted[middle]], s);
        if (c == 0)
            return m->sorted[middle];
        if (c < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NO_ID;
}

static enum vf_code read_tokens(struct maker *m, uint32_t vocab_size)
{
    static const char key[] = "tokenizer.ggml.tokens";
    enum vf_code code =
        vf_gguf_get_strings(m->g, (struct vf_gguf_field){key, true}, &m->tokens, &m->count, m->err);
    if (code)
        return code;
    if (m->count == 0 || m->count > vocab_size)
        return bad_key(m, VF_ERR_CORRUPT, key,
                       "has %zu elements, must have 1 to %u as the "
                       "embedding has rows",
                       m->count, vocab_size);
    size_t most = m->scored ? SCORED_BYTES_MAX : TOKEN_BYTES_MAX;
    for (size_t i = 0; i < m->count; i++) {
        if (m->tokens[i].n > most)
            return bad_key(m, VF_ERR_CORRUPT, key,
                           "element %zu has %zu bytes, at most %zu are "
                           "allowed",
                           i, m->tokens[i].n, most);
        if (memchr(m->tokens[i].s, 0, m->tokens[i].n))
            return bad_key(m, VF_ERR_CORRUPT, key, "element %zu has a NUL in it", i);
    }
    return sort_tokens(m);
}

static enum vf_code read_id(const struct maker *m, const char *key, uint32_t *out)
{
    uint64_t id = *out;
    enum vf_code code =
        vf_gguf_get_uint(m->g, (struct vf_gguf_field){key, false}, 0, m->count - 1, &id, m->err);
    *out = id < m->count ? (uint32_t)id : NO_ID; /* a default may lie beyond a tiny vocabulary */
    return code;
}

static enum vf_code read_specials(struct maker *m)
{
    m->bos = m->scored ? 1 : NO_ID;
    m->eos = m->scored ? 2 : NO_ID;
    m->unk = m->scored ? 0 : NO_ID;
    m->add_bos = m->scored || m->pre->add_bos;
    m->add_space_prefix = m->scored;
    const struct {
        const char *key;
        bool *out;
    } bools[] = {{"tokenizer.ggml.add_bos_token", &m->add_bos},
                 {"tokenizer.ggml.add_eos_token", &m->add_eos},
                 {"tokenizer.ggml.add_space_prefix", &m->add_space_prefix}};
    enum vf_code code;
    if ((code = read_id(m, "tokenizer.ggml.bos_token_id", &m->bos)) ||
        (code = read_id(m, "tokenizer.ggml.eos_token_id", &m->eos)) ||
        (code = read_id(m, "tokenizer.ggml.unknown_token_id", &m->unk)))
        return code;
    for (size_t i = 0; i < VF_ARRAY_LEN(bools) && !code; i++)
        code = vf_gguf_get_bool(m->g, (struct vf_gguf_field){bools[i].key, false}, bools[i].out,
                                m->err);
    if (code)
        return code;
    if (m->add_bos && m->bos == NO_ID)
        return bad_key(m, VF_ERR_CORRUPT, "tokenizer.ggml.bos_token_id",
                       "is missing, though the token is added to every text");
    if (m->add_eos && m->eos == NO_ID)
        return bad_key(m, VF_ERR_CORRUPT, "tokenizer.ggml.eos_token_id",
                       "is missing, though the token is added to every text");
    return VF_OK;
}

static enum vf_code read_pre(struct maker *m)
{
    static const char key[] = "tokenizer.ggml.pre";
    const char *name = NULL;
    enum vf_code code = vf_gguf_get_string(m->g, (struct vf_gguf_field){key, true}, &name, m->err);
    char known[256] = "", printable[VF_NAME_PRINTABLE_BYTES];
    for (size_t i = 0; i < VF_ARRAY_LEN(pres) && !code; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", pres[i].name);
        if (strcmp(pres[i].name, name) == 0)
            m->pre = &pres[i];
    }
    if (!code && !m->pre)
        code = bad_key(m, VF_ERR_UNSUPPORTED, key, "found \"%s\", allowed: %s",
                       vf_name_printable(name, printable, sizeof printable), known);
    return code;
}

/* ---- merges ---- */

struct merge {
    uint32_t whole, left, right;
    uint32_t left_chars;
};

struct merge_list {
    struct merge *v;
    size_t count, cap;
};

static uint32_t count_chars(const char *s, size_t n)
{
    uint32_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* Tokens that text can turn into by merging; the others stand for themselves. */
static bool can_merge(const struct maker *m, uint32_t id)
{
    return id != NO_ID && (m->types[id] == TOKEN_NORMAL || m->types[id] == TOKEN_UNUSED);
}

static enum vf_code add_merge(const struct maker *m, struct merge_list *list, struct merge merge)
{
    if (list->count == MERGES_MAX)
        return bad_key(m, VF_ERR_CORRUPT, "tokenizer.ggml.tokens",
                       "its tokens can be cut into more than %u pairs of tokens", MERGES_MAX);
    if (list->count == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 4096;
        struct merge *v = realloc(list->v, cap * sizeof *v);
        if (!v)
            return no_memory(m);
        list->v = v;
        list->cap = cap;
    }
    list->v[list->count++] = merge;
    return VF_OK;
}

static enum vf_code cut_token(const struct maker *m, uint32_t id, struct merge_list *list)
{
    struct vf_gguf_string t = m->tokens[id];
    enum vf_code code = VF_OK;
    for (size_t at = 1; at < t.n && !code; at++) {
        if (((unsigned char)t.s[at] & 0xc0) == 0x80)
            continue; /* inside a character */
        uint32_t left = find_token(m, (struct vf_gguf_string){t.s, at});
        if (!can_merge(m, left))
            continue;
        uint32_t right = find_token(m, (struct vf_gguf_string){t.s + at, t.n - at});
        if (can_merge(m, right))
            code = add_merge(m, list, (struct merge){id, left, right, count_chars(t.s, at)});
    }
    return code;
}

static int compare_merges(const void *pa, const void *pb, void *ctx)
{
    const struct maker *m = ctx;
    const struct merge *a = pa, *b = pb;
    float sa = m->scores[a->whole], sb = m->scores[b->whole];
    if (sa != sb)
        return sa > sb ? -1 : 1;
    if (a->left_chars != b->left_chars)
        return a->left_chars > b->left_chars ? -1 : 1;
    uint32_t ra = count_chars(m->tokens[a->right].s, m->tokens[a->right].n);
    uint32_t rb = count_chars(m->tokens[b->right].s, m->tokens[b->right].n);
    if (ra != rb)
        return ra > rb ? -1 : 1;
    return a->whole < b->whole ? -1 : a->whole > b->whole;
}

static json_t *json_text(struct vf_gguf_string s)
{
    return json_stringn(s.s, s.n);
}

static enum vf_code derive_merges(const struct maker *m, json_t *merges)
{
    struct merge_list list = {0};
    enum vf_code code = VF_OK;
    for (uint32_t id = 0; id < m->count && !code; id++)
        if (can_merge(m, id))
            code = cut_token(m, id, &list);
    if (!code && list.count)
        qsort_r(list.v, list.count, sizeof *list.v, compare_merges, (void *)(uintptr_t)m);
    for (size_t i = 0; i < list.count && !code; i++) {
        json_t *pair = json_pack("[o, o]", json_text(m->tokens[list.v[i].left]),
                                 json_text(m->tokens[list.v[i].right]));
        if (!pair || json_array_append_new(merges, pair) != 0)
            code = no_memory(m);
    }
    free(list.v);
    return code;
}

/* "left right"; both and their concatenation are tokens. */
static enum vf_code copy_merge(const struct maker *m, struct vf_gguf_string merge, size_t i,
                               json_t *merges)
{
    static const char key[] = "tokenizer.ggml.merges";
    const char *space = merge.n ? memchr(merge.s, ' ', merge.n) : NULL;
    size_t left = space ? (size_t)(space - merge.s) : 0;
    size_t right = space ? merge.n - left - 1 : 0;
    if (!left || !right || memchr(space + 1, ' ', right) || left + right > TOKEN_BYTES_MAX)
        return bad_key(m, VF_ERR_CORRUPT, key,
                       "element %zu is \"%s\", must be two tokens with a "
                       "space between them",
                       i, quote(merge).text);
    char whole[TOKEN_BYTES_MAX];
    memcpy(whole, merge.s, left);
    memcpy(whole + left, space + 1, right);
    const struct vf_gguf_string parts[3] = {
        {merge.s, left}, {space + 1, right}, {whole, left + right}};
    for (size_t p = 0; p < 3; p++)
        if (find_token(m, parts[p]) == NO_ID)
            return bad_key(m, VF_ERR_CORRUPT, key, "element %zu needs \"%s\", which isn't a token",
                           i, quote(parts[p]).text);
    return json_array_append_new(merges, json_text(merge)) == 0 ? VF_OK : no_memory(m);
}

static enum vf_code copy_merges(const struct maker *m, json_t *merges)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct vf_gguf_string *list = NULL;
    size_t count = 0;
    enum vf_code code =
        vf_gguf_get_strings(m->g, (struct vf_gguf_field){key, true}, &list, &count, m->err);
    if (!code && count > MERGES_MAX)
        code = bad_key(m, VF_ERR_CORRUPT, key, "has %zu elements, at most %u are allowed", count,
                       MERGES_MAX);
    for (size_t i = 0; i < count && !code; i++)
        code = copy_merge(m, list[i], i, merges);
    free(list);
    return code;
}

/* ---- the parts of a tokenizer.json ---- */

static bool is_marker(const struct maker *m, uint32_t id)
{
    int32_t type = m->types[id];
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED || type == TOKEN_UNKNOWN ||
           id == m->bos || id == m->eos || id == m->unk;
}

/* Tokens that are found in the raw text before anything else. */
static enum vf_code add_markers(const struct maker *m, json_t *list)
{
    for (uint32_t id = 0; id < m->count; id++) {
        if (!is_marker(m, id))
            continue;
        if (m->tokens[id].n == 0 || m->tokens[id].n > MARKER_BYTES_MAX)
            return bad_key(m, VF_ERR_CORRUPT, "tokenizer.ggml.tokens",
                           "element %u, a token of type %d, has %zu bytes, must have 1 to %u", id,
                           m->types[id], m->tokens[id].n, MARKER_BYTES_MAX);
        json_t *o =
            json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content",
                      json_text(m->tokens[id]), "single_word", 0, "lstrip", 0, "rstrip", 0,
                      "normalized", 0, "special", m->types[id] != TOKEN_USER_DEFINED);
        if (!o || json_array_append_new(list, o) != 0)
            return no_memory(m);
    }
    return VF_OK;
}

/* A token that nothing refers to (padding of the vocabulary) has no text in kind "gpt2". */
static enum vf_code add_vocab(const struct maker *m, json_t *vocab)
{
    for (uint32_t id = 0; id < m->count; id++) {
        struct vf_gguf_string t = m->tokens[id];
        if (!m->scored && m->types[id] == TOKEN_UNUSED && !is_marker(m, id))
            continue;
        if (json_object_setn_new(vocab, t.s, t.n, json_integer((json_int_t)id)) != 0)
            return no_memory(m);
    }
    return VF_OK;
}

static json_t *token_piece(const struct maker *m, uint32_t id)
{
    return json_pack("{s:{s:o, s:i}}", "SpecialToken", "id", json_text(m->tokens[id]), "type_id",
                     0);
}

static bool add_special(const struct maker *m, uint32_t id, json_t *single, json_t *specials)
{
    struct vf_gguf_string t = m->tokens[id];
    return json_array_append_new(single, token_piece(m, id)) == 0 &&
           json_object_setn_new(specials, t.s, t.n,
                                json_pack("{s:o, s:[I], s:[o]}", "id", json_text(t), "ids",
                                          (json_int_t)id, "tokens", json_text(t))) == 0;
}

/* What is added in front of and behind every text. */
static json_t *post_processor(const struct maker *m)
{
    if (!m->add_bos && !m->add_eos)
        return json_null();
    json_t *single = json_array(), *specials = json_object();
    bool good = single && specials;
    if (good && m->add_bos)
        good = add_special(m, m->bos, single, specials);
    if (good)
        good = json_array_append_new(
                   single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0)) == 0;
    if (good && m->add_eos)
        good = add_special(m, m->eos, single, specials);
    if (!good) {
        json_decref(single);
        json_decref(specials);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "TemplateProcessing", "single", single,
                     "pair", "special_tokens", specials);
}

static json_t *replace_step(const char *from, const char *to)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content",
                     to);
}

static json_t *normalizer(const struct maker *m)
{
    if (!m->scored)
        return m->pre->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    if (!m->add_space_prefix)
        return replace_step(" ", SPACE_MARK);
    return json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type",
                     "Prepend", "prepend", SPACE_MARK, replace_step(" ", SPACE_MARK));
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *pre_tokenizer(const struct maker *m)
{
    if (m->scored)
        return json_null();
    json_t *steps = json_array();
    bool good = steps;
    for (size_t i = 0; good && i < VF_ARRAY_LEN(m->pre->patterns) && m->pre->patterns[i]; i++)
        good = json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split",
                                                      "pattern", "Regex", m->pre->patterns[i],
                                                      "behavior", "Isolated", "invert", 0)) == 0;
    if (!good || json_array_append_new(steps, byte_level(false)) != 0) {
        json_decref(steps);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

static json_t *decoder(const struct maker *m)
{
    if (!m->scored)
        return byte_level(true);
    json_t *steps = json_pack("[o, {s:s}, {s:s}]", replace_step(SPACE_MARK, " "), "type",
                              "ByteFallback", "type", "Fuse");
    if (steps && m->add_space_prefix &&
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0)) != 0) {
        json_decref(steps);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static json_t *model_head(const struct maker *m)
{
    json_t *unk = m->unk == NO_ID ? json_null() : json_text(m->tokens[m->unk]);
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b}", "type", "BPE", "dropout",
                     "unk_token", unk, "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", m->scored, "byte_fallback", m->scored, "ignore_merges",
                     !m->scored && m->pre->ignore_merges);
}

/* ---- all of it ---- */

static enum vf_code build(const struct maker *m, json_t *root)
{
    json_t *markers = json_array(), *vocab = json_object(), *merges = json_array();
    json_t *model = model_head(m);
    enum vf_code code = markers && vocab && merges && model ? VF_OK : no_memory(m);
    bool given = !m->scored || vf_gguf_has(m->g, "tokenizer.ggml.merges");
    if (!code)
        code = add_markers(m, markers);
    if (!code)
        code = add_vocab(m, vocab);
    if (!code)
        code = given ? copy_merges(m, merges) : derive_merges(m, merges);
    const struct {
        json_t *object;
        const char *key;
        json_t *value;
    } members[] = {
        {root, "version", json_string("1.0")},
        {root, "truncation", json_null()},
        {root, "padding", json_null()},
        {root, "added_tokens", markers},
        {root, "normalizer", normalizer(m)},
        {root, "pre_tokenizer", pre_tokenizer(m)},
        {root, "post_processor", post_processor(m)},
        {root, "decoder", decoder(m)},
        {model, "vocab", vocab},
        {model, "merges", merges},
        {root, "model", model},
    };
    bool good = true;
    for (size_t i = 0; i < VF_ARRAY_LEN(members); i++)
        good &= json_object_set_new(members[i].object, members[i].key, members[i].value) == 0;
    return code || good ? code : no_memory(m);
}

static enum vf_code read_kind(struct maker *m, bool *none)
{
    static const char key[] = "tokenizer.ggml.model";
    const char *kind = "none";
    char printable[VF_NAME_PRINTABLE_BYTES];
    enum vf_code code = vf_gguf_get_string(m->g, (struct vf_gguf_field){key, false}, &kind, m->err);
    if (code)
        return code;
    *none = strcmp(kind, "none") == 0 || strcmp(kind, "no_vocab") == 0;
    m->scored = strcmp(kind, "llama") == 0;
    if (*none || m->scored)
        return VF_OK;
    if (strcmp(kind, "gpt2") != 0)
        return bad_key(m, VF_ERR_UNSUPPORTED, key,
                       "found \"%s\", allowed: llama, gpt2, no_vocab, none",
                       vf_name_printable(kind, printable, sizeof printable));
    return read_pre(m);
}

static enum vf_code make(struct maker *m, uint32_t vocab_size, char **text, size_t *bytes)
{
    enum vf_code code = read_tokens(m, vocab_size);
    if (!code)
        code = read_types(m);
    if (!code && m->scored)
        code = read_scores(m);
    if (!code)
        code = read_specials(m);
    if (code)
        return code;
    json_t *root = json_object();
    code = root ? build(m, root) : no_memory(m);
    if (!code) {
        *text = json_dumps(root, JSON_COMPACT);
        *bytes = *text ? strlen(*text) : 0;
        if (!*text)
            code = no_memory(m);
        else if (*bytes > VF_TOKENIZER_BYTES_MAX)
            code = vf_err_set(m->err, VF_ERR_UNSUPPORTED,
                              "%s: its tokenizer.json would have %zu bytes, at most %u fit",
                              vf_gguf_path(m->g), *bytes, VF_TOKENIZER_BYTES_MAX);
    }
    json_decref(root);
    return code;
}

enum vf_code vf_gguf_read_tokenizer(const struct vf_gguf *g, uint32_t vocab_size, char **text,
                                    size_t *bytes, struct vf_err *err)
{
    struct maker m = {.g = g, .err = err};
    bool none = false;
    enum vf_code code = read_kind(&m, &none);
    if (!code && !none)
        code = make(&m, vocab_size, text, bytes);
    free(m.tokens);
    free(m.types);
    free(m.scores);
    free(m.sorted);
    return code;
}
