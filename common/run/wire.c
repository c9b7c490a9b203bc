/* ZeroMQ + protobuf framing. A message is one frame, the packed Envelope; a ROUTER adds the peer's
 * identity frame in front. Sockets never block: sends fail at once when a queue is full, receives
 * poll until their deadline. What a peer sends is bounded twice: by the transport (a frame far
 * above the limit closes that connection) and by a memory budget while unpacking, so that a small
 * message can't unfold into gigabytes of empty sub-messages.
 */
#include "common/run/wire.h"

#include "common/base/clock.h"
#include "common/run/endpoint.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

/* Messages in a queue; a peer that is this far behind is told VF_ERR_BUSY. */
#define QUEUE_MESSAGES 4096
/* Room between "refused with a reason" and "connection closed". */
#define TRANSPORT_MAX ((int64_t)VF_WIRE_MESSAGE_MAX + (1 << 20))
/* Unpacked bytes allowed per packed byte: the densest legitimate message, a step of columns with
 * small numbers, needs about 16. */
#define UNPACK_FACTOR 64u
#define UNPACK_BASE   (64u << 10)
#define UNPACK_MAX    ((size_t)512 << 20)
#define ZAP_DOMAIN    "vflow"
/* How long vf_wire_context_destroy waits for a DEALER's last messages to leave. */
#define LAST_WORDS_MS 500

/* A run with all its workers needs far fewer; clients of a server take one each. */
#define FILES_WANTED 4096u

static enum vf_code raise_file_limit(struct vf_err *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_WANTED)
        return VF_OK;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < FILES_WANTED ? limit.rlim_max : FILES_WANTED;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        limit.rlim_cur = before;
    if (limit.rlim_cur >= VF_WIRE_FILES_MIN)
        return VF_OK;
    return vf_err_set(err, VF_ERR_LIMIT,
                      "%llu open files are allowed to this process, at least %u are needed "
                      "(ulimit -n)",
                      (unsigned long long)limit.rlim_cur, VF_WIRE_FILES_MIN);
}

/* ---- what libzmq needs ---------------------------------------------------------------------- */

/* libzmq aborts where it can't have a thread, an eventfd or an epoll descriptor. What it is about
 * to make is made here first, all at once, and given back. */
#define CONTEXT_THREADS     2u /* its reaper and its I/O thread */
#define CONTEXT_DESCRIPTORS 6u /* three mailboxes, two polls, the first socket's mailbox */
#define SOCKET_DESCRIPTORS  2u /* its mailbox, and what it binds or connects */

static void *wait_for_end(void *end)
{
    while (sem_wait(end) != 0)
        continue;
    return NULL;
}

/* A joined thread counts against the limits until the kernel has let go of it. */
static void wait_for_threads(nlink_t links)
{
    uint64_t until_ns = vf_now_ns() + VF_S(1);
    struct stat st;
    while (stat("/proc/self/task", &st) == 0 && st.st_nlink > links && vf_now_ns() < until_ns)
        sched_yield();
}

static enum vf_code try_threads(struct vf_err *err)
{
    pthread_t threads[CONTEXT_THREADS];
    struct stat before = {0};
    uint32_t n = 0;
    int rc = 0;
    sem_t end;
    sem_init(&end, 0, 0);
    bool counted = stat("/proc/self/task", &before) == 0;
    while (n < CONTEXT_THREADS && rc == 0) {
        rc = pthread_create(&threads[n], NULL, wait_for_end, &end);
        n += rc == 0;
    }
    for (uint32_t i = 0; i < n; i++)
        sem_post(&end);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    sem_destroy(&end);
    if (counted)
        wait_for_threads(before.st_nlink);
    if (rc == 0)
        return VF_OK;
    return vf_err_errno(err, VF_ERR_LIMIT, rc,
                        "messages need %u threads and only %u can be started; is the number of "
                        "processes limited (pids.max, ulimit -u), or are threads forbidden?",
                        CONTEXT_THREADS, n);
}

