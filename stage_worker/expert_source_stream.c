/* The stream source: what is in the cache is pinned, what isn't is ordered from the I/O workers.
 *
 * acquire looks (pin), orders what it misses, and sleeps on the cache's event count until something
 * it wants is there, or its front. The event count is read before looking, so nothing can slip in
 * between.
 */
#include "stage_worker/expert_source_stream.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/run/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

#define CHUNK        64u       /* refs handled per lock of the table and per message */
#define CHECK_NS     VF_MS(50) /* between looks at whether the I/O workers live */
#define SAY_NS       VF_S(10)  /* a wait that is worth a line */
#define RESEND_NS    VF_S(2)   /* an order may be lost with an I/O worker that was restarted */
#define RECONNECT_MS 5

enum order_class { ORDER_DEMAND, ORDER_SCHEDULED, ORDER_SPECULATIVE };

struct io_peer {
    void *socket; /* PUSH */
    int pidfd;    /* -1: none */
    pid_t pid;    /* the process that pidfd stands for */
    uint64_t start_time;
    uint64_t dead_since_ns; /* seen dead then; 0: it lives */
};

struct stream_source {
    struct vf_expert_source base;
    struct vf_expert_cache *cache;
    struct vf_cache_reader *reader;
    struct vf_expert_bank bank;
    const struct vf_model_file *file;
    uint8_t *checked; /* by key: its numbers were looked at */
    uint32_t process, epoch;
    uint64_t timeout_ns, revive_ns;
    const struct vf_run_state *run_state;
    struct io_peer io[VF_CACHE_IO_WORKERS_MAX];
    uint32_t io_count;
    struct vf_expert_stats stats;
    /* [layers * experts], deadline + 1 of the last acquire that counted, and that ordered, the
     * expert; 0: never. An acquire is often called again with what it didn't get. */
    uint64_t *counted, *demanded;
    uint32_t *visit; /* [experts], of the routing decision at hand */
};

static size_t key_of(const struct stream_source *s, struct vf_expert_ref ref)
{
    VF_ASSERT(ref.layer < s->bank.layer_count && ref.expert < s->bank.expert_count);
    return (size_t)ref.layer * s->bank.expert_count + ref.expert;
}

/* ---- orders -------------------------------------------------------------------------------- */

/* n orders, at most CHUNK, to one I/O worker; none is a wake-up: look for a slot again. */
static enum vf_code send_orders(struct stream_source *s, uint32_t io,
                                const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                enum order_class class)
{
    Vflow__FetchOrder orders[CHUNK], *pointers[CHUNK];
    for (uint32_t i = 0; i < n; i++) {
        vflow__fetch_order__init(&orders[i]);
        orders[i].layer = refs[i].layer;
        orders[i].expert = refs[i].expert;
        pointers[i] = &orders[i];
    }
    Vflow__Fetch fetch = VFLOW__FETCH__INIT;
    fetch.n_orders = n;
    fetch.orders = pointers;
    fetch.deadline = deadline;
    fetch.demand = class == ORDER_DEMAND;
    fetch.speculative = class == ORDER_SPECULATIVE;
    fetch.process = s->process;
    Vflow__Envelope envelope = VFLOW__ENVELOPE__INIT;
    envelope.version = VF_WIRE_VERSION;
    envelope.epoch = s->epoch;
    envelope.body_case = VFLOW__ENVELOPE__BODY_FETCH;
    envelope.fetch = &fetch;
    struct vf_err err;
    enum vf_code code = vf_wire_send(s->io[io].socket, NULL, &envelope, &err);
    if (code != VF_OK)
        vf_debug("fetch orders to I/O worker %u: %s", io, err.text);
    return code;
}

/* Sends refs (at most CHUNK) to the workers that load them. demanded marks the demands that went
 * out; a prefetch that can't be sent is only a hint lost. */
static void send_by_worker(struct stream_source *s, const struct vf_expert_ref *refs, uint32_t n,
                           uint64_t deadline, enum order_class class)
{
    for (uint32_t io = 0; io < s->io_count; io++) {
        struct vf_expert_ref mine[CHUNK];
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++)
            if (vf_expert_cache_io_of(s->cache, refs[i]) == io)
                mine[count++] = refs[i];
        if (count == 0 || send_orders(s, io, mine, count, deadline, class) != VF_OK ||
            class != ORDER_DEMAND)
            continue;
        for (uint32_t i = 0; i < count; i++)
            s->demanded[key_of(s, mine[i])] = deadline + 1;
    }
}

