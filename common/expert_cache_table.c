/* The table of the expert cache: index, slots, pins, and who may take which slot.
 *
 * Every change of the table happens under the mutex. Stores are plain; a holder that is killed
 * between two of them leaves a table that repair_table() can rebuild, because the slots alone
 * (state, key, loader, pins) say everything and the index is derived from them.
 */
#include "common/expert_cache_internal.h"
#include "common/log.h"
#include "common/util.h"

#include <errno.h>
#include <unistd.h>

#define REST_NS            VF_S(2) /* of a slot whose loader died: a drive's read takes far less */
#define USE_VALUE          (1u << 16) /* of one use, in value units */
#define HALF_LIFE_MIN      16u
#define HALF_LIFE_PER_SLOT 4u /* uses of the whole cache after which a use counts half */

/* ---- the mutex and repair ------------------------------------------------------------------ */

static bool slot_is_sane(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    switch (s->state) {
    case VF_SLOT_LOADING:
        return s->key < c->key_count && s->loader < c->g.io_worker_count;
    case VF_SLOT_READY:
    case VF_SLOT_ERROR:
        return s->key < c->key_count;
    default:
        return false;
    }
}

static void set_free(struct cache_slot *s, uint64_t usable_from_ns)
{
    s->state = VF_SLOT_FREE;
    s->loader = NO_LOADER;
    s->is_protected = 0;
    s->wanted = 0;
    s->since_ns = usable_from_ns;
}

/* Rebuilds the index and the pin sums. A slot that makes no sense becomes free; if it is pinned it
 * stays as it is, without an entry in the index, until its last pin goes. */
static void repair_table(struct vf_expert_cache *c)
{
    for (uint32_t k = 0; k < c->key_count; k++)
        c->keys[k].slot_plus1 = 0;
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        struct cache_slot *s = &c->slots[i];
        uint32_t pins = 0;
        for (uint32_t p = 0; p < VF_CACHE_PROCESSES_MAX; p++)
            pins += c->pins[i][p];
        s->pin_count = pins;
        bool usable = slot_is_sane(c, s) && c->keys[s->key].slot_plus1 == 0;
        if (usable)
            c->keys[s->key].slot_plus1 = i + 1;
        else if (pins == 0)
            set_free(s, vf_now_ns() + REST_NS);
    }
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
        repair_table(c);
        rc = pthread_mutex_consistent(&c->h->mutex);
    }
    if (rc == 0)
        return VF_OK;
    return vf_err_errno(err, rc == ETIMEDOUT ? VF_ERR_TIMEOUT : VF_ERR_INTERNAL, rc,
                        "expert cache: waiting for the process that holds its table");
}

static void unlock_table(struct vf_expert_cache *c)
{
    int rc = pthread_mutex_unlock(&c->h->mutex);
    VF_ASSERT(rc == 0);
}

enum vf_code vf_expert_cache_lock_for_test(struct vf_expert_cache *c, struct vf_err *err)
{
    return lock_table(c, err);
}

/* ---- table primitives; all under the mutex ------------------------------------------------- */

/* The slot of a key, NULL when it has none or the index contradicts the slot. */
static struct cache_slot *find_slot(struct vf_expert_cache *c, uint32_t key)
{
    uint32_t i = c->keys[key].slot_plus1;
    if (i == 0 || i > c->g.slot_count)
        return NULL;
    struct cache_slot *s = &c->slots[i - 1];
    return s->key == key && slot_is_sane(c, s) ? s : NULL;
}

static uint32_t slot_index(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    return (uint32_t)(s - c->slots);
}

static uint32_t decayed(const struct vf_expert_cache *c, uint32_t value, uint64_t last_use)
{
    uint64_t now = c->h->use_clock;
    uint64_t half_life = vf_max_u64((uint64_t)c->g.slot_count * HALF_LIFE_PER_SLOT, HALF_LIFE_MIN);
    uint64_t age = now > last_use ? now - last_use : 0;
    if (age / half_life >= 32)
        return 0;
    value >>= age / half_life;
    /* Between two halvings a straight line. */
    return value - (uint32_t)((uint64_t)value * (age % half_life) / (2 * half_life));
}

static void count_use(struct vf_expert_cache *c, struct cache_slot *s)
{
    uint32_t value = decayed(c, s->value, s->last_use);
    s->value = value > UINT32_MAX - USE_VALUE ? UINT32_MAX : value + USE_VALUE;
    s->last_use = ++c->h->use_clock;
}

static bool is_protected(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    return s->is_protected && s->ordered_by < VF_CACHE_PROCESSES_MAX &&
           c->h->processes[s->ordered_by].reached <= s->deadline;
}

