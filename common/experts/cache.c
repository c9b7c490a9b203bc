/* The expert cache's object: geometry, creation, opening, and the mutex around its table.
 *
 * Every change of the table happens under the mutex. Stores are plain; what a holder that is killed
 * between two of them leaves, cache_repair() mends.
 */
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/cache_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CACHE_MAGIC      0x3148434143584656ull /* "VFXCACH1" */
#define CACHE_VERSION    5u
#define DATA_ALIGN_SMALL 4096u
#define DATA_ALIGN_LARGE (2u << 20) /* a huge page, when the data is larger than one */

struct layout {
    uint64_t keys, slots, lists, policy, pins, data, total;
};

/* ---- geometry ------------------------------------------------------------------------------ */

static enum vf_code check_geometry(const struct vf_cache_geometry *g, struct vf_err *err)
{
    uint64_t keys = (uint64_t)g->layer_count * g->expert_count;
    if (keys == 0 || keys > VF_CACHE_KEYS_MAX)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "expert cache: %u layers of %u experts; allowed are 1 to %u in all",
                          g->layer_count, g->expert_count, VF_CACHE_KEYS_MAX);
    if (g->slot_count == 0 || g->slot_count > VF_CACHE_SLOTS_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "expert cache: %u slots; allowed are 1 to %u",
                          g->slot_count, VF_CACHE_SLOTS_MAX);
    if (g->io_worker_count == 0 || g->io_worker_count > VF_CACHE_IO_WORKERS_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "expert cache: %u I/O workers; allowed are 1 to %u",
                          g->io_worker_count, VF_CACHE_IO_WORKERS_MAX);
    if (g->record_bytes == 0 || g->record_bytes % VF_EXPERT_ALIGN || g->record_bytes > INT32_MAX)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "expert cache: records of %llu bytes; allowed are multiples of %u up to "
                          "2 GiB",
                          (unsigned long long)g->record_bytes, VF_EXPERT_ALIGN);
    return VF_OK;
}

/* The limits of check_geometry keep every sum and product far below 2^63. */
static struct layout layout_of(const struct vf_cache_geometry *g)
{
    struct layout at;
    uint64_t data_bytes = g->slot_count * g->record_bytes;
    uint64_t align = data_bytes >= DATA_ALIGN_LARGE ? DATA_ALIGN_LARGE : DATA_ALIGN_SMALL;
    at.keys = vf_round_up(sizeof(struct cache_header), 64);
    at.slots = vf_round_up(
        at.keys + (uint64_t)g->layer_count * g->expert_count * sizeof(struct cache_key), 64);
    at.lists = at.slots + (uint64_t)g->slot_count * sizeof(struct cache_slot);
    at.policy = vf_round_up(at.lists + 3ull * g->slot_count * sizeof(uint32_t), 64);
    at.pins = at.policy + vf_policy_bytes(g->layer_count, g->expert_count);
    at.data = vf_round_up(
        at.pins + (uint64_t)g->slot_count * VF_CACHE_PROCESSES_MAX * sizeof(uint16_t), align);
    at.total = at.data + data_bytes;
    return at;
}

enum vf_code vf_expert_cache_bytes(const struct vf_cache_geometry *g, uint64_t *bytes,
                                   struct vf_err *err)
{
    enum vf_code code = check_geometry(g, err);
    if (code == VF_OK)
        *bytes = layout_of(g).total;
    return code;
}

uint32_t vf_expert_cache_slots_for(const struct vf_cache_geometry *g, uint64_t budget_bytes)
{
    uint64_t keys = (uint64_t)g->layer_count * g->expert_count;
    uint64_t slots = g->record_bytes ? budget_bytes / g->record_bytes : 0;
    slots = vf_min_u64(vf_min_u64(slots, keys), VF_CACHE_SLOTS_MAX);
    return (uint32_t)vf_max_u64(slots, 1);
}

/* ---- create and open ----------------------------------------------------------------------- */

static void set_pointers(struct vf_expert_cache *c)
{
    struct layout at = layout_of(&c->g);
    uint8_t *base = c->shm.base;
    c->key_count = c->g.layer_count * c->g.expert_count;
    c->h = (void *)base;
    c->keys = (void *)(base + at.keys);
    c->slots = (void *)(base + at.slots);
    c->lists = (void *)(base + at.lists);
    c->pins = (void *)(base + at.pins);
    c->data = base + at.data;
    c->policy = vf_policy_open(base + at.policy, c->g.layer_count, c->g.expert_count);
}

