#include "coordinator/serve/requests.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/model/config.h"
#include "coordinator/serve/admission.h"
#include "coordinator/serve/status.h"
#include "coordinator/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are sent as they lie in memory");

struct client_request {
    struct client_request *next;
    struct vf_requests *owner;
    struct vf_peer *peer;
    uint64_t client_id;    /* the client's */
    uint64_t scheduler_id; /* the scheduler's */
    enum vf_request_kind kind;
    bool silent; /* nobody listens any more; it only has to end */
    bool doomed; /* too slow, about to be told so */
    bool ending; /* cancel was called */
    uint32_t token_count;
    /* SCORE */
    bool rows;
    uint32_t *tokens;
    float *token_logp; /* [token_count - 1] */
    struct vf_windows windows;
};

struct vf_requests {
    struct vf_requests_params params;
    struct vf_admission admission;
    struct client_request *list;
    uint64_t started_ns;
};

enum vf_code vf_requests_create(const struct vf_requests_params *params, struct vf_requests **out,
                                struct vf_err *err)
{
    struct vf_requests *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for requests");
    r->params = *params;
    r->admission.tokenizer = vf_scheduler_tokenizer(params->scheduler);
    r->admission.tokenizer_fault = vf_scheduler_tokenizer_fault(params->scheduler);
    const struct vf_engine *engine = vf_scheduler_engine(params->scheduler);
    r->admission.vocab_size = vf_model_file_config(vf_engine_model(engine))->vocab_size;
    r->started_ns = vf_now_ns();
    return VF_OK;
}

void vf_requests_destroy(struct vf_requests *r)
{
    if (!r)
        return;
    VF_ASSERT(!r->list);
    free(r);
}

static void client_request_free(struct client_request *q)
{
    free(q->tokens);
    free(q->token_logp);
    free(q);
}

/* Takes the request out of the list and gives its client back. */
static void client_request_end(struct client_request *q)
{
    struct client_request **link = &q->owner->list;
    while (*link != q)
        link = &(*link)->next;
    *link = q->next;
    vf_peer_release(q->peer);
    client_request_free(q);
}

static void end_early(struct client_request *q)
{
    q->ending = true;
    vf_scheduler_cancel(q->owner->params.scheduler, q->scheduler_id);
}

/* ---- the scheduler's events ------------------------------------------------------------------ */

static void answer(struct client_request *q, Vflow__Envelope *m)
{
    if (!q->silent)
        vf_front_send(q->peer, q->client_id, m);
}

static void on_token(void *ctx, uint64_t id, uint32_t token, const char *text, size_t text_bytes)
{
    (void)id;
    struct client_request *q = ctx;
    Vflow__Tokens tokens = VFLOW__TOKENS__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    if (token != VF_TOKEN_NONE) {
        tokens.ids = &token;
        tokens.n_ids = 1;
    }
    tokens.text = (ProtobufCBinaryData){text ? text_bytes : 0, (uint8_t *)text};
    m.body_case = VFLOW__ENVELOPE__BODY_TOKENS;
    m.tokens = &tokens;
    answer(q, &m);
}

static void send_rows(struct client_request *q, uint32_t first, uint32_t count, const float *rows)
{
    uint32_t vocab_size = q->owner->admission.vocab_size;
    size_t row_bytes = (size_t)vocab_size * sizeof *rows;
    uint32_t part = (uint32_t)vf_max_u64(VF_REQUESTS_PART_BYTES / row_bytes, 1);
    for (uint32_t done = 0; done < count; done += part) {
        Vflow__ScoreResult result = VFLOW__SCORE_RESULT__INIT;
        Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
        result.first_position = first + done;
        result.row_count = (uint32_t)vf_min_u64(part, count - done);
        result.vocab_size = vocab_size;
        result.rows.len = result.row_count * row_bytes;
        result.rows.data = (uint8_t *)(rows + (size_t)done * vocab_size);
        m.body_case = VFLOW__ENVELOPE__BODY_SCORE_RESULT;
        m.score_result = &result;
        answer(q, &m);
    }
}

