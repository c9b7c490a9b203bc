/* The orders by their expert's key, and a heap of the keys that have one. */
#include "io_worker/orders.h"

#include "common/base/index_heap.h"

#include <stdlib.h>

struct vf_orders {
    uint32_t layer_count, expert_count;
    /* All [layers * experts]; memory that no order has used yet is none. */
    struct vf_cache_order *orders;
    uint32_t *items, *places; /* the heap's */
    uint32_t count;
    struct vf_index_heap heap;
};

/* ---- which one goes first ------------------------------------------------------------------ */

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

static bool key_before(const void *ctx, uint32_t a, uint32_t b)
{
    const struct vf_orders *q = ctx;
    return comes_before(&q->orders[a], &q->orders[b]);
}

/* ---- life ---------------------------------------------------------------------------------- */

static uint32_t *place_of(void *ctx, uint32_t key)
{
    return &((struct vf_orders *)ctx)->places[key];
}

enum vf_code vf_orders_create(uint32_t layer_count, uint32_t expert_count, struct vf_orders **out,
                              struct vf_err *err)
{
    *out = NULL;
    struct vf_orders *q = calloc(1, sizeof *q);
    if (!q)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "fetch orders: out of memory");
    uint32_t keys = layer_count * expert_count;
    q->layer_count = layer_count;
    q->expert_count = expert_count;
    q->orders = calloc(keys, sizeof *q->orders);
    q->items = calloc(keys, sizeof *q->items);
    q->places = calloc(keys, sizeof *q->places);
    q->heap = (struct vf_index_heap){.items = q->items,
                                     .count = &q->count,
                                     .capacity = keys,
                                     .item_limit = keys,
                                     .before = key_before,
                                     .place = place_of,
                                     .ctx = q};
    if (!q->orders || !q->items || !q->places) {
        vf_orders_destroy(q);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "fetch orders: out of memory");
    }
    *out = q;
    return VF_OK;
}

void vf_orders_destroy(struct vf_orders *q)
{
    if (!q)
        return;
    free(q->orders);
    free(q->items);
    free(q->places);
    free(q);
}

/* ---- the queue ----------------------------------------------------------------------------- */

static uint32_t key_of(const struct vf_orders *q, struct vf_expert_ref ref)
{
    VF_ASSERT(ref.layer < q->layer_count && ref.expert < q->expert_count);
    return ref.layer * q->expert_count + ref.expert;
}

enum vf_orders_put vf_orders_put(struct vf_orders *q, const struct vf_cache_order *order)
{
    uint32_t key = key_of(q, order->ref);
    if (q->places[key]) {
        vf_order_merge(&q->orders[key], order);
        vf_index_heap_update(&q->heap, key);
        return VF_ORDERS_MERGED;
    }
    q->orders[key] = *order;
    vf_index_heap_add(&q->heap, key);
    return VF_ORDERS_NEW;
}

const struct vf_cache_order *vf_orders_first(struct vf_orders *q)
{
    uint32_t key;
    return vf_index_heap_first(&q->heap, &key) ? &q->orders[key] : NULL;
}

const struct vf_cache_order *vf_orders_find(const struct vf_orders *q, struct vf_expert_ref ref)
{
    uint32_t key = key_of(q, ref);
    return q->places[key] ? &q->orders[key] : NULL;
}

void vf_orders_take(struct vf_orders *q, struct vf_expert_ref ref)
{
    uint32_t key = key_of(q, ref);
    VF_ASSERT(q->places[key] > 0);
    vf_index_heap_remove(&q->heap, key);
}