static void fetch_chunk(struct stream_source *s, const struct vf_expert_ref *refs, uint32_t n,
                        uint64_t deadline, bool speculative)
{
    enum vf_cache_found found[CHUNK];
    struct vf_expert_ref missing[CHUNK];
    struct vf_err err;
    if (vf_cache_reader_order(s->reader, refs, n, deadline, speculative, found, &err) != VF_OK) {
        vf_warn("fetch: %s", err.text); /* acquire will order them and report what is wrong */
        return;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        /* What is ordered or loading for somebody else, perhaps on a guess, may be needed sooner
         * now: the I/O worker takes the more urgent of both. */
        if (found[i] == VF_CACHE_MISSING ||
            (!speculative && (found[i] == VF_CACHE_ORDERED || found[i] == VF_CACHE_LOADING)))
            missing[count++] = refs[i];
    send_by_worker(s, missing, count, deadline, speculative ? ORDER_SPECULATIVE : ORDER_SCHEDULED);
}

/* What is ordered as scheduled is a whole routing decision of one layer. */
static void note_visit(struct stream_source *s, const struct vf_expert_ref *refs, uint32_t n)
{
    struct vf_err err;
    if (n == 0 || n > s->bank.expert_count)
        return;
    for (uint32_t i = 0; i < n; i++) {
        key_of(s, refs[i]);
        s->visit[i] = refs[i].expert;
    }
    if (vf_cache_reader_visit(s->reader, refs[0].layer, s->visit, n, &err) != VF_OK)
        vf_warn("fetch: %s", err.text);
}

static void stream_fetch(struct vf_expert_source *base, const struct vf_expert_ref *refs,
                         uint32_t n, uint64_t deadline, enum vf_fetch_urgency urgency)
{
    struct stream_source *s = (struct stream_source *)base;
    if (urgency == VF_FETCH_SCHEDULED)
        note_visit(s, refs, n);
    for (uint32_t i = 0; i < n; i += CHUNK)
        fetch_chunk(s, refs + i, n - i < CHUNK ? n - i : CHUNK, deadline,
                    urgency == VF_FETCH_SPECULATIVE);
}

/* The cache's waker: I/O worker io waits for a slot. */
static void wake_starved(void *ctx, uint32_t io)
{
    struct stream_source *s = ctx;
    if (io < s->io_count)
        send_orders(s, io, NULL, 0, 0, ORDER_SCHEDULED);
}

/* ---- release ------------------------------------------------------------------------------- */

static void stream_release(struct vf_expert_source *base, const struct vf_expert_ref *refs,
                           uint32_t n, const uint8_t *const *got)
{
    (void)refs;
    struct stream_source *s = (struct stream_source *)base;
    struct vf_err err;
    if (vf_cache_reader_unpin(s->reader, got, n, &err) != VF_OK)
        vf_error("release of experts: %s", err.text);
}

/* ---- the I/O workers' lives ----------------------------------------------------------------- */

static void forget_peer(struct io_peer *peer)
{
    if (peer->pidfd >= 0)
        close(peer->pidfd);
    peer->pidfd = -1;
    peer->pid = 0;
    peer->dead_since_ns = 0;
}

static bool pidfd_says_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* VF_ERR_PEER_LOST when I/O worker io was there, is dead, and no other took its place for a while.
 * One that hasn't registered yet is waited for. */
static enum vf_code check_peer(struct stream_source *s, uint32_t io, struct vf_err *err)
{
    struct io_peer *peer = &s->io[io];
    struct vf_cache_io_state now = vf_expert_cache_io_state(s->cache, io);
    if (now.pid <= 0)
        return VF_OK;
    if (now.pid != peer->pid || now.start_time != peer->start_time) {
        forget_peer(peer);
        peer->pid = now.pid;
        peer->start_time = now.start_time;
        peer->pidfd = (int)syscall(SYS_pidfd_open, now.pid, 0);
        if (peer->pidfd < 0 && errno != ESRCH)
            return vf_err_errno(err, VF_ERR_IO, errno, "pidfd of I/O worker %u, process %ld", io,
                                (long)now.pid);
        if (peer->pidfd >= 0 && vf_process_start_time(now.pid) != now.start_time) {
            close(peer->pidfd); /* its pid is another process's by now */
            peer->pidfd = -1;
        }
    }
    if (peer->pidfd >= 0 && !pidfd_says_dead(peer->pidfd))
        return VF_OK;
    if (peer->dead_since_ns == 0)
        peer->dead_since_ns = vf_now_ns();
    if (vf_now_ns() - peer->dead_since_ns < s->revive_ns)
        return VF_OK;
    return vf_err_set(err, VF_ERR_PEER_LOST, "I/O worker %u (process %ld) died", io,
                      (long)peer->pid);
}

/* Names the first missing expert in front of what is wrong with its I/O worker. */
static enum vf_code check_peers(struct stream_source *s, const struct vf_expert_ref *refs,
                                uint32_t n, const uint8_t *const *got, struct vf_err *err)
{
    uint32_t checked = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t io = vf_expert_cache_io_of(s->cache, refs[i]);
        if (got[i] || checked >> io & 1)
            continue;
        checked |= 1u << io;
        enum vf_code code = check_peer(s, io, err);
        if (code != VF_OK)
            return vf_err_prepend(err, "layer %u, expert %u: ", refs[i].layer, refs[i].expert);
    }
    return VF_OK;
}