/* n eventfds, and a poll of them if polls. */
static enum vf_code try_descriptors(uint32_t n, bool polls, struct vf_err *err)
{
    int fds[CONTEXT_DESCRIPTORS], e = 0, poll_fd = -1;
    const char *what = "eventfd";
    uint32_t opened = 0;
    VF_ASSERT(n <= CONTEXT_DESCRIPTORS);
    while (opened < n && e == 0) {
        fds[opened] = eventfd(0, EFD_CLOEXEC);
        e = fds[opened] < 0 ? errno : 0;
        opened += e == 0;
    }
    if (e == 0 && polls) {
        what = "epoll_create1";
        poll_fd = epoll_create1(EPOLL_CLOEXEC);
        e = poll_fd < 0 ? errno : 0;
    }
    if (poll_fd >= 0)
        close(poll_fd);
    while (opened > 0)
        close(fds[--opened]);
    if (e == 0)
        return VF_OK;
    return vf_err_errno(err, VF_ERR_LIMIT, e, "messages need %u descriptors more: %s", n + polls,
                        what);
}

/* Its threads start with the first socket: now, right after they were tried. */
static bool start_threads(void *context)
{
    void *first = zmq_socket(context, ZMQ_PAIR);
    return first && zmq_close(first) == 0;
}

void *vf_wire_context_create(struct vf_err *err)
{
    if (raise_file_limit(err) != VF_OK || try_descriptors(CONTEXT_DESCRIPTORS, true, err) != VF_OK)
        return NULL;
    void *context = zmq_ctx_new();
    if (!context) {
        vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a ZeroMQ context");
        return NULL;
    }
    zmq_ctx_set(context, ZMQ_BLOCKY, 0);
    if (try_threads(err) == VF_OK) {
        if (start_threads(context))
            return context;
        vf_err_set(err, VF_ERR_IO, "can't open a zmq socket: %s", zmq_strerror(zmq_errno()));
    }
    vf_wire_context_destroy(context);
    return NULL;
}

void vf_wire_context_destroy(void *context)
{
    if (!context)
        return;
    while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR)
        continue;
}

static enum vf_code set_int(void *socket, int option, int value, struct vf_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_INTERNAL, "zmq option %d = %d: %s", option, value,
                      zmq_strerror(zmq_errno()));
}

static enum vf_code set_key(void *socket, int option, const char *name, const char *key,
                            struct vf_err *err)
{
    if (strlen(key) == 40 && zmq_setsockopt(socket, option, key, 40) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_USAGE, "the %s isn't a CURVE key of 40 Z85 characters", name);
}

static enum vf_code set_curve(void *socket, const struct vf_wire_options *o, struct vf_err *err)
{
    if (o->curve_secret && set_key(socket, ZMQ_CURVE_SECRETKEY, "secret key", o->curve_secret, err))
        return err ? err->code : VF_ERR_USAGE;
    if (o->curve_public && set_key(socket, ZMQ_CURVE_PUBLICKEY, "public key", o->curve_public, err))
        return err ? err->code : VF_ERR_USAGE;
    if (o->curve_server_public &&
        set_key(socket, ZMQ_CURVE_SERVERKEY, "server's public key", o->curve_server_public, err))
        return err ? err->code : VF_ERR_USAGE;
    if (!o->curve_server)
        return VF_OK;
    if (!o->curve_secret)
        return vf_err_set(err, VF_ERR_USAGE, "a CURVE server needs its secret key");
    enum vf_code code = set_int(socket, ZMQ_CURVE_SERVER, 1, err);
    /* With the domain set libzmq asks the process's ZAP handler about every client. The handler
     * must be bound before the endpoint: libzmq lets everybody in while there is none. */
    if (!code && zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) != 0)
        code = vf_err_set(err, VF_ERR_INTERNAL, "zmq ZAP domain: %s", zmq_strerror(zmq_errno()));
    return code;
}