/* The earliest order counts. */
static void protect(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process,
                    uint64_t deadline)
{
    if (is_protected(c, s) && s->deadline <= deadline)
        return;
    s->ordered_by = process;
    s->deadline = deadline;
    s->is_protected = 1;
}

/* Takes the expert out of its slot; its value is kept with the key. */
static void evict(struct vf_expert_cache *c, struct cache_slot *s, uint64_t usable_from_ns)
{
    if (s->key < c->key_count) {
        struct cache_key *k = &c->keys[s->key];
        if (k->slot_plus1 == slot_index(c, s) + 1)
            k->slot_plus1 = 0;
        k->value = s->value;
        k->last_use = s->last_use;
    }
    set_free(s, usable_from_ns);
}

/* A pinned slot that repair cut off from the index is free after its last pin. */
static void drop_pins(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process, uint32_t n)
{
    uint16_t *pins = &c->pins[slot_index(c, s)][process];
    *pins = (uint16_t)(*pins - n);
    s->pin_count = s->pin_count >= n ? s->pin_count - n : 0;
    if (s->pin_count == 0 && s->state != VF_SLOT_FREE &&
        (s->key >= c->key_count || find_slot(c, s->key) != s))
        set_free(s, 0);
}

/* ---- readers ------------------------------------------------------------------------------- */

enum vf_code vf_expert_cache_order(struct vf_expert_cache *c, uint32_t process,
                                   const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                   enum vf_cache_found *found, struct vf_err *err)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = key_of(c, refs[i]);
        struct cache_slot *s = find_slot(c, key);
        if (!s) {
            found[i] = c->keys[key].ordered ? VF_CACHE_ORDERED : VF_CACHE_MISSING;
            c->keys[key].ordered = 1;
            continue;
        }
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
                                   struct vf_cache_failure *failure)
{
    *data = NULL;
    struct cache_slot *s = find_slot(c, key);
    if (!s) {
        enum vf_cache_found found = c->keys[key].ordered ? VF_CACHE_ORDERED : VF_CACHE_MISSING;
        c->keys[key].ordered = 1;
        return found;
    }
    if (s->state == VF_SLOT_LOADING) {
        s->wanted = 1;
        protect(c, s, process, deadline);
        return VF_CACHE_LOADING;
    }
    if (s->state == VF_SLOT_ERROR) {
        *failure = (struct vf_cache_failure){.code = (enum vf_code)s->failure_code,
                                             .sys_errno = s->failure_errno,
                                             .xxh3_found = s->failure_xxh3};
        evict(c, s, 0);
        return VF_CACHE_FAILED;
    }
    uint16_t *pins = &c->pins[slot_index(c, s)][process];
    VF_ASSERT(*pins < UINT16_MAX);
    (*pins)++;
    s->pin_count++;
    s->is_protected = 0;
    s->wanted = 0;
    count_use(c, s);
    *data = vf_expert_cache_slot_data(c, slot_index(c, s));
    return VF_CACHE_READY;
}

enum vf_code vf_expert_cache_pin(struct vf_expert_cache *c, uint32_t process,
                                 const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                 enum vf_cache_found *found, const uint8_t **data,
                                 struct vf_cache_failure *failures, uint32_t *starved,
                                 struct vf_err *err)
{
    *starved = 0;
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    enum vf_code code = lock_table(c, err);
    if (code != VF_OK)
        return code;
    if (c->h->processes[process].reached != deadline)
        *starved = c->h->starved;
    c->h->processes[process].reached = deadline;
    for (uint32_t i = 0; i < n; i++)
        found[i] = pin_one(c, process, key_of(c, refs[i]), deadline, &data[i], &failures[i]);
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
        if (s->is_protected && s->ordered_by == process)
            s->is_protected = 0;
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

/* Whether the order may take this slot although it is protected. Of the same deadline (delayed
 * experts of several layers that are due together), who waits goes before who only prefetched. */
static bool may_override(const struct cache_slot *s, const struct vf_cache_order *order,
                         uint64_t now_ns)
{
    if (order->deadline < s->deadline)
        return true;
    return order->demand && ((order->deadline == s->deadline && !s->wanted) ||
                             (now_ns > s->since_ns && now_ns - s->since_ns > VF_CACHE_GRACE_NS));
}

/* The slot an order gets: a free one, else the least valuable unprotected one, else the protected
 * one that is needed last. NULL when all of them have better claims. */
static struct cache_slot *choose_slot(struct vf_expert_cache *c, const struct vf_cache_order *order)
{
    struct cache_slot *plain = NULL, *overridden = NULL;
    uint32_t plain_value = 0;
    uint64_t now_ns = vf_now_ns();
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        struct cache_slot *s = &c->slots[i];
        if (s->pin_count > 0 || s->state == VF_SLOT_LOADING)
            continue;
        if (s->state == VF_SLOT_FREE) {
            if (s->since_ns <= now_ns)
                return s;
            continue;
        }
        if (is_protected(c, s)) {
            if (may_override(s, order, now_ns) &&
                (!overridden || s->deadline > overridden->deadline))
                overridden = s;
            continue;
        }
        uint32_t value = s->state == VF_SLOT_READY ? decayed(c, s->value, s->last_use) : 0;
        if (!plain || value < plain_value ||
            (value == plain_value && s->last_use < plain->last_use)) {
            plain = s;
            plain_value = value;
        }
    }
    return plain ? plain : overridden;
}

