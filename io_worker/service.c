/* One round of the service: take orders, take completions, start what can be started.
 *
 * When the cache grants no slot the first order stays where it is. Whoever unpins a slot or
 * finishes a read while this worker is noted as starved sends it an empty order, which wakes the
 * poll; every round tries again. A short poll covers what nobody announces: a process that died
 * with pins, or an abandoned prefetch whose grace has run out.
 */
#include "io_worker/service.h"

#include "common/fault.h"
#include "common/log.h"
#include "common/util.h"
#include "common/wire.h"
#include "io_worker/engine.h"
#include "io_worker/orders.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define STARVED_POLL_MS 50
#define MESSAGES_PER_ROUND                                                                         \
    256                  /* so that a flood of orders doesn't keep completed reads waiting         \
                          */
#define TRANSIENT_MAX 16 /* EINTR and EAGAIN in a row before they count as a failure */
#define RECONNECT_MS  5  /* the workers start at the same time; zmq would wait for 100 ms */

struct record_read {
    bool active;
    struct vf_cache_order order;
    struct vf_expert_extent extent;
    uint32_t slot;
    uint64_t done_bytes;
    uint64_t started_ns;
    bool retried;
    uint32_t transients;
    int fault; /* strikes when this read completes */
};

struct vf_io_service {
    uint32_t index, epoch, depth;
    struct vf_expert_bank bank;
    struct vf_expert_cache *cache;
    struct vf_read_engine *engine;
    struct vf_orders *orders;
    void *inbox;                          /* PULL */
    void *peers[VF_CACHE_IO_WORKERS_MAX]; /* PUSH to the other I/O workers; NULL for itself */
    uint32_t peer_count;
    struct record_read *reads; /* [depth]; a read's tag is its index */
    uint32_t active;
    bool starved, registered;
    struct vf_read_done *done; /* [depth] */
};

/* ---- reads --------------------------------------------------------------------------------- */

static void wake_starved(struct vf_io_service *s, uint32_t starved)
{
    Vflow__Fetch fetch = VFLOW__FETCH__INIT;
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.version = VF_WIRE_VERSION;
    envelope.epoch = s->epoch;
    envelope.body_case = VFLOW__ENVELOPE__BODY_FETCH;
    envelope.fetch = &fetch;
    for (uint32_t i = 0; i < s->peer_count; i++)
        if (s->peers[i] && (starved >> i & 1))
            vf_wire_send(s->peers[i], NULL, &envelope, NULL); /* its short poll is the second way */
}

/* Ends a read one way or the other. */
static enum vf_code finish_read(struct vf_io_service *s, struct record_read *r,
                                const struct vf_cache_failure *failure, struct vf_err *err)
{
    uint32_t starved = 0;
    vf_expert_cache_count_read(s->cache, s->index, r->order.process, failure ? 0 : r->extent.bytes,
                               vf_now_ns() - r->started_ns, failure);
    enum vf_code code = vf_expert_cache_finish(s->cache, s->index, r->slot, failure, &starved, err);
    r->active = false;
    s->active--;
    wake_starved(s, starved);
    return code;
}

static enum vf_code fail_read(struct vf_io_service *s, struct record_read *r, int sys_errno,
                              struct vf_err *err)
{
    struct vf_cache_failure failure = {.code = VF_ERR_IO, .sys_errno = sys_errno};
    vf_info("layer %u, expert %u: read of %s at offset %" PRIu64 " given up: %s",
            r->order.ref.layer, r->order.ref.expert, s->bank.path, r->extent.offset,
            sys_errno ? strerror(sys_errno) : "the file ended");
    return finish_read(s, r, &failure, err);
}

/* Asks the engine for what is missing of the record. */
static enum vf_code submit_rest(struct vf_io_service *s, struct record_read *r, struct vf_err *err)
{
    uint64_t bytes = r->extent.bytes - r->done_bytes;
    r->fault = vf_fault("io.read");
    if (r->fault == VF_FAULT_SHORT && bytes > VF_READ_ALIGN)
        bytes = vf_round_up(bytes / 2, VF_READ_ALIGN);
    struct vf_read read = {
        .tag = (uint32_t)(r - s->reads),
        .slot = r->slot,
        .slot_offset = r->done_bytes,
        .bytes = bytes,
        .file_offset = r->extent.offset + r->done_bytes,
    };
    struct vf_err why;
    if (vf_read_engine_submit(s->engine, &read, &why) == VF_OK)
        return VF_OK;
    vf_warn("%s", why.text);
    return fail_read(s, r, EIO, err);
}

static enum vf_code check_record(struct vf_io_service *s, struct record_read *r, struct vf_err *err)
{
    const uint8_t *data = vf_expert_cache_slot_data(s->cache, r->slot);
    uint64_t found = XXH3_64bits(data, r->extent.bytes);
    if (vf_fault("io.checksum"))
        found = ~found;
    if (found == r->extent.xxh3)
        return finish_read(s, r, NULL, err);
    struct vf_cache_failure failure = {.code = VF_ERR_CORRUPT, .xxh3_found = found};
    return finish_read(s, r, &failure, err);
}

