/* A DEALER socket and its monitor. The monitor is what turns "nothing happens" into a sentence:
 * it tells whether a connection was made, whether the handshake failed and why, and that a
 * connection broke, which a DEALER would otherwise hide by connecting again.
 */
#include "client/client.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "common/run/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <zmq.h>

#define MONITOR_ENDPOINT "inproc://vflow-client-monitor"
#define MONITOR_EVENTS                                                                             \
    (ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |                \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |                  \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define HEARTBEAT_MS         5000
#define HEARTBEAT_TIMEOUT_MS 15000
#define LINGER_MS            500 /* a last cancel still leaves */

struct vf_client {
    void *context, *socket, *monitor;
    int interrupt_fd;
    bool curve;
    bool connected;       /* the transport, not yet the handshake */
    bool welcomed;        /* the handshake succeeded */
    struct vf_err broken; /* why nothing more will come; code VF_OK while it may */
    Vflow__Envelope *current;
    char endpoint[256];
};

/* ---- opening --------------------------------------------------------------------------------- */

static enum vf_code check_options(const struct vf_client_options *o, struct vf_err *err)
{
    bool ipc = strncmp(o->endpoint, "ipc://", 6) == 0;
    bool tcp = strncmp(o->endpoint, "tcp://", 6) == 0;
    if (!ipc && !tcp)
        return vf_err_set(err, VF_ERR_USAGE,
                          "endpoint '%s' is neither ipc:///path nor tcp://host:port", o->endpoint);
    if (strlen(o->endpoint) >= sizeof((struct vf_client *)0)->endpoint)
        return vf_err_set(err, VF_ERR_USAGE, "endpoint of %zu characters, at most %zu are allowed",
                          strlen(o->endpoint), sizeof((struct vf_client *)0)->endpoint - 1);
    if (!o->server_key != !o->keys)
        return vf_err_set(err, VF_ERR_USAGE,
                          "the server's key and an own key are given together or not at all");
    if (ipc && o->keys)
        return vf_err_set(err, VF_ERR_USAGE, "keys are for tcp; '%s' needs none", o->endpoint);
    if (tcp && !o->keys && !o->insecure)
        return vf_err_set(err, VF_ERR_USAGE,
                          "tcp needs the server's key and an own key, or --insecure");
    return VF_OK;
}

static enum vf_code set_int(void *socket, int option, int value, struct vf_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_INTERNAL, "zmq option %d = %d: %s", option, value,
                      zmq_strerror(zmq_errno()));
}

static enum vf_code open_monitor(struct vf_client *c, struct vf_err *err)
{
    c->monitor = zmq_socket(c->context, ZMQ_PAIR);
    if (!c->monitor || zmq_socket_monitor(c->socket, MONITOR_ENDPOINT, MONITOR_EVENTS) != 0 ||
        zmq_connect(c->monitor, MONITOR_ENDPOINT) != 0)
        return vf_err_set(err, VF_ERR_IO, "can't watch the connection: %s",
                          zmq_strerror(zmq_errno()));
    return VF_OK;
}

static enum vf_code open_socket(struct vf_client *c, const struct vf_client_options *o,
                                struct vf_err *err)
{
    struct vf_wire_options wire = {.type = VF_WIRE_DEALER};
    if (o->keys) {
        wire.curve_secret = o->keys->secret_key;
        wire.curve_public = o->keys->public_key;
        wire.curve_server_public = o->server_key;
    }
    enum vf_code code = vf_wire_open(c->context, &wire, &c->socket, err);
    if (!code)
        code = set_int(c->socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS, err);
    if (!code)
        code = set_int(c->socket, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS, err);
    if (!code)
        code = open_monitor(c, err);
    return code ? code : vf_wire_connect(c->socket, o->endpoint, err);
}

enum vf_code vf_client_open(const struct vf_client_options *options, struct vf_client **out,
                            struct vf_err *err)
{
    *out = NULL;
    enum vf_code code = check_options(options, err);
    if (code)
        return code;
    struct vf_client *c = calloc(1, sizeof *c);
    if (!c)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a client");
    snprintf(c->endpoint, sizeof c->endpoint, "%s", options->endpoint);
    c->interrupt_fd = options->interrupt_fd;
    c->curve = options->keys != NULL;
    c->context = vf_wire_context_create(err);
    code = c->context ? open_socket(c, options, err) : err->code;
    if (code) {
        vf_client_close(c);
        return code;
    }
    *out = c;
    return VF_OK;
}

static void drop_current(struct vf_client *c)
{
    if (c->current)
        vflow__envelope__free_unpacked(c->current, NULL);
    c->current = NULL;
}

