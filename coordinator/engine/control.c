/* Workers: starting them, the control conversation (hello, plan, ready, heartbeats, errors,
 * shutdown), and noticing at once when one dies. One zmq_poll waits for all of it: the control
 * socket, the workers' pidfds, the cancel descriptor and whatever the caller adds.
 */
#include "coordinator/engine/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/progress.h"
#include "common/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define SHOW_NS VF_MS(200) /* between two looks at how far loading is */

/* Messages handled before the caller gets a turn again. */
#define MESSAGES_PER_TURN 256
/* How long the last words of a worker that just died may still be on their way. */
#define LAST_WORDS_MS 50
/* How long a process that lost its connection may take to be gone. */
#define DYING_MS 1000

/* ---- starting ------------------------------------------------------------------------------ */

static enum vf_code start_worker(struct vf_engine *e, struct worker *w, struct vf_err *err)
{
    char index[16];
    snprintf(index, sizeof index, "%u", w->index);
    char *argv[8] = {NULL, "--run-dir", (char *)vf_run_dir_path(e->run_dir), "--index", index};
    int argc = 5;
    for (int v = 0; v < e->params.settings.verbose && v < 2; v++)
        argv[argc++] = "-v";
    const char *program = w->role == VF_WORKER_STAGE ? "vflow-stage-worker" : "vflow-io-worker";
    enum vf_code code = vf_process_start(program, argv, &w->process, err);
    if (code)
        return code;
    w->pid = w->process.pid;
    w->heard_ns = vf_now_ns();
    w->deadline_ns = w->heard_ns + HELLO_NS;
    vf_info("started %s (pid %d)", w->name, (int)w->pid);
    return VF_OK;
}

static struct worker *add_worker(struct vf_engine *e, enum vf_worker_role role, uint32_t index)
{
    struct worker *w = &e->workers[e->worker_count++];
    *w = (struct worker){.role = role, .index = index, .process = {0, -1}};
    engine_totals_init(&w->totals);
    bool stage = role == VF_WORKER_STAGE;
    w->threads = stage ? e->shape.threads[index] : 1;
    snprintf(w->name, sizeof w->name, "%s worker %u", stage ? "stage" : "I/O", index);
    return w;
}

enum vf_code engine_start_workers(struct vf_engine *e, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < e->info.stage_workers && !code; i++)
        code = start_worker(e, add_worker(e, VF_WORKER_STAGE, i), err);
    for (uint32_t i = 0; i < e->info.io_workers && !code; i++)
        code = start_worker(e, add_worker(e, VF_WORKER_IO, i), err);
    return code;
}

/* ---- sending ------------------------------------------------------------------------------- */

static enum vf_code send_raw(struct vf_engine *e, struct worker *w, Vflow__Envelope *m,
                             struct vf_err *err)
{
    m->version = VF_WIRE_VERSION;
    m->epoch = ENGINE_EPOCH;
    return vf_wire_send(e->router, &w->peer, m, err);
}

/* A dying process loses its connections a moment before its pidfd tells. */
static bool is_dying(const struct worker *w)
{
    struct pollfd gone = {.fd = w->process.pidfd, .events = POLLIN};
    return poll(&gone, 1, DYING_MS) > 0;
}

enum vf_code engine_send(struct vf_engine *e, struct worker *w, Vflow__Envelope *m,
                         struct vf_err *err)
{
    struct vf_err why;
    enum vf_code code = send_raw(e, w, m, &why);
    if (!code || (code == VF_ERR_PEER_LOST && is_dying(w)))
        return VF_OK; /* of the dead the next turn says how they died */
    vf_err_prepend(&why, "%s (pid %d): ", w->name, (int)w->pid);
    engine_break(e, &why);
    *err = e->err;
    return err->code;
}

