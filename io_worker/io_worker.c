/* The control side of an I/O worker. One poll waits for the coordinator's messages, its death,
 * signals, and through the service for orders and reads. */
#include "io_worker/io_worker.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/map_guard.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "common/experts/stripes.h"
#include "common/run/wire.h"
#include "io_worker/engine.h"
#include "io_worker/service.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PLAN_WAIT_NS    VF_S(60) /* the coordinator may be busy creating a large cache */
#define GOODBYE_WAIT_NS VF_S(2)  /* for the coordinator to take an Error: closing drops it */
#define POLL_MS         500      /* between two heartbeats in the cache */

enum { ITEM_CONTROL, ITEM_OWNER, ITEM_SIGNAL, ITEM_COUNT };

struct io_worker {
    uint32_t index, epoch;
    struct vf_run_dir *run_dir;
    int owner_fd, signal_fd;
    void *zmq, *control;
    struct vf_model_file *file;
    struct vf_bank_stripes *stripes; /* NULL: the bank is in the file */
    struct vf_io_service *service;
    bool ended; /* by Shutdown or SIGTERM */
};

/* ---- messages ------------------------------------------------------------------------------ */

static enum vf_code send_message(struct io_worker *w, Vflow__Envelope *m, uint64_t request_id,
                                 struct vf_err *err)
{
    m->version = VF_WIRE_VERSION;
    m->epoch = w->epoch;
    m->request_id = request_id;
    return vf_wire_send(w->control, NULL, m, err);
}

static enum vf_code send_hello(struct io_worker *w, struct vf_err *err)
{
    Vflow__Hello hello = VFLOW__HELLO__INIT;
    hello.role = VFLOW__ROLE__ROLE_IO;
    hello.index = w->index;
    hello.pid = (uint64_t)getpid();
    hello.run_id = (char *)vf_run_dir_id(w->run_dir);
    hello.software = VFLOW_VERSION;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_HELLO;
    m.hello = &hello;
    return send_message(w, &m, 0, err);
}

static enum vf_code send_ready(struct io_worker *w, struct vf_err *err)
{
    Vflow__Ready ready = VFLOW__READY__INIT;
    ready.threads = 1;
    ready.io = (char *)vf_io_service_engine(w->service);
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_READY;
    m.ready = &ready;
    return send_message(w, &m, 0, err);
}

static void send_error(struct io_worker *w, const struct vf_err *why)
{
    Vflow__Error error = VFLOW__ERROR__INIT;
    vf_wire_error_fill(&error, why);
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_ERROR;
    m.error = &error;
    send_message(w, &m, 0, NULL);
}

static enum vf_code answer_heartbeat(struct io_worker *w, const Vflow__Envelope *asked,
                                     struct vf_err *err)
{
    Vflow__Heartbeat beat = VFLOW__HEARTBEAT__INIT;
    beat.sent_ns = asked->heartbeat->sent_ns;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &beat;
    return send_message(w, &m, asked->request_id, err);
}

/* ---- the plan ------------------------------------------------------------------------------ */

static bool uring_is_forbidden(void)
{
    const char *no = getenv("VFLOW_NO_URING");
    return no && strcmp(no, "1") == 0;
}

static enum vf_code check_plan(const struct io_worker *w, const Vflow__Plan *plan,
                               struct vf_err *err)
{
    if (strcmp(plan->io, "direct") != 0 && strcmp(plan->io, "buffered") != 0)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: io is \"%s\"; allowed are direct, buffered",
                          plan->io);
    if (w->index >= plan->io_workers)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: it has %u I/O workers, this is number %u",
                          plan->io_workers, w->index);
    if (plan->queue_depth > VF_READ_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: queue depth %u; allowed are 1 to %u",
                          plan->queue_depth, VF_READ_DEPTH_MAX);
    return VF_OK;
}

static enum vf_code open_file(struct io_worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    vf_map_guard_install(plan->model_path);
    enum vf_code code = vf_model_file_open(plan->model_path, &w->file, err);
    if (code != VF_OK)
        return code;
    uint64_t found = vf_model_file_fingerprint(w->file);
    if (found != plan->model_fingerprint)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: fingerprint %016" PRIx64
                          ", the coordinator opened one with %016" PRIx64
                          "; was the file exchanged?",
                          plan->model_path, found, plan->model_fingerprint);
    return VF_OK;
}