static enum vf_code init_mutex(pthread_mutex_t *mutex, struct vf_err *err)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);
    if (rc == 0)
        rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (rc == 0)
        rc = pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
    return rc == 0 ? VF_OK
                   : vf_err_errno(err, VF_ERR_INTERNAL, rc, "expert cache: process-shared mutex");
}

static void fill_header(struct vf_expert_cache *c, const char *run_id)
{
    struct cache_header *h = c->h;
    struct layout at = layout_of(&c->g);
    h->version = CACHE_VERSION;
    h->header_bytes = sizeof *h;
    memcpy(h->run_id, run_id, strlen(run_id) + 1);
    h->layer_count = c->g.layer_count;
    h->expert_count = c->g.expert_count;
    h->slot_count = c->g.slot_count;
    h->io_worker_count = c->g.io_worker_count;
    h->record_bytes = c->g.record_bytes;
    h->fingerprint = c->g.fingerprint;
    h->keys_offset = at.keys;
    h->slots_offset = at.slots;
    h->pins_offset = at.pins;
    h->data_offset = at.data;
    h->total_bytes = at.total;
    h->lists_offset = at.lists;
    h->policy_offset = at.policy;
    for (uint32_t i = 0; i < c->g.slot_count; i++)
        c->slots[i].loader = NO_LOADER;
    cache_rebuild_lists(c);
    atomic_store_explicit(&h->magic, CACHE_MAGIC, memory_order_release);
}

enum vf_code vf_expert_cache_create(const struct vf_run_dir *rd, const struct vf_cache_geometry *g,
                                    struct vf_expert_cache **out, struct vf_err *err)
{
    *out = NULL;
    uint64_t bytes = 0;
    enum vf_code code = vf_expert_cache_bytes(g, &bytes, err);
    if (code != VF_OK)
        return code;
    struct vf_expert_cache *c = calloc(1, sizeof *c);
    if (!c)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert cache: out of memory");
    char name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    c->g = *g;
    code = vf_shm_create(name, bytes, &c->shm, err);
    if (code == VF_ERR_NO_MEMORY)
        vf_err_append(err, "; a smaller --expert-cache or a larger /dev/shm would help");
    if (code != VF_OK)
        goto done;
    set_pointers(c);
    code = init_mutex(&c->h->mutex, err);
    if (code != VF_OK) {
        vf_shm_unlink(name);
        goto done;
    }
    fill_header(c, vf_run_dir_id(rd));
done:
    if (code != VF_OK)
        vf_expert_cache_close(c);
    else
        *out = c;
    return code;
}

/* Copies the geometry out of the header and checks the copy against the object. */
static enum vf_code check_header(struct vf_expert_cache *c, const char *name, const char *run_id,
                                 struct vf_err *err)
{
    const struct cache_header *h = c->shm.base;
    uint64_t magic = atomic_load_explicit(&h->magic, memory_order_acquire);
    if (magic != CACHE_MAGIC || h->version != CACHE_VERSION || h->header_bytes != sizeof *h)
        return vf_err_set(
            err, VF_ERR_CORRUPT,
            "shared memory %s: magic %016llx, version %u, header of %u bytes; allowed "
            "is %016llx, %u, %zu",
            name, (unsigned long long)magic, h->version, h->header_bytes, CACHE_MAGIC,
            CACHE_VERSION, sizeof *h);
    if (strncmp(h->run_id, run_id, sizeof h->run_id) != 0)
        return vf_err_set(err, VF_ERR_CORRUPT, "shared memory %s: run id %.*s is not %s", name,
                          (int)sizeof h->run_id, h->run_id, run_id);
    c->g = (struct vf_cache_geometry){
        .layer_count = h->layer_count,
        .expert_count = h->expert_count,
        .slot_count = h->slot_count,
        .io_worker_count = h->io_worker_count,
        .record_bytes = h->record_bytes,
        .fingerprint = h->fingerprint,
    };
    enum vf_code code = check_geometry(&c->g, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "shared memory %s: ", name);
    struct layout at = layout_of(&c->g);
    if (h->keys_offset != at.keys || h->slots_offset != at.slots || h->pins_offset != at.pins ||
        h->data_offset != at.data || h->total_bytes != at.total || h->lists_offset != at.lists ||
        h->policy_offset != at.policy || c->shm.bytes < at.total)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "shared memory %s: its offsets or its %zu bytes don't fit its geometry, "
                          "which needs %llu",
                          name, c->shm.bytes, (unsigned long long)at.total);
    return VF_OK;
}

