/* Owns the client-side zmq context, its sockets and the list of clients. libzmq's own queues are
 * kept short, so that what waits for a slow client waits here, where its bytes are counted.
 */
#include "coordinator/serve/front.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "coordinator/serve/ipc_file.h"
#include "coordinator/serve/zap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define QUEUE_MESSAGES   32 /* of one client in libzmq, each way */
#define TRANSPORT_MAX    ((int64_t)VF_FRONT_REQUEST_MAX + (1 << 20))
#define PING_MS          5000 /* ZMTP: a client whose host vanished is noticed */
#define PING_TIMEOUT_MS  15000
#define LINGER_MS        1000
#define TICK_BUSY_MS     5 /* while answers wait */
#define IDENTITY_MAX     255
#define REFUSALS_AT_ONCE 32

enum listener { LISTENER_LOCAL, LISTENER_REMOTE, LISTENER_COUNT };

struct outgoing {
    struct outgoing *next;
    size_t bytes;
    zmq_msg_t body;
};

struct vf_peer {
    struct vf_peer *next;
    struct vf_front *front;
    enum listener listener;
    uint8_t id[IDENTITY_MAX];
    size_t id_bytes;
    char user[VF_CURVE_KEY_CHARS + 1]; /* the CURVE key, "" without one */
    uint32_t holds;
    bool gone, overflow;
    struct outgoing *head, **tail;
    size_t waiting_bytes;
    uint64_t moved_ns; /* when it last took something */
};

struct vf_front {
    void *context;
    void *sockets[LISTENER_COUNT];
    struct vf_zap *zap;
    bool curve, insecure;
    size_t outbox_max;
    struct vf_ipc_file *files;
    struct vf_peer *peers;
    uint32_t peer_count;
    size_t waiting_bytes;
    uint64_t heartbeat_ns; /* when the next one is due */
};

/* ---- opening --------------------------------------------------------------------------------- */

static enum vf_code set_int(void *socket, int option, int value, struct vf_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_INTERNAL, "zmq option %d = %d: %s", option, value,
                      zmq_strerror(zmq_errno()));
}

static enum vf_code limit_socket(void *socket, struct vf_err *err)
{
    const int64_t message_max = TRANSPORT_MAX;
    enum vf_code code = set_int(socket, ZMQ_SNDHWM, QUEUE_MESSAGES, err);
    if (!code)
        code = set_int(socket, ZMQ_RCVHWM, QUEUE_MESSAGES, err);
    if (!code)
        code = set_int(socket, ZMQ_HEARTBEAT_IVL, PING_MS, err);
    if (!code)
        code = set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS, err);
    if (!code)
        code = set_int(socket, ZMQ_LINGER, LINGER_MS, err);
    if (!code && zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof message_max) != 0)
        code = vf_err_set(err, VF_ERR_INTERNAL, "zmq message size: %s", zmq_strerror(zmq_errno()));
    return code;
}

static enum vf_code open_listener(struct vf_front *f, enum listener which,
                                  const struct vf_curve_keys *keys, struct vf_err *err)
{
    struct vf_wire_options wire = {.type = VF_WIRE_ROUTER};
    if (keys) {
        wire.curve_server = 1;
        wire.curve_secret = keys->secret_key;
        wire.curve_public = keys->public_key;
    }
    enum vf_code code = vf_wire_open(f->context, &wire, &f->sockets[which], err);
    return code ? code : limit_socket(f->sockets[which], err);
}

enum vf_code vf_front_open(const struct vf_front_options *options, struct vf_front **out,
                           struct vf_err *err)
{
    *out = NULL;
    struct vf_front *f = calloc(1, sizeof *f);
    if (!f)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the client sockets");
    f->curve = options->keys && (options->allowed || options->insecure);
    f->insecure = options->insecure;
    f->outbox_max = options->outbox_max;
    f->context = vf_wire_context_create(err);
    enum vf_code code = f->context ? VF_OK : err->code;
    if (!code && f->curve) /* before any CURVE endpoint: libzmq lets everybody in without it */
        code = vf_zap_open(f->context, options->allowed, &f->zap, err);
    if (!code)
        code = open_listener(f, LISTENER_LOCAL, NULL, err);
    if (!code)
        code = open_listener(f, LISTENER_REMOTE, f->curve ? options->keys : NULL, err);
    if (code) {
        vf_front_close(f);
        return code;
    }
    *out = f;
    return VF_OK;
}

