/* Requests, sequences and steps: admission, batching, prefill in chunks, decode, cancellation.
 *
 * The scheduler owns the engine (worker processes, engine.h) and every running sequence. It is
 * single-threaded: the owner calls vf_scheduler_poll in its loop; events are delivered from inside
 * that call. What a request receives never depends on the other requests.
 */
#ifndef VF_COORDINATOR_SCHEDULER_H
#define VF_COORDINATOR_SCHEDULER_H

#include "common/base/err.h"
#include "common/run/generate_options.h"
#include "coordinator/engine/engine.h"
#include "coordinator/sampler/sampler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vf_scheduler;
struct vf_tokenizer;

enum vf_request_kind { VF_REQUEST_GENERATE, VF_REQUEST_SCORE };
enum vf_finish { VF_FINISH_STOP, VF_FINISH_EOS, VF_FINISH_LENGTH, VF_FINISH_CANCELLED };

#define VF_TOKEN_NONE 0xffffffffu
struct vf_request { /* copied by submit */
    enum vf_request_kind kind;
    const uint32_t *tokens; /* the prompt or the text to score, at least one */
    size_t token_count;
    uint32_t max_tokens; /* GENERATE; 0: until the context is full */
    /* SCORE: a text longer than the context is scored in windows of the context, which begin so
     * many tokens apart; what a window shares with the one before is its context only. 0: half the
     * context. Less than the context. */
    uint32_t stride;
    struct vf_sampling sampling;
    const char *stop[VF_STOP_STRINGS_MAX];
    int stop_count;
    bool ignore_eos; /* go on after an end-of-sequence token, which is then an ordinary token */
};

struct vf_request_stats {
    uint32_t prompt_tokens, generated_tokens;
    double prefill_seconds, decode_seconds;
};

/* Called from vf_scheduler_poll; a handler may submit and cancel, but not destroy. */
struct vf_request_events {
    /* A sampled token; text (may be empty) is whole UTF-8 and NULL for a model without tokenizer.
     * VF_TOKEN_NONE: text alone, what was held back for a stop string or an unfinished character
     * when the request ended. The end-of-sequence token that ends a request isn't delivered. */
    void (*token)(void *ctx, uint64_t id, uint32_t token, const char *text, size_t text_bytes);
    /* SCORE: row_count rows of log-probabilities [row_count, vocab_size] from first_position on. */
    void (*rows)(void *ctx, uint64_t id, uint32_t first_position, uint32_t row_count,
                 const float *rows);
    /* Exactly one of these ends a request. A score that is complete is VF_FINISH_STOP. */
    void (*done)(void *ctx, uint64_t id, enum vf_finish finish,
                 const struct vf_request_stats *stats);
    void (*failed)(void *ctx, uint64_t id, const struct vf_err *err);
};

/* Takes ownership of the engine. */
enum vf_code vf_scheduler_create(struct vf_engine *engine, struct vf_scheduler **out,
                                 struct vf_err *err);
void vf_scheduler_destroy(struct vf_scheduler *s);
struct vf_engine *vf_scheduler_engine(const struct vf_scheduler *s);
/* Of the model; NULL when it has none, or one that is refused: then the fault says why, else that
 * is NULL. */
const struct vf_tokenizer *vf_scheduler_tokenizer(const struct vf_scheduler *s);
const struct vf_err *vf_scheduler_tokenizer_fault(const struct vf_scheduler *s);

/* Admits or queues a request; VF_ERR_LIMIT when it can't ever fit the context, VF_ERR_BUSY when the
 * queue is full, VF_ERR_USAGE for a token outside the vocabulary. */
enum vf_code vf_scheduler_submit(struct vf_scheduler *s, const struct vf_request *request,
                                 const struct vf_request_events *events, void *ctx, uint64_t *id,
                                 struct vf_err *err);
bool vf_scheduler_cancel(struct vf_scheduler *s, uint64_t id); /* false: no such request */
uint32_t vf_scheduler_active(const struct vf_scheduler *s);
uint32_t vf_scheduler_queued(const struct vf_scheduler *s);

/* How a text of so many tokens is scored with a stride as in struct vf_request. */
struct vf_windows {
    uint64_t count;          /* 1: the text fits the context */
    uint32_t window, stride; /* tokens of a full window, and between two beginnings */
    uint64_t columns;        /* that are computed */
};
struct vf_windows vf_scheduler_windows(const struct vf_scheduler *s, size_t tokens,
                                       uint32_t stride);

struct vf_scheduler_totals { /* since the start */
    uint64_t requests_done, tokens_prefilled, tokens_decoded;
};
void vf_scheduler_totals(const struct vf_scheduler *s, struct vf_scheduler_totals *out);

/* Sends what can be sent, waits at most timeout_ms for workers (also returns when one of extra
 * becomes readable), handles their messages. Fails when the engine is broken: every request has
 * received `failed` then. When it returns, a request that was just given a token has no step in
 * flight: its next one leaves with the next call. */
enum vf_code vf_scheduler_poll(struct vf_scheduler *s, int timeout_ms,
                               const struct vf_poll_extra *extra, struct vf_err *err);

#endif
