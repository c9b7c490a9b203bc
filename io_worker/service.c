/* One round of the service: take orders, give the loads a turn.
 *
 * When the cache grants no slot the orders wait. Whoever unpins a slot or finishes a read while
 * this worker is noted as starved sends it an empty order, which wakes the poll; every round tries
 * again. A short poll covers what nobody announces: a process that died with pins, or an abandoned
 * prefetch whose grace has run out.
 */
#include "io_worker/service.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/run/wire.h"
#include "io_worker/loads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* So that a flood of orders doesn't keep completed reads waiting. */
#define MESSAGES_PER_ROUND 256
#define RECONNECT_MS       5 /* the workers start at the same time; zmq would wait for 100 ms */

struct vf_io_service {
    uint32_t index, epoch;
    struct vf_expert_bank bank;
    struct vf_expert_cache *cache;
    struct vf_cache_loader *loader;
    uint32_t starved; /* bit i: I/O worker i is to be woken at the end of the round */
    struct vf_loads *loads;
    void *inbox;                          /* PULL */
    void *peers[VF_CACHE_IO_WORKERS_MAX]; /* PUSH to the other I/O workers; NULL for itself */
    uint32_t peer_count;
};

/* The cache's waker. */
static void note_starved(void *ctx, uint32_t io_worker)
{
    ((struct vf_io_service *)ctx)->starved |= 1u << io_worker;
}

static void wake_starved(struct vf_io_service *s)
{
    Vflow__Fetch fetch = VFLOW__FETCH__INIT;
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.version = VF_WIRE_VERSION;
    envelope.epoch = s->epoch;
    envelope.body_case = VFLOW__ENVELOPE__BODY_FETCH;
    envelope.fetch = &fetch;
    for (uint32_t i = 0; i < s->peer_count; i++)
        if (s->peers[i] && (s->starved >> i & 1))
            vf_wire_send(s->peers[i], NULL, &envelope, NULL); /* its short poll is the second way */
    s->starved = 0;
}

/* ---- orders -------------------------------------------------------------------------------- */

static bool order_is_valid(const struct vf_io_service *s, const struct vf_cache_order *order)
{
    return order->ref.layer < s->bank.layer_count && order->ref.expert < s->bank.expert_count &&
           vf_expert_cache_io_of(s->cache, order->ref) == s->index;
}

static void take_fetch(struct vf_io_service *s, const Vflow__Fetch *fetch)
{
    if (fetch->process >= VF_CACHE_PROCESSES_MAX) {
        vf_warn("fetch orders of process %u dropped; allowed are 0 to %u", fetch->process,
                VF_CACHE_PROCESSES_MAX - 1);
        return;
    }
    for (size_t i = 0; i < fetch->n_orders; i++) {
        struct vf_cache_order order = {
            .ref = {fetch->orders[i]->layer, fetch->orders[i]->expert},
            .deadline = fetch->deadline,
            .process = fetch->process,
            .demand = fetch->demand,
            .speculative = fetch->speculative && !fetch->demand,
        };
        if (order_is_valid(s, &order))
            vf_loads_order(s->loads, &order);
        else
            vf_warn("fetch order of process %u for layer %u, expert %u dropped: the model has %u "
                    "layers of %u experts, and this is I/O worker %u of %u",
                    order.process, order.ref.layer, order.ref.expert, s->bank.layer_count,
                    s->bank.expert_count, s->index, s->peer_count);
    }
}

static void take_messages(struct vf_io_service *s)
{
    for (int i = 0; i < MESSAGES_PER_ROUND; i++) {
        Vflow__Envelope *message;
        struct vf_err why;
        enum vf_code received = vf_wire_receive(s->inbox, 0, NULL, &message, &why);
        if (received == VF_ERR_TIMEOUT)
            break;
        if (received != VF_OK) {
            vf_warn("fetch orders: %s", why.text);
            if (received != VF_ERR_PROTOCOL)
                break;
            continue;
        }
        if (message->body_case != VFLOW__ENVELOPE__BODY_FETCH)
            vf_warn("a message of kind %d among the fetch orders dropped", (int)message->body_case);
        else if (message->epoch == s->epoch) /* else of a past plan */
            take_fetch(s, message->fetch);
        vflow__envelope__free_unpacked(message, NULL);
    }
}

