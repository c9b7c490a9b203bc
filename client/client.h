/* C client library: one connection to a coordinator's `serve`.
 *
 * A client is used by one thread. Requests are sent without waiting and may run side by side;
 * answers come from vf_client_next, each with the id of its request. Messages are those of
 * proto/vflow.proto, what they mean is in docs/PROTOCOL.md. The library notices a server that
 * isn't there, refuses the keys, goes away or falls silent, and says which.
 */
#ifndef VF_CLIENT_CLIENT_H
#define VF_CLIENT_CLIENT_H

#include "common/base/err.h"
#include "common/run/curve_keys.h"
#include "vflow.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct vf_client;

struct vf_client_options {
    const char *endpoint;             /* "ipc:///path" or "tcp://host:port" */
    const char *server_key;           /* the server's public key; NULL without CURVE */
    const struct vf_curve_keys *keys; /* own pair; with server_key, NULL without CURVE */
    bool insecure;                    /* allow tcp without keys */
    int interrupt_fd; /* vf_client_next returns VF_ERR_CANCELLED while it is readable; -1: none */
};

/* Strings and keys are copied. Connecting goes on in the background: a server that isn't there
 * shows in vf_client_next. */
enum vf_code vf_client_open(const struct vf_client_options *options, struct vf_client **out,
                            struct vf_err *err);
/* NULL is fine. The server cancels what still runs. */
void vf_client_close(struct vf_client *c);

/* Each sends one request and returns its id, a random one that no other request is likely to have.
 * The request is borrowed for the call. */
enum vf_code vf_client_generate(struct vf_client *c, Vflow__GenerateRequest *request, uint64_t *id,
                                struct vf_err *err);
enum vf_code vf_client_score(struct vf_client *c, Vflow__ScoreRequest *request, uint64_t *id,
                             struct vf_err *err);
enum vf_code vf_client_status(struct vf_client *c, uint64_t *id, struct vf_err *err);
/* target is a request of this connection or of another one with the same owner. Its own answers
 * still end with a done or failed event. */
enum vf_code vf_client_cancel(struct vf_client *c, uint64_t target, uint64_t *id,
                              struct vf_err *err);

enum vf_client_event_kind {
    VF_CLIENT_ACCEPTED, /* message->accepted: generate and score, first */
    VF_CLIENT_TOKENS,   /* message->tokens: more of a generation */
    VF_CLIENT_DONE,     /* message->generate_done: a generation's end */
    VF_CLIENT_ROWS,     /* message->score_result: rows, checked against their size */
    VF_CLIENT_SCORED,   /* message->score_result: a score's end */
    VF_CLIENT_STATUS,   /* message->status_reply */
    VF_CLIENT_CANCEL,   /* message->cancel_reply */
    VF_CLIENT_FAILED,   /* failure: the request's end */
};

struct vf_client_event {
    enum vf_client_event_kind kind;
    uint64_t request_id;
    const Vflow__Envelope *message; /* valid until the next call on the client */
    struct vf_err failure;          /* VF_CLIENT_FAILED */
};

/* Waits for the next event. VF_ERR_TIMEOUT when the server gave no sign of life for timeout_ms
 * (it sends heartbeats while a request runs), VF_ERR_DENIED when it refuses the keys,
 * VF_ERR_PEER_LOST when the connection broke: running requests are lost then. */
enum vf_code vf_client_next(struct vf_client *c, int timeout_ms, struct vf_client_event *event,
                            struct vf_err *err);

#endif
