/* The slots, what is derived from them, and which one an order gets. A slot's state, key, loader
 * and pins say everything: the index, the pin sums and the lists follow from them, so that a table
 * whose holder was killed between two stores is repaired from the slots.
 *
 * Every slot that may be taken stands in one list, by its state:
 *   - free: the one usable soonest first;
 *   - protected: ordered and not used yet; a guess before the others, then who is needed last. A
 *     second index of the same slots, by deadline, finds those whose time is past;
 *   - candidate: everything else that is ready; the policy knows it by its expert and says which
 *     one is worth least.
 * Slots that are loading or pinned stand in none. The lists are heaps in the object,
 * rebuilt when they make no sense.
 */
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/cache_internal.h"

enum { LIST_NONE, LIST_FREE, LIST_PROTECTED, LIST_CANDIDATE };

/* ---- slots --------------------------------------------------------------------------------- */

bool cache_slot_is_sane(const struct vf_expert_cache *c, const struct cache_slot *s)
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

uint32_t cache_slot_index(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    return (uint32_t)(s - c->slots);
}

struct cache_slot *cache_find_slot(struct vf_expert_cache *c, uint32_t key)
{
    uint32_t i = c->keys[key].slot_plus1;
    if (i == 0 || i > c->g.slot_count)
        return NULL;
    struct cache_slot *s = &c->slots[i - 1];
    return s->key == key && cache_slot_is_sane(c, s) ? s : NULL;
}

bool cache_is_protected(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    return s->is_protected && s->ordered_by < VF_CACHE_PROCESSES_MAX &&
           c->h->processes[s->ordered_by].reached <= s->deadline;
}

/* ---- read time ------------------------------------------------------------------------------ */

void cache_take_off(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process)
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

/* ---- heaps --------------------------------------------------------------------------------- */

static bool usable_sooner(const void *ctx, uint32_t a, uint32_t b)
{
    const struct vf_expert_cache *c = ctx;
    return c->slots[a].since_ns < c->slots[b].since_ns;
}

/* Of the same deadline, one that nobody waits for; then the one that has been there longer. */
static bool less_claim(const void *ctx, uint32_t a, uint32_t b)
{
    const struct cache_slot *sa = &((const struct vf_expert_cache *)ctx)->slots[a];
    const struct cache_slot *sb = &((const struct vf_expert_cache *)ctx)->slots[b];
    if (sa->is_speculative != sb->is_speculative)
        return sa->is_speculative > sb->is_speculative;
    if (sa->deadline != sb->deadline)
        return sa->deadline > sb->deadline;
    return sa->wanted != sb->wanted ? sa->wanted < sb->wanted : sa->since_ns < sb->since_ns;
}

static bool due_earlier(const void *ctx, uint32_t a, uint32_t b)
{
    const struct vf_expert_cache *c = ctx;
    return c->slots[a].deadline < c->slots[b].deadline;
}

static uint32_t *main_place(void *ctx, uint32_t slot)
{
    return &((struct vf_expert_cache *)ctx)->slots[slot].place;
}

static uint32_t *due_place(void *ctx, uint32_t slot)
{
    return &((struct vf_expert_cache *)ctx)->slots[slot].due_place;
}

static struct vf_index_heap heap_of(struct vf_expert_cache *c, uint32_t *items, uint32_t *count,
                                    bool (*before)(const void *, uint32_t, uint32_t),
                                    uint32_t *(*place)(void *, uint32_t))
{
    return (struct vf_index_heap){.items = items,
                                  .count = count,
                                  .capacity = c->g.slot_count,
                                  .item_limit = c->g.slot_count,
                                  .before = before,
                                  .place = place,
                                  .ctx = c};
}

static struct vf_index_heap free_heap(struct vf_expert_cache *c)
{
    return heap_of(c, c->lists, &c->h->free_count, usable_sooner, main_place);
}

static struct vf_index_heap protected_heap(struct vf_expert_cache *c)
{
    return heap_of(c, c->lists + c->g.slot_count, &c->h->protected_count, less_claim, main_place);
}

static struct vf_index_heap due_heap(struct vf_expert_cache *c)
{
    return heap_of(c, c->lists + 2 * (size_t)c->g.slot_count, &c->h->due_count, due_earlier,
                   due_place);
}

/* ---- lists --------------------------------------------------------------------------------- */

