#include "coordinator/request.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_TOKENS_MAX                                                                            \
    ((size_t)1 << 26) /* a text of the longest file that is read has no more                       \
                       */

/* ---- life ---------------------------------------------------------------------------------- */

struct vf_windows request_windows(uint32_t context, size_t tokens, uint32_t stride)
{
    struct vf_windows w = {.count = 1, .window = context, .columns = tokens};
    w.stride = stride ? stride : (uint32_t)vf_max_u64(context / 2, 1);
    if (tokens > context) {
        uint64_t more = vf_div_up(tokens - context, w.stride); /* behind the first */
        w.count = more + 1;
        w.columns = more * context + (tokens - more * w.stride);
    }
    return w;
}

static enum vf_code check_text(const struct request_limits *l, const struct vf_request *r,
                               struct vf_err *err)
{
    if (r->token_count > TEXT_TOKENS_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "the text has %zu tokens, at most %zu are allowed",
                          r->token_count, TEXT_TOKENS_MAX);
    if (r->token_count <= l->context)
        return VF_OK;
    if (l->context < 2)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "the text has %zu tokens: windows need a context of at least 2 positions "
                          "(--ctx)",
                          r->token_count);
    if (r->stride >= l->context)
        return vf_err_set(err, VF_ERR_USAGE,
                          "stride %u found, allowed: 1 to %u, less than the context (--ctx)",
                          r->stride, l->context - 1);
    if (request_windows(l->context, r->token_count, r->stride).columns > UINT32_MAX)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "the text of %zu tokens at stride %u and %u positions of context is more "
                          "than 2^32 positions to compute: take a longer stride",
                          r->token_count, r->stride, l->context);
    return VF_OK;
}

static enum vf_code check_prompt(const struct request_limits *l, const struct vf_request *r,
                                 struct vf_err *err)
{
    size_t room = l->context - 1; /* at least one token is to be generated */
    if (r->token_count > room)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "the prompt has %zu tokens, at most %zu fit the context of %u positions "
                          "(--ctx)",
                          r->token_count, room, l->context);
    return VF_OK;
}

static enum vf_code check(const struct request_limits *l, const struct vf_request *r,
                          struct vf_err *err)
{
    bool generate = r->kind == VF_REQUEST_GENERATE;
    const char *what = generate ? "prompt" : "text";
    if (r->token_count == 0)
        return vf_err_set(err, VF_ERR_USAGE, "the %s has no tokens", what);
    enum vf_code code = generate ? check_prompt(l, r, err) : check_text(l, r, err);
    if (code)
        return code;
    for (size_t i = 0; i < r->token_count; i++)
        if (r->tokens[i] >= l->vocab_size)
            return vf_err_set(err, VF_ERR_USAGE,
                              "token %zu is %u, the model's vocabulary has ids 0 to %u", i,
                              r->tokens[i], l->vocab_size - 1);
    if (r->stop_count < 0 || r->stop_count > VF_STOP_STRINGS_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "%d stop strings found, at most %d are allowed",
                          r->stop_count, VF_STOP_STRINGS_MAX);
    if (r->stop_count && !l->tokenizer)
        return vf_err_set(err, VF_ERR_USAGE, "stop strings need a tokenizer, this model has none");
    return VF_OK;
}

/* The text of the prompt that the detokenizer has not given out after shown bytes. */
static enum vf_code keep_prompt_rest(const struct vf_tokenizer *t, struct request *r, size_t shown,
                                     struct vf_err *err)
{
    size_t n;
    enum vf_code code =
        vf_tokenizer_decode(t, r->tokens, r->prompt, true, &r->prompt_rest, &n, err);
    if (code)
        return code;
    shown = shown < n ? shown : n;
    r->prompt_rest_bytes = n - shown;
    memmove(r->prompt_rest, r->prompt_rest + shown, r->prompt_rest_bytes);
    return VF_OK;
}

/* A generation's text goes on from its prompt's, so the detokenizer hears the prompt first. */
static enum vf_code prepare_text(const struct vf_tokenizer *t, struct request *r,
                                 struct vf_err *err)
{
    enum vf_code code = vf_detokenizer_create(t, true, &r->detokenizer, err);
    const char *text;
    size_t n, shown = 0;
    for (uint32_t i = 0; i < r->prompt && !code; i++) {
        code = vf_detokenizer_push(r->detokenizer, r->tokens[i], &text, &n, err);
        shown += code ? 0 : n;
    }
    return code ? code : keep_prompt_rest(t, r, shown, err);
}

static enum vf_code prepare_generate(const struct request_limits *l, struct request *r,
                                     const struct vf_request *from, struct vf_err *err)
{
    r->sampling = from->sampling;
    enum vf_code code = vf_sampling_check(&r->sampling, err);
    if (!code && from->stop_count)
        code = vf_stop_matcher_create(from->stop, (size_t)from->stop_count, &r->stop, err);
    if (!code && l->tokenizer)
        code = prepare_text(l->tokenizer, r, err);
    return code;
}

static enum vf_code copy_tokens(const struct request_limits *l, struct request *r,
                                const struct vf_request *from, struct vf_err *err)
{
    uint32_t given = (uint32_t)from->token_count;
    r->prompt = r->count = r->limit = given;
    if (from->kind == VF_REQUEST_GENERATE) {
        uint64_t wanted = from->max_tokens ? (uint64_t)given + from->max_tokens : l->context;
        r->limit = (uint32_t)vf_min_u64(wanted, l->context);
    } else {
        struct vf_windows w = request_windows(l->context, given, from->stride);
        r->window = w.window;
        r->stride = w.stride;
        r->prompt = r->count = (uint32_t)w.columns;
    }
    r->tokens = malloc(r->limit * sizeof *r->tokens);
    if (!r->tokens)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u tokens", r->limit);
    memcpy(r->tokens, from->tokens, given * sizeof *r->tokens);
    return VF_OK;
}