static enum vf_code set_options(void *socket, const struct vf_wire_options *o, struct vf_err *err)
{
    const int64_t message_max = TRANSPORT_MAX;
    int linger = o->type == VF_WIRE_DEALER ? LAST_WORDS_MS : 0;
    enum vf_code code = set_int(socket, ZMQ_LINGER, linger, err);
    if (!code)
        code = set_int(socket, ZMQ_SNDHWM, QUEUE_MESSAGES, err);
    if (!code)
        code = set_int(socket, ZMQ_RCVHWM, QUEUE_MESSAGES, err);
    if (!code)
        code = set_int(socket, ZMQ_TCP_KEEPALIVE, 1, err);
    if (!code && zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof message_max) != 0)
        code = vf_err_set(err, VF_ERR_INTERNAL, "zmq message size: %s", zmq_strerror(zmq_errno()));
    if (!code && o->type == VF_WIRE_ROUTER) /* a vanished peer is an error, not silence */
        code = set_int(socket, ZMQ_ROUTER_MANDATORY, 1, err);
    if (!code && o->identity &&
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, o->identity, strlen(o->identity)) != 0)
        code = vf_err_set(err, VF_ERR_INTERNAL, "zmq identity '%s': %s", o->identity,
                          zmq_strerror(zmq_errno()));
    return code ? code : set_curve(socket, o, err);
}

enum vf_code vf_wire_open(void *context, const struct vf_wire_options *options, void **socket,
                          struct vf_err *err)
{
    static const int types[] = {[VF_WIRE_ROUTER] = ZMQ_ROUTER,
                                [VF_WIRE_DEALER] = ZMQ_DEALER,
                                [VF_WIRE_PUSH] = ZMQ_PUSH,
                                [VF_WIRE_PULL] = ZMQ_PULL};
    *socket = NULL;
    if (try_descriptors(SOCKET_DESCRIPTORS, false, err) != VF_OK)
        return VF_ERR_LIMIT;
    void *s = zmq_socket(context, types[options->type]);
    if (!s)
        return vf_err_set(err, VF_ERR_IO, "can't open a zmq socket: %s", zmq_strerror(zmq_errno()));
    enum vf_code code = set_options(s, options, err);
    if (code) {
        zmq_close(s);
        return code;
    }
    *socket = s;
    return VF_OK;
}

void vf_wire_close(void *socket)
{
    if (socket)
        zmq_close(socket);
}

static enum vf_code endpoint_error(const char *verb, const char *endpoint, struct vf_err *err)
{
    int e = zmq_errno();
    enum vf_code code = e == EADDRINUSE                       ? VF_ERR_BUSY
                        : e == EACCES || e == EPERM           ? VF_ERR_DENIED
                        : e == EINVAL || e == EPROTONOSUPPORT ? VF_ERR_USAGE
                        : e == ENODEV || e == ENAMETOOLONG    ? VF_ERR_USAGE
                                                              : VF_ERR_IO;
    vf_err_set(err, code, "can't %s endpoint '%s': %s", verb, endpoint, zmq_strerror(e));
    if (err)
        err->sys_errno = e < ZMQ_HAUSNUMERO ? e : 0;
    return code;
}

enum vf_code vf_wire_bind(void *socket, const char *endpoint, struct vf_err *err)
{
    struct vf_endpoint checked;
    enum vf_code code = vf_endpoint_check(endpoint, VF_ENDPOINT_BIND, &checked, err);
    if (!code)
        code = set_int(socket, ZMQ_IPV6, checked.ipv6, err);
    if (code)
        return code;
    return zmq_bind(socket, checked.text) == 0 ? VF_OK : endpoint_error("bind", endpoint, err);
}

enum vf_code vf_wire_connect(void *socket, const char *endpoint, struct vf_err *err)
{
    struct vf_endpoint checked;
    enum vf_code code = vf_endpoint_check(endpoint, VF_ENDPOINT_CONNECT, &checked, err);
    if (!code)
        code = set_int(socket, ZMQ_IPV6, checked.ipv6, err);
    if (code)
        return code;
    return zmq_connect(socket, checked.text) == 0 ? VF_OK
                                                  : endpoint_error("connect to", endpoint, err);
}