void vf_client_close(struct vf_client *c)
{
    if (!c)
        return;
    drop_current(c);
    if (c->socket) {
        const int linger = c->welcomed ? LINGER_MS : 0;
        zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_socket_monitor(c->socket, NULL, 0);
    }
    vf_wire_close(c->socket);
    if (c->monitor)
        zmq_close(c->monitor);
    vf_wire_context_destroy(c->context);
    free(c);
}

/* ---- sending --------------------------------------------------------------------------------- */

static enum vf_code random_id(uint64_t *id, struct vf_err *err)
{
    do {
        if (getrandom(id, sizeof *id, 0) != (ssize_t)sizeof *id)
            return vf_err_set(err, VF_ERR_IO, "the system gives no random request id");
    } while (*id == 0); /* 0 means "no request" */
    return VF_OK;
}

static enum vf_code send_request(struct vf_client *c, Vflow__Envelope *envelope, uint64_t *id,
                                 struct vf_err *err)
{
    enum vf_code code = random_id(id, err);
    if (code)
        return code;
    envelope->version = VF_WIRE_VERSION;
    envelope->request_id = *id;
    code = vf_wire_send(c->socket, NULL, envelope, err);
    if (code)
        vf_err_prepend(err, "%s: ", c->endpoint);
    return code;
}

enum vf_code vf_client_generate(struct vf_client *c, Vflow__GenerateRequest *request, uint64_t *id,
                                struct vf_err *err)
{
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.body_case = VFLOW__ENVELOPE__BODY_GENERATE;
    envelope.generate = request;
    return send_request(c, &envelope, id, err);
}

enum vf_code vf_client_score(struct vf_client *c, Vflow__ScoreRequest *request, uint64_t *id,
                             struct vf_err *err)
{
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.body_case = VFLOW__ENVELOPE__BODY_SCORE;
    envelope.score = request;
    return send_request(c, &envelope, id, err);
}

enum vf_code vf_client_status(struct vf_client *c, uint64_t *id, struct vf_err *err)
{
    Vflow__StatusRequest request = VFLOW__STATUS_REQUEST__INIT;
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.body_case = VFLOW__ENVELOPE__BODY_STATUS;
    envelope.status = &request;
    return send_request(c, &envelope, id, err);
}

enum vf_code vf_client_cancel(struct vf_client *c, uint64_t target, uint64_t *id,
                              struct vf_err *err)
{
    Vflow__CancelRequest request = VFLOW__CANCEL_REQUEST__INIT;
    request.target_request_id = target;
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.body_case = VFLOW__ENVELOPE__BODY_CANCEL;
    envelope.cancel = &request;
    return send_request(c, &envelope, id, err);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static enum vf_code check_score(const Vflow__ScoreResult *r, struct vf_err *err)
{
    uint64_t floats = 0, bytes = 0;
    if (!vf_mul_u64(r->row_count, r->vocab_size, &floats) || !vf_mul_u64(floats, 4, &bytes) ||
        bytes != r->rows.len)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "score part of %u rows of %u has %zu bytes, expected %llu", r->row_count,
                          r->vocab_size, r->rows.len, (unsigned long long)bytes);
    return VF_OK;
}

/* True when the message is an event for the caller; messages this library doesn't know are none. */
static bool message_event(const Vflow__Envelope *m, struct vf_client_event *event,
                          enum vf_code *code, struct vf_err *err)
{
    event->request_id = m->request_id;
    event->message = m;
    switch (m->body_case) {
    case VFLOW__ENVELOPE__BODY_ACCEPTED:
        event->kind = VF_CLIENT_ACCEPTED;
        return true;
    case VFLOW__ENVELOPE__BODY_TOKENS:
        event->kind = VF_CLIENT_TOKENS;
        return true;
    case VFLOW__ENVELOPE__BODY_GENERATE_DONE:
        event->kind = VF_CLIENT_DONE;
        return true;
    case VFLOW__ENVELOPE__BODY_SCORE_RESULT:
        *code = check_score(m->score_result, err);
        event->kind = m->score_result->last ? VF_CLIENT_SCORED : VF_CLIENT_ROWS;
        return true;
    case VFLOW__ENVELOPE__BODY_STATUS_REPLY:
        event->kind = VF_CLIENT_STATUS;
        return true;
    case VFLOW__ENVELOPE__BODY_CANCEL_REPLY:
        event->kind = VF_CLIENT_CANCEL;
        return true;
    case VFLOW__ENVELOPE__BODY_ERROR:
        event->kind = VF_CLIENT_FAILED;
        vf_wire_error_take(m->error, &event->failure);
        return true;
    default:
        return false;
    }
}

/* One monitor message: a frame with u16 event and u32 value, and a frame with the address. */
static bool read_monitor(void *monitor, uint16_t *kind, uint32_t *value)
{
    uint8_t frame[6];
    int n = zmq_recv(monitor, frame, sizeof frame, ZMQ_DONTWAIT);
    if (n != (int)sizeof frame)
        return false;
    memcpy(kind, frame, sizeof *kind);
    memcpy(value, frame + 2, sizeof *value);
    char address[256];
    return zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT) >= 0;
}