enum vf_code vf_expert_cache_open(const struct vf_run_dir *rd, struct vf_expert_cache **out,
                                  struct vf_err *err)
{
    *out = NULL;
    struct vf_expert_cache *c = calloc(1, sizeof *c);
    if (!c)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert cache: out of memory");
    char name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    enum vf_code code = vf_shm_open(name, sizeof(struct cache_header), &c->shm, err);
    if (code == VF_OK)
        code = check_header(c, name, vf_run_dir_id(rd), err);
    if (code != VF_OK) {
        vf_expert_cache_close(c);
        return code;
    }
    set_pointers(c);
    *out = c;
    return VF_OK;
}

void vf_expert_cache_close(struct vf_expert_cache *c)
{
    if (!c)
        return;
    vf_shm_close(&c->shm);
    free(c);
}

const struct vf_cache_geometry *vf_expert_cache_geometry(const struct vf_expert_cache *c)
{
    return &c->g;
}

uint8_t *vf_expert_cache_slot_data(const struct vf_expert_cache *c, uint32_t slot)
{
    VF_ASSERT(slot < c->g.slot_count);
    return c->data + slot * c->g.record_bytes;
}

uint32_t vf_expert_cache_io_of(const struct vf_expert_cache *c, struct vf_expert_ref ref)
{
    return key_of(c, ref) % c->g.io_worker_count;
}

/* ---- the mutex ------------------------------------------------------------------------------ */

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

enum vf_code cache_lock(struct vf_expert_cache *c, struct vf_err *err)
{
    int rc = lock_within(&c->h->mutex, vf_now_ns() + VF_CACHE_LOCK_NS);
    if (rc == EOWNERDEAD) {
        vf_info("expert cache: a process died while it changed the table; repaired");
        cache_repair(c);
        rc = pthread_mutex_consistent(&c->h->mutex);
    }
    if (rc == 0) {
        atomic_store_explicit(&c->h->holder, (int32_t)getpid(), memory_order_relaxed);
        return VF_OK;
    }
    return vf_err_errno(err, rc == ETIMEDOUT ? VF_ERR_TIMEOUT : VF_ERR_INTERNAL, rc,
                        "expert cache: waiting for process %d, which holds its table",
                        (int)atomic_load_explicit(&c->h->holder, memory_order_relaxed));
}

void cache_unlock(struct vf_expert_cache *c)
{
    if (cache_lists_are_broken(c)) {
        vf_warn("expert cache: its table contradicts itself; repaired");
        cache_repair(c);
    }
    int rc = pthread_mutex_unlock(&c->h->mutex);
    VF_ASSERT(rc == 0);
}

void cache_announce(struct vf_expert_cache *c)
{
    atomic_fetch_add_explicit(&c->h->event_count, 1, memory_order_release);
    vf_futex_wake_all(&c->h->event_count);
}

enum vf_code vf_expert_cache_lock_for_test(struct vf_expert_cache *c, struct vf_err *err)
{
    return cache_lock(c, err);
}

/* ---- for the coordinator and for tests ------------------------------------------------------- */

enum vf_code vf_expert_cache_release_loader(struct vf_expert_cache *c, uint32_t io_worker,
                                            struct vf_err *err)
{
    VF_ASSERT(io_worker < c->g.io_worker_count);
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    /* Pages of the object can't be exchanged instead of resting: the other I/O workers have them
     * registered as fixed buffers. */
    for (uint32_t i = 0; i < c->g.slot_count; i++)
        if (c->slots[i].state == VF_SLOT_LOADING && c->slots[i].loader == io_worker)
            cache_evict(c, &c->slots[i], vf_now_ns() + CACHE_REST_NS);
    for (uint32_t k = io_worker; k < c->key_count; k += c->g.io_worker_count)
        c->keys[k].ordered = 0; /* its queue died with it */
    c->h->starved &= ~(1u << io_worker);
    atomic_store_explicit(&c->h->io_workers[io_worker].busy, 0, memory_order_relaxed);
    cache_unlock(c);
    cache_announce(c); /* whoever waits for one of them orders it again */
    return VF_OK;
}

enum vf_code vf_expert_cache_view(struct vf_expert_cache *c, uint32_t slot,
                                  struct vf_cache_slot_view *out, struct vf_err *err)
{
    VF_ASSERT(slot < c->g.slot_count);
    enum vf_code code = cache_lock(c, err);
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
    cache_unlock(c);
    return VF_OK;
}