static uint32_t list_for(const struct vf_expert_cache *c, const struct cache_slot *s)
{
    if (s->pin_count > 0 || s->state == VF_SLOT_LOADING)
        return LIST_NONE;
    if (!cache_slot_is_sane(c, s))
        return LIST_FREE;
    return s->is_protected ? LIST_PROTECTED : LIST_CANDIDATE;
}

static void leave_list(struct vf_expert_cache *c, struct cache_slot *s)
{
    uint32_t i = cache_slot_index(c, s), list = s->list;
    struct vf_index_heap first, second = {0};
    s->list = LIST_NONE;
    if (list == LIST_CANDIDATE && s->listed_key < c->key_count) {
        vf_policy_remove(&c->policy, s->listed_key);
        return;
    }
    if (list != LIST_FREE && list != LIST_PROTECTED) {
        c->lists_broken = c->lists_broken || list != LIST_NONE;
        return;
    }
    first = list == LIST_FREE ? free_heap(c) : protected_heap(c);
    vf_index_heap_remove(&first, i);
    if (list == LIST_PROTECTED) {
        second = due_heap(c);
        vf_index_heap_remove(&second, i);
    }
    c->lists_broken = c->lists_broken || first.broken || second.broken;
}

static void join_list(struct vf_expert_cache *c, struct cache_slot *s, uint32_t list)
{
    uint32_t i = cache_slot_index(c, s);
    struct vf_index_heap first, second = {0};
    s->list = list;
    if (list == LIST_NONE)
        return;
    if (list == LIST_CANDIDATE) {
        s->listed_key = s->key;
        vf_policy_add(&c->policy, s->key);
        return;
    }
    first = list == LIST_FREE ? free_heap(c) : protected_heap(c);
    vf_index_heap_add(&first, i);
    if (list == LIST_PROTECTED) {
        second = due_heap(c);
        vf_index_heap_add(&second, i);
    }
    c->lists_broken = c->lists_broken || first.broken || second.broken;
}

void cache_file_slot(struct vf_expert_cache *c, struct cache_slot *s)
{
    uint32_t list = list_for(c, s);
    if (list == LIST_CANDIDATE && s->state == VF_SLOT_ERROR) {
        cache_evict(c, s, 0); /* whoever waited to be told is past it or dead */
        return;
    }
    if (list == s->list &&
        (list == LIST_NONE || (list == LIST_CANDIDATE && s->listed_key == s->key)))
        return;
    leave_list(c, s);
    join_list(c, s, list);
}

void cache_count_prefetch(struct cache_slot *s, _Atomic uint64_t *prefetched,
                          _Atomic uint64_t *guessed)
{
    if (s->prefetched == CACHE_PREFETCHED)
        atomic_fetch_add_explicit(prefetched, 1, memory_order_relaxed);
    if (s->prefetched == CACHE_GUESSED)
        atomic_fetch_add_explicit(guessed, 1, memory_order_relaxed);
    s->prefetched = 0;
}

void cache_set_free(struct vf_expert_cache *c, struct cache_slot *s, uint64_t usable_from_ns)
{
    s->state = VF_SLOT_FREE;
    s->loader = NO_LOADER;
    s->is_protected = 0;
    s->is_speculative = 0;
    s->wanted = 0;
    s->prefetched = 0;
    s->front_landed = 0;
    s->since_ns = usable_from_ns;
    cache_land(c, s);
    cache_file_slot(c, s);
}

void cache_evict(struct vf_expert_cache *c, struct cache_slot *s, uint64_t usable_from_ns)
{
    if (s->key < c->key_count && c->keys[s->key].slot_plus1 == cache_slot_index(c, s) + 1)
        c->keys[s->key].slot_plus1 = 0;
    cache_count_prefetch(s, &c->h->prefetched_wasted, &c->h->guessed_wasted);
    cache_set_free(c, s, usable_from_ns);
}

void cache_rebuild_lists(struct vf_expert_cache *c)
{
    c->h->free_count = c->h->protected_count = c->h->due_count = 0;
    c->lists_broken = false;
    vf_policy_clear_candidates(&c->policy);
    for (uint32_t i = 0; i < c->g.slot_count; i++) {
        c->slots[i].list = LIST_NONE;
        c->slots[i].place = c->slots[i].due_place = 0;
    }
    for (uint32_t i = 0; i < c->g.slot_count; i++)
        cache_file_slot(c, &c->slots[i]);
}

