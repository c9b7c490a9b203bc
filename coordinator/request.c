#include "coordinator/request.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code check(const struct request_limits *l, const struct vf_request *r,
                          struct vf_err *err)
{
    bool generate = r->kind == VF_REQUEST_GENERATE;
    const char *what = generate ? "prompt" : "text";
    if (r->token_count == 0)
        return vf_err_set(err, VF_ERR_USAGE, "the %s has no tokens", what);
    size_t room = l->context - generate; /* at least one token is to be generated */
    if (r->token_count > room)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "the %s has %zu tokens, at most %zu fit the context of %u positions "
                          "(--ctx)",
                          what, r->token_count, room, l->context);
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
    uint64_t limit = from->token_count;
    if (from->kind == VF_REQUEST_GENERATE)
        limit = from->max_tokens ? limit + from->max_tokens : l->context;
    r->limit = (uint32_t)vf_min_u64(limit, l->context);
    r->prompt = r->count = (uint32_t)from->token_count;
    r->tokens = malloc(r->limit * sizeof *r->tokens);
    if (!r->tokens)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u tokens", r->limit);
    memcpy(r->tokens, from->tokens, r->prompt * sizeof *r->tokens);
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

/* ---- positions ----------------------------------------------------------------------------- */

bool request_wants_row(const struct request *r, uint32_t position)
{
    return r->kind == VF_REQUEST_SCORE || position + 1 >= r->prompt;
}

uint32_t request_rows(const struct request *r, uint32_t first, uint32_t count)
{
    uint32_t rows = 0;
    for (uint32_t p = first; p < first + count; p++)
        rows += request_wants_row(r, p);
    return rows;
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