static enum vf_code send_plan(struct vf_engine *e, struct worker *w, struct vf_err *err)
{
    const struct vf_run_shape *shape = &e->shape;
    Vflow__RunSettings settings = shape->settings;
    Vflow__Plan plan = VFLOW__PLAN__INIT;
    settings.threads = w->threads;
    plan.settings = &settings;
    plan.model_path = e->model_path;
    plan.model_fingerprint = vf_model_file_fingerprint(e->file);
    plan.op_worker = shape->placement.op_worker;
    plan.n_op_worker = e->program.op_count;
    plan.columns_max = shape->budget.columns_max;
    plan.rows_max = shape->budget.rows_max;
    plan.cache_slots = shape->budget.cache_slots;
    plan.read_bytes = shape->drive.read_bytes;
    plan.expert_bank = (char **)shape->stripes.paths;
    plan.n_expert_bank = shape->stripes.count;
    plan.logits_slots = VF_LOGITS_SLOTS;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_PLAN;
    m.plan = &plan;
    return engine_send(e, w, &m, err);
}

void engine_ask_worker(struct vf_engine *e, struct worker *w)
{
    Vflow__Heartbeat beat = VFLOW__HEARTBEAT__INIT;
    beat.sent_ns = vf_now_ns();
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &beat;
    w->asked_ns = beat.sent_ns;
    if (send_raw(e, w, &m, NULL) == VF_OK)
        w->asks_open++;
}

/* ---- the end ------------------------------------------------------------------------------- */

static void send_shutdown(struct vf_engine *e, struct worker *w, const char *reason)
{
    Vflow__Shutdown shutdown = VFLOW__SHUTDOWN__INIT;
    shutdown.reason = (char *)reason;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_SHUTDOWN;
    m.shutdown = &shutdown;
    if (w->state != WORKER_READY || send_raw(e, w, &m, NULL) != VF_OK)
        vf_process_kill(&w->process); /* it hasn't begun anything that needs an end */
}

/* Waits for every worker to end, reaps it; true when none is left. */
static bool wait_gone(struct vf_engine *e, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd fds[ENGINE_WORKERS_MAX];
        nfds_t n = 0;
        for (uint32_t i = 0; i < e->worker_count; i++) {
            struct worker *w = &e->workers[i];
            char how[64];
            int status;
            if (vf_process_reap(&w->process, how, sizeof how, &status))
                vf_debug("%s (pid %d) %s", w->name, (int)w->pid, how);
            if (w->process.pid)
                fds[n++] = (struct pollfd){.fd = w->process.pidfd, .events = POLLIN};
        }
        uint64_t now = vf_now_ns();
        if (n == 0 || now >= deadline_ns)
            return n == 0;
        poll(fds, n, (int)((deadline_ns - now) / 1000000 + 1));
    }
}

void engine_shutdown_workers(struct vf_engine *e, const char *reason)
{
    if (e->run_state)
        vf_run_state_end(e->run_state);
    vf_mailboxes_wake(e->mailboxes);
    for (uint32_t i = 0; i < e->worker_count; i++)
        if (e->workers[i].process.pid)
            send_shutdown(e, &e->workers[i], reason);
    if (!wait_gone(e, vf_now_ns() + SHUTDOWN_GRACE_NS)) {
        for (uint32_t i = 0; i < e->worker_count; i++) {
            if (e->workers[i].process.pid)
                vf_info("%s (pid %d) didn't leave in time and is killed", e->workers[i].name,
                        (int)e->workers[i].pid);
            vf_process_kill(&e->workers[i].process);
        }
        wait_gone(e, vf_now_ns() + SHUTDOWN_GRACE_NS);
    }
    for (uint32_t i = 0; i < e->worker_count; i++) {
        e->workers[i].state = WORKER_LOST;
        vf_process_deinit(&e->workers[i].process);
    }
}

enum vf_code engine_break(struct vf_engine *e, const struct vf_err *why)
{
    if (e->broken)
        return e->err.code;
    e->broken = true;
    e->err = *why;
    vf_info("shutting down: %s", why->text);
    engine_shutdown_workers(e, why->text);
    return e->err.code;
}

static void break_with(struct vf_engine *e, enum vf_code code, const struct worker *w,
                       const char *text)
{
    struct vf_err why;
    vf_err_set(&why, code, "%s (pid %d) %s", w->name, (int)w->pid, text);
    engine_break(e, &why);
}

/* ---- messages ------------------------------------------------------------------------------ */

