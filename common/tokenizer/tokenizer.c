/* Puts the parts together: added tokens out of the raw text, normalizer, added tokens out of the
 * normalized text, pre-tokenizer, BPE, post-processor. */
#include "common/tokenizer/tokenizer.h"

#include "common/base/progress.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/post_processor.h"
#include "common/tokenizer/pre_tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct vf_tokenizer {
    struct vf_bpe bpe;
    struct vf_normalizer normalizer;
    struct vf_added_tokens added;
    struct vf_pre_tokenizer pre_tokenizer;
    struct vf_post_processor post_processor;
    struct vf_decoder decoder;
    bool cuts_or_pads; /* its truncation or padding section isn't null */
};

struct vf_detokenizer {
    const struct vf_tokenizer *tokenizer;
    bool skip_special;
    struct vf_decode_run run;
};

/* --- loading --- */

static enum vf_code check_head(const json_t *root, const struct vf_place *p, struct vf_err *err)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const versions[] = {"1.0", NULL};
    int version;
    enum vf_code code = vf_json_expect_object(root, p, err);
    if (code == VF_OK)
        code = vf_json_expect_keys(root, keys, p, err);
    if (code == VF_OK && json_object_get(root, "version"))
        code = vf_json_read_choice(root, "version", versions, p, &version, err);
    return code;
}

static bool is_set(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return v && !json_is_null(v);
}

static enum vf_code load(struct vf_tokenizer *t, const json_t *root, const struct vf_place *p,
                         struct vf_err *err)
{
    t->cuts_or_pads = is_set(root, "truncation") || is_set(root, "padding");
    const json_t *added = json_object_get(root, "added_tokens");
    struct vf_place at = vf_place_key(p, "added_tokens");
    uint32_t size = 0;
    enum vf_code code = check_head(root, p, err);
    if (code == VF_OK)
        code = vf_added_tokens_scan(added, &at, &size, err);
    if (code == VF_OK) {
        struct vf_place model_at = vf_place_key(p, "model");
        code = vf_bpe_init(&t->bpe, json_object_get(root, "model"), &model_at, size, err);
    }
    if (code == VF_OK) {
        struct vf_place normalizer_at = vf_place_key(p, "normalizer");
        code = vf_normalizer_init(&t->normalizer, json_object_get(root, "normalizer"),
                                  &normalizer_at, err);
    }
    if (code == VF_OK)
        code = vf_added_tokens_init(&t->added, added, &at, &t->normalizer, &t->bpe.vocab, err);
    if (code == VF_OK) {
        at = vf_place_key(p, "pre_tokenizer");
        code = vf_pre_tokenizer_init(&t->pre_tokenizer, json_object_get(root, "pre_tokenizer"), &at,
                                     err);
    }
    if (code == VF_OK) {
        at = vf_place_key(p, "post_processor");
        code = vf_post_processor_init(&t->post_processor, json_object_get(root, "post_processor"),
                                      &at, &t->bpe.vocab, err);
    }
    if (code == VF_OK) {
        at = vf_place_key(p, "decoder");
        code = vf_decoder_init(&t->decoder, json_object_get(root, "decoder"), &at, err);
    }
    return code;
}

enum vf_code vf_tokenizer_create(const char *json, size_t n, const char *where,
                                 struct vf_tokenizer **out, struct vf_err *err)
{
    struct vf_place p;
    json_t *root = NULL;
    struct vf_tokenizer *t = NULL;
    *out = NULL;
    vf_place_init(&p, where);
    if (n > VF_TOKENIZER_JSON_BYTES_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %zu bytes, at most %u are allowed", where,
                          n, VF_TOKENIZER_JSON_BYTES_MAX);
    vf_progress("tokenizer", VF_PROGRESS_ITEMS, 0, 1); /* its merges take the longest */
    enum vf_code code = vf_json_parse(json, n, where, &root, err);
    if (code != VF_OK)
        return code;
    t = calloc(1, sizeof(*t));
    code = t ? load(t, root, &p, err)
             : vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for a tokenizer", where);
    json_decref(root);
    vf_progress("tokenizer", VF_PROGRESS_ITEMS, 1, 1);
    if (code != VF_OK) {
        vf_tokenizer_destroy(t);
        return code;
    }
    *out = t;
    return VF_OK;
}

