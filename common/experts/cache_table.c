/* The table of the expert cache: index, orders, pins and loads. Who may take which slot is in
 * expert_cache_slots.c.
 *
 * Every change of the table happens under the mutex. Stores are plain; a holder that is killed
 * between two of them leaves a table that cache_repair() can rebuild, because the slots alone
 * (state, key, loader, pins) say everything; the index and the lists are derived from them.
 */
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/cache_internal.h"

#include <errno.h>
#include <unistd.h>

#define REST_NS VF_S(2) /* of a slot whose loader died: a drive's read takes far less */

/* ---- read time ------------------------------------------------------------------------------ */

/* A load begins that the process is going to need: while at least one is in flight, its read time
 * runs. */
static void take_off(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process)
{
    struct cache_process *p = &c->h->processes[process];
    if (s->reading_plus1)
        return;
    s->reading_plus1 = process + 1;
    if (p->reading++ == 0)
        p->reading_since_ns = vf_now_ns();
}

void cache_land(struct vf_expert_cache *c, struct cache_slot *s)
{
    if (s->reading_plus1 == 0 || s->reading_plus1 > VF_CACHE_PROCESSES_MAX)
        return;
    struct cache_process *p = &c->h->processes[s->reading_plus1 - 1];
    uint64_t now_ns = vf_now_ns();
    s->reading_plus1 = 0;
    if (p->reading == 0 || --p->reading > 0 || now_ns < p->reading_since_ns)
        return;
    atomic_fetch_add_explicit(&p->read_ns, now_ns - p->reading_since_ns, memory_order_relaxed);
}

static void recount_reading(struct vf_expert_cache *c)
{
    for (uint32_t p = 0; p < VF_CACHE_PROCESSES_MAX; p++)
        c->h->processes[p].reading = 0;
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        struct cache_slot *s = &c->slots[i];
        bool reads = s->state == VF_SLOT_LOADING && s->reading_plus1 <= VF_CACHE_PROCESSES_MAX;
        s->reading_plus1 = reads ? s->reading_plus1 : 0;
        if (s->reading_plus1)
            c->h->processes[s->reading_plus1 - 1].reading++;
    }
}

/* ---- the mutex and repair ------------------------------------------------------------------ */

static void set_insane_free(struct cache_slot *s)
{
    *s = (struct cache_slot){
        .state = VF_SLOT_FREE, .loader = NO_LOADER, .since_ns = vf_now_ns() + REST_NS};
}

/* Rebuilds the index, the pin sums and the lists. A slot that makes no sense becomes free; if it is
 * pinned it stays as it is, without an entry in the index, until its last pin goes. */
void cache_repair(struct vf_expert_cache *c)
{
    for (uint32_t k = 0; k < c->key_count; k++)
        c->keys[k].slot_plus1 = 0;
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        struct cache_slot *s = &c->slots[i];
        uint32_t pins = 0;
        for (uint32_t p = 0; p < VF_CACHE_PROCESSES_MAX; p++)
            pins += c->pins[i][p];
        s->pin_count = pins;
        bool usable = cache_slot_is_sane(c, s) && c->keys[s->key].slot_plus1 == 0;
        if (usable)
            c->keys[s->key].slot_plus1 = i + 1;
        else if (pins == 0 && s->state != VF_SLOT_FREE)
            set_insane_free(s);
    }
    recount_reading(c);
    cache_rebuild_lists(c);
}

/* pthread_mutex_timedlock counts by the wall clock, which may be set; so in short turns. */
static int lock_within(pthread_mutex_t *mutex, uint64_t until_ns)
{
    int rc = pthread_mutex_trylock(mutex);
    if (rc != EBUSY)
        return rc;
    do {
        struct timespec turn;
        clock_gettime(CLOCK_REALTIME, &turn);
        turn.tv_sec += 1;
        rc = pthread_mutex_timedlock(mutex, &turn);
    } while (rc == ETIMEDOUT && vf_now_ns() < until_ns);
    return rc;
}