static void drop_outbox(struct vf_peer *p)
{
    while (p->head) {
        struct outgoing *o = p->head;
        p->head = o->next;
        zmq_msg_close(&o->body);
        free(o);
    }
    p->tail = &p->head;
    p->front->waiting_bytes -= p->waiting_bytes;
    p->waiting_bytes = 0;
}

void vf_front_close(struct vf_front *f)
{
    if (!f)
        return;
    vf_ipc_files_remove(&f->files);
    while (f->peers) {
        struct vf_peer *p = f->peers;
        f->peers = p->next;
        drop_outbox(p);
        free(p);
    }
    for (int i = 0; i < LISTENER_COUNT; i++)
        vf_wire_close(f->sockets[i]);
    vf_zap_close(f->zap);
    vf_wire_context_destroy(f->context);
    free(f);
}

/* ---- binding --------------------------------------------------------------------------------- */

static enum vf_code check_tcp(const struct vf_front *f, const char *endpoint, struct vf_err *err)
{
    if (f->curve || f->insecure)
        return VF_OK;
    return vf_err_set(err, VF_ERR_USAGE,
                      "%s needs --curve-secret and --allow (make keys with `vflow-client "
                      "keygen`), or --insecure to let everybody in",
                      endpoint);
}

enum vf_code vf_front_bind(struct vf_front *f, const char *endpoint,
                           char bound[VF_FRONT_ENDPOINT_MAX], struct vf_err *err)
{
    bool ipc = strncmp(endpoint, "ipc://", 6) == 0;
    enum vf_code code;
    if (ipc)
        code = vf_ipc_file_check(endpoint + 6, err);
    else if (strncmp(endpoint, "tcp://", 6) == 0)
        code = check_tcp(f, endpoint, err);
    else
        code = vf_err_set(err, VF_ERR_USAGE,
                          "endpoint '%s' is neither ipc:///path nor tcp://address:port", endpoint);
    if (code)
        return code;
    void *socket = f->sockets[ipc ? LISTENER_LOCAL : LISTENER_REMOTE];
    mode_t old = umask(0177); /* the socket file is this user's alone */
    code = vf_wire_bind(socket, endpoint, err);
    umask(old);
    if (!code && ipc)
        code = vf_ipc_file_note(endpoint + 6, &f->files, err);
    if (code)
        return code;
    size_t size = VF_FRONT_ENDPOINT_MAX;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        snprintf(bound, VF_FRONT_ENDPOINT_MAX, "%s", endpoint);
    return VF_OK;
}

enum vf_code vf_front_adopt(const struct vf_front *f, const struct vf_run_dir *rd,
                            struct vf_err *err)
{
    return vf_ipc_files_adopt(f->files, rd, err);
}

int vf_front_sockets(const struct vf_front *f, void *sockets[VF_FRONT_SOCKETS_MAX])
{
    int n = 0;
    for (int i = 0; i < LISTENER_COUNT; i++)
        sockets[n++] = f->sockets[i];
    if (f->zap)
        sockets[n++] = vf_zap_socket(f->zap);
    return n;
}

/* ---- clients --------------------------------------------------------------------------------- */

/* The uid behind "Peer-Address" of an ipc connection, "host:uid:gid:pid"; false when it isn't
 * there. */
static bool peer_uid(const char *address, unsigned long *uid)
{
    unsigned long gid, pid;
    for (const char *p = address; p && (p = strchr(p, ':')) != NULL; p++) {
        int end = 0;
        if (sscanf(p, ":%lu:%lu:%lu%n", uid, &gid, &pid, &end) == 3 && p[end] == 0)
            return true;
    }
    return false;
}

static bool same_connection(const struct vf_peer *p, const struct vf_peer *other)
{
    return p->listener == other->listener && p->id_bytes == other->id_bytes &&
           memcmp(p->id, other->id, p->id_bytes) == 0;
}

