/* The conversation is one DEALER socket to the coordinator's ROUTER. Its routing id is left to
 * ZeroMQ: the coordinator knows a worker by its hello, so a process that it hasn't started can't
 * take another one's place.
 */
#include "common/run/member.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/run/owner_watch.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

struct vf_member {
    struct vf_member_params params;
    struct vf_run_dir *run_dir;
    struct vf_owner_watch *watch;
    void *zmq, *socket;
    uint32_t epoch;         /* 0 until the plan */
    Vflow__Envelope *plan;  /* NULL until then */
    Vflow__Envelope *taken; /* handed out by vf_member_next */
    bool over;
};

/* ---- sending ------------------------------------------------------------------------------- */

enum vf_code vf_member_send(struct vf_member *m, uint64_t request_id, Vflow__Envelope *body,
                            struct vf_err *err)
{
    body->version = VF_WIRE_VERSION;
    body->epoch = m->epoch;
    body->request_id = request_id;
    return vf_wire_send(m->socket, NULL, body, err);
}

static enum vf_code send_hello(struct vf_member *m, struct vf_err *err)
{
    Vflow__Hello hello = VFLOW__HELLO__INIT;
    hello.role = m->params.role;
    hello.index = m->params.index;
    hello.pid = (uint64_t)getpid();
    hello.run_id = (char *)vf_run_dir_id(m->run_dir);
    hello.software = VFLOW_VERSION;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_HELLO;
    body.hello = &hello;
    return vf_member_send(m, 0, &body, err);
}

enum vf_code vf_member_ready(struct vf_member *m, Vflow__Ready *ready, struct vf_err *err)
{
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_READY;
    body.ready = ready;
    return vf_member_send(m, 0, &body, err);
}