/* Sends one frame without blocking; the message is consumed only on success. */
static int send_frame(void *socket, zmq_msg_t *frame, int flags)
{
    int rc;
    do
        rc = zmq_msg_send(frame, socket, flags | ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    return rc < 0 ? zmq_errno() : 0;
}

static enum vf_code send_error(int e, struct vf_err *err)
{
    if (e == EAGAIN)
        return vf_err_set(err, VF_ERR_BUSY, "the peer's message queue is full");
    if (e == EHOSTUNREACH)
        return vf_err_set(err, VF_ERR_PEER_LOST, "the peer isn't connected");
    return vf_err_set(err, VF_ERR_IO, "can't send a message: %s", zmq_strerror(e));
}

static int send_address(void *socket, const struct vf_wire_peer *to)
{
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, to->id_bytes) != 0)
        return ENOMEM;
    memcpy(zmq_msg_data(&frame), to->id, to->id_bytes);
    int e = send_frame(socket, &frame, ZMQ_SNDMORE);
    if (e)
        zmq_msg_close(&frame);
    return e;
}

enum vf_code vf_wire_send(void *socket, const struct vf_wire_peer *to,
                          const Vflow__Envelope *message, struct vf_err *err)
{
    size_t n = vflow__envelope__get_packed_size(message);
    if (n > VF_WIRE_MESSAGE_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "message of %zu bytes, at most %u are allowed", n,
                          VF_WIRE_MESSAGE_MAX);
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, n) != 0)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a message of %zu bytes", n);
    vflow__envelope__pack(message, zmq_msg_data(&frame));
    int e = to ? send_address(socket, to) : 0;
    if (!e)
        e = send_frame(socket, &frame, 0);
    if (e) {
        zmq_msg_close(&frame);
        return send_error(e, err);
    }
    return VF_OK;
}

/* An allocator on malloc and free, so that what it made can be freed by the default one, that
 * refuses to hand out more than a budget. */
struct budget {
    size_t left;
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *b = data;
    if (size > b->left)
        return NULL;
    b->left -= size;
    return malloc(size);
}

static void budget_free(void *data, void *p)
{
    (void)data;
    free(p);
}

enum vf_code vf_wire_unpack(const void *data, size_t n, uint64_t *request_id,
                            Vflow__Envelope **message, struct vf_err *err)
{
    if (n > VF_WIRE_MESSAGE_MAX)
        return vf_err_set(err, VF_ERR_PROTOCOL, "message of %zu bytes, at most %u are allowed", n,
                          VF_WIRE_MESSAGE_MAX);
    size_t limit = UNPACK_BASE + UNPACK_FACTOR * n;
    struct budget budget = {limit < UNPACK_MAX ? limit : UNPACK_MAX};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    Vflow__Envelope *m = vflow__envelope__unpack(&allocator, n, data);
    if (!m)
        return vf_err_set(err, VF_ERR_PROTOCOL, "message of %zu bytes isn't a vflow envelope", n);
    if (request_id)
        *request_id = m->request_id;
    if (m->version != VF_WIRE_VERSION) {
        vf_err_set(err, VF_ERR_PROTOCOL, "message of protocol version %u, this program speaks %u",
                   m->version, VF_WIRE_VERSION);
        vflow__envelope__free_unpacked(m, NULL);
        return VF_ERR_PROTOCOL;
    }
    *message = m;
    return VF_OK;
}

/* One frame into an initialised message; 0, EAGAIN or another errno. */
static int receive_frame(void *socket, zmq_msg_t *frame)
{
    int rc;
    do
        rc = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (rc < 0 && zmq_errno() == EINTR);
    return rc < 0 ? zmq_errno() : 0;
}

/* Frames of one message arrive together, so the rest of a started message is always there. */
static void skip_frames(void *socket, zmq_msg_t *frame)
{
    while (zmq_msg_more(frame) && receive_frame(socket, frame) == 0)
        continue;
}

static bool is_router(void *socket)
{
    int type = 0;
    size_t size = sizeof type;
    return zmq_getsockopt(socket, ZMQ_TYPE, &type, &size) == 0 && type == ZMQ_ROUTER;
}