static struct vf_peer *find_peer(struct vf_front *f, const struct vf_peer *like)
{
    for (struct vf_peer *p = f->peers; p; p = p->next)
        if (!p->gone && same_connection(p, like))
            return p;
    return NULL;
}

static void give_up(struct vf_peer *p)
{
    drop_outbox(p);
    p->gone = true;
}

/* NULL when there are too many. */
static struct vf_peer *enter_peer(struct vf_front *f, const struct vf_peer *like)
{
    struct vf_peer *p = find_peer(f, like);
    if (p && strcmp(p->user, like->user) == 0)
        return p;
    if (p) /* somebody else took the routing id of a client that left */
        give_up(p);
    if (f->peer_count == VF_FRONT_PEERS_MAX || !(p = malloc(sizeof *p)))
        return NULL;
    *p = *like;
    p->tail = &p->head;
    p->moved_ns = vf_now_ns();
    p->next = f->peers;
    f->peers = p;
    f->peer_count++;
    return p;
}

void vf_peer_hold(struct vf_peer *peer)
{
    peer->holds++;
}

void vf_peer_release(struct vf_peer *peer)
{
    VF_ASSERT(peer->holds > 0);
    peer->holds--;
}

bool vf_peer_gone(const struct vf_peer *peer)
{
    return peer->gone;
}

bool vf_peer_overflowed(const struct vf_peer *peer)
{
    return peer->overflow;
}

void vf_peer_clear_overflow(struct vf_peer *peer)
{
    peer->overflow = false;
}