bool cache_lists_are_broken(const struct vf_expert_cache *c)
{
    return c->lists_broken || vf_policy_is_broken(&c->policy);
}

void cache_protect(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process,
                   uint64_t deadline)
{
    if (s->state == VF_SLOT_LOADING)
        cache_take_off(c, s, process);
    if (cache_is_protected(c, s) && !s->is_speculative && s->deadline <= deadline)
        return;
    s->is_speculative = 0;
    s->ordered_by = process;
    s->deadline = deadline;
    s->is_protected = 1;
    cache_file_slot(c, s);
}

/* ---- repair -------------------------------------------------------------------------------- */

static void set_insane_free(struct cache_slot *s)
{
    *s = (struct cache_slot){
        .state = VF_SLOT_FREE, .loader = NO_LOADER, .since_ns = vf_now_ns() + CACHE_REST_NS};
}

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

/* ---- the choice ---------------------------------------------------------------------------- */

/* Ends the protection of what was ordered for deadlines that its process is past. */
static void end_protections(struct vf_expert_cache *c)
{
    for (uint32_t n = 0; n < c->g.slot_count; n++) {
        struct vf_index_heap due = due_heap(c);
        uint32_t i;
        bool any = vf_index_heap_first(&due, &i);
        c->lists_broken = c->lists_broken || due.broken;
        if (!any || cache_is_protected(c, &c->slots[i]))
            return;
        c->slots[i].is_protected = 0;
        cache_file_slot(c, &c->slots[i]);
        if (c->lists_broken)
            return;
    }
}

/* Whether the order may take this slot although it is protected. Of the same deadline (delayed
 * experts of several layers that are due together), who waits goes before who only prefetched. */
static bool may_override(const struct cache_slot *s, const struct vf_cache_order *order,
                         uint64_t now_ns)
{
    if (order->speculative || s->is_speculative)
        return !order->speculative;
    if (order->deadline < s->deadline)
        return true;
    return order->demand && ((order->deadline == s->deadline && !s->wanted) ||
                             (now_ns > s->since_ns && now_ns - s->since_ns > VF_CACHE_GRACE_NS));
}

static struct cache_slot *first_free(struct vf_expert_cache *c, uint64_t now_ns)
{
    struct vf_index_heap heap = free_heap(c);
    uint32_t i;
    if (!vf_index_heap_first(&heap, &i))
        return NULL;
    c->lists_broken = c->lists_broken || heap.broken || list_for(c, &c->slots[i]) != LIST_FREE;
    return !c->lists_broken && c->slots[i].since_ns <= now_ns ? &c->slots[i] : NULL;
}

static struct cache_slot *least_worth(struct vf_expert_cache *c)
{
    uint32_t key;
    if (!vf_policy_victim(&c->policy, &key))
        return NULL;
    struct cache_slot *s = cache_find_slot(c, key);
    if (s && s->list == LIST_CANDIDATE && list_for(c, s) == LIST_CANDIDATE)
        return s;
    c->lists_broken = true;
    return NULL;
}

static struct cache_slot *least_claim(struct vf_expert_cache *c, const struct vf_cache_order *order,
                                      uint64_t now_ns)
{
    struct vf_index_heap heap = protected_heap(c);
    uint32_t i;
    if (!vf_index_heap_first(&heap, &i))
        return NULL;
    c->lists_broken = c->lists_broken || heap.broken || list_for(c, &c->slots[i]) != LIST_PROTECTED;
    return !c->lists_broken && may_override(&c->slots[i], order, now_ns) ? &c->slots[i] : NULL;
}

static struct cache_slot *choose(struct vf_expert_cache *c, const struct vf_cache_order *order)
{
    uint64_t now_ns = vf_now_ns();
    struct cache_slot *s = first_free(c, now_ns);
    if (s)
        return s;
    end_protections(c);
    s = first_free(c, now_ns); /* a failed read that nobody waits for any more */
    if (!s)
        s = least_worth(c);
    return s ? s : least_claim(c, order, now_ns);
}

struct cache_slot *cache_choose_slot(struct vf_expert_cache *c, const struct vf_cache_order *order)
{
    struct cache_slot *s = choose(c, order);
    if (!cache_lists_are_broken(c))
        return s;
    vf_warn("expert cache: its table contradicts itself; repaired");
    cache_repair(c);
    return choose(c, order);
}
