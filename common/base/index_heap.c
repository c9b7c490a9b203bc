#include "common/base/index_heap.h"

#include "common/base/util.h"

static uint32_t count_of(struct vf_index_heap *h)
{
    if (*h->count <= h->capacity)
        return *h->count;
    h->broken = true;
    return h->capacity;
}

static uint32_t item_at(struct vf_index_heap *h, uint32_t i)
{
    uint32_t item = h->items[i];
    if (item < h->item_limit)
        return item;
    h->broken = true;
    return 0;
}

static void put(struct vf_index_heap *h, uint32_t i, uint32_t item)
{
    h->items[i] = item;
    *h->place(h->ctx, item) = i + 1;
}

static void sift_up(struct vf_index_heap *h, uint32_t i, uint32_t item)
{
    while (i > 0) {
        uint32_t above = item_at(h, (i - 1) / 2);
        if (!h->before(h->ctx, item, above))
            break;
        put(h, i, above);
        i = (i - 1) / 2;
    }
    put(h, i, item);
}

static void sift_down(struct vf_index_heap *h, uint32_t i, uint32_t item, uint32_t count)
{
    for (;;) {
        uint64_t child = 2ull * i + 1;
        if (child >= count)
            break;
        uint32_t below = item_at(h, (uint32_t)child);
        if (child + 1 < count) {
            uint32_t other = item_at(h, (uint32_t)child + 1);
            if (h->before(h->ctx, other, below)) {
                below = other;
                child++;
            }
        }
        if (!h->before(h->ctx, below, item))
            break;
        put(h, i, below);
        i = (uint32_t)child;
    }
    put(h, i, item);
}

/* The item at i is new there or has another rank. */
static void settle(struct vf_index_heap *h, uint32_t i, uint32_t item, uint32_t count)
{
    if (i > 0 && h->before(h->ctx, item, item_at(h, (i - 1) / 2)))
        sift_up(h, i, item);
    else
        sift_down(h, i, item, count);
}

bool vf_index_heap_first(struct vf_index_heap *h, uint32_t *item)
{
    if (count_of(h) == 0)
        return false;
    *item = item_at(h, 0);
    return true;
}

void vf_index_heap_add(struct vf_index_heap *h, uint32_t item)
{
    VF_ASSERT(item < h->item_limit);
    uint32_t count = count_of(h);
    if (count == h->capacity) {
        h->broken = true;
        return;
    }
    *h->count = count + 1;
    sift_up(h, count, item);
}

/* Where the item stands, or capacity when the heap doesn't have it. */
static uint32_t find(struct vf_index_heap *h, uint32_t item)
{
    VF_ASSERT(item < h->item_limit);
    uint32_t place = *h->place(h->ctx, item);
    if (place == 0)
        return h->capacity;
    if (place <= count_of(h) && h->items[place - 1] == item)
        return place - 1;
    h->broken = true;
    return h->capacity;
}

void vf_index_heap_remove(struct vf_index_heap *h, uint32_t item)
{
    uint32_t i = find(h, item);
    *h->place(h->ctx, item) = 0;
    if (i == h->capacity)
        return;
    uint32_t last = count_of(h) - 1;
    uint32_t moved = item_at(h, last);
    *h->count = last;
    if (i != last)
        settle(h, i, moved, last);
}

void vf_index_heap_update(struct vf_index_heap *h, uint32_t item)
{
    uint32_t i = find(h, item);
    if (i != h->capacity)
        settle(h, i, item, count_of(h));
}