static struct worker *find_worker(struct vf_engine *e, const struct vf_wire_peer *peer)
{
    for (uint32_t i = 0; i < e->worker_count; i++) {
        struct worker *w = &e->workers[i];
        if (w->peer.id_bytes > 0 && w->peer.id_bytes == peer->id_bytes &&
            memcmp(w->peer.id, peer->id, peer->id_bytes) == 0)
            return w;
    }
    return NULL;
}

static uint64_t load_ns(const struct vf_engine *e)
{
    return LOAD_BASE_NS + vf_model_file_bytes(e->file) / LOAD_BYTES_PER_S_MIN * VF_S(1);
}

/* The worker that a hello speaks for; NULL with *err: the run has no place for its sender. */
static struct worker *admit(struct vf_engine *e, const Vflow__Hello *hello, struct vf_err *err)
{
    bool stage = hello->role == VFLOW__ROLE__ROLE_STAGE;
    uint32_t count = stage ? e->info.stage_workers : e->info.io_workers;
    const char *noun = stage ? "stage worker" : "I/O worker", *id = vf_run_dir_id(e->run_dir);
    if (!stage && hello->role != VFLOW__ROLE__ROLE_IO) {
        vf_err_set(err, VF_ERR_PROTOCOL, "run %s knows no role %d", id, (int)hello->role);
    } else if (strcmp(hello->run_id, id) != 0) {
        vf_err_set(err, VF_ERR_PROTOCOL, "this is run %s, not %s", id, hello->run_id);
    } else if (hello->index >= count) {
        vf_err_set(err, VF_ERR_USAGE,
                   "--index: run %s has %u %s%s, there is no place for number %u", id, count, noun,
                   count == 1 ? "" : "s", hello->index);
    } else {
        struct worker *w = &e->workers[stage ? hello->index : e->info.stage_workers + hello->index];
        if (hello->pid == (uint64_t)w->pid && w->state == WORKER_STARTING)
            return w;
        vf_err_set(err, VF_ERR_BUSY, "--index: %s of run %s is process %d already", w->name, id,
                   (int)w->pid);
    }
    return NULL;
}

static void refuse(struct vf_engine *e, const struct vf_wire_peer *peer, const struct vf_err *why)
{
    Vflow__Error error = VFLOW__ERROR__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    vf_wire_error_fill(&error, why);
    m.version = VF_WIRE_VERSION;
    m.epoch = ENGINE_EPOCH;
    m.body_case = VFLOW__ENVELOPE__BODY_ERROR;
    m.error = &error;
    vf_wire_send(e->router, peer, &m, NULL); /* a sender that has gone needs no answer */
}

static void take_hello(struct vf_engine *e, const struct vf_wire_peer *peer,
                       const Vflow__Hello *hello)
{
    struct vf_err why;
    struct worker *w = admit(e, hello, &why);
    if (!w) {
        vf_warn("refused the hello of process %" PRIu64 ": %s", hello->pid, why.text);
        refuse(e, peer, &why);
        return;
    }
    if (strcmp(hello->software, VFLOW_VERSION) != 0) {
        char text[128];
        snprintf(text, sizeof text, "is version %.40s, the coordinator is %s", hello->software,
                 VFLOW_VERSION);
        break_with(e, VF_ERR_UNSUPPORTED, w, text);
        return;
    }
    w->peer = *peer;
    w->state = WORKER_LOADING;
    w->deadline_ns = vf_now_ns() + load_ns(e);
    send_plan(e, w, &why); /* a failure breaks the engine, which says so */
}

static void take_ready(struct vf_engine *e, struct worker *w, const Vflow__Ready *ready)
{
    if (w->state != WORKER_LOADING) {
        break_with(e, VF_ERR_PROTOCOL, w, "said twice that it is ready");
        return;
    }
    w->state = WORKER_READY;
    w->weight_bytes = ready->weight_bytes;
    w->kv_bytes = ready->kv_bytes;
    e->ready_count++;
    if (w->role == VF_WORKER_STAGE)
        vf_info("%s is ready: %.1f MiB of weights, kernel %s, %u threads", w->name,
                (double)ready->weight_bytes / 1048576.0, ready->kernel, ready->threads);
    else
        vf_info("%s is ready: %s", w->name, ready->io);
}

