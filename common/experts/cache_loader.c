/* The loader's door: loads, from a slot's choice to its record's end, and the loader's counters. */
#include "common/experts/cache_loader.h"

#include "common/base/util.h"
#include "common/experts/cache_internal.h"

#include <stdlib.h>
#include <unistd.h>

struct vf_cache_loader {
    struct vf_expert_cache *cache;
    uint32_t io_worker;
    struct vf_cache_waker waker;
};

/* ---- life ---------------------------------------------------------------------------------- */

enum vf_code vf_cache_loader_open(struct vf_expert_cache *c, uint32_t io_worker,
                                  struct vf_cache_waker waker, struct vf_cache_loader **out,
                                  struct vf_err *err)
{
    *out = NULL;
    if (io_worker >= c->g.io_worker_count)
        return vf_err_set(err, VF_ERR_USAGE, "I/O worker index %u; the run has %u", io_worker,
                          c->g.io_worker_count);
    enum vf_code code = vf_expert_cache_release_loader(c, io_worker, err);
    if (code != VF_OK)
        return code;
    struct vf_cache_loader *l = malloc(sizeof *l);
    if (!l)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert cache: out of memory");
    *l = (struct vf_cache_loader){c, io_worker, waker};
    struct cache_io *io = &c->h->io_workers[io_worker];
    atomic_store_explicit(&io->pid, 0, memory_order_release);
    atomic_store_explicit(&io->start_time, vf_process_start_time(getpid()), memory_order_relaxed);
    atomic_store_explicit(&io->heartbeat_ns, vf_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&io->pid, (uint64_t)getpid(), memory_order_release);
    *out = l;
    return VF_OK;
}

void vf_cache_loader_close(struct vf_cache_loader *l)
{
    if (l)
        vf_expert_cache_release_loader(l->cache, l->io_worker, NULL);
    free(l);
}

/* ---- loads --------------------------------------------------------------------------------- */

static void start_loading(struct vf_expert_cache *c, struct cache_slot *s, uint32_t io_worker,
                          uint32_t key, const struct vf_cache_order *order)
{
    s->load = ++c->h->loads;
    s->front_landed = 0;
    s->key = key;
    s->loader = io_worker;
    s->wanted = order->demand;
    s->prefetched = order->demand ? 0 : order->speculative ? CACHE_GUESSED : CACHE_PREFETCHED;
    s->state = VF_SLOT_LOADING;
    s->ordered_by = order->process;
    s->deadline = order->deadline;
    s->is_protected = 1;
    s->is_speculative = order->speculative;
    if (!order->speculative)
        cache_take_off(c, s, order->process);
    cache_file_slot(c, s);
    c->keys[key].slot_plus1 = cache_slot_index(c, s) + 1;
}

/* What is guessed for a deadline must be there when the process comes to it; from then on the
 * experts are known. */
static bool is_late(const struct vf_expert_cache *c, const struct vf_cache_order *order)
{
    uint64_t reached = c->h->processes[order->process].reached;
    return !order->demand &&
           (order->speculative ? reached >= order->deadline : reached > order->deadline);
}

static enum vf_cache_begin begin_locked(struct vf_expert_cache *c, uint32_t io_worker,
                                        const struct vf_cache_order *order, uint32_t *slot)
{
    uint32_t key = key_of(c, order->ref);
    uint32_t own_bit = 1u << io_worker;
    c->h->starved &= ~own_bit;
    struct cache_slot *s = cache_find_slot(c, key);
    if (s) {
        c->keys[key].ordered = 0;
        /* A ready expert without protection was used since this order was sent. */
        if (!order->speculative && (s->state == VF_SLOT_LOADING || cache_is_protected(c, s)))
            cache_protect(c, s, order->process, order->deadline);
        if (order->demand && s->state == VF_SLOT_LOADING)
            s->wanted = 1;
        return VF_CACHE_PRESENT;
    }
    /* Not marked: the expert was loaded for an earlier order and has left again, perhaps used.
     * Whoever still wants it finds it missing, marks it and sends another order. */
    if (!c->keys[key].ordered)
        return VF_CACHE_STALE;
    if (is_late(c, order)) {
        c->keys[key].ordered = 0;
        return VF_CACHE_STALE;
    }
    s = cache_choose_slot(c, order);
    if (!s && order->speculative) {
        c->keys[key].ordered = 0;
        return VF_CACHE_STALE;
    }
    if (!s) {
        c->h->starved |= own_bit;
        return VF_CACHE_STARVED;
    }
    if (cache_slot_is_sane(c, s)) {
        vf_policy_note_eviction(&c->policy, s->key);
        cache_evict(c, s, 0);
        atomic_fetch_add_explicit(&c->h->io_workers[io_worker].evictions, 1, memory_order_relaxed);
    }
    c->keys[key].ordered = 0;
    start_loading(c, s, io_worker, key, order);
    *slot = cache_slot_index(c, s);
    return VF_CACHE_BEGUN;
}

