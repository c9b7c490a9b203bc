/* Each step gets tokens and hands tokens to the next one; a step keeps what it can't decide yet.
 * Behind Fuse and ByteLevel there is, by the reference's rules, a single token: the text so far.
 * Steps there (`fused`) get it in parts that end at character boundaries, and only kinds that
 * can work on such parts are allowed there. */
#include "common/tokenizer/decoder.h"

#include "common/tokenizer/pre_tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum kind { SEQUENCE, BYTE_LEVEL, REPLACE, BYTE_FALLBACK, FUSE, STRIP, METASPACE, JOIN };
static const char *const kinds[] = {"Sequence", "ByteLevel", "Replace",   "ByteFallback",
                                    "Fuse",     "Strip",     "Metaspace", NULL};

#define REPLACEMENT_CHARACTER "\xef\xbf\xbd"

struct vf_decoder_step {
    enum kind kind;
    bool fused;
    struct vf_pattern pattern;           /* REPLACE, STRIP, METASPACE: what to replace or strip */
    char content[VF_PATTERN_STRING_MAX]; /* REPLACE */
    size_t n_content;
    uint64_t strip_max;      /* STRIP */
    enum vf_prepend prepend; /* METASPACE */
};

struct vf_decoder_state {
    uint64_t token_count; /* METASPACE, JOIN: tokens seen */
    uint64_t stripped;    /* STRIP behind Fuse */
    bool strip_over;
    struct vf_text_buf run; /* BYTE_FALLBACK: the bytes of the run of byte tokens */
    char partial[4];        /* BYTE_LEVEL: the start of a character */
    size_t n_partial;
    struct vf_text_buf out; /* reused for what a step hands on */
};

/* --- loading --- */

static enum vf_code refuse_fused(const struct vf_decoder_step *s, const char *what,
                                 const struct vf_place *p, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_UNSUPPORTED,
                      "%s: found %s %s behind Fuse or ByteLevel, allowed "
                      "there are Fuse, Strip, Metaspace and Replace of a single character",
                      p->text, kinds[s->kind], what);
}

static enum vf_code read_replace(struct vf_decoder_step *s, const json_t *v,
                                 const struct vf_place *p, struct vf_err *err)
{
    static const char *const keys[] = {"type", "pattern", "content", NULL};
    struct vf_place at = vf_place_key(p, "pattern");
    const char *content;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_pattern_init_json(&s->pattern, json_object_get(v, "pattern"), false, &at, err);
    if (code == VF_OK)
        code = vf_json_read_string(v, "content", p, &content, &s->n_content, err);
    if (code != VF_OK)
        return code;
    size_t first = 0;
    (void)vf_utf8_next(s->pattern.string, &first);
    if (s->fused && first != s->pattern.n_string)
        return refuse_fused(s, "of several characters", p, err);
    if (s->n_content > sizeof(s->content))
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s.content: found a string of %zu bytes, at most %zu are allowed",
                          p->text, s->n_content, sizeof(s->content));
    memcpy(s->content, content, s->n_content);
    return VF_OK;
}

static enum vf_code read_strip(struct vf_decoder_step *s, const json_t *v, const struct vf_place *p,
                               struct vf_err *err)
{
    static const char *const keys[] = {"type", "content", "start", "stop", NULL};
    struct vf_json_field start_field = {p->text, "start", true},
                         stop_field = {p->text, "stop", true};
    const char *content;
    size_t n;
    int64_t start = 0, stop = 0;
    enum vf_code code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_read_char(v, "content", p, &content, &n, err);
    if (code == VF_OK)
        code = vf_json_get_int(v, start_field, 0, INT32_MAX, &start, NULL, err);
    if (code == VF_OK)
        code = vf_json_get_int(v, stop_field, 0, INT32_MAX, &stop, NULL, err);
    if (code == VF_OK && stop != 0)
        code = vf_err_set(err, VF_ERR_UNSUPPORTED, "%s.stop: found %lld, allowed is 0", p->text,
                          (long long)stop);
    s->strip_max = (uint64_t)start;
    return code != VF_OK ? code : vf_pattern_init_string(&s->pattern, content, n, p, err);
}