static void take_heartbeat(struct worker *w, const Vflow__Heartbeat *beat)
{
    if (w->asks_open)
        w->asks_open--;
    engine_take_stats(w, beat->stats);
}

static void take_error(struct vf_engine *e, struct worker *w, const Vflow__Error *error)
{
    struct vf_err why;
    vf_wire_error_take(error, &why);
    vf_err_prepend(&why, "%s: ", w->name);
    engine_break(e, &why);
}

static void take_message(struct vf_engine *e, const struct vf_wire_peer *peer,
                         const Vflow__Envelope *m)
{
    struct worker *w = find_worker(e, peer);
    if (m->body_case == VFLOW__ENVELOPE__BODY_HELLO) {
        take_hello(e, peer, m->hello);
        return;
    }
    if (!w) {
        vf_warn("dropped a message from an unknown sender");
        return;
    }
    if (m->epoch != ENGINE_EPOCH) {
        vf_debug("dropped a message of epoch %u from %s", m->epoch, w->name);
        return;
    }
    w->heard_ns = vf_now_ns();
    switch (m->body_case) {
    case VFLOW__ENVELOPE__BODY_READY:
        take_ready(e, w, m->ready);
        break;
    case VFLOW__ENVELOPE__BODY_STEP_RESULT:
        if (w->role != VF_WORKER_STAGE)
            break;
        engine_take_stats(w, m->step_result->stats);
        engine_take_result(e, w, m->step_result);
        break;
    case VFLOW__ENVELOPE__BODY_HEARTBEAT:
        take_heartbeat(w, m->heartbeat);
        break;
    case VFLOW__ENVELOPE__BODY_ERROR:
        take_error(e, w, m->error);
        break;
    default:
        vf_warn("dropped a message of kind %d from %s", (int)m->body_case, w->name);
    }
}

/* Takes messages until none is there for wait_ms. */
static void drain_messages(struct vf_engine *e, int wait_ms)
{
    for (int n = 0; n < MESSAGES_PER_TURN && !e->broken; n++) {
        struct vf_wire_peer peer;
        Vflow__Envelope *m;
        struct vf_err err;
        enum vf_code code = vf_wire_receive(e->router, wait_ms, &peer, &m, &err);
        if (code == VF_ERR_TIMEOUT)
            return;
        if (code == VF_ERR_PROTOCOL) {
            vf_warn("dropped a message on the control socket: %s", err.text);
        } else if (code) {
            engine_break(e, &err);
        } else {
            take_message(e, &peer, m);
            vflow__envelope__free_unpacked(m, NULL);
        }
    }
}

/* ---- liveness ------------------------------------------------------------------------------ */

static void describe_activity(struct vf_engine *e, char *text, size_t n)
{
    const struct flight *f = engine_oldest_flight(e);
    if (e->ready_count < e->worker_count)
        snprintf(text, n, "while the model was being loaded");
    else if (f)
        snprintf(text, n, "while step %" PRIu64 " (%u columns) was running", f->id, f->columns);
    else
        snprintf(text, n, "between two steps");
}

/* An I/O worker holds nothing that isn't in the file and in the cache's table: another one takes
 * its place, and the steps that wait for it go on. */
static bool may_revive(struct worker *w)
{
    uint64_t now_ns = vf_now_ns();
    if (w->role != VF_WORKER_IO || w->state != WORKER_READY)
        return false;
    if (w->revivals == 0 || now_ns - w->revivals_since_ns > REVIVALS_WINDOW_NS) {
        w->revivals = 0;
        w->revivals_since_ns = now_ns;
    }
    return w->revivals++ < REVIVALS_MAX;
}

static void revive(struct vf_engine *e, struct worker *w, const char *how)
{
    vf_warn("%s (pid %d) %s; it is started again", w->name, (int)w->pid, how);
    vf_process_deinit(&w->process);
    w->state = WORKER_STARTING;
    w->peer = (struct vf_wire_peer){0};
    w->asks_open = 0;
    e->ready_count--;
    struct vf_err why;
    enum vf_code code = vf_expert_cache_release_loader(e->cache, w->index, &why);
    if (!code)
        code = start_worker(e, w, &why);
    if (code)
        engine_break(e, &why);
}

