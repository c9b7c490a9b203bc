/* The reader's door: orders, pins, and waiting for what is loaded. */
#include "common/experts/cache_reader.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/cache_internal.h"

#include <stdlib.h>

struct vf_cache_reader {
    struct vf_expert_cache *cache;
    uint32_t process;
    struct vf_cache_waker waker;
};

/* ---- life ---------------------------------------------------------------------------------- */

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

/* Gives back what the process of this index, or one before it, pinned and ordered. */
static enum vf_code release(struct vf_expert_cache *c, uint32_t process, struct vf_err *err)
{
    enum vf_code code = cache_lock(c, err);
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
    cache_unlock(c);
    return VF_OK;
}

enum vf_code vf_cache_reader_open(struct vf_expert_cache *c, uint32_t process,
                                  struct vf_cache_waker waker, struct vf_cache_reader **out,
                                  struct vf_err *err)
{
    *out = NULL;
    if (process >= VF_CACHE_PROCESSES_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "process index %u; the expert cache has room for %u",
                          process, VF_CACHE_PROCESSES_MAX);
    enum vf_code code = release(c, process, err);
    if (code != VF_OK)
        return code;
    struct vf_cache_reader *r = malloc(sizeof *r);
    if (!r)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert cache: out of memory");
    *r = (struct vf_cache_reader){c, process, waker};
    *out = r;
    return VF_OK;
}

void vf_cache_reader_close(struct vf_cache_reader *r)
{
    struct vf_err err;
    if (r && release(r->cache, r->process, &err) != VF_OK)
        vf_warn("leaving the expert cache: %s", err.text);
    free(r);
}

/* ---- orders and pins ----------------------------------------------------------------------- */

enum vf_code vf_cache_reader_visit(struct vf_cache_reader *r, uint32_t layer,
                                   const uint32_t *experts, uint32_t n, struct vf_err *err)
{
    struct vf_expert_cache *c = r->cache;
    VF_ASSERT(layer < c->g.layer_count);
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    vf_policy_visit(&c->policy, layer, experts, n);
    cache_unlock(c);
    return VF_OK;
}

enum vf_code vf_cache_reader_order(struct vf_cache_reader *r, const struct vf_expert_ref *refs,
                                   uint32_t n, uint64_t deadline, bool speculative,
                                   enum vf_cache_found *found, struct vf_err *err)
{
    struct vf_expert_cache *c = r->cache;
    enum vf_code code = cache_lock(c, err);
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
            cache_protect(c, s, r->process, deadline);
        found[i] = s->state == VF_SLOT_READY     ? VF_CACHE_READY
                   : s->state == VF_SLOT_LOADING ? VF_CACHE_LOADING
                                                 : VF_CACHE_FAILED;
    }
    cache_unlock(c);
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
        cache_protect(c, s, process, deadline);
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

enum vf_code vf_cache_reader_pin(struct vf_cache_reader *r, const struct vf_expert_ref *refs,
                                 uint32_t n, uint64_t deadline, enum vf_cache_found *found,
                                 const uint8_t **data, struct vf_expert_front *landed,
                                 struct vf_cache_failure *failures, struct vf_err *err)
{
    struct vf_expert_cache *c = r->cache;
    struct vf_expert_front ignored;
    uint32_t starved = 0;
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    if (c->h->processes[r->process].reached != deadline)
        starved = c->h->starved;
    c->h->processes[r->process].reached = deadline;
    for (uint32_t i = 0; i < n; i++)
        found[i] = pin_one(c, r->process, key_of(c, refs[i]), deadline, &data[i],
                           landed ? &landed[i] : &ignored, &failures[i]);
    cache_unlock(c);
    cache_wake(&r->waker, starved);
    return VF_OK;
}

enum vf_code vf_cache_reader_unpin(struct vf_cache_reader *r, const uint8_t *const *data,
                                   uint32_t n, struct vf_err *err)
{
    struct vf_expert_cache *c = r->cache;
    enum vf_code code = cache_lock(c, err);
    if (code != VF_OK)
        return code;
    for (uint32_t i = 0; i < n; i++) {
        if (!data[i])
            continue;
        VF_ASSERT(data[i] >= c->data);
        uint64_t slot = (uint64_t)(data[i] - c->data) / c->g.record_bytes;
        VF_ASSERT(slot < c->g.slot_count);
        struct cache_slot *s = &c->slots[slot];
        if (c->pins[slot][r->process] > 0)
            drop_pins(c, s, r->process, 1);
        else
            code =
                vf_err_set(err, VF_ERR_INTERNAL, "expert cache: process %u has no pin on slot %llu",
                           r->process, (unsigned long long)slot);
    }
    uint32_t starved = c->h->starved;
    cache_unlock(c);
    cache_wake(&r->waker, starved);
    return code;
}

/* ---- waiting ------------------------------------------------------------------------------- */

uint32_t vf_cache_reader_event_count(const struct vf_cache_reader *r)
{
    return atomic_load_explicit(&r->cache->h->event_count, memory_order_acquire);
}

enum vf_code vf_cache_reader_wait(struct vf_cache_reader *r, uint32_t event_count,
                                  uint64_t deadline_ns)
{
    return vf_futex_wait(&r->cache->h->event_count, event_count, deadline_ns);
}