static enum vf_code lock_table(struct vf_expert_cache *c, struct vf_err *err)
{
    int rc = lock_within(&c->h->mutex, vf_now_ns() + VF_CACHE_LOCK_NS);
    if (rc == EOWNERDEAD) {
        vf_info("expert cache: a process died while it changed the table; repaired");
        cache_repair(c);
        rc = pthread_mutex_consistent(&c->h->mutex);
    }
    if (rc == 0)
        return VF_OK;
    return vf_err_errno(err, rc == ETIMEDOUT ? VF_ERR_TIMEOUT : VF_ERR_INTERNAL, rc,
                        "expert cache: waiting for the process that holds its table");
}

static void unlock_table(struct vf_expert_cache *c)
{
    if (cache_lists_are_broken(c)) {
        vf_warn("expert cache: its table contradicts itself; repaired");
        cache_repair(c);
    }
    int rc = pthread_mutex_unlock(&c->h->mutex);
    VF_ASSERT(rc == 0);
}

enum vf_code vf_expert_cache_lock_for_test(struct vf_expert_cache *c, struct vf_err *err)
{
    return lock_table(c, err);
}

/* ---- table primitives; all under the mutex ------------------------------------------------- */

/* The earliest order counts; a guess doesn't. */
static void protect(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process,
                    uint64_t deadline)
{
    if (s->state == VF_SLOT_LOADING)
        take_off(c, s, process);
    if (cache_is_protected(c, s) && !s->is_speculative && s->deadline <= deadline)
        return;
    s->is_speculative = 0;
    s->ordered_by = process;
    s->deadline = deadline;
    s->is_protected = 1;
    cache_file_slot(c, s);
}

/* A pinned slot that repair cut off from the index is free after its last pin. */
static void drop_pins(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process, uint32_t n)
{
    uint16_t *pins = &c->pins[cache_slot_index(c, s)][process];
    *pins = (uint16_t)(*pins - n);
    s->pin_count = s->pin_count >= n ? s->pin_count - n : 0;
    if (s->pin_count == 0 && s->state != VF_SLOT_FREE &&
        (s->key >= c->key_count || cache_find_slot(c, s->key) != s))
        cache_set_free(c, s, 0);
    cache_file_slot(c, s);
}

/* ---- readers ------------------------------------------------------------------------------- */

enum vf_code vf_expert_cache_visit(struct vf_expert_cache *c, uint32_t layer,
                                   const uint32_t *experts, uint32_t n, struct vf_err *err)
{
    VF_ASSERT(layer < c->g.layer_count);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    vf_policy_visit(&c->policy, layer, experts, n);
    unlock_table(c);
    return VF_OK;
}

enum vf_code vf_expert_cache_order(struct vf_expert_cache *c, uint32_t process,
                                   const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                   bool speculative, enum vf_cache_found *found, struct vf_err *err)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = key_of(c, refs[i]);
        struct cache_slot *s = cache_find_slot(c, key);
        if (!s) {
            found[i] = c->keys[key].ordered ? VF_CACHE_ORDERED : VF_CACHE_MISSING;
            c->keys[key].ordered = 1;
            continue;
        }
        if (!speculative)
            protect(c, s, process, deadline);
        found[i] = s->state == VF_SLOT_READY     ? VF_CACHE_READY
                   : s->state == VF_SLOT_LOADING ? VF_CACHE_LOADING
                                                 : VF_CACHE_FAILED;
    }
    unlock_table(c);
    return VF_OK;
}