static void worker_died(struct vf_engine *e, struct worker *w)
{
    drain_messages(e, LAST_WORDS_MS);
    if (e->broken)
        return;
    char how[64], activity[96];
    int status = -1;
    struct vf_err why;
    if (!vf_process_reap(&w->process, how, sizeof how, &status))
        return;
    if (vf_model_file_check_unchanged(e->file, &why) != VF_OK) {
        w->state = WORKER_LOST; /* of a file that became shorter it can't say more than its log */
        vf_process_deinit(&w->process);
        engine_break(e, &why);
        return;
    }
    if (may_revive(w)) {
        revive(e, w, how);
        return;
    }
    w->state = WORKER_LOST;
    vf_process_deinit(&w->process);
    describe_activity(e, activity, sizeof activity);
    /* A worker that leaves because of a bad file says so itself; its status keeps the kind. */
    vf_err_set(&why, status == 3 ? VF_ERR_CORRUPT : VF_ERR_PEER_LOST, "%s (pid %d) %s %s", w->name,
               (int)w->pid, how, activity);
    engine_break(e, &why);
}

/* A worker in a step answers heartbeats afterwards only, so stage workers are timed from the moment
 * the engine was last seen idle. */
static uint64_t silent_since(const struct vf_engine *e, const struct worker *w)
{
    if (w->asks_open == 0 || (w->role == VF_WORKER_STAGE && e->flight_count > 0))
        return UINT64_MAX;
    uint64_t since = vf_max_u64(w->asked_ns, w->heard_ns);
    return w->role == VF_WORKER_STAGE ? vf_max_u64(since, e->idle_since_ns) : since;
}

static void check_loading(struct vf_engine *e, struct worker *w, uint64_t now)
{
    if (now < w->deadline_ns)
        return;
    uint64_t waited = w->state == WORKER_STARTING ? HELLO_NS : load_ns(e);
    struct vf_err why;
    vf_err_set(&why, VF_ERR_TIMEOUT, "waited %u s for %s (pid %d) to %s",
               (unsigned)(waited / VF_S(1)), w->name, (int)w->pid,
               w->state == WORKER_STARTING ? "register" : "load its part of the model");
    engine_break(e, &why);
}

static void check_alive(struct vf_engine *e, struct worker *w, uint64_t now)
{
    uint64_t since = silent_since(e, w);
    if (since != UINT64_MAX && now - vf_min_u64(now, since) > SILENCE_NS) {
        char text[64];
        snprintf(text, sizeof text, "hasn't answered for %u s", (unsigned)(SILENCE_NS / VF_S(1)));
        break_with(e, VF_ERR_PEER_LOST, w, text);
    } else if (w->asks_open == 0 && now - vf_min_u64(now, w->asked_ns) >= HEARTBEAT_NS) {
        engine_ask_worker(e, w);
    }
}

static void check_timers(struct vf_engine *e)
{
    uint64_t now = vf_now_ns();
    engine_check_flights(e, now);
    for (uint32_t i = 0; i < e->worker_count && !e->broken; i++) {
        struct worker *w = &e->workers[i];
        if (w->state == WORKER_READY)
            check_alive(e, w, now);
        else if (w->state != WORKER_LOST)
            check_loading(e, w, now);
    }
}

/* When check_timers has something to do next. */
static uint64_t next_timer(const struct vf_engine *e)
{
    uint64_t next = engine_flight_deadline(e);
    for (uint32_t i = 0; i < e->worker_count; i++) {
        const struct worker *w = &e->workers[i];
        uint64_t at = w->deadline_ns;
        if (w->state == WORKER_READY && w->asks_open == 0) {
            at = w->asked_ns + HEARTBEAT_NS;
        } else if (w->state == WORKER_READY) {
            at = silent_since(e, w);
            at = at == UINT64_MAX ? at : at + SILENCE_NS + VF_MS(1);
        }
        next = vf_min_u64(next, at);
    }
    return next;
}

/* ---- waiting ------------------------------------------------------------------------------- */