/* ---- acquire ------------------------------------------------------------------------------- */

static enum vf_code report_failure(const struct stream_source *s, struct vf_expert_ref ref,
                                   const struct vf_cache_failure *f, struct vf_err *err)
{
    struct vf_expert_extent x = s->bank.extent(s->bank.ctx, ref.layer, ref.expert);
    const char *path = s->bank.files[x.file];
    if (f->code == VF_ERR_CORRUPT)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "layer %u, expert %u: the checksum of %" PRIu64 " bytes of %s at offset "
                          "%" PRIu64 " is %016" PRIx64 ", the file's own table says %016" PRIx64,
                          ref.layer, ref.expert, x.bytes, path, x.offset, f->xxh3_found, x.xxh3);
    if (f->sys_errno == 0)
        return vf_err_set(err, VF_ERR_IO,
                          "layer %u, expert %u: %s ended before %" PRIu64 " bytes at offset "
                          "%" PRIu64 " were read",
                          ref.layer, ref.expert, path, x.bytes, x.offset);
    return vf_err_errno(err, VF_ERR_IO, f->sys_errno,
                        "layer %u, expert %u: reading %" PRIu64 " bytes of %s at offset %" PRIu64
                        " failed twice",
                        ref.layer, ref.expert, x.bytes, path, x.offset);
}

static void count_first_look(struct stream_source *s, struct vf_expert_ref ref, uint64_t deadline,
                             enum vf_cache_found found)
{
    uint64_t *counted = &s->counted[key_of(s, ref)];
    if (*counted == deadline + 1)
        return;
    *counted = deadline + 1;
    s->stats.wanted++;
    if (found == VF_CACHE_READY)
        s->stats.hits++;
    else if (found == VF_CACHE_MISSING)
        s->stats.demand++;
    else
        s->stats.late++;
}

/* Whether the caller has something new to work on: the expert, or a front not told before. */
static bool take_front(struct stream_source *s, const uint8_t *got, struct vf_expert_front landed,
                       struct vf_expert_front *front)
{
    bool is_known = landed.load == front->load;
    if (got) {
        s->stats.early += front->load && is_known;
        *front = (struct vf_expert_front){NULL, is_known ? front->load : 0};
        return true;
    }
    if (landed.data && !is_known) {
        *front = landed;
        return true;
    }
    front->data = NULL;
    return false;
}

/* Right checksums don't make right numbers; each expert's are looked at once. */
static enum vf_code check_numbers(struct stream_source *s, struct vf_expert_ref ref,
                                  const uint8_t *data, struct vf_err *err)
{
    uint8_t *checked = &s->checked[key_of(s, ref)];
    enum vf_code code = VF_OK;
    if (data && s->file && !*checked)
        code = vf_model_file_check_expert_values(s->file, ref.layer, ref.expert, data, err);
    *checked |= data && code == VF_OK;
    return code;
}

/* One look at at most CHUNK refs: pins what is ready, orders what isn't anywhere. */
static enum vf_code look_at_chunk(struct stream_source *s, const struct vf_expert_ref *refs,
                                  uint32_t n, uint64_t deadline, const uint8_t **got,
                                  struct vf_expert_front *fronts, bool *any, struct vf_err *err)
{
    struct vf_expert_front landed[CHUNK];
    enum vf_cache_found found[CHUNK];
    struct vf_cache_failure failures[CHUNK];
    struct vf_expert_ref missing[CHUNK];
    uint32_t count = 0;
    enum vf_code code =
        vf_cache_reader_pin(s->reader, refs, n, deadline, found, got, landed, failures, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < n; i++) {
        count_first_look(s, refs[i], deadline, found[i]);
        *any |= fronts ? take_front(s, got[i], landed[i], &fronts[i]) : got[i] != NULL;
        if (found[i] == VF_CACHE_FAILED && code == VF_OK)
            code = report_failure(s, refs[i], &failures[i], err);
        if (code == VF_OK)
            code = check_numbers(s, refs[i], got[i], err);
        /* MISSING: whatever was ordered before has come and gone. */
        if (found[i] == VF_CACHE_MISSING ||
            ((found[i] == VF_CACHE_ORDERED || found[i] == VF_CACHE_LOADING) &&
             s->demanded[key_of(s, refs[i])] != deadline + 1))
            missing[count++] = refs[i];
    }
    send_by_worker(s, missing, count, deadline, ORDER_DEMAND);
    return code;
}