/* A read error, or a file that ends too early: once more from the start, then no more. */
static enum vf_code retry_or_fail(struct vf_io_service *s, struct record_read *r, int sys_errno,
                                  struct vf_err *err)
{
    if (r->retried)
        return fail_read(s, r, sys_errno, err);
    vf_info("layer %u, expert %u: reading %s at offset %" PRIu64 " again: %s", r->order.ref.layer,
            r->order.ref.expert, s->bank.path, r->extent.offset + r->done_bytes,
            sys_errno ? strerror(sys_errno) : "short");
    r->retried = true;
    r->done_bytes = 0;
    return submit_rest(s, r, err);
}

static enum vf_code complete_read(struct vf_io_service *s, struct record_read *r, int64_t result,
                                  struct vf_err *err)
{
    if (r->fault > 0 && r->fault < VF_FAULT_SHORT)
        result = -r->fault;
    if ((result == -EINTR || result == -EAGAIN) && ++r->transients <= TRANSIENT_MAX)
        return submit_rest(s, r, err);
    if (result < 0)
        return retry_or_fail(s, r, (int)-result, err);
    r->transients = 0;
    /* Whole blocks only, so that the next read is aligned again. */
    uint64_t progress = (uint64_t)result & ~(uint64_t)(VF_READ_ALIGN - 1);
    if (progress == 0)
        return retry_or_fail(s, r, 0, err);
    VF_ASSERT(progress <= r->extent.bytes - r->done_bytes);
    r->done_bytes += progress;
    return r->done_bytes < r->extent.bytes ? submit_rest(s, r, err) : check_record(s, r, err);
}

static enum vf_code take_completions(struct vf_io_service *s, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    uint32_t n = vf_read_engine_reap(s->engine, s->done, s->depth);
    for (uint32_t i = 0; i < n && code == VF_OK; i++) {
        VF_ASSERT(s->done[i].tag < s->depth && s->reads[s->done[i].tag].active);
        code = complete_read(s, &s->reads[s->done[i].tag], s->done[i].result, err);
    }
    return code;
}

static struct record_read *idle_read(struct vf_io_service *s)
{
    for (uint32_t i = 0; i < s->depth; i++)
        if (!s->reads[i].active)
            return &s->reads[i];
    return NULL;
}

static enum vf_code start_read(struct vf_io_service *s, const struct vf_cache_order *order,
                               uint32_t slot, struct vf_err *err)
{
    struct record_read *r = idle_read(s);
    VF_ASSERT(r);
    *r = (struct record_read){
        .active = true,
        .order = *order,
        .extent = s->bank.extent(s->bank.ctx, order->ref.layer, order->ref.expert),
        .slot = slot,
        .started_ns = vf_now_ns(),
    };
    s->active++;
    return submit_rest(s, r, err);
}

/* Starts reads while there are orders, idle reads and slots. */
static enum vf_code start_reads(struct vf_io_service *s, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    const struct vf_cache_order *first;
    s->starved = false;
    while (code == VF_OK && !s->starved && s->active < s->depth &&
           (first = vf_orders_first(s->orders)) != NULL) {
        struct vf_cache_order order = *first;
        enum vf_cache_begin result;
        uint32_t slot;
        code = vf_expert_cache_begin(s->cache, s->index, &order, &result, &slot, err);
        if (code != VF_OK)
            break;
        s->starved = result == VF_CACHE_STARVED;
        if (!s->starved)
            vf_orders_take_first(s->orders);
        if (result == VF_CACHE_PRESENT)
            vf_expert_cache_count_merged(s->cache, s->index);
        if (result == VF_CACHE_BEGUN)
            code = start_read(s, &order, slot, err);
    }
    return code;
}

/* ---- orders -------------------------------------------------------------------------------- */

static enum vf_code put_order(struct vf_io_service *s, const struct vf_cache_order *order,
                              struct vf_err *err)
{
    switch (vf_orders_put(s->orders, order)) {
    case VF_ORDERS_MERGED:
        vf_expert_cache_count_merged(s->cache, s->index);
        return VF_OK;
    case VF_ORDERS_NO_MEMORY:
        return vf_err_set(err, VF_ERR_NO_MEMORY, "fetch orders: out of memory");
    case VF_ORDERS_NEW:
        break;
    }
    return VF_OK;
}

static bool order_is_valid(const struct vf_io_service *s, const struct vf_cache_order *order)
{
    return order->ref.layer < s->bank.layer_count && order->ref.expert < s->bank.expert_count &&
           vf_expert_cache_io_of(s->cache, order->ref) == s->index;
}

static enum vf_code take_fetch(struct vf_io_service *s, const Vflow__Fetch *fetch,
                               struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (fetch->process >= VF_CACHE_PROCESSES_MAX) {
        vf_warn("fetch orders of process %u dropped; allowed are 0 to %u", fetch->process,
                VF_CACHE_PROCESSES_MAX - 1);
        return VF_OK;
    }
    for (size_t i = 0; i < fetch->n_orders && code == VF_OK; i++) {
        struct vf_cache_order order = {
            .ref = {fetch->orders[i]->layer, fetch->orders[i]->expert},
            .deadline = fetch->deadline,
            .process = fetch->process,
            .demand = fetch->demand,
        };
        if (order_is_valid(s, &order))
            code = put_order(s, &order, err);
        else
            vf_warn("fetch order of process %u for layer %u, expert %u dropped: the model has %u "
                    "layers of %u experts, and this is I/O worker %u of %u",
                    order.process, order.ref.layer, order.ref.expert, s->bank.layer_count,
                    s->bank.expert_count, s->index, s->peer_count);
    }
    return code;
}