static enum vf_code follow_plan(struct io_worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    struct vf_expert_bank bank;
    enum vf_code code = check_plan(w, plan, err);
    if (code == VF_OK)
        code = open_file(w, plan, err);
    if (code == VF_OK && plan->n_expert_bank > 0)
        code = vf_bank_stripes_open(w->file, (const char *const *)plan->expert_bank,
                                    (uint32_t)plan->n_expert_bank, &w->stripes, err);
    if (code == VF_OK)
        code = vf_expert_bank_of(w->file, w->stripes, &bank, err);
    if (code != VF_OK)
        return code;
    struct vf_io_service_params params = {
        .zmq_context = w->zmq,
        .run_dir = w->run_dir,
        .bank = &bank,
        .index = w->index,
        .epoch = w->epoch,
        .depth = plan->queue_depth,
        .piece_bytes = plan->read_bytes,
        .throttle_bytes = plan->io_throttle,
        .buffered = strcmp(plan->io, "buffered") == 0,
        .no_uring = uring_is_forbidden(),
    };
    code = vf_io_service_create(&params, &w->service, err);
    return code == VF_OK ? send_ready(w, err) : code;
}

static enum vf_code take_message(struct io_worker *w, const Vflow__Envelope *m, struct vf_err *err)
{
    if (m->body_case == VFLOW__ENVELOPE__BODY_SHUTDOWN) {
        vf_info("shutdown: %s", m->shutdown->reason);
        w->ended = true;
        return VF_OK;
    }
    if (m->body_case == VFLOW__ENVELOPE__BODY_PLAN && !w->service) {
        w->epoch = m->epoch;
        return follow_plan(w, m->plan, err);
    }
    if (m->epoch != w->epoch) {
        vf_debug("a message of epoch %u dropped, this is %u", m->epoch, w->epoch);
        return VF_OK;
    }
    if (m->body_case == VFLOW__ENVELOPE__BODY_HEARTBEAT)
        return answer_heartbeat(w, m, err);
    if (m->body_case == VFLOW__ENVELOPE__BODY_ERROR)
        return vf_wire_error_take(m->error, err);
    vf_warn("a message of kind %d from the coordinator dropped", (int)m->body_case);
    return VF_OK;
}