/* One look at all refs. On failure nothing stays pinned. */
static enum vf_code look(struct stream_source *s, const struct vf_expert_ref *refs, uint32_t n,
                         uint64_t deadline, const uint8_t **got, struct vf_expert_front *fronts,
                         bool *any, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    *any = false;
    for (uint32_t i = 0; i < n; i++)
        got[i] = NULL;
    for (uint32_t i = 0; i < n && code == VF_OK; i += CHUNK)
        code = look_at_chunk(s, refs + i, n - i < CHUNK ? n - i : CHUNK, deadline, got + i,
                             fronts ? fronts + i : NULL, any, err);
    if (code != VF_OK && *any) {
        stream_release(&s->base, refs, n, got);
        for (uint32_t i = 0; i < n; i++)
            got[i] = NULL;
    }
    return code;
}

static void allow_resend(struct stream_source *s, const struct vf_expert_ref *refs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->demanded[key_of(s, refs[i])] = 0;
}

static enum vf_code report_timeout(const struct stream_source *s, struct vf_expert_ref ref,
                                   struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_TIMEOUT,
                      "layer %u, expert %u: I/O worker %u didn't deliver it within %" PRIu64
                      " ms (cache of %u slots)",
                      ref.layer, ref.expert, vf_expert_cache_io_of(s->cache, ref),
                      s->timeout_ns / 1000000, vf_expert_cache_geometry(s->cache)->slot_count);
}

/* Once an acquire, when it takes long. */
static void say_wait(const struct stream_source *s, struct vf_expert_ref ref, uint64_t *say_at_ns,
                     uint64_t now_ns)
{
    if (now_ns < *say_at_ns)
        return;
    *say_at_ns = UINT64_MAX;
    vf_warn("layer %u, expert %u: waiting for I/O worker %u (process %ld) for %u seconds so far",
            ref.layer, ref.expert, vf_expert_cache_io_of(s->cache, ref),
            (long)vf_expert_cache_io_state(s->cache, vf_expert_cache_io_of(s->cache, ref)).pid,
            (unsigned)(SAY_NS / VF_S(1)));
}

static enum vf_code stream_acquire(struct vf_expert_source *base, const struct vf_expert_ref *refs,
                                   uint32_t n, uint64_t deadline, const uint8_t **got,
                                   struct vf_expert_front *fronts, struct vf_err *err)
{
    struct stream_source *s = (struct stream_source *)base;
    VF_ASSERT(n >= 1);
    uint64_t start_ns = vf_now_ns(), now_ns = start_ns, timeout_at_ns = start_ns + s->timeout_ns;
    uint64_t check_at_ns = start_ns + CHECK_NS, resend_at_ns = start_ns + RESEND_NS;
    uint64_t say_at_ns = start_ns + SAY_NS;
    enum vf_code code;
    bool any;
    for (;;) {
        uint32_t events = vf_cache_reader_event_count(s->reader);
        code = look(s, refs, n, deadline, got, fronts, &any, err);
        if (code != VF_OK || any)
            break;
        if (now_ns >= timeout_at_ns) {
            code = report_timeout(s, refs[0], err);
            break;
        }
        vf_cache_reader_wait(s->reader, events, vf_min_u64(check_at_ns, timeout_at_ns));
        now_ns = vf_now_ns();
        if (now_ns < check_at_ns)
            continue;
        check_at_ns = now_ns + CHECK_NS;
        say_wait(s, refs[0], &say_at_ns, now_ns);
        code = vf_run_state_check(s->run_state, err);
        if (code == VF_OK)
            code = check_peers(s, refs, n, got, err);
        if (code != VF_OK)
            break;
        if (now_ns >= resend_at_ns) {
            resend_at_ns = now_ns + RESEND_NS;
            allow_resend(s, refs, n);
        }
    }
    if (now_ns != start_ns)
        s->stats.stall_ns += vf_now_ns() - start_ns;
    return code;
}

/* ---- life ---------------------------------------------------------------------------------- */

static void stream_stats(const struct vf_expert_source *base, struct vf_expert_stats *out)
{
    const struct stream_source *s = (const struct stream_source *)base;
    *out = s->stats;
    out->bytes_read = vf_expert_cache_process_stats(s->cache, s->process).bytes_read;
}