void vf_tokenizer_destroy(struct vf_tokenizer *t)
{
    if (!t)
        return;
    vf_bpe_deinit(&t->bpe);
    vf_normalizer_deinit(&t->normalizer);
    vf_added_tokens_deinit(&t->added);
    vf_pre_tokenizer_deinit(&t->pre_tokenizer);
    vf_post_processor_deinit(&t->post_processor);
    vf_decoder_deinit(&t->decoder);
    free(t);
}

uint32_t vf_tokenizer_vocab_size(const struct vf_tokenizer *t)
{
    return t->bpe.vocab.size;
}

bool vf_tokenizer_cuts_or_pads(const struct vf_tokenizer *t)
{
    return t->cuts_or_pads;
}

bool vf_tokenizer_token_is_special(const struct vf_tokenizer *t, uint32_t id)
{
    return id < t->bpe.vocab.size && t->bpe.vocab.tokens[id].special;
}

/* --- encoding --- */

static enum vf_code cut_into_words(const struct vf_tokenizer *t, const char *text, size_t n,
                                   struct vf_work *w, struct vf_err *err)
{
    enum vf_code code = vf_text_append(&w->text, text, n, err);
    if (code == VF_OK)
        code = vf_work_add(w, (struct vf_piece){0, n, VF_PIECE_TEXT, true}, err);
    if (code != VF_OK)
        return code;
    vf_work_commit_pieces(w);
    code = vf_added_tokens_split(&t->added, &t->added.raw, w, err);
    if (code == VF_OK)
        code = vf_normalizer_apply(&t->normalizer, w, err);
    if (code == VF_OK)
        code = vf_added_tokens_split(&t->added, &t->added.normalized, w, err);
    if (code == VF_OK)
        code = vf_pre_tokenizer_apply(&t->pre_tokenizer, w, err);
    return code;
}

static enum vf_code encode_words(const struct vf_tokenizer *t, const struct vf_work *w,
                                 struct vf_ids *ids, struct vf_err *err)
{
    struct vf_bpe_scratch scratch = {0};
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < w->pieces.count && code == VF_OK; i++) {
        const struct vf_piece *piece = &w->pieces.v[i];
        if (piece->id != VF_PIECE_TEXT)
            code = vf_ids_append(ids, &piece->id, 1, err);
        else
            code = vf_bpe_encode(&t->bpe, w->text.data + piece->begin, piece->end - piece->begin,
                                 &scratch, ids, err);
    }
    vf_bpe_scratch_deinit(&scratch);
    return code;
}

static enum vf_code encode(const struct vf_tokenizer *t, const char *text, size_t n,
                           bool add_special, struct vf_ids *ids, struct vf_err *err)
{
    const struct vf_post_processor *pp = &t->post_processor;
    struct vf_work w = {0};
    /* Even an empty result gets memory. */
    enum vf_code code = vf_ids_append(ids, pp->prefix.v, 0, err);
    if (code == VF_OK && add_special)
        code = vf_ids_append(ids, pp->prefix.v, pp->prefix.count, err);
    if (code == VF_OK)
        code = cut_into_words(t, text, n, &w, err);
    if (code == VF_OK)
        code = encode_words(t, &w, ids, err);
    if (code == VF_OK && add_special)
        code = vf_ids_append(ids, pp->suffix.v, pp->suffix.count, err);
    vf_work_deinit(&w);
    return code;
}

enum vf_code vf_tokenizer_encode(const struct vf_tokenizer *t, const char *text, size_t n,
                                 bool add_special, uint32_t **ids, size_t *count,
                                 struct vf_err *err)
{
    if (n > VF_TOKENIZER_TEXT_BYTES_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "the text has %zu bytes, at most %u are allowed", n,
                          VF_TOKENIZER_TEXT_BYTES_MAX);
    size_t bad = vf_utf8_invalid_at(text, n);
    if (bad != n)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "the text is not UTF-8: found the byte 0x%02x at offset %zu",
                          (unsigned char)text[bad], bad);
    struct vf_ids got = {0};
    enum vf_code code = encode(t, text, n, add_special, &got, err);
    if (code != VF_OK) {
        free(got.v);
        return code;
    }
    *ids = got.v;
    *count = got.count;
    return VF_OK;
}