static enum vf_code read_metaspace(struct vf_decoder_step *s, const json_t *v,
                                   const struct vf_place *p, struct vf_err *err)
{
    const char *replacement;
    size_t n;
    bool split;
    enum vf_code code = vf_metaspace_read(v, p, &replacement, &n, &s->prepend, &split, err);
    return code != VF_OK ? code : vf_pattern_init_string(&s->pattern, replacement, n, p, err);
}

static enum vf_code read_step(struct vf_decoder_step *s, const json_t *v, const struct vf_place *p,
                              struct vf_err *err)
{
    static const char *const keys[] = {"type", NULL};
    bool ignored;
    if (s->fused && (s->kind == BYTE_LEVEL || s->kind == BYTE_FALLBACK))
        return refuse_fused(s, "", p, err);
    switch (s->kind) {
    case BYTE_LEVEL:
        return vf_byte_level_read(v, p, &ignored, &ignored, err);
    case REPLACE:
        return read_replace(s, v, p, err);
    case STRIP:
        return read_strip(s, v, p, err);
    case METASPACE:
        return read_metaspace(s, v, p, err);
    default:
        return vf_json_expect_keys(v, keys, p, err);
    }
}

static enum vf_code load(struct vf_decoder *d, const json_t *v, const struct vf_place *p, int depth,
                         struct vf_err *err)
{
    static const char *const keys[] = {"type", "decoders", NULL};
    int kind;
    enum vf_code code = vf_json_read_kind(v, kinds, p, &kind, err);
    if (code != VF_OK)
        return code;
    if (kind != SEQUENCE) {
        if (d->count == VF_SEQUENCE_LENGTH_MAX)
            return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found more than %d decoders", p->text,
                              VF_SEQUENCE_LENGTH_MAX);
        struct vf_decoder_step *s = &d->steps[d->count++];
        s->kind = (enum kind)kind;
        if (d->count > 1)
            s->fused = s[-1].fused || s[-1].kind == FUSE || s[-1].kind == BYTE_LEVEL;
        return read_step(s, v, p, err);
    }
    if (depth == VF_SEQUENCE_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: found sequences nested deeper than %d",
                          p->text, VF_SEQUENCE_DEPTH_MAX);
    struct vf_place list_at = vf_place_key(p, "decoders");
    const json_t *list = json_object_get(v, "decoders");
    code = vf_json_expect_keys(v, keys, p, err);
    if (code == VF_OK)
        code = vf_json_expect_array(list, VF_SEQUENCE_LENGTH_MAX, &list_at, err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        struct vf_place at = vf_place_index(&list_at, i);
        code = load(d, json_array_get(list, i), &at, depth + 1, err);
    }
    return code;
}

enum vf_code vf_decoder_init(struct vf_decoder *d, const json_t *v, const struct vf_place *p,
                             struct vf_err *err)
{
    *d = (struct vf_decoder){.steps = calloc(VF_SEQUENCE_LENGTH_MAX, sizeof(*d->steps))};
    if (!d->steps)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", p->text);
    if (v && !json_is_null(v))
        return load(d, v, p, 0, err);
    d->steps[d->count++].kind = JOIN;
    return VF_OK;
}

void vf_decoder_deinit(struct vf_decoder *d)
{
    for (size_t i = 0; i < d->count; i++)
        vf_pattern_deinit(&d->steps[i].pattern);
    free(d->steps);
    *d = (struct vf_decoder){0};
}

/* --- decoding --- */

/* A token (or, in a fused step, a part of the one token) enters step i. */
static enum vf_code feed(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                         struct vf_err *err);

static enum vf_code count_growth(struct vf_decode_run *r, size_t bytes, struct vf_err *err)
{
    r->grown += bytes;
    if (r->grown <= vf_text_growth_max(r->given))
        return VF_OK;
    return vf_err_set(err, VF_ERR_UNSUPPORTED,
                      "decoder: adds more than %zu bytes to tokens of %zu, which no sound "
                      "tokenizer.json does",
                      vf_text_growth_max(r->given), r->given);
}