static void start_loading(struct vf_expert_cache *c, struct cache_slot *s, uint32_t io_worker,
                          uint32_t key, const struct vf_cache_order *order)
{
    s->key = key;
    s->loader = io_worker;
    s->value = c->keys[key].value;
    s->last_use = c->keys[key].last_use;
    s->wanted = order->demand;
    s->is_protected = 0;
    protect(c, s, order->process, order->deadline);
    s->state = VF_SLOT_LOADING;
    c->keys[key].slot_plus1 = slot_index(c, s) + 1;
}

static enum vf_cache_begin begin_locked(struct vf_expert_cache *c, uint32_t io_worker,
                                        const struct vf_cache_order *order, uint32_t *slot)
{
    uint32_t key = key_of(c, order->ref);
    uint32_t own_bit = 1u << io_worker;
    c->h->starved &= ~own_bit;
    struct cache_slot *s = find_slot(c, key);
    if (s) {
        c->keys[key].ordered = 0;
        /* A ready expert without protection was used since this order was sent. */
        if (s->state == VF_SLOT_LOADING || is_protected(c, s))
            protect(c, s, order->process, order->deadline);
        if (order->demand && s->state == VF_SLOT_LOADING)
            s->wanted = 1;
        return VF_CACHE_PRESENT;
    }
    /* Not marked: the expert was loaded for an earlier order and has left again, perhaps used.
     * Whoever still wants it finds it missing, marks it and sends another order. */
    if (!c->keys[key].ordered)
        return VF_CACHE_STALE;
    if (!order->demand && c->h->processes[order->process].reached > order->deadline) {
        c->keys[key].ordered = 0;
        return VF_CACHE_STALE;
    }
    s = choose_slot(c, order);
    if (!s) {
        c->h->starved |= own_bit;
        return VF_CACHE_STARVED;
    }
    if (s->state != VF_SLOT_FREE) {
        evict(c, s, 0);
        atomic_fetch_add_explicit(&c->h->io_workers[io_worker].evictions, 1, memory_order_relaxed);
    }
    c->keys[key].ordered = 0;
    start_loading(c, s, io_worker, key, order);
    *slot = slot_index(c, s);
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

static void settle(struct vf_expert_cache *c, struct cache_slot *s,
                   const struct vf_cache_failure *failure)
{
    s->loader = NO_LOADER;
    if (failure && !s->wanted) {
        evict(c, s, 0);
        return;
    }
    s->since_ns = vf_now_ns();
    if (failure) {
        s->failure_code = failure->code;
        s->failure_errno = failure->sys_errno;
        s->failure_xxh3 = failure->xxh3_found;
    }
    s->state = failure ? VF_SLOT_ERROR : VF_SLOT_READY;
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
    if (s->state == VF_SLOT_LOADING && s->loader == io_worker)
        settle(c, s, failure);
    else
        code = vf_err_set(err, VF_ERR_INTERNAL,
                          "expert cache: slot %u isn't being loaded by I/O worker %u", slot,
                          io_worker);
    *starved = c->h->starved & ~(1u << io_worker);
    unlock_table(c);
    announce_event(c);
    return code;
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
            evict(c, &c->slots[i], vf_now_ns() + REST_NS);
    for (uint32_t k = io_worker; k < c->key_count; k += c->g.io_worker_count)
        c->keys[k].ordered = 0; /* its queue died with it */
    c->h->starved &= ~(1u << io_worker);
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
    if (slot_is_sane(c, s)) {
        out->state = s->state;
        out->ref = (struct vf_expert_ref){s->key / c->g.expert_count, s->key % c->g.expert_count};
        out->is_protected = is_protected(c, s);
        out->deadline = s->deadline;
    }
    unlock_table(c);
    return VF_OK;
}