enum vf_code vf_io_service_run(struct vf_io_service *s, zmq_pollitem_t *extra, int extra_count,
                               int timeout_ms, struct vf_err *err)
{
    VF_ASSERT(extra_count >= 0 && extra_count <= VF_IO_EXTRA_ITEMS_MAX);
    zmq_pollitem_t items[2 + VF_IO_EXTRA_ITEMS_MAX] = {
        {.socket = s->inbox, .events = ZMQ_POLLIN},
        {.fd = vf_loads_fd(s->loads), .events = ZMQ_POLLIN},
    };
    for (int i = 0; i < extra_count; i++)
        items[2 + i] = extra[i];
    int wait_ms = vf_loads_wait_ms(s->loads);
    if (wait_ms >= 0 && (timeout_ms < 0 || timeout_ms > wait_ms))
        timeout_ms = wait_ms;
    int rc = zmq_poll(items, 2 + extra_count, timeout_ms);
    if (rc < 0 && zmq_errno() != EINTR)
        return vf_err_set(err, VF_ERR_IO, "waiting for orders: %s", zmq_strerror(zmq_errno()));
    for (int i = 0; i < extra_count; i++)
        extra[i].revents = rc > 0 ? items[2 + i].revents : 0;
    vf_cache_loader_heartbeat(s->loader);
    take_messages(s);
    enum vf_code code = vf_loads_turn(s->loads, err);
    wake_starved(s);
    return code;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code check_cache(const struct vf_io_service *s, struct vf_err *err)
{
    const struct vf_cache_geometry *g = vf_expert_cache_geometry(s->cache);
    const struct vf_expert_bank *b = &s->bank;
    if (g->fingerprint != b->fingerprint || g->layer_count != b->layer_count ||
        g->expert_count != b->expert_count || g->record_bytes != b->record_bytes)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "the expert cache is for another model than %s: fingerprint %016" PRIx64
                          ", the file has %016" PRIx64,
                          b->path, g->fingerprint, b->fingerprint);
    return VF_OK;
}

static enum vf_code open_sockets(struct vf_io_service *s, const struct vf_io_service_params *params,
                                 struct vf_err *err)
{
    char endpoint[VF_RUN_ENDPOINT_MAX];
    struct vf_wire_options pull = {.type = VF_WIRE_PULL}, push = {.type = VF_WIRE_PUSH};
    const int reconnect_ms = RECONNECT_MS;
    vf_run_dir_io_endpoint(params->run_dir, s->index, endpoint);
    enum vf_code code = vf_wire_open(params->zmq_context, &pull, &s->inbox, err);
    if (code == VF_OK)
        code = vf_wire_bind(s->inbox, endpoint, err);
    s->peer_count = vf_expert_cache_geometry(s->cache)->io_worker_count;
    for (uint32_t i = 0; i < s->peer_count && code == VF_OK; i++) {
        if (i == s->index)
            continue;
        vf_run_dir_io_endpoint(params->run_dir, i, endpoint);
        code = vf_wire_open(params->zmq_context, &push, &s->peers[i], err);
        if (code != VF_OK)
            return code;
        zmq_setsockopt(s->peers[i], ZMQ_RECONNECT_IVL, &reconnect_ms, sizeof reconnect_ms);
        code = vf_wire_connect(s->peers[i], endpoint, err);
    }
    return code;
}

static enum vf_code open_loads(struct vf_io_service *s, const struct vf_io_service_params *params,
                               struct vf_err *err)
{
    struct vf_loads_params loads = {
        .cache = s->cache,
        .loader = s->loader,
        .bank = &s->bank,
        .depth = params->depth ? params->depth : VF_IO_DEPTH_DEFAULT,
        .piece_bytes = params->piece_bytes,
        .throttle_bytes = params->throttle_bytes,
        .buffered = params->buffered,
        .no_uring = params->no_uring,
    };
    return vf_loads_create(&loads, &s->loads, err);
}

static enum vf_code open_service(struct vf_io_service *s, const struct vf_io_service_params *params,
                                 struct vf_err *err)
{
    if (params->depth > VF_READ_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "queue depth %u; allowed are 1 to %u", params->depth,
                          VF_READ_DEPTH_MAX);
    enum vf_code code = vf_expert_cache_open(params->run_dir, &s->cache, err);
    if (code == VF_OK)
        code = check_cache(s, err);
    if (code == VF_OK)
        code = vf_cache_loader_open(s->cache, s->index, (struct vf_cache_waker){note_starved, s},
                                    &s->loader, err);
    if (code == VF_OK)
        code = open_loads(s, params, err);
    if (code == VF_OK)
        code = open_sockets(s, params, err);
    return code;
}

enum vf_code vf_io_service_create(const struct vf_io_service_params *params,
                                  struct vf_io_service **out, struct vf_err *err)
{
    *out = NULL;
    struct vf_io_service *s = calloc(1, sizeof *s);
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "I/O service: out of memory");
    s->index = params->index;
    s->epoch = params->epoch;
    s->bank = *params->bank;
    enum vf_code code = open_service(s, params, err);
    if (code != VF_OK)
        vf_io_service_destroy(s);
    else
        *out = s;
    return code;
}

void vf_io_service_destroy(struct vf_io_service *s)
{
    if (!s)
        return;
    vf_loads_destroy(s->loads);
    vf_cache_loader_close(s->loader);
    for (uint32_t i = 0; i < s->peer_count; i++)
        vf_wire_close(s->peers[i]);
    vf_wire_close(s->inbox);
    vf_expert_cache_close(s->cache);
    free(s);
}

const char *vf_io_service_engine(const struct vf_io_service *s)
{
    return vf_loads_engine(s->loads);
}

struct vf_cache_io_stats vf_io_service_stats(const struct vf_io_service *s)
{
    return vf_expert_cache_io_state(s->cache, s->index).stats;
}