static enum vf_code take_address(zmq_msg_t *frame, struct vf_wire_peer *from, struct vf_err *err)
{
    size_t n = zmq_msg_size(frame);
    if (n > VF_WIRE_IDENTITY_MAX)
        return vf_err_set(err, VF_ERR_PROTOCOL, "a peer's identity has %zu bytes, at most %d", n,
                          VF_WIRE_IDENTITY_MAX);
    if (from) {
        memcpy(from->id, zmq_msg_data(frame), n);
        from->id_bytes = n;
    }
    return VF_OK;
}

/* Receives what is there; VF_ERR_TIMEOUT when nothing is. */
static enum vf_code receive_now(void *socket, struct vf_wire_peer *from, Vflow__Envelope **message,
                                struct vf_err *err)
{
    bool router = is_router(socket);
    enum vf_code code = VF_OK;
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    int e = receive_frame(socket, &frame);
    if (e == EAGAIN) {
        code = vf_err_set(err, VF_ERR_TIMEOUT, "no message arrived in time");
        goto out;
    }
    if (e) {
        code = vf_err_set(err, VF_ERR_IO, "can't receive a message: %s", zmq_strerror(e));
        goto out;
    }
    if (router) {
        code = take_address(&frame, from, err);
        if (!code && !zmq_msg_more(&frame))
            code = vf_err_set(err, VF_ERR_PROTOCOL, "message without a body frame");
        if (!code && receive_frame(socket, &frame) != 0)
            code = vf_err_set(err, VF_ERR_IO, "the body of a message didn't arrive");
    }
    if (!code && zmq_msg_more(&frame))
        code = vf_err_set(err, VF_ERR_PROTOCOL, "message of several frames, one is allowed");
    if (!code)
        code = vf_wire_unpack(zmq_msg_data(&frame), zmq_msg_size(&frame), NULL, message, err);
    else
        skip_frames(socket, &frame);
out:
    zmq_msg_close(&frame);
    return code;
}

static enum vf_code wait_readable(void *socket, uint64_t deadline_ns, struct vf_err *err)
{
    for (;;) {
        uint64_t now = vf_now_ns();
        long ms = now < deadline_ns ? (long)((deadline_ns - now + 999999) / 1000000) : 0;
        zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
        int rc = zmq_poll(&item, 1, ms);
        if (rc > 0)
            return VF_OK;
        if (rc < 0 && zmq_errno() != EINTR)
            return vf_err_set(err, VF_ERR_IO, "can't wait for a message: %s",
                              zmq_strerror(zmq_errno()));
        if (vf_now_ns() >= deadline_ns)
            return vf_err_set(err, VF_ERR_TIMEOUT, "no message arrived in time");
    }
}

enum vf_code vf_wire_receive(void *socket, int timeout_ms, struct vf_wire_peer *from,
                             Vflow__Envelope **message, struct vf_err *err)
{
    *message = NULL;
    if (from)
        from->id_bytes = 0;
    enum vf_code code = receive_now(socket, from, message, err);
    if (code != VF_ERR_TIMEOUT || timeout_ms == 0)
        return code;
    uint64_t deadline =
        vf_now_ns() + VF_MS(timeout_ms < 0 ? (uint64_t)INT_MAX : (uint64_t)timeout_ms);
    do {
        code = wait_readable(socket, deadline, err);
        if (!code)
            code = receive_now(socket, from, message, err);
    } while (code == VF_ERR_TIMEOUT && vf_now_ns() < deadline);
    return code;
}

void vf_wire_error_fill(Vflow__Error *out, const struct vf_err *err)
{
    vflow__error__init(out);
    out->code = (uint32_t)err->code;
    out->sys_errno = err->sys_errno;
    out->text = (char *)err->text;
}

enum vf_code vf_wire_error_take(const Vflow__Error *in, struct vf_err *err)
{
    bool known = in->code > VF_OK && in->code < VF_CODE_COUNT;
    enum vf_code code = known ? (enum vf_code)in->code : VF_ERR_PROTOCOL;
    if (known)
        vf_err_set(err, code, "%s", in->text);
    else
        vf_err_set(err, code, "a peer reported the unknown error code %u: %s", in->code, in->text);
    if (err)
        err->sys_errno = in->sys_errno;
    return code;
}