enum vf_code request_create(const struct request_limits *limits, const struct vf_request *from,
                            const struct vf_request_events *events, void *ctx, struct request **out,
                            struct vf_err *err)
{
    enum vf_code code = check(limits, from, err);
    if (code)
        return code;
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a request");
    r->kind = from->kind;
    r->events = *events;
    r->ctx = ctx;
    r->ignore_eos = from->ignore_eos;
    code = copy_tokens(limits, r, from, err);
    if (!code && r->kind == VF_REQUEST_GENERATE)
        code = prepare_generate(limits, r, from, err);
    if (code) {
        request_destroy(r);
        return code;
    }
    *out = r;
    return VF_OK;
}

void request_destroy(struct request *r)
{
    if (!r)
        return;
    vf_detokenizer_destroy(r->detokenizer);
    vf_stop_matcher_destroy(r->stop);
    free(r->prompt_rest);
    free(r->tokens);
    free(r);
}

/* ---- columns ------------------------------------------------------------------------------- */

uint32_t request_position(const struct request *r, uint32_t i)
{
    return r->kind == VF_REQUEST_SCORE ? i % r->window : i;
}

uint32_t request_token(const struct request *r, uint32_t i)
{
    return r->kind == VF_REQUEST_SCORE ? i / r->window * r->stride + i % r->window : i;
}

/* A window's last row is the next window's, which sees the token that it is about; of the others
 * the window before gave what lies in both. */
static bool scores(const struct request *r, uint32_t i)
{
    uint32_t position = i % r->window;
    bool given = i >= r->window && position + 1 < r->window - r->stride;
    bool next = position + 1 == r->window && i + 1 < r->count;
    return !given && !next;
}

bool request_wants_row(const struct request *r, uint32_t i)
{
    return r->kind == VF_REQUEST_SCORE ? scores(r, i) : i + 1 >= r->prompt;
}

uint32_t request_rows(const struct request *r, uint32_t first, uint32_t count)
{
    uint32_t rows = 0;
    for (uint32_t i = first; i < first + count; i++)
        rows += request_wants_row(r, i);
    return rows;
}

uint32_t request_first_row(const struct request *r, uint32_t first, uint32_t count)
{
    uint32_t i = first;
    while (i < first + count && !request_wants_row(r, i))
        i++;
    VF_ASSERT(i < first + count);
    return request_token(r, i);
}

uint32_t request_share(const struct request *r, uint32_t columns_max, uint32_t rows_max)
{
    uint64_t n = vf_min_u64(request_waiting(r), columns_max);
    if (r->kind == VF_REQUEST_SCORE)
        n = vf_min_u64(n, r->window - request_position(r, r->sent));
    uint32_t taken = 0;
    while (taken < n && rows_max >= request_wants_row(r, r->sent + taken))
        rows_max -= request_wants_row(r, r->sent + taken++);
    return taken;
}

bool request_decodes(const struct request *r)
{
    return r->kind == VF_REQUEST_GENERATE && r->sent >= r->prompt;
}

uint32_t request_waiting(const struct request *r)
{
    return r && !r->ended && !r->cancelled ? r->count - r->sent : 0;
}

/* ---- text ---------------------------------------------------------------------------------- */

/* The end of the prompt's text is not part of the continuation. */
static void skip_prompt_rest(struct request *r, const char **text, size_t *n)
{
    size_t rest = r->prompt_rest_bytes;
    if (*n == 0 || rest == 0)
        return;
    r->prompt_rest_bytes = 0;
    if (*n >= rest && memcmp(*text, r->prompt_rest, rest) == 0) {
        *text += rest;
        *n -= rest;
    }
}

static enum vf_code filter_text(struct request *r, const char **text, size_t *n, struct vf_err *err)
{
    skip_prompt_rest(r, text, n);
    return r->stop ? vf_stop_matcher_push(r->stop, *text, *n, text, n, err) : VF_OK;
}

enum vf_code request_deliver(struct request *r, uint32_t token, struct vf_err *err)
{
    const char *text = NULL;
    size_t n = 0;
    enum vf_code code = VF_OK;
    if (r->detokenizer) {
        code = vf_detokenizer_push(r->detokenizer, token, &text, &n, err);
        if (!code)
            code = filter_text(r, &text, &n, err);
    }
    if (!code)
        r->events.token(r->ctx, r->id, token, text, n);
    return code;
}

static void deliver_text(struct request *r, const char *text, size_t n)
{
    if (n)
        r->events.token(r->ctx, r->id, VF_TOKEN_NONE, text, n);
}

enum vf_code request_deliver_rest(struct request *r, struct vf_err *err)
{
    if (!r->detokenizer)
        return VF_OK;
    const char *text;
    size_t n;
    enum vf_code code = vf_detokenizer_flush(r->detokenizer, &text, &n, err);
    if (!code)
        code = filter_text(r, &text, &n, err);
    if (code)
        return code;
    deliver_text(r, text, n);
    if (r->stop) {
        vf_stop_matcher_flush(r->stop, &text, &n);
        deliver_text(r, text, n);
    }
    return VF_OK;
}

bool request_stopped(const struct request *r)
{
    return r->stop && vf_stop_matcher_stopped(r->stop);
}