static enum vf_code answer_heartbeat(struct vf_member *m, const Vflow__Envelope *asked,
                                     struct vf_err *err)
{
    Vflow__Heartbeat beat = VFLOW__HEARTBEAT__INIT;
    beat.sent_ns = asked->heartbeat->sent_ns;
    if (m->params.stats)
        beat.stats = (Vflow__StepStats *)m->params.stats(m->params.ctx);
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    body.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    body.heartbeat = &beat;
    return vf_member_send(m, asked->request_id, &body, err);
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* True when the message is of the kind that was waited for and is now the caller's. */
static bool takes(const struct vf_member *m, const Vflow__Envelope *e)
{
    if (!m->plan)
        return e->body_case == VFLOW__ENVELOPE__BODY_PLAN;
    return e->body_case == VFLOW__ENVELOPE__BODY_STEP && m->params.role == VFLOW__ROLE__ROLE_STAGE;
}

/* What every member does alike. */
static enum vf_code handle(struct vf_member *m, const Vflow__Envelope *e, struct vf_err *err)
{
    switch (e->body_case) {
    case VFLOW__ENVELOPE__BODY_HEARTBEAT:
        return answer_heartbeat(m, e, err);
    case VFLOW__ENVELOPE__BODY_SHUTDOWN:
        vf_info("shutdown: %s", e->shutdown->reason);
        m->over = true;
        return VF_OK;
    case VFLOW__ENVELOPE__BODY_ERROR:
        return vf_wire_error_take(e->error, err);
    default:
        vf_warn("dropped a message of kind %d from the coordinator", (int)e->body_case);
        return VF_OK;
    }
}

/* Takes what is there: *out when it is the caller's. VF_ERR_TIMEOUT when nothing is left. */
static enum vf_code take_message(struct vf_member *m, Vflow__Envelope **out, struct vf_err *err)
{
    Vflow__Envelope *e;
    struct vf_err why;
    enum vf_code code = vf_wire_receive(m->socket, 0, NULL, &e, &why);
    if (code == VF_ERR_PROTOCOL) {
        vf_warn("dropped a message from the coordinator: %s", why.text);
        return VF_OK;
    }
    if (code != VF_OK) {
        if (err)
            *err = why;
        return code;
    }
    if (m->plan && e->epoch != m->epoch) {
        vf_debug("dropped a message of epoch %u, this is %u", e->epoch, m->epoch);
    } else if (takes(m, e)) {
        *out = e;
        return VF_OK;
    } else {
        code = handle(m, e, err);
    }
    vflow__envelope__free_unpacked(e, NULL);
    return code;
}

int vf_member_poll_items(const struct vf_member *m, zmq_pollitem_t items[VF_MEMBER_ITEMS_MAX])
{
    items[0] = (zmq_pollitem_t){.socket = m->socket, .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.fd = m->params.stop_fd, .events = ZMQ_POLLIN};
    return m->params.stop_fd < 0 ? 1 : 2;
}

/* Waits for a message or for the stop; which of them is looked at next. */
static enum vf_code wait_readable(struct vf_member *m, uint64_t until_ns, struct vf_err *err)
{
    zmq_pollitem_t items[VF_MEMBER_ITEMS_MAX];
    int count = vf_member_poll_items(m, items);
    uint64_t now = vf_now_ns();
    long ms = until_ns == UINT64_MAX ? -1
              : until_ns > now       ? (long)((until_ns - now + 999999) / 1000000)
                                     : 0;
    if (zmq_poll(items, count, ms) < 0 && zmq_errno() != EINTR)
        return vf_err_set(err, VF_ERR_IO, "waiting for the coordinator: %s",
                          zmq_strerror(zmq_errno()));
    if (count == 2 && items[1].revents)
        m->over = true;
    return VF_OK;
}

/* The next message of the caller's, *out NULL when it is over or until_ns has come. */
static enum vf_code next_message(struct vf_member *m, uint64_t until_ns, Vflow__Envelope **out,
                                 struct vf_err *err)
{
    *out = NULL;
    bool waited = false;
    while (!m->over) {
        enum vf_code code = take_message(m, out, err);
        if (code == VF_ERR_TIMEOUT) {
            if (waited && vf_now_ns() >= until_ns)
                return VF_OK;
            code = wait_readable(m, until_ns, err);
            waited = true;
        }
        if (code != VF_OK || *out)
            return code;
    }
    return VF_OK;
}

enum vf_code vf_member_wait_plan(struct vf_member *m, const Vflow__Plan **plan, struct vf_err *err)
{
    *plan = NULL;
    Vflow__Envelope *e;
    enum vf_code code = next_message(m, vf_now_ns() + VF_MS(VF_MEMBER_PLAN_WAIT_MS), &e, err);
    if (code != VF_OK || m->over)
        return code;
    if (!e)
        return vf_err_set(err, VF_ERR_TIMEOUT, "the coordinator of run %s sent no plan within %u s",
                          vf_run_dir_id(m->run_dir), VF_MEMBER_PLAN_WAIT_MS / 1000);
    m->plan = e;
    m->epoch = e->epoch;
    *plan = e->plan;
    return VF_OK;
}

static void free_taken(struct vf_member *m)
{
    if (m->taken)
        vflow__envelope__free_unpacked(m->taken, NULL);
    m->taken = NULL;
}

enum vf_code vf_member_next(struct vf_member *m, int timeout_ms, enum vf_member_event *event,
                            const Vflow__Envelope **message, struct vf_err *err)
{
    free_taken(m);
    uint64_t until_ns = timeout_ms < 0 ? UINT64_MAX : vf_now_ns() + VF_MS((uint64_t)timeout_ms);
    enum vf_code code = next_message(m, until_ns, &m->taken, err);
    *event = m->over ? VF_MEMBER_OVER : m->taken ? VF_MEMBER_STEP : VF_MEMBER_NOTHING;
    *message = m->taken;
    return code;
}

/* ---- life ---------------------------------------------------------------------------------- */

void vf_member_fail(struct vf_member *m, const struct vf_err *why)
{
    if (!m->plan) {
        vf_error("%s", why->text);
        return;
    }
    Vflow__Error error = VFLOW__ERROR__INIT;
    Vflow__Envelope body = VFLOW__ENVELOPE__INIT;
    vf_wire_error_fill(&error, why);
    body.body_case = VFLOW__ENVELOPE__BODY_ERROR;
    body.error = &error;
    uint64_t until_ns = vf_now_ns() + VF_MS(VF_MEMBER_GOODBYE_MS);
    enum vf_code code = vf_member_send(m, 0, &body, NULL);
    while (code == VF_OK && !m->over && vf_now_ns() < until_ns) {
        free_taken(m);
        code = next_message(m, until_ns, &m->taken, NULL); /* a step that comes now is dropped */
    }
}

static enum vf_code join(struct vf_member *m, struct vf_err *err)
{
    char endpoint[VF_RUN_ENDPOINT_MAX];
    struct vf_wire_options options = {.type = VF_WIRE_DEALER};
    enum vf_code code = vf_run_dir_open(m->params.run_dir, &m->run_dir, err);
    if (code == VF_OK)
        code =
            vf_owner_watch_start(m->run_dir, m->params.on_orphaned, m->params.ctx, &m->watch, err);
    if (code != VF_OK)
        return code;
    m->zmq = vf_wire_context_create(err);
    if (!m->zmq)
        return err->code;
    code = vf_wire_open(m->zmq, &options, &m->socket, err);
    if (code != VF_OK)
        return code;
    vf_run_dir_endpoint(m->run_dir, VF_RUN_CONTROL, endpoint);
    code = vf_wire_connect(m->socket, endpoint, err);
    return code == VF_OK ? send_hello(m, err) : code;
}

enum vf_code vf_member_create(const struct vf_member_params *params, struct vf_member **out,
                              struct vf_err *err)
{
    *out = NULL;
    struct vf_member *m = calloc(1, sizeof *m);
    if (!m) {
        vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to join the run");
        vf_error("%s", err->text);
        return err->code;
    }
    m->params = *params;
    enum vf_code code = join(m, err);
    if (code != VF_OK) {
        vf_error("%s", err->text); /* nobody else knows of this process */
        vf_member_destroy(m);
        return code;
    }
    *out = m;
    return VF_OK;
}

void vf_member_destroy(struct vf_member *m)
{
    if (!m)
        return;
    free_taken(m);
    if (m->plan)
        vflow__envelope__free_unpacked(m->plan, NULL);
    vf_wire_close(m->socket);
    vf_wire_context_destroy(m->zmq);
    vf_owner_watch_stop(m->watch);
    vf_run_dir_close(m->run_dir);
    free(m);
}

void *vf_member_zmq(const struct vf_member *m)
{
    return m->zmq;
}

const struct vf_run_dir *vf_member_run_dir(const struct vf_member *m)
{
    return m->run_dir;
}

uint32_t vf_member_epoch(const struct vf_member *m)
{
    return m->epoch;
}