struct wait_set {
    zmq_pollitem_t items[2 + ENGINE_WORKERS_MAX + ENGINE_EXTRA_MAX];
    struct worker *owners[2 + ENGINE_WORKERS_MAX]; /* of pidfds */
    int count, extra_begin;
};

static void wait_set_fill(struct wait_set *set, struct vf_engine *e,
                          const struct vf_poll_extra *extra)
{
    set->items[0] = (zmq_pollitem_t){.socket = e->router, .events = ZMQ_POLLIN};
    set->items[1] = (zmq_pollitem_t){.fd = e->params.cancel_fd, .events = ZMQ_POLLIN};
    set->count = e->params.cancel_fd >= 0 ? 2 : 1;
    for (uint32_t i = 0; i < e->worker_count; i++) {
        if (e->workers[i].process.pidfd < 0)
            continue;
        set->owners[set->count] = &e->workers[i];
        set->items[set->count++] =
            (zmq_pollitem_t){.fd = e->workers[i].process.pidfd, .events = ZMQ_POLLIN};
    }
    set->extra_begin = set->count;
    if (!extra)
        return;
    VF_ASSERT(extra->socket_count + extra->fd_count <= ENGINE_EXTRA_MAX);
    for (int i = 0; i < extra->socket_count; i++)
        set->items[set->count++] =
            (zmq_pollitem_t){.socket = extra->sockets[i], .events = ZMQ_POLLIN};
    for (int i = 0; i < extra->fd_count; i++)
        set->items[set->count++] = (zmq_pollitem_t){.fd = extra->fds[i], .events = ZMQ_POLLIN};
}

static void handle_ready(struct vf_engine *e, const struct wait_set *set, bool *extra_ready)
{
    if (set->items[0].revents)
        drain_messages(e, 0);
    int first_pidfd = e->params.cancel_fd >= 0 ? 2 : 1;
    if (first_pidfd == 2 && set->items[1].revents && !e->broken) {
        struct vf_err why;
        vf_err_set(&why, VF_ERR_CANCELLED, "cancelled by a signal");
        engine_break(e, &why);
    }
    for (int i = first_pidfd; i < set->extra_begin && !e->broken; i++)
        if (set->items[i].revents)
            worker_died(e, set->owners[i]);
    for (int i = set->extra_begin; i < set->count; i++)
        *extra_ready |= set->items[i].revents != 0;
}

enum vf_code engine_turn(struct vf_engine *e, uint64_t deadline_ns,
                         const struct vf_poll_extra *extra, bool *extra_ready, struct vf_err *err)
{
    struct wait_set set;
    *extra_ready = false;
    if (!e->broken) {
        wait_set_fill(&set, e, extra);
        uint64_t until = vf_min_u64(deadline_ns, next_timer(e)), now = vf_now_ns();
        long ms = until > now ? (long)vf_min_u64((until - now + 999999) / 1000000, 1 << 30) : 0;
        int rc = zmq_poll(set.items, set.count, ms);
        if (rc > 0) {
            handle_ready(e, &set, extra_ready);
        } else if (rc < 0 && zmq_errno() != EINTR) {
            struct vf_err why;
            vf_err_set(&why, VF_ERR_IO, "can't wait for messages: %s", zmq_strerror(zmq_errno()));
            engine_break(e, &why);
        }
        if (!e->broken)
            check_timers(e);
    }
    if (!e->broken)
        return VF_OK;
    *err = e->err;
    return err->code;
}

/* A worker tells what it will load when it begins, so the total may grow; with experts in the
 * drive's cache there may be nothing to tell. */
static void show_loading(const struct vf_engine *e)
{
    uint64_t done, total;
    vf_run_state_loaded(e->run_state, &done, &total);
    if (total && done < total)
        vf_progress("loading", VF_PROGRESS_BYTES, done, total);
}

enum vf_code engine_wait_ready(struct vf_engine *e, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    while (!code && e->ready_count < e->worker_count) {
        bool ignored;
        code = engine_turn(e, vf_now_ns() + SHOW_NS, NULL, &ignored, err);
        show_loading(e);
    }
    vf_progress("loading", VF_PROGRESS_BYTES, 1, 1);
    return code;
}