static bool begins_with(const struct vf_ids *prefix, const uint32_t *ids, size_t count)
{
    return prefix->count > 0 && prefix->count <= count &&
           memcmp(ids, prefix->v, prefix->count * sizeof(*ids)) == 0;
}

enum vf_code vf_tokenizer_encode_prompt(const struct vf_tokenizer *t, const char *text, size_t n,
                                        bool add_prefix, uint32_t **ids, size_t *count,
                                        bool *left_out, struct vf_err *err)
{
    const struct vf_ids *prefix = &t->post_processor.prefix;
    enum vf_code code = vf_tokenizer_encode(t, text, n, true, ids, count, err);
    if (code != VF_OK)
        return code;
    bool twice = begins_with(prefix, *ids + prefix->count, *count - prefix->count);
    size_t drop = !add_prefix || twice ? prefix->count : 0;
    if (left_out)
        *left_out = add_prefix && twice;
    *count -= drop;
    memmove(*ids, *ids + drop, *count * sizeof(**ids));
    return VF_OK;
}

/* --- decoding --- */

static enum vf_code push(struct vf_detokenizer *d, uint32_t id, struct vf_err *err)
{
    const char *s;
    size_t n;
    if (!vf_vocab_text(&d->tokenizer->bpe.vocab, id, &s, &n) ||
        (d->skip_special && vf_tokenizer_token_is_special(d->tokenizer, id)))
        return VF_OK;
    return vf_decode_run_push(&d->run, s, n, err);
}

enum vf_code vf_tokenizer_decode(const struct vf_tokenizer *t, const uint32_t *ids, size_t n,
                                 bool skip_special, char **text, size_t *n_text, struct vf_err *err)
{
    struct vf_detokenizer d = {.tokenizer = t, .skip_special = skip_special};
    enum vf_code code = vf_decode_run_init(&d.run, &t->decoder, err);
    for (size_t i = 0; i < n && code == VF_OK; i++)
        code = push(&d, ids[i], err);
    if (code == VF_OK)
        code = vf_decode_run_finish(&d.run, err);
    if (code == VF_OK)
        code = vf_text_append(&d.run.out, "", 1, err);
    if (code == VF_OK) {
        *text = d.run.out.data;
        *n_text = d.run.out.len - 1;
        d.run.out = (struct vf_text_buf){0};
    }
    vf_decode_run_deinit(&d.run);
    return code;
}

enum vf_code vf_detokenizer_create(const struct vf_tokenizer *t, bool skip_special,
                                   struct vf_detokenizer **out, struct vf_err *err)
{
    struct vf_detokenizer *d = calloc(1, sizeof(*d));
    *out = NULL;
    if (!d)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory to decode");
    d->tokenizer = t;
    d->skip_special = skip_special;
    enum vf_code code = vf_decode_run_init(&d->run, &t->decoder, err);
    if (code != VF_OK) {
        free(d);
        return code;
    }
    *out = d;
    return VF_OK;
}

void vf_detokenizer_destroy(struct vf_detokenizer *d)
{
    if (!d)
        return;
    vf_decode_run_deinit(&d->run);
    free(d);
}

static void take(struct vf_detokenizer *d, const char **text, size_t *n)
{
    *text = d->run.out.data ? d->run.out.data : "";
    *n = d->run.out.len;
    d->run.out.len = 0;
}

enum vf_code vf_detokenizer_push(struct vf_detokenizer *d, uint32_t id, const char **text,
                                 size_t *n, struct vf_err *err)
{
    enum vf_code code = push(d, id, err);
    if (code == VF_OK)
        take(d, text, n);
    return code;
}

enum vf_code vf_detokenizer_flush(struct vf_detokenizer *d, const char **text, size_t *n,
                                  struct vf_err *err)
{
    enum vf_code code = vf_decode_run_finish(&d->run, err);
    if (code == VF_OK)
        take(d, text, n);
    return code;
}