static void stream_destroy(struct vf_expert_source *base)
{
    struct stream_source *s = (struct stream_source *)base;
    if (!s)
        return;
    vf_cache_reader_close(s->reader);
    for (uint32_t i = 0; i < s->io_count; i++) {
        vf_wire_close(s->io[i].socket);
        forget_peer(&s->io[i]);
    }
    vf_expert_cache_close(s->cache);
    free(s->counted);
    free(s->checked);
    free(s->demanded);
    free(s->visit);
    free(s);
}

static const struct vf_expert_source_ops stream_ops = {
    .fetch = stream_fetch,
    .acquire = stream_acquire,
    .release = stream_release,
    .stats = stream_stats,
    .destroy = stream_destroy,
};

static enum vf_code check_same_model(const struct vf_cache_geometry *g,
                                     const struct vf_expert_bank *bank, struct vf_err *err)
{
    if (g->fingerprint == bank->fingerprint && g->layer_count == bank->layer_count &&
        g->expert_count == bank->expert_count && g->record_bytes == bank->record_bytes)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "the expert cache is for another model than %s: fingerprint %016" PRIx64
                      ", %u layers, %u experts of %" PRIu64 " bytes; the file has %016" PRIx64
                      ", %u, %u of %" PRIu64,
                      bank->path, g->fingerprint, g->layer_count, g->expert_count, g->record_bytes,
                      bank->fingerprint, bank->layer_count, bank->expert_count, bank->record_bytes);
}

static enum vf_code connect_peers(struct stream_source *s,
                                  const struct vf_expert_stream_params *params, struct vf_err *err)
{
    uint32_t count = vf_expert_cache_geometry(s->cache)->io_worker_count;
    struct vf_wire_options options = {.type = VF_WIRE_PUSH};
    const int reconnect_ms = RECONNECT_MS;
    for (uint32_t i = 0; i < count; i++) {
        char endpoint[VF_RUN_ENDPOINT_MAX];
        vf_run_dir_io_endpoint(params->run_dir, i, endpoint);
        struct io_peer *peer = &s->io[s->io_count++];
        peer->pidfd = -1;
        enum vf_code code = vf_wire_open(params->zmq_context, &options, &peer->socket, err);
        if (code != VF_OK)
            return code;
        /* The workers start at the same time; zmq's own 100 ms would be the first token's wait. */
        zmq_setsockopt(peer->socket, ZMQ_RECONNECT_IVL, &reconnect_ms, sizeof reconnect_ms);
        code = vf_wire_connect(peer->socket, endpoint, err);
        if (code != VF_OK)
            return code;
    }
    return VF_OK;
}

static enum vf_code open_stream(struct stream_source *s,
                                const struct vf_expert_stream_params *params, struct vf_err *err)
{
    enum vf_code code = vf_expert_cache_open(params->run_dir, &s->cache, err);
    if (code == VF_OK)
        code = check_same_model(vf_expert_cache_geometry(s->cache), params->bank, err);
    if (code != VF_OK)
        return code;
    size_t keys = (size_t)s->bank.layer_count * s->bank.expert_count;
    s->counted = calloc(keys, sizeof *s->counted);
    s->demanded = calloc(keys, sizeof *s->demanded);
    s->checked = calloc(keys, sizeof *s->checked);
    s->visit = calloc(s->bank.expert_count, sizeof *s->visit);
    if (!s->counted || !s->demanded || !s->checked || !s->visit)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert source: out of memory");
    struct vf_cache_waker waker = {wake_starved, s};
    code = vf_cache_reader_open(s->cache, s->process, waker, &s->reader, err);
    return code == VF_OK ? connect_peers(s, params, err) : code;
}

enum vf_code vf_expert_source_stream(const struct vf_expert_stream_params *params,
                                     struct vf_expert_source **out, struct vf_err *err)
{
    *out = NULL;
    struct stream_source *s = calloc(1, sizeof *s);
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert source: out of memory");
    s->base.ops = &stream_ops;
    s->bank = *params->bank;
    s->process = params->process;
    s->epoch = params->epoch;
    s->file = params->file;
    s->timeout_ns = params->timeout_ns ? params->timeout_ns : VF_EXPERT_TIMEOUT_NS;
    s->revive_ns = params->revive_ns ? params->revive_ns : VF_EXPERT_REVIVE_NS;
    s->run_state = params->run_state;
    enum vf_code code = open_stream(s, params, err);
    if (code != VF_OK)
        stream_destroy(&s->base);
    else
        *out = &s->base;
    return code;
}