static enum vf_cache_found pin_one(struct vf_expert_cache *c, uint32_t process, uint32_t key,
                                   uint64_t deadline, const uint8_t **data,
                                   struct vf_expert_front *landed, struct vf_cache_failure *failure)
{
    *data = NULL;
    *landed = (struct vf_expert_front){0};
    struct cache_slot *s = cache_find_slot(c, key);
    if (!s) {
        enum vf_cache_found found = c->keys[key].ordered ? VF_CACHE_ORDERED : VF_CACHE_MISSING;
        c->keys[key].ordered = 1;
        return found;
    }
    if (s->state == VF_SLOT_LOADING) {
        s->wanted = 1;
        protect(c, s, process, deadline);
        if (s->front_landed)
            *landed = (struct vf_expert_front){vf_expert_cache_slot_data(c, cache_slot_index(c, s)),
                                               s->load};
        return VF_CACHE_LOADING;
    }
    if (s->state == VF_SLOT_ERROR) {
        *failure = (struct vf_cache_failure){.code = (enum vf_code)s->failure_code,
                                             .sys_errno = s->failure_errno,
                                             .xxh3_found = s->failure_xxh3};
        cache_evict(c, s, 0);
        return VF_CACHE_FAILED;
    }
    uint16_t *pins = &c->pins[cache_slot_index(c, s)][process];
    VF_ASSERT(*pins < UINT16_MAX);
    (*pins)++;
    s->pin_count++;
    s->is_protected = 0;
    s->is_speculative = 0;
    if (!s->wanted) /* else it came late: somebody had to wait */
        cache_count_prefetch(s, &c->h->prefetched_used, &c->h->guessed_used);
    s->wanted = 0;
    s->prefetched = 0;
    cache_file_slot(c, s);
    *data = vf_expert_cache_slot_data(c, cache_slot_index(c, s));
    landed->load = s->load;
    return VF_CACHE_READY;
}

enum vf_code vf_expert_cache_pin(struct vf_expert_cache *c, uint32_t process,
                                 const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                 enum vf_cache_found *found, const uint8_t **data,
                                 struct vf_expert_front *landed, struct vf_cache_failure *failures,
                                 uint32_t *starved, struct vf_err *err)
{
    struct vf_expert_front ignored;
    *starved = 0;
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    if (c->h->processes[process].reached != deadline)
        *starved = c->h->starved;
    c->h->processes[process].reached = deadline;
    for (uint32_t i = 0; i < n; i++)
        found[i] = pin_one(c, process, key_of(c, refs[i]), deadline, &data[i],
                           landed ? &landed[i] : &ignored, &failures[i]);
    unlock_table(c);
    return VF_OK;
}

enum vf_code vf_expert_cache_unpin(struct vf_expert_cache *c, uint32_t process,
                                   const uint8_t *const *data, uint32_t n, uint32_t *starved,
                                   struct vf_err *err)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    *starved = 0;
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < n; i++) {
        if (!data[i])
            continue;
        VF_ASSERT(data[i] >= c->data);
        uint64_t slot = (uint64_t)(data[i] - c->data) / c->g.record_bytes;
        VF_ASSERT(slot < c->g.slot_count);
        struct cache_slot *s = &c->slots[slot];
        if (c->pins[slot][process] > 0)
            drop_pins(c, s, process, 1);
        else
            code =
                vf_err_set(err, VF_ERR_INTERNAL, "expert cache: process %u has no pin on slot %llu",
                           process, (unsigned long long)slot);
    }
    *starved = c->h->starved;
    unlock_table(c);
    return code;
}

enum vf_code vf_expert_cache_release_process(struct vf_expert_cache *c, uint32_t process,
                                             struct vf_err *err)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        struct cache_slot *s = &c->slots[i];
        if (c->pins[i][process] > 0)
            drop_pins(c, s, process, c->pins[i][process]);
        if (s->is_protected && s->ordered_by == process) {
            s->is_protected = 0;
            cache_file_slot(c, s);
        }
    }
    c->h->processes[process].reached = 0;
    unlock_table(c);
    return VF_OK;
}

static void announce_event(struct vf_expert_cache *c)
{
    atomic_fetch_add_explicit(&c->h->event_count, 1, memory_order_release);
    vf_futex_wake_all(&c->h->event_count);
}

/* ---- loaders ------------------------------------------------------------------------------- */

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
        take_off(c, s, order->process);
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
            protect(c, s, order->process, order->deadline);
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