static enum vf_code take_messages(struct vf_io_service *s, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int i = 0; i < MESSAGES_PER_ROUND && code == VF_OK; i++) {
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
            code = take_fetch(s, message->fetch, err);
        vflow__envelope__free_unpacked(message, NULL);
    }
    return code;
}

enum vf_code vf_io_service_run(struct vf_io_service *s, zmq_pollitem_t *extra, int extra_count,
                               int timeout_ms, struct vf_err *err)
{
    VF_ASSERT(extra_count >= 0 && extra_count <= VF_IO_EXTRA_ITEMS_MAX);
    zmq_pollitem_t items[2 + VF_IO_EXTRA_ITEMS_MAX] = {
        {.socket = s->inbox, .events = ZMQ_POLLIN},
        {.fd = vf_read_engine_fd(s->engine), .events = ZMQ_POLLIN},
    };
    for (int i = 0; i < extra_count; i++)
        items[2 + i] = extra[i];
    if (s->starved && (timeout_ms < 0 || timeout_ms > STARVED_POLL_MS))
        timeout_ms = STARVED_POLL_MS;
    int rc = zmq_poll(items, 2 + extra_count, timeout_ms);
    if (rc < 0 && zmq_errno() != EINTR)
        return vf_err_set(err, VF_ERR_IO, "waiting for orders: %s", zmq_strerror(zmq_errno()));
    for (int i = 0; i < extra_count; i++)
        extra[i].revents = rc > 0 ? items[2 + i].revents : 0;
    vf_expert_cache_heartbeat(s->cache, s->index);
    enum vf_code code = take_messages(s, err);
    if (code == VF_OK)
        code = take_completions(s, err);
    return code == VF_OK ? start_reads(s, err) : code;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code check_cache(const struct vf_io_service *s, struct vf_err *err)
{
    const struct vf_cache_geometry *g = vf_expert_cache_geometry(s->cache);
    const struct vf_expert_bank *b = &s->bank;
    if (s->index >= g->io_worker_count)
        return vf_err_set(err, VF_ERR_USAGE, "I/O worker index %u; the run has %u", s->index,
                          g->io_worker_count);
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

static enum vf_code open_engine(struct vf_io_service *s, const struct vf_io_service_params *params,
                                struct vf_err *err)
{
    const struct vf_cache_geometry *g = vf_expert_cache_geometry(s->cache);
    struct vf_read_params read = {
        .path = s->bank.path,
        .buffered = params->buffered,
        .no_uring = params->no_uring,
        .depth = s->depth,
        .region = vf_expert_cache_slot_data(s->cache, 0),
        .slot_bytes = g->record_bytes,
        .slot_count = g->slot_count,
    };
    return vf_read_engine_create(&read, &s->engine, err);
}

static enum vf_code open_service(struct vf_io_service *s, const struct vf_io_service_params *params,
                                 struct vf_err *err)
{
    if (s->depth > VF_READ_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "queue depth %u; allowed are 1 to %u", s->depth,
                          VF_READ_DEPTH_MAX);
    s->reads = calloc(s->depth, sizeof *s->reads);
    s->done = calloc(s->depth, sizeof *s->done);
    if (!s->reads || !s->done)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "I/O service: out of memory");
    enum vf_code code =
        vf_orders_create(s->bank.layer_count, s->bank.expert_count, &s->orders, err);
    if (code == VF_OK)
        code = vf_expert_cache_open(params->run_dir, &s->cache, err);
    if (code == VF_OK)
        code = check_cache(s, err);
    if (code == VF_OK)
        code = open_engine(s, params, err);
    if (code == VF_OK)
        code = open_sockets(s, params, err);
    if (code == VF_OK)
        code = vf_expert_cache_register_io(s->cache, s->index, err);
    s->registered = code == VF_OK;
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
    s->depth = params->depth ? params->depth : VF_IO_DEPTH_DEFAULT;
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
    vf_read_engine_destroy(s->engine);
    if (s->registered)
        vf_expert_cache_release_io(s->cache, s->index, NULL);
    for (uint32_t i = 0; i < s->peer_count; i++)
        vf_wire_close(s->peers[i]);
    vf_wire_close(s->inbox);
    vf_orders_destroy(s->orders);
    vf_expert_cache_close(s->cache);
    free(s->reads);
    free(s->done);
    free(s);
}

const char *vf_io_service_engine(const struct vf_io_service *s)
{
    return vf_read_engine_name(s->engine);
}

struct vf_cache_io_stats vf_io_service_stats(const struct vf_io_service *s)
{
    return vf_expert_cache_io_state(s->cache, s->index).stats;
}