/* The last answer to a request that the scheduler doesn't know is over. */
static void fail_early(struct client_request *q, const struct vf_err *why)
{
    if (!q->silent)
        vf_front_send_error(q->peer, q->client_id, why);
    q->silent = true;
    if (!q->ending)
        end_early(q);
}

static void on_rows(void *ctx, uint64_t id, uint32_t first, uint32_t count, const float *rows)
{
    (void)id;
    struct client_request *q = ctx;
    size_t vocab_size = q->owner->admission.vocab_size;
    VF_ASSERT(count <= q->token_count && first <= q->token_count - count);
    for (uint32_t i = 0; i < count && first + i + 1 < q->token_count; i++) {
        uint32_t next = q->tokens[first + i + 1];
        q->token_logp[first + i] = rows[i * vocab_size + next];
        if (isnan(q->token_logp[first + i])) {
            struct vf_err err;
            vf_err_set(&err, VF_ERR_INTERNAL,
                       "the log-probability of token %u at position %u isn't a number", next,
                       first + i + 1);
            fail_early(q, &err);
            return;
        }
    }
    if (q->rows && !q->silent)
        send_rows(q, first, count, rows);
}

static void finish_generate(struct client_request *q, enum vf_finish finish,
                            const struct vf_request_stats *stats)
{
    static const char *const words[] = {[VF_FINISH_STOP] = "stop",
                                        [VF_FINISH_EOS] = "eos",
                                        [VF_FINISH_LENGTH] = "length",
                                        [VF_FINISH_CANCELLED] = "cancelled"};
    Vflow__GenerateDone done = VFLOW__GENERATE_DONE__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    done.reason = (char *)words[finish];
    done.prompt_tokens = stats->prompt_tokens;
    done.generated_tokens = stats->generated_tokens;
    done.prefill_seconds = stats->prefill_seconds;
    done.decode_seconds = stats->decode_seconds;
    m.body_case = VFLOW__ENVELOPE__BODY_GENERATE_DONE;
    m.generate_done = &done;
    answer(q, &m);
}

static void finish_score(struct client_request *q)
{
    Vflow__ScoreResult result = VFLOW__SCORE_RESULT__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    double sum = 0;
    size_t n = q->token_count - 1;
    for (size_t i = 0; i < n; i++)
        sum -= q->token_logp[i];
    result.last = 1;
    result.vocab_size = q->owner->admission.vocab_size;
    result.token_count = q->token_count;
    result.mean_nll = n ? sum / (double)n : 0;
    result.token_logp = q->token_logp;
    result.n_token_logp = n;
    result.windows = (uint32_t)q->windows.count;
    result.stride = q->windows.count > 1 ? q->windows.stride : 0;
    m.body_case = VFLOW__ENVELOPE__BODY_SCORE_RESULT;
    m.score_result = &result;
    answer(q, &m);
}

static void on_done(void *ctx, uint64_t id, enum vf_finish finish,
                    const struct vf_request_stats *stats)
{
    (void)id;
    struct client_request *q = ctx;
    if (q->kind == VF_REQUEST_GENERATE) {
        finish_generate(q, finish, stats);
    } else if (finish != VF_FINISH_CANCELLED) {
        finish_score(q);
    } else if (!q->silent) {
        struct vf_err err;
        vf_err_set(&err, VF_ERR_CANCELLED, "the request was cancelled");
        vf_front_send_error(q->peer, q->client_id, &err);
    }
    client_request_end(q);
}

static void on_failed(void *ctx, uint64_t id, const struct vf_err *why)
{
    (void)id;
    struct client_request *q = ctx;
    struct vf_err err = *why;
    if (vf_signals_take(q->owner->params.signal_fd))
        vf_err_set(&err, VF_ERR_CANCELLED, "the server is shutting down");
    if (!q->silent)
        vf_front_send_error(q->peer, q->client_id, &err);
    client_request_end(q);
}

static const struct vf_request_events events = {on_token, on_rows, on_done, on_failed};