bool vf_peer_may_cancel(const struct vf_peer *by, const struct vf_peer *peer)
{
    return by == peer || by->listener == LISTENER_LOCAL ||
           (by->listener == peer->listener && strcmp(by->user, peer->user) == 0);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* 0, EAGAIN or another errno; the body is consumed only on 0. */
static int try_send(struct vf_peer *p, zmq_msg_t *body)
{
    void *socket = p->front->sockets[p->listener];
    int rc;
    do
        rc = zmq_send(socket, p->id, p->id_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    if (rc < 0)
        return zmq_errno();
    do /* once the address is taken the body is too */
        rc = zmq_msg_send(body, socket, ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    return rc < 0 ? zmq_errno() : 0;
}

static void flush_outbox(struct vf_peer *p, uint64_t now)
{
    int e = 0;
    while (p->head && (e = try_send(p, &p->head->body)) == 0) {
        struct outgoing *o = p->head;
        p->head = o->next;
        if (!p->head)
            p->tail = &p->head;
        p->waiting_bytes -= o->bytes;
        p->front->waiting_bytes -= o->bytes;
        p->moved_ns = now;
        zmq_msg_close(&o->body);
        free(o);
    }
    if (e && e != EAGAIN)
        give_up(p);
}

static void overflow(struct vf_peer *p)
{
    drop_outbox(p);
    p->overflow = true;
}

static struct vf_peer *fullest_peer(const struct vf_front *f)
{
    struct vf_peer *fullest = f->peers;
    for (struct vf_peer *p = f->peers; p; p = p->next)
        if (p->waiting_bytes > fullest->waiting_bytes)
            fullest = p;
    return fullest;
}

/* Takes the body over. */
static void queue(struct vf_peer *p, zmq_msg_t *body)
{
    struct outgoing *o = malloc(sizeof *o);
    size_t bytes = zmq_msg_size(body) + sizeof *o;
    if (!o || p->waiting_bytes + bytes > p->front->outbox_max) {
        free(o);
        zmq_msg_close(body);
        overflow(p);
        return;
    }
    if (!p->head)
        p->moved_ns = vf_now_ns();
    *o = (struct outgoing){.bytes = bytes};
    zmq_msg_init(&o->body);
    zmq_msg_move(&o->body, body);
    *p->tail = o;
    p->tail = &o->next;
    p->waiting_bytes += bytes;
    p->front->waiting_bytes += bytes;
    if (p->front->waiting_bytes > VF_FRONT_OUTBOXES_MAX)
        overflow(fullest_peer(p->front));
}

/* False when there is no memory. */
static bool pack(zmq_msg_t *body, uint64_t request_id, Vflow__Envelope *message)
{
    message->version = VF_WIRE_VERSION;
    message->request_id = request_id;
    if (zmq_msg_init_size(body, vflow__envelope__get_packed_size(message)) != 0)
        return false;
    vflow__envelope__pack(message, zmq_msg_data(body));
    return true;
}

void vf_front_send(struct vf_peer *to, uint64_t request_id, Vflow__Envelope *message)
{
    if (to->gone || to->overflow)
        return;
    zmq_msg_t body;
    if (!pack(&body, request_id, message)) {
        overflow(to);
        return;
    }
    if (to->head)
        flush_outbox(to, vf_now_ns());
    int e = to->gone ? EHOSTUNREACH : to->head ? EAGAIN : try_send(to, &body);
    if (e == EAGAIN) {
        queue(to, &body);
    } else {
        zmq_msg_close(&body);
        if (e)
            give_up(to);
    }
}

/* Protobuf strings are UTF-8; an error may quote bytes that aren't, or end inside a character. */
static void make_utf8(char *text)
{
    size_t left = strlen(text);
    while (left) {
        size_t n = 1;
        while (n <= 4 && n <= left && !vf_utf8_valid(text, n))
            n++;
        if (n > 4 || n > left) {
            *text = '?';
            n = 1;
        }
        text += n;
        left -= n;
    }
}

/* error borrows from why, which is made UTF-8. */
static void error_envelope(Vflow__Envelope *message, Vflow__Error *error, struct vf_err *why)
{
    make_utf8(why->text);
    vf_wire_error_fill(error, why);
    vflow__envelope__init(message);
    message->body_case = VFLOW__ENVELOPE__BODY_ERROR;
    message->error = error;
}

void vf_front_send_error(struct vf_peer *to, uint64_t request_id, const struct vf_err *why)
{
    struct vf_err copy = *why;
    Vflow__Envelope message;
    Vflow__Error error;
    error_envelope(&message, &error, &copy);
    vf_front_send(to, request_id, &message);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Answers somebody who isn't a client yet and shall not become one by this. */
static void refuse(struct vf_peer *who, uint64_t request_id, struct vf_err *why)
{
    Vflow__Envelope message;
    Vflow__Error error;
    zmq_msg_t body;
    vf_debug("refused a client's message: %s", why->text);
    error_envelope(&message, &error, why);
    if (!pack(&body, request_id, &message))
        return;
    try_send(who, &body); /* a flood of bad messages gets no more answers than it reads */
    zmq_msg_close(&body);
}

static enum vf_code identify(struct vf_peer *who, zmq_msg_t *frame, struct vf_err *err)
{
    if (who->listener == LISTENER_LOCAL) {
        unsigned long uid = 0;
        if (peer_uid(zmq_msg_gets(frame, "Peer-Address"), &uid) &&
            (uid == (unsigned long)geteuid() || uid == 0))
            return VF_OK;
        return vf_err_set(err, VF_ERR_DENIED, "only the server's own user may connect over ipc");
    }
    if (!who->front->curve)
        return VF_OK;
    const char *user = zmq_msg_gets(frame, "User-Id");
    if (!user || strlen(user) != VF_CURVE_KEY_CHARS)
        return vf_err_set(err, VF_ERR_DENIED, "the connection has no client key");
    memcpy(who->user, user, VF_CURVE_KEY_CHARS + 1);
    return VF_OK;
}

/* Reads the body frame and whatever wrongly follows it. */
static enum vf_code read_body(struct vf_peer *who, zmq_msg_t *frame, uint64_t *request_id,
                              Vflow__Envelope **message, struct vf_err *err)
{
    void *socket = who->front->sockets[who->listener];
    if (!zmq_msg_more(frame) || zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0)
        return vf_err_set(err, VF_ERR_PROTOCOL, "message without a body frame");
    enum vf_code code = identify(who, frame, err);
    if (!code && zmq_msg_more(frame))
        code = vf_err_set(err, VF_ERR_PROTOCOL, "message of several frames, one is allowed");
    if (!code && zmq_msg_size(frame) > VF_FRONT_REQUEST_MAX)
        code = vf_err_set(err, VF_ERR_LIMIT, "message of %zu bytes, at most %u are allowed",
                          zmq_msg_size(frame), VF_FRONT_REQUEST_MAX);
    if (!code)
        code = vf_wire_unpack(zmq_msg_data(frame), zmq_msg_size(frame), request_id, message, err);
    while (zmq_msg_more(frame) && zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) >= 0)
        continue;
    return code;
}

enum intake { INTAKE_NOTHING, INTAKE_REFUSED, INTAKE_REQUEST };

static enum intake take_message(struct vf_front *f, enum listener which, struct vf_peer **from,
                                Vflow__Envelope **message)
{
    struct vf_peer who = {.front = f, .listener = which};
    struct vf_err err = {0};
    uint64_t request_id = 0;
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    *message = NULL;
    if (zmq_msg_recv(&frame, f->sockets[which], ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&frame);
        return INTAKE_NOTHING;
    }
    who.id_bytes = vf_min_u64(zmq_msg_size(&frame), sizeof who.id);
    memcpy(who.id, zmq_msg_data(&frame), who.id_bytes);
    enum vf_code code = read_body(&who, &frame, &request_id, message, &err);
    zmq_msg_close(&frame);
    if (!code && (*message)->epoch != 0)
        code = vf_err_set(&err, VF_ERR_PROTOCOL, "epoch %u, clients use 0", (*message)->epoch);
    if (!code && !(*from = enter_peer(f, &who)))
        code = vf_err_set(&err, VF_ERR_BUSY, "%d clients are being served, try again later",
                          VF_FRONT_PEERS_MAX);
    if (!code)
        return INTAKE_REQUEST;
    refuse(&who, request_id, &err);
    if (*message)
        vflow__envelope__free_unpacked(*message, NULL);
    *message = NULL;
    return INTAKE_REFUSED;
}

bool vf_front_receive(struct vf_front *f, struct vf_peer **from, Vflow__Envelope **message)
{
    if (f->zap)
        vf_zap_serve(f->zap);
    enum intake got[LISTENER_COUNT] = {INTAKE_REFUSED, INTAKE_REFUSED};
    /* Bounded, so that a flood of bad messages doesn't keep the caller from its work. */
    for (int i = 0; i < REFUSALS_AT_ONCE; i++)
        for (int which = 0; which < LISTENER_COUNT; which++) {
            if (got[which] != INTAKE_NOTHING)
                got[which] = take_message(f, (enum listener)which, from, message);
            if (got[which] == INTAKE_REQUEST)
                return true;
        }
    return false;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void send_heartbeat(struct vf_peer *p, uint64_t now)
{
    Vflow__Heartbeat heartbeat = VFLOW__HEARTBEAT__INIT;
    Vflow__Envelope message = VFLOW__ENVELOPE__INIT;
    heartbeat.sent_ns = now;
    message.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    vf_front_send(p, 0, &message);
}

static void tick_peer(struct vf_peer *p, uint64_t now, bool heartbeat)
{
    if (p->gone)
        return;
    flush_outbox(p, now);
    /* Also how a client that left while nothing was sent is noticed. */
    if (heartbeat && p->holds && !p->head)
        send_heartbeat(p, now);
    if (p->head && now - p->moved_ns > VF_S(VF_FRONT_STUCK_S)) {
        vf_info("a client took nothing for %d s and is given up", VF_FRONT_STUCK_S);
        give_up(p);
    }
}

int vf_front_tick(struct vf_front *f)
{
    uint64_t now = vf_now_ns();
    bool heartbeat = now >= f->heartbeat_ns;
    bool waiting = false;
    if (heartbeat)
        f->heartbeat_ns = now + VF_S(VF_FRONT_HEARTBEAT_S);
    for (struct vf_peer **link = &f->peers; *link;) {
        struct vf_peer *p = *link;
        tick_peer(p, now, heartbeat);
        waiting |= p->head != NULL;
        if (p->holds || p->head) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        f->peer_count--;
        free(p);
    }
    return waiting ? TICK_BUSY_MS : VF_FRONT_IDLE_MS;
}