static enum vf_code feed_replaced(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                                  const char *with, size_t n_with, struct vf_err *err)
{
    const struct vf_pattern *pat = &r->decoder->steps[i].pattern;
    struct vf_text_buf *out = &r->states[i].out;
    enum vf_code code = VF_OK;
    out->len = 0;
    for (size_t done = 0; done < n && code == VF_OK;) {
        size_t at = vf_text_find(s, n, done, pat->string, pat->n_string);
        code = vf_text_append(out, s + done, at - done, err);
        if (code == VF_OK && at < n)
            code = vf_text_append(out, with, n_with, err);
        done = at < n ? at + pat->n_string : n;
    }
    if (code == VF_OK && out->len > n)
        code = count_growth(r, out->len - n, err);
    return code != VF_OK ? code : feed(r, i + 1, out->data, out->len, err);
}

/* The reference drops the marks of the whole first token, not just the first one. */
static enum vf_code feed_metaspace(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                                   struct vf_err *err)
{
    const struct vf_decoder_step *step = &r->decoder->steps[i];
    bool first = step->fused || r->states[i].token_count++ == 0;
    bool drop = first && step->prepend != VF_PREPEND_NEVER;
    return feed_replaced(r, i, s, n, " ", drop ? 0 : 1, err);
}

static enum vf_code feed_strip(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                               struct vf_err *err)
{
    const struct vf_decoder_step *step = &r->decoder->steps[i];
    struct vf_decoder_state *state = &r->states[i];
    const struct vf_pattern *pat = &step->pattern;
    size_t at = 0;
    if (!step->fused) {
        state->stripped = 0;
        state->strip_over = false;
    }
    while (!state->strip_over && at < n) {
        if (state->stripped < step->strip_max && n - at >= pat->n_string &&
            memcmp(s + at, pat->string, pat->n_string) == 0) {
            state->stripped++;
            at += pat->n_string;
        } else {
            state->strip_over = true;
        }
    }
    return feed(r, i + 1, s + at, n - at, err);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of a token "<0x41>", or -1. */
static int byte_of_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* A run of byte tokens is one token if it is UTF-8 as a whole; else each byte becomes U+FFFD. */
static enum vf_code end_byte_run(struct vf_decode_run *r, size_t i, struct vf_err *err)
{
    struct vf_text_buf *run = &r->states[i].run;
    size_t n = run->len;
    run->len = 0;
    if (n == 0)
        return VF_OK;
    if (vf_utf8_invalid_at(run->data, n) == n)
        return feed(r, i + 1, run->data, n, err);
    enum vf_code code = VF_OK;
    for (size_t k = 0; k < n && code == VF_OK; k++)
        code = feed(r, i + 1, REPLACEMENT_CHARACTER, 3, err);
    return code;
}

static enum vf_code feed_byte_fallback(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                                       struct vf_err *err)
{
    int byte = byte_of_token(s, n);
    char c = (char)byte;
    if (byte >= 0)
        return vf_text_append(&r->states[i].run, &c, 1, err);
    enum vf_code code = end_byte_run(r, i, err);
    return code != VF_OK ? code : feed(r, i + 1, s, n, err);
}

/* Length of the character that lead begins, 0 if none does. */
static size_t utf8_length(unsigned char lead)
{
    return lead < 0x80                    ? 1
           : lead >= 0xc2 && lead <= 0xdf ? 2
           : lead >= 0xe0 && lead <= 0xef ? 3
           : lead >= 0xf0 && lead <= 0xf4 ? 4
                                          : 0;
}

/* Whether b can be byte `at` (from 1) of a character with this lead byte. */
static bool utf8_continues(unsigned char lead, size_t at, unsigned char b)
{
    unsigned char low = 0x80, high = 0xbf;
    if (at == 1) {
        low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : low;
        high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : high;
    }
    return b >= low && b <= high;
}

/* One byte more: whole characters go to out, and U+FFFD for each longest broken beginning of a
 * character, which is where the standard substitution puts it. */
static enum vf_code add_byte(struct vf_decoder_state *st, unsigned char b, struct vf_err *err)
{
    unsigned char lead = (unsigned char)st->partial[0];
    if (st->n_partial > 0 && !utf8_continues(lead, st->n_partial, b)) {
        st->n_partial = 0;
        enum vf_code code = vf_text_append(&st->out, REPLACEMENT_CHARACTER, 3, err);
        if (code != VF_OK)
            return code;
    }
    if (st->n_partial == 0 && utf8_length(b) == 0)
        return vf_text_append(&st->out, REPLACEMENT_CHARACTER, 3, err);
    st->partial[st->n_partial++] = (char)b;
    if (st->n_partial < utf8_length((unsigned char)st->partial[0]))
        return VF_OK;
    size_t n = st->n_partial;
    st->n_partial = 0;
    return vf_text_append(&st->out, st->partial, n, err);
}

/* A token with a character that stands for no byte is taken as it is. */
static bool is_byte_level(const char *s, size_t n)
{
    for (size_t pos = 0; pos < n;)
        if (vf_byte_level_byte(vf_utf8_next(s, &pos)) < 0)
            return false;
    return true;
}

static enum vf_code feed_byte_level(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                                    struct vf_err *err)
{
    struct vf_decoder_state *st = &r->states[i];
    bool mapped = is_byte_level(s, n);
    enum vf_code code = VF_OK;
    st->out.len = 0;
    for (size_t pos = 0; pos < n && code == VF_OK;) {
        unsigned char b = (unsigned char)s[pos];
        if (mapped)
            b = (unsigned char)vf_byte_level_byte(vf_utf8_next(s, &pos));
        else
            pos++;
        code = add_byte(st, b, err);
    }
    return code != VF_OK ? code : feed(r, i + 1, st->out.data, st->out.len, err);
}

static enum vf_code feed_joined(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                                struct vf_err *err)
{
    enum vf_code code = r->states[i].token_count++ > 0 ? feed(r, i + 1, " ", 1, err) : VF_OK;
    return code != VF_OK ? code : feed(r, i + 1, s, n, err);
}

static enum vf_code feed(struct vf_decode_run *r, size_t i, const char *s, size_t n,
                         struct vf_err *err)
{
    if (i == r->decoder->count)
        return vf_text_append(&r->out, s, n, err);
    const struct vf_decoder_step *step = &r->decoder->steps[i];
    switch (step->kind) {
    case BYTE_LEVEL:
        return feed_byte_level(r, i, s, n, err);
    case REPLACE:
        return feed_replaced(r, i, s, n, step->content, step->n_content, err);
    case BYTE_FALLBACK:
        return feed_byte_fallback(r, i, s, n, err);
    case STRIP:
        return feed_strip(r, i, s, n, err);
    case METASPACE:
        return feed_metaspace(r, i, s, n, err);
    case JOIN:
        return feed_joined(r, i, s, n, err);
    case FUSE:
    case SEQUENCE:
        break;
    }
    return feed(r, i + 1, s, n, err);
}

enum vf_code vf_decode_run_init(struct vf_decode_run *r, const struct vf_decoder *d,
                                struct vf_err *err)
{
    *r = (struct vf_decode_run){.decoder = d};
    r->states = calloc(d->count + 1, sizeof(*r->states));
    return r->states ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory to decode");
}

void vf_decode_run_deinit(struct vf_decode_run *r)
{
    for (size_t i = 0; r->states && i < r->decoder->count; i++) {
        vf_text_buf_deinit(&r->states[i].run);
        vf_text_buf_deinit(&r->states[i].out);
    }
    free(r->states);
    vf_text_buf_deinit(&r->out);
    *r = (struct vf_decode_run){0};
}

enum vf_code vf_decode_run_push(struct vf_decode_run *r, const char *s, size_t n,
                                struct vf_err *err)
{
    r->given += n;
    return feed(r, 0, s, n, err);
}

enum vf_code vf_decode_run_finish(struct vf_decode_run *r, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < r->decoder->count && code == VF_OK; i++) {
        struct vf_decoder_state *st = &r->states[i];
        if (r->decoder->steps[i].kind == BYTE_FALLBACK)
            code = end_byte_run(r, i, err);
        if (st->n_partial > 0)
            code = feed(r, i + 1, REPLACEMENT_CHARACTER, 3, err);
        st->n_partial = 0;
    }
    return code;
}
