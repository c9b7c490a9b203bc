/* One request from submit to its end: its tokens, what of them has left in steps, and its text.
 *
 * A text to score that is longer than the context is computed window by window: each begins
 * `stride` tokens behind the one before, at position 0 of the same sequence, and gives the rows
 * that no earlier one gave. Its columns are counted through all windows, all but the last of which
 * are full.
 *
 * Internal to the scheduler, which owns every request and calls this from its one thread.
 */
#ifndef VF_COORDINATOR_REQUEST_H
#define VF_COORDINATOR_REQUEST_H

#include "common/tokenizer/tokenizer.h"
#include "coordinator/sampler/stop_matcher.h"
#include "coordinator/scheduler.h"

struct request {
    uint64_t id;
    struct request *next; /* in the queue */
    enum vf_request_kind kind;
    struct vf_request_events events;
    void *ctx;

    uint32_t *tokens;              /* [limit]: the prompt, then what was generated; or the text */
    uint32_t count, prompt, limit; /* count and prompt: columns, for GENERATE one a token */
    uint32_t window, stride;       /* SCORE: tokens of a full window, and between two beginnings */
    uint32_t sent;                 /* columns that have left */
    uint32_t received;             /* SCORE: tokens whose rows were delivered */
    uint32_t generation;           /* goes up when sent goes back */
    bool alone;                    /* failed in company: its next step is its own */
    bool ignore_eos;
    bool cancelled, ended;

    struct vf_sampling sampling;
    struct vf_detokenizer *detokenizer; /* NULL without tokenizer */
    struct vf_stop_matcher *stop;       /* NULL without stop strings */
    char *prompt_rest; /* the end of the prompt's text, where the detokenizer still has it */
    size_t prompt_rest_bytes;

    uint64_t began_ns, first_ns, last_ns; /* first step sent, first and last token */
};

struct request_limits { /* of the model and the engine */
    uint32_t context, vocab_size;
    const struct vf_tokenizer *tokenizer; /* NULL: none */
};

/* How a text is scored, see vf_scheduler_windows. */
struct vf_windows request_windows(uint32_t context, size_t tokens, uint32_t stride);

/* Checks and copies from. */
enum vf_code request_create(const struct request_limits *limits, const struct vf_request *from,
                            const struct vf_request_events *events, void *ctx, struct request **out,
                            struct vf_err *err);
void request_destroy(struct request *r); /* NULL is fine */

/* What column i computes: its token's index, its position in the sequence. */
uint32_t request_token(const struct request *r, uint32_t i);
uint32_t request_position(const struct request *r, uint32_t i);
/* Whether a column's log-probabilities are wanted; auxiliary flows run exactly there. */
bool request_wants_row(const struct request *r, uint32_t i);
/* Columns of [first, first + count) whose rows are wanted; they follow one another. */
uint32_t request_rows(const struct request *r, uint32_t first, uint32_t count);
/* Of those, the first one's token's index; there is one. */
uint32_t request_first_row(const struct request *r, uint32_t first, uint32_t count);
/* How many of the columns that wait may leave in one step with at most rows_max rows: they belong
 * to one window. */
uint32_t request_share(const struct request *r, uint32_t columns_max, uint32_t rows_max);
/* Its prompt has left: it computes one token at a time. */
bool request_decodes(const struct request *r);
/* Columns to be sent; 0 for an ended request and for NULL. */
uint32_t request_waiting(const struct request *r);

/* Delivers a sampled token with the text that may be shown now. */
enum vf_code request_deliver(struct request *r, uint32_t token, struct vf_err *err);
/* Delivers the text that was held back; the request is about to end. */
enum vf_code request_deliver_rest(struct request *r, struct vf_err *err);
bool request_stopped(const struct request *r); /* by a stop string */

#endif