enum vf_code vf_cache_loader_begin(struct vf_cache_loader *l, const struct vf_cache_order *order,
                                   enum vf_cache_begin *result, uint32_t *slot, struct vf_err *err)
{
    struct vf_expert_cache *c = l->cache;
    VF_ASSERT(order->process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    *result = begin_locked(c, l->io_worker, order, slot);
    cache_unlock(c);
    if (*result == VF_CACHE_STALE)
        atomic_fetch_add_explicit(&c->h->io_workers[l->io_worker].stale, 1, memory_order_relaxed);
    return VF_OK;
}

static bool is_loading(const struct cache_slot *s, uint32_t io_worker)
{
    return s->state == VF_SLOT_LOADING && s->loader == io_worker;
}

static enum vf_code report_stranger(uint32_t slot, uint32_t io_worker, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_INTERNAL,
                      "expert cache: slot %u isn't being loaded by I/O worker %u", slot, io_worker);
}

enum vf_code vf_cache_loader_mark_front(struct vf_cache_loader *l, uint32_t slot,
                                        struct vf_err *err)
{
    struct vf_expert_cache *c = l->cache;
    VF_ASSERT(slot < c->g.slot_count);
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    bool waited = s->wanted;
    if (is_loading(s, l->io_worker))
        s->front_landed = 1;
    else
        code = report_stranger(slot, l->io_worker, err);
    cache_unlock(c);
    if (code == VF_OK && waited)
        cache_announce(c);
    return code;
}

static void settle(struct vf_expert_cache *c, struct cache_slot *s,
                   const struct vf_cache_failure *failure)
{
    s->loader = NO_LOADER;
    cache_land(c, s);
    if (failure && !s->wanted) {
        cache_evict(c, s, 0);
        return;
    }
    s->since_ns = vf_now_ns();
    if (failure) {
        s->failure_code = failure->code;
        s->failure_errno = failure->sys_errno;
        s->failure_xxh3 = failure->xxh3_found;
    }
    s->state = failure ? VF_SLOT_ERROR : VF_SLOT_READY;
    cache_file_slot(c, s);
}

enum vf_code vf_cache_loader_finish(struct vf_cache_loader *l, uint32_t slot,
                                    const struct vf_cache_failure *failure, struct vf_err *err)
{
    struct vf_expert_cache *c = l->cache;
    VF_ASSERT(slot < c->g.slot_count);
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    if (is_loading(s, l->io_worker))
        settle(c, s, failure);
    else
        code = report_stranger(slot, l->io_worker, err);
    uint32_t starved = c->h->starved & ~(1u << l->io_worker);
    cache_unlock(c);
    cache_announce(c);
    cache_wake(&l->waker, starved);
    return code;
}

enum vf_code vf_cache_loader_abandon(struct vf_cache_loader *l, uint32_t slot, bool if_late,
                                     bool *abandoned, struct vf_err *err)
{
    struct vf_expert_cache *c = l->cache;
    VF_ASSERT(slot < c->g.slot_count);
    *abandoned = false;
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    uint32_t others_starved = c->h->starved & ~(1u << l->io_worker);
    if (is_loading(s, l->io_worker) && s->is_speculative && !s->wanted &&
        (!if_late || others_starved ||
         (s->ordered_by < VF_CACHE_PROCESSES_MAX &&
          c->h->processes[s->ordered_by].reached >= s->deadline))) {
        cache_evict(c, s, 0);
        *abandoned = true;
    }
    cache_unlock(c);
    if (*abandoned)
        cache_wake(&l->waker, others_starved);
    return VF_OK;
}

/* ---- counters ------------------------------------------------------------------------------ */

static struct cache_io *own(struct vf_cache_loader *l)
{
    return &l->cache->h->io_workers[l->io_worker];
}

static void add_relaxed(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void vf_cache_loader_count_read(struct vf_cache_loader *l, uint32_t process, uint64_t bytes,
                                uint64_t latency_ns, bool failed)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    struct cache_io *io = own(l);
    add_relaxed(&io->reads, 1);
    add_relaxed(&io->bytes, bytes);
    add_relaxed(&io->read_errors, failed);
    add_relaxed(&io->latency_ns_sum, latency_ns);
    add_relaxed(&io->latencies[cache_latency_bin(latency_ns)], 1);
    add_relaxed(&l->cache->h->processes[process].bytes_read, bytes);
    if (latency_ns > atomic_load_explicit(&io->latency_ns_max, memory_order_relaxed))
        atomic_store_explicit(&io->latency_ns_max, latency_ns, memory_order_relaxed);
}

void vf_cache_loader_count_merged(struct vf_cache_loader *l)
{
    add_relaxed(&own(l)->merged, 1);
}

void vf_cache_loader_count_joined(struct vf_cache_loader *l, uint32_t records)
{
    add_relaxed(&own(l)->joined, records);
}

void vf_cache_loader_count_busy(struct vf_cache_loader *l, uint64_t ns)
{
    add_relaxed(&own(l)->busy_ns, ns);
}

void vf_cache_loader_set_busy(struct vf_cache_loader *l, bool busy)
{
    atomic_store_explicit(&own(l)->busy, busy, memory_order_relaxed);
}

bool vf_cache_loader_others_busy(const struct vf_cache_loader *l)
{
    const struct vf_expert_cache *c = l->cache;
    for (uint32_t i = 0; i < c->g.io_worker_count; i++)
        if (i != l->io_worker &&
            atomic_load_explicit(&c->h->io_workers[i].busy, memory_order_relaxed))
            return true;
    return false;
}

void vf_cache_loader_heartbeat(struct vf_cache_loader *l)
{
    atomic_store_explicit(&own(l)->heartbeat_ns, vf_now_ns(), memory_order_relaxed);
}