enum vf_code vf_expert_cache_begin(struct vf_expert_cache *c, uint32_t io_worker,
                                   const struct vf_cache_order *order, enum vf_cache_begin *result,
                                   uint32_t *slot, struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count && order->process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    *result = begin_locked(c, io_worker, order, slot);
    unlock_table(c);
    if (*result == VF_CACHE_STALE)
        atomic_fetch_add_explicit(&c->h->io_workers[io_worker].stale, 1, memory_order_relaxed);
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

enum vf_code vf_expert_cache_mark_front(struct vf_expert_cache *c, uint32_t io_worker,
                                        uint32_t slot, struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count && slot < c->g.slot_count);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    bool waited = s->wanted;
    if (is_loading(s, io_worker))
        s->front_landed = 1;
    else
        code = report_stranger(slot, io_worker, err);
    unlock_table(c);
    if (code == VF_OK && waited)
        announce_event(c);
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

enum vf_code vf_expert_cache_finish(struct vf_expert_cache *c, uint32_t io_worker, uint32_t slot,
                                    const struct vf_cache_failure *failure, uint32_t *starved,
                                    struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count && slot < c->g.slot_count);
    *starved = 0;
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    if (is_loading(s, io_worker))
        settle(c, s, failure);
    else
        code = report_stranger(slot, io_worker, err);
    *starved = c->h->starved & ~(1u << io_worker);
    unlock_table(c);
    announce_event(c);
    return code;
}

enum vf_code vf_expert_cache_abandon(struct vf_expert_cache *c, uint32_t io_worker, uint32_t slot,
                                     bool if_late, bool *abandoned, uint32_t *starved,
                                     struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count && slot < c->g.slot_count);
    *abandoned = false;
    *starved = 0;
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    struct cache_slot *s = &c->slots[slot];
    uint32_t others_starved = c->h->starved & ~(1u << io_worker);
    if (is_loading(s, io_worker) && s->is_speculative && !s->wanted &&
        (!if_late || others_starved ||
         (s->ordered_by < VF_CACHE_PROCESSES_MAX &&
          c->h->processes[s->ordered_by].reached >= s->deadline))) {
        cache_evict(c, s, 0);
        *abandoned = true;
        *starved = others_starved;
    }
    unlock_table(c);
    return VF_OK;
}

enum vf_code vf_expert_cache_release_io(struct vf_expert_cache *c, uint32_t io_worker,
                                        struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    /* Pages of the object can't be exchanged instead of resting: the other I/O workers have them
     * registered as fixed buffers. */
    for (uint32_t i = 0; i < c->g.slot_count; i++)
        if (c->slots[i].state == VF_SLOT_LOADING && c->slots[i].loader == io_worker)
            cache_evict(c, &c->slots[i], vf_now_ns() + REST_NS);
    for (uint32_t k = io_worker; k < c->key_count; k += c->g.io_worker_count)
        c->keys[k].ordered = 0; /* its queue died with it */
    c->h->starved &= ~(1u << io_worker);
    vf_expert_cache_set_busy(c, io_worker, false);
    unlock_table(c);
    announce_event(c); /* whoever waits for one of them orders it again */
    return VF_OK;
}

enum vf_code vf_expert_cache_register_io(struct vf_expert_cache *c, uint32_t io_worker,
                                         struct vf_err *err)
{
    enum vf_code code = vf_expert_cache_release_io(c, io_worker, err);
    if (code != VF_OK)
        return code;
    struct cache_io *io = &c->h->io_workers[io_worker];
    atomic_store_explicit(&io->pid, 0, memory_order_release);
    atomic_store_explicit(&io->start_time, vf_process_start_time(getpid()), memory_order_relaxed);
    atomic_store_explicit(&io->heartbeat_ns, vf_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&io->pid, (uint64_t)getpid(), memory_order_release);
    return VF_OK;
}

enum vf_code vf_expert_cache_view(struct vf_expert_cache *c, uint32_t slot,
                                  struct vf_cache_slot_view *out, struct vf_err *err)
{
    VF_ASSERT(slot < c->g.slot_count);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    const struct cache_slot *s = &c->slots[slot];
    *out = (struct vf_cache_slot_view){.state = VF_SLOT_FREE, .pin_count = s->pin_count};
    if (cache_slot_is_sane(c, s)) {
        out->state = s->state;
        out->ref = (struct vf_expert_ref){s->key / c->g.expert_count, s->key % c->g.expert_count};
        out->is_protected = cache_is_protected(c, s);
        out->is_speculative = s->is_speculative;
        out->front_landed = s->state == VF_SLOT_LOADING && s->front_landed;
        out->deadline = s->deadline;
    }
    unlock_table(c);
    return VF_OK;
}