static enum vf_code take_messages(struct io_worker *w, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    while (code == VF_OK && !w->ended) {
        Vflow__Envelope *m;
        struct vf_err why;
        enum vf_code received = vf_wire_receive(w->control, 0, NULL, &m, &why);
        if (received == VF_ERR_TIMEOUT)
            break;
        if (received == VF_ERR_PROTOCOL) {
            vf_warn("control: %s", why.text);
            continue;
        }
        if (received != VF_OK) {
            *err = why;
            return received;
        }
        code = take_message(w, m, err);
        vflow__envelope__free_unpacked(m, NULL);
    }
    return code;
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* One wait of at most timeout_ms, and what it brought. */
static enum vf_code wait_and_handle(struct io_worker *w, int timeout_ms, struct vf_err *err)
{
    zmq_pollitem_t items[ITEM_COUNT] = {
        [ITEM_CONTROL] = {.socket = w->control, .events = ZMQ_POLLIN},
        [ITEM_OWNER] = {.fd = w->owner_fd, .events = ZMQ_POLLIN},
        [ITEM_SIGNAL] = {.fd = w->signal_fd, .events = ZMQ_POLLIN},
    };
    enum vf_code code = VF_OK;
    if (w->service)
        code = vf_io_service_run(w->service, items, ITEM_COUNT, timeout_ms, err);
    else if (zmq_poll(items, ITEM_COUNT, timeout_ms) < 0 && zmq_errno() != EINTR)
        code = vf_err_set(err, VF_ERR_IO, "waiting for the coordinator: %s",
                          zmq_strerror(zmq_errno()));
    if (items[ITEM_SIGNAL].revents)
        w->ended = true;
    if (code == VF_OK && items[ITEM_CONTROL].revents)
        code = take_messages(w, err);
    if (code == VF_OK && !w->ended && items[ITEM_OWNER].revents)
        code = vf_err_set(err, VF_ERR_PEER_LOST, "the coordinator of run %s died",
                          vf_run_dir_id(w->run_dir));
    return code;
}

static enum vf_code serve(struct io_worker *w, struct vf_err *err)
{
    uint64_t plan_until_ns = vf_now_ns() + PLAN_WAIT_NS;
    enum vf_code code = VF_OK;
    while (code == VF_OK && !w->ended) {
        if (!w->service && vf_now_ns() > plan_until_ns)
            return vf_err_set(err, VF_ERR_TIMEOUT, "no plan from the coordinator for %u seconds",
                              (unsigned)(PLAN_WAIT_NS / VF_S(1)));
        code = wait_and_handle(w, POLL_MS, err);
    }
    return code;
}

static bool owner_died(const struct io_worker *w)
{
    struct pollfd p = {.fd = w->owner_fd, .events = POLLIN};
    return w->owner_fd >= 0 && poll(&p, 1, 0) > 0;
}

/* Tells the coordinator why, and stays until it has answered, since closing a socket drops what is
 * still in it. Before the plan it has no ear for errors. */
static void report(struct io_worker *w, const struct vf_err *why)
{
    uint64_t until_ns = vf_now_ns() + GOODBYE_WAIT_NS;
    if (w->epoch == 0) {
        vf_error("%s", why->text);
        return;
    }
    vf_io_service_destroy(w->service);
    w->service = NULL;
    send_error(w, why);
    struct vf_err ignored;
    while (!w->ended && vf_now_ns() < until_ns)
        if (wait_and_handle(w, 100, &ignored) == VF_ERR_PEER_LOST)
            break;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* SIGTERM becomes readable; blocked before any thread starts, so that none takes it. */
static enum vf_code open_signals(struct io_worker *w, struct vf_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    signal(SIGINT, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return vf_err_errno(err, VF_ERR_INTERNAL, errno, "sigprocmask");
    w->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return w->signal_fd >= 0 ? VF_OK : vf_err_errno(err, VF_ERR_IO, errno, "signalfd");
}

static enum vf_code connect_control(struct io_worker *w, struct vf_err *err)
{
    char identity[32], endpoint[VF_RUN_ENDPOINT_MAX];
    snprintf(identity, sizeof identity, "io-%u", w->index);
    vf_run_dir_endpoint(w->run_dir, VF_RUN_CONTROL, endpoint);
    struct vf_wire_options options = {.type = VF_WIRE_DEALER, .identity = identity};
    w->zmq = vf_wire_context_create(err);
    if (!w->zmq)
        return err->code;
    enum vf_code code = vf_wire_open(w->zmq, &options, &w->control, err);
    if (code == VF_OK)
        code = vf_wire_connect(w->control, endpoint, err);
    return code == VF_OK ? send_hello(w, err) : code;
}

static void log_totals(const struct io_worker *w)
{
    if (!w->service)
        return;
    struct vf_cache_io_stats s = vf_io_service_stats(w->service);
    vf_info(
        "%" PRIu64 " reads, %" PRIu64 " MiB, latency mean %.2f ms, max %.2f ms, %" PRIu64
        " errors, %" PRIu64 " joined, %" PRIu64 " orders merged, %" PRIu64 " stale, %" PRIu64
        " evictions",
        s.reads, s.bytes >> 20, s.reads ? (double)s.latency_ns_sum / (double)s.reads / 1e6 : 0.0,
        (double)s.latency_ns_max / 1e6, s.read_errors, s.joined, s.merged, s.stale, s.evictions);
}

static void deinit(struct io_worker *w)
{
    log_totals(w);
    vf_io_service_destroy(w->service);
    vf_bank_stripes_close(w->stripes);
    vf_model_file_close(w->file);
    vf_wire_close(w->control);
    vf_wire_context_destroy(w->zmq);
    if (w->owner_fd >= 0)
        close(w->owner_fd);
    if (w->signal_fd >= 0)
        close(w->signal_fd);
    vf_run_dir_close(w->run_dir);
}

enum vf_code vf_io_worker_run(const char *run_dir, uint32_t index, struct vf_err *err)
{
    struct io_worker w = {.index = index, .owner_fd = -1, .signal_fd = -1};
    enum vf_code code = open_signals(&w, err);
    if (code == VF_OK)
        code = vf_run_dir_open(run_dir, &w.run_dir, err);
    if (code == VF_OK)
        code = vf_run_dir_owner_pidfd(w.run_dir, &w.owner_fd, err);
    if (code == VF_ERR_PEER_LOST) /* died while this worker started: nobody else may be left */
        vf_run_dir_remove(w.run_dir);
    if (code == VF_OK)
        code = connect_control(&w, err);
    if (code == VF_OK)
        code = serve(&w, err);
    if (code != VF_OK && code != VF_ERR_PEER_LOST)
        report(&w, err);
    if (owner_died(&w))
        vf_run_dir_remove(w.run_dir);
    deinit(&w);
    return code;
}