/* ---- messages -------------------------------------------------------------------------------- */

static enum vf_code check_id(const struct vf_requests *r, const struct vf_peer *from, uint64_t id,
                             struct vf_err *err)
{
    int running = 0;
    if (id == 0)
        return vf_err_set(err, VF_ERR_PROTOCOL, "request_id is 0, it must be another number");
    for (const struct client_request *q = r->list; q; q = q->next) {
        if (q->peer != from)
            continue;
        running++;
        if (q->client_id == id)
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "request_id %llu belongs to a request that still runs",
                              (unsigned long long)id);
    }
    if (running >= VF_REQUESTS_PER_CLIENT_MAX)
        return vf_err_set(err, VF_ERR_BUSY, "%d requests of this client run, that is the limit",
                          running);
    return VF_OK;
}

/* What a score needs to keep; takes the admitted tokens over. */
static enum vf_code keep_score(struct client_request *q, struct vf_admitted *admitted, bool rows,
                               struct vf_err *err)
{
    q->rows = rows;
    q->tokens = admitted->tokens;
    admitted->tokens = NULL;
    q->token_logp = calloc(q->token_count, sizeof *q->token_logp);
    return q->token_logp ? VF_OK
                         : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u log-probabilities",
                                      q->token_count);
}

static void send_accepted(struct client_request *q)
{
    Vflow__Accepted accepted = VFLOW__ACCEPTED__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    accepted.prompt_tokens = q->token_count;
    accepted.has_text = q->owner->admission.tokenizer != NULL;
    m.body_case = VFLOW__ENVELOPE__BODY_ACCEPTED;
    m.accepted = &accepted;
    answer(q, &m);
}

static enum vf_code submit(struct vf_requests *r, struct vf_peer *from, uint64_t client_id,
                           struct vf_admitted *admitted, bool rows, struct vf_err *err)
{
    struct client_request *q = calloc(1, sizeof *q);
    if (!q)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a request");
    q->owner = r;
    q->peer = from;
    q->client_id = client_id;
    q->kind = admitted->request.kind;
    q->token_count = (uint32_t)admitted->request.token_count;
    enum vf_code code = VF_OK;
    if (q->kind == VF_REQUEST_SCORE)
        code = keep_score(q, admitted, rows, err);
    q->windows =
        vf_scheduler_windows(r->params.scheduler, q->token_count, admitted->request.stride);
    if (!code)
        code = vf_scheduler_submit(r->params.scheduler, &admitted->request, &events, q,
                                   &q->scheduler_id, err);
    if (code) {
        client_request_free(q);
        return code;
    }
    q->next = r->list;
    r->list = q;
    vf_peer_hold(from);
    send_accepted(q);
    return VF_OK;
}

static enum vf_code handle_run(struct vf_requests *r, struct vf_peer *from,
                               const Vflow__Envelope *m, struct vf_err *err)
{
    bool generate = m->body_case == VFLOW__ENVELOPE__BODY_GENERATE;
    struct vf_admitted admitted;
    enum vf_code code = check_id(r, from, m->request_id, err);
    if (code)
        return code;
    code = generate ? vf_admit_generate(&r->admission, m->generate, &admitted, err)
                    : vf_admit_score(&r->admission, m->score, &admitted, err);
    if (code)
        return code;
    code = submit(r, from, m->request_id, &admitted, !generate && m->score->rows, err);
    vf_admitted_deinit(&admitted);
    return code;
}

/* The next request with that id that by may end: its own connection's first. */
static struct client_request *find_cancellable(const struct vf_requests *r,
                                               const struct vf_peer *by, uint64_t client_id)
{
    struct client_request *other = NULL;
    for (struct client_request *q = r->list; q; q = q->next) {
        if (q->client_id != client_id || q->ending || !vf_peer_may_cancel(by, q->peer))
            continue;
        if (q->peer == by)
            return q;
        other = q;
    }
    return other;
}