static enum vf_code handshake_failed(const struct vf_client *c, uint16_t kind, struct vf_err *err)
{
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return vf_err_set(err, VF_ERR_DENIED,
                          "%s refuses this client's key: it isn't in the server's --allow list",
                          c->endpoint);
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && !c->curve)
        return vf_err_set(err, VF_ERR_DENIED,
                          "%s lets nobody in without keys: give --server-key and --key",
                          c->endpoint);
    if (c->curve)
        return vf_err_set(err, VF_ERR_DENIED,
                          "%s broke the handshake off: it isn't the server --server-key belongs to",
                          c->endpoint);
    return VF_OK; /* without keys a server that is just stopping looks like this; keep trying */
}

static enum vf_code monitor_event(struct vf_client *c, uint16_t kind, struct vf_err *err)
{
    switch (kind) {
    case ZMQ_EVENT_CONNECTED:
        c->connected = true;
        return VF_OK;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        c->welcomed = true;
        return VF_OK;
    case ZMQ_EVENT_DISCONNECTED:
        if (!c->welcomed)
            return VF_OK;
        return vf_err_set(err, VF_ERR_PEER_LOST, "%s: the server closed the connection",
                          c->endpoint);
    default:
        return handshake_failed(c, kind, err);
    }
}

/* The first failure stays: after it nothing new can arrive. */
static void drain_monitor(struct vf_client *c)
{
    uint16_t kind;
    uint32_t value;
    while (!c->broken.code && read_monitor(c->monitor, &kind, &value))
        monitor_event(c, kind, &c->broken);
}

static enum vf_code timed_out(const struct vf_client *c, int timeout_ms, struct vf_err *err)
{
    double seconds = timeout_ms / 1000.0;
    if (!c->connected)
        return vf_err_set(
            err, VF_ERR_TIMEOUT,
            "no server at %s within %g s; is `vflow-coordinator serve` running there?", c->endpoint,
            seconds);
    if (!c->welcomed)
        return vf_err_set(err, VF_ERR_TIMEOUT,
                          "%s accepts connections but doesn't speak the protocol: no handshake "
                          "within %g s",
                          c->endpoint, seconds);
    return vf_err_set(err, VF_ERR_TIMEOUT, "the server at %s gave no sign of life for %g s",
                      c->endpoint, seconds);
}

static enum vf_code wait_any(struct vf_client *c, uint64_t deadline_ns, struct vf_err *err)
{
    uint64_t now = vf_now_ns();
    long ms = now < deadline_ns ? (long)((deadline_ns - now + 999999) / 1000000) : 0;
    zmq_pollitem_t items[3] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                               {.socket = c->monitor, .events = ZMQ_POLLIN},
                               {.fd = c->interrupt_fd, .events = ZMQ_POLLIN}};
    int rc = zmq_poll(items, c->interrupt_fd >= 0 ? 3 : 2, ms);
    if (rc < 0 && zmq_errno() != EINTR)
        return vf_err_set(err, VF_ERR_IO, "can't wait for the server: %s",
                          zmq_strerror(zmq_errno()));
    return VF_OK;
}

static bool interrupted(const struct vf_client *c)
{
    struct pollfd item = {.fd = c->interrupt_fd, .events = POLLIN};
    return c->interrupt_fd >= 0 && poll(&item, 1, 0) > 0;
}

/* The monitor is read before the socket and believed after it, so that a server which answers and
 * then leaves has answered. */
enum vf_code vf_client_next(struct vf_client *c, int timeout_ms, struct vf_client_event *event,
                            struct vf_err *err)
{
    uint64_t silence = VF_MS(timeout_ms < 0 ? 0 : (uint64_t)timeout_ms);
    uint64_t deadline = vf_now_ns() + silence;
    for (;;) {
        drop_current(c);
        memset(event, 0, sizeof *event);
        if (interrupted(c))
            return vf_err_set(err, VF_ERR_CANCELLED, "interrupted");
        drain_monitor(c);
        struct vf_err why; /* err is the caller's, and stays clean until this call fails */
        enum vf_code code = vf_wire_receive(c->socket, 0, NULL, &c->current, &why);
        if (!code && message_event(c->current, event, &code, err))
            return code;
        if (!code) {
            deadline = vf_now_ns() + silence;
            continue;
        }
        if (code == VF_ERR_TIMEOUT && c->broken.code) {
            why = c->broken;
            code = why.code;
        }
        if (code != VF_ERR_TIMEOUT) {
            if (err)
                *err = why;
            return code;
        }
        if (vf_now_ns() >= deadline)
            return timed_out(c, timeout_ms, err);
        code = wait_any(c, deadline, err);
        if (code)
            return code;
    }
}
