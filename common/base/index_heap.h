/* A binary heap of items numbered 0 to item_limit - 1 that knows where each item stands, so that
 * any of them can be taken out or moved; the first one is at hand at once, everything else takes
 * O(log n).
 *
 * The heap owns nothing. Its memory may lie in shared memory: whatever is read from there is
 * checked, nothing outside the arrays is ever touched, and what can't be true is told in `broken`,
 * after which the heap's order means nothing until its owner has filled it anew.
 */
#ifndef VF_COMMON_BASE_INDEX_HEAP_H
#define VF_COMMON_BASE_INDEX_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct vf_index_heap {
    uint32_t *items; /* [capacity] */
    uint32_t *count; /* 0 to capacity */
    uint32_t capacity, item_limit;
    /* Whether a stands before b. Must be false for equal items. */
    bool (*before)(const void *ctx, uint32_t a, uint32_t b);
    /* Where the item's place is kept: 0 when it is in no heap, else its index + 1. */
    uint32_t *(*place)(void *ctx, uint32_t item);
    void *ctx;
    bool broken;
};

/* The heap's first item; false when it is empty. */
bool vf_index_heap_first(struct vf_index_heap *h, uint32_t *item);
/* item < item_limit must be in no heap that shares its place. */
void vf_index_heap_add(struct vf_index_heap *h, uint32_t item);
/* Nothing happens when the item is in no heap. */
void vf_index_heap_remove(struct vf_index_heap *h, uint32_t item);
/* The item's rank changed: puts it where it belongs. Nothing happens when it is in no heap. */
void vf_index_heap_update(struct vf_index_heap *h, uint32_t item);

#endif