static void handle_cancel(struct vf_requests *r, struct vf_peer *from, const Vflow__Envelope *m)
{
    Vflow__CancelReply reply = VFLOW__CANCEL_REPLY__INIT;
    Vflow__Envelope out = VFLOW__ENVELOPE__INIT;
    struct client_request *q = find_cancellable(r, from, m->cancel->target_request_id);
    reply.found = q != NULL;
    out.body_case = VFLOW__ENVELOPE__BODY_CANCEL_REPLY;
    out.cancel_reply = &reply;
    vf_front_send(from, m->request_id, &out);
    if (q)
        end_early(q);
}

static enum vf_code handle_status(struct vf_requests *r, struct vf_peer *from,
                                  const Vflow__Envelope *m, struct vf_err *err)
{
    struct vf_status *status;
    uint64_t uptime_ms = (vf_now_ns() - r->started_ns) / 1000000;
    enum vf_code code = vf_status_create(r->params.scheduler, uptime_ms, &status, err);
    if (code)
        return code;
    Vflow__Envelope out = VFLOW__ENVELOPE__INIT;
    out.body_case = VFLOW__ENVELOPE__BODY_STATUS_REPLY;
    out.status_reply = vf_status_reply(status);
    vf_front_send(from, m->request_id, &out);
    vf_status_destroy(status);
    return VF_OK;
}

void vf_requests_handle(struct vf_requests *r, struct vf_peer *from, const Vflow__Envelope *m)
{
    struct vf_err err = {0};
    enum vf_code code = VF_OK;
    if (vf_peer_overflowed(from)) { /* what came before is settled before something new starts */
        vf_requests_sweep(r);
        vf_peer_clear_overflow(from);
    }
    switch (m->body_case) {
    case VFLOW__ENVELOPE__BODY_GENERATE:
    case VFLOW__ENVELOPE__BODY_SCORE:
        code = handle_run(r, from, m, &err);
        break;
    case VFLOW__ENVELOPE__BODY_CANCEL:
        handle_cancel(r, from, m);
        break;
    case VFLOW__ENVELOPE__BODY_STATUS:
        code = handle_status(r, from, m, &err);
        break;
    case VFLOW__ENVELOPE__BODY__NOT_SET:
        code = vf_err_set(&err, VF_ERR_PROTOCOL,
                          "message without a body, or with one this server doesn't know");
        break;
    default:
        code = vf_err_set(&err, VF_ERR_PROTOCOL,
                          "message kind %d isn't a client's; generate (30), score (31), cancel "
                          "(32) and status (33) are",
                          (int)m->body_case);
    }
    if (code) {
        vf_debug("refused request %llu: %s", (unsigned long long)m->request_id, err.text);
        vf_front_send_error(from, m->request_id, &err);
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Marks every request of a client that fell behind before the first of them clears its mark. */
static void mark_doomed(struct vf_requests *r)
{
    for (struct client_request *q = r->list; q; q = q->next)
        q->doomed |= !q->silent && vf_peer_overflowed(q->peer);
}

static struct client_request *next_to_end(struct vf_requests *r)
{
    for (struct client_request *q = r->list; q; q = q->next)
        if (!q->silent && (q->doomed || vf_peer_gone(q->peer)))
            return q;
    return NULL;
}

void vf_requests_sweep(struct vf_requests *r)
{
    struct vf_err err;
    struct client_request *q;
    vf_err_set(&err, VF_ERR_LIMIT, "the client reads its answers too slowly, so they were dropped");
    mark_doomed(r);
    while ((q = next_to_end(r)) != NULL) { /* ending one may take it out of the list at once */
        vf_peer_clear_overflow(q->peer);
        vf_debug("request %llu ends: its client %s", (unsigned long long)q->client_id,
                 q->doomed ? "is too slow" : "left");
        fail_early(q, &err); /* says nothing to a client that left */
    }
}

void vf_requests_end(struct vf_requests *r, const struct vf_err *why)
{
    while (r->list) {
        struct client_request *q = r->list;
        if (!q->silent)
            vf_front_send_error(q->peer, q->client_id, why);
        client_request_end(q);
    }
}
