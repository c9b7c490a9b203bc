/* A binary heap of orders, with each expert's place in it for merging and taking. */
#include "io_worker/orders.h"

#include <stdlib.h>
#include <string.h>

struct vf_orders {
    uint32_t layer_count, expert_count;
    struct vf_cache_order *heap;
    uint32_t count, capacity;
    uint32_t *place_plus1; /* [layers * experts], 0: not in the heap */
};

enum vf_code vf_orders_create(uint32_t layer_count, uint32_t expert_count, struct vf_orders **out,
                              struct vf_err *err)
{
    *out = NULL;
    struct vf_orders *q = calloc(1, sizeof *q);
    uint32_t *places = calloc((size_t)layer_count * expert_count, sizeof *places);
    if (!q || !places) {
        free(q);
        free(places);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "fetch orders: out of memory");
    }
    q->layer_count = layer_count;
    q->expert_count = expert_count;
    q->place_plus1 = places;
    *out = q;
    return VF_OK;
}

void vf_orders_destroy(struct vf_orders *q)
{
    if (!q)
        return;
    free(q->heap);
    free(q->place_plus1);
    free(q);
}

static int class_of(const struct vf_cache_order *o)
{
    return o->demand ? 0 : o->speculative ? 2 : 1;
}

bool vf_order_before(const struct vf_cache_order *a, const struct vf_cache_order *b)
{
    int class_a = class_of(a), class_b = class_of(b);
    return class_a != class_b ? class_a < class_b : a->deadline < b->deadline;
}

void vf_order_merge(struct vf_cache_order *into, const struct vf_cache_order *order)
{
    if (order->speculative && !into->speculative)
        return;
    if (order->deadline < into->deadline || (into->speculative && !order->speculative)) {
        into->deadline = order->deadline;
        into->process = order->process;
    }
    into->demand = into->demand || order->demand;
    into->speculative = into->speculative && order->speculative;
}

bool vf_order_level(const struct vf_cache_order *a, const struct vf_cache_order *b)
{
    return !vf_order_before(a, b) && !vf_order_before(b, a);
}

static bool comes_before(const struct vf_cache_order *a, const struct vf_cache_order *b)
{
    if (!vf_order_level(a, b))
        return vf_order_before(a, b);
    return a->ref.layer != b->ref.layer ? a->ref.layer < b->ref.layer
                                        : a->ref.expert < b->ref.expert;
}

static uint32_t *place_of(const struct vf_orders *q, struct vf_expert_ref ref)
{
    VF_ASSERT(ref.layer < q->layer_count && ref.expert < q->expert_count);
    return &q->place_plus1[(size_t)ref.layer * q->expert_count + ref.expert];
}

static void set_at(struct vf_orders *q, uint32_t i, struct vf_cache_order e)
{
    q->heap[i] = e;
    *place_of(q, e.ref) = i + 1;
}

static void sift_up(struct vf_orders *q, uint32_t i)
{
    struct vf_cache_order e = q->heap[i];
    for (; i > 0 && comes_before(&e, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        set_at(q, i, q->heap[(i - 1) / 2]);
    set_at(q, i, e);
}

static void sift_down(struct vf_orders *q, uint32_t i)
{
    struct vf_cache_order e = q->heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= q->count)
            break;
        if (child + 1 < q->count && comes_before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!comes_before(&q->heap[child], &e))
            break;
        set_at(q, i, q->heap[child]);
        i = child;
    }
    set_at(q, i, e);
}

static bool grow(struct vf_orders *q)
{
    if (q->count < q->capacity)
        return true;
    uint32_t capacity = q->capacity ? q->capacity * 2 : 64;
    struct vf_cache_order *heap = realloc(q->heap, capacity * sizeof *heap);
    if (!heap)
        return false;
    q->heap = heap;
    q->capacity = capacity;
    return true;
}

/* Only ever makes the entry more urgent, so it can only move up. */
static void merge(struct vf_orders *q, uint32_t i, const struct vf_cache_order *order)
{
    vf_order_merge(&q->heap[i], order);
    sift_up(q, i);
}

enum vf_orders_put vf_orders_put(struct vf_orders *q, const struct vf_cache_order *order)
{
    uint32_t place = *place_of(q, order->ref);
    if (place) {
        merge(q, place - 1, order);
        return VF_ORDERS_MERGED;
    }
    if (!grow(q))
        return VF_ORDERS_NO_MEMORY;
    q->heap[q->count] = *order;
    sift_up(q, q->count++);
    return VF_ORDERS_NEW;
}

uint32_t vf_orders_count(const struct vf_orders *q)
{
    return q->count;
}

const struct vf_cache_order *vf_orders_first(const struct vf_orders *q)
{
    return q->count ? &q->heap[0] : NULL;
}

const struct vf_cache_order *vf_orders_find(const struct vf_orders *q, struct vf_expert_ref ref)
{
    uint32_t place = *place_of(q, ref);
    return place ? &q->heap[place - 1] : NULL;
}

/* The last one fills the gap; it may belong above it, or below. */
void vf_orders_take(struct vf_orders *q, struct vf_expert_ref ref)
{
    uint32_t place = *place_of(q, ref);
    VF_ASSERT(place > 0);
    *place_of(q, ref) = 0;
    uint32_t i = place - 1;
    if (i == --q->count)
        return;
    q->heap[i] = q->heap[q->count];
    sift_up(q, i);
    sift_down(q, *place_of(q, q->heap[i].ref) - 1);
}
