/* Buffers laid out behind each other in one piece of memory.
 *
 * An arena without a base only counts. So one function that takes all buffers first says how large
 * the memory must be and then, with a base of that size, carves it: what is counted and what is
 * used can't differ. Every buffer starts on a cache line, and behind it lies one that nobody may
 * touch, which builds with the address sanitizer watch.
 */
#ifndef VF_COMMON_BASE_ARENA_H
#define VF_COMMON_BASE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#define VF_ARENA_ALIGN 64u

struct vf_arena {
    uint8_t *base;  /* NULL: counts; else aligned to VF_ARENA_ALIGN */
    uint64_t used;  /* bytes so far, a multiple of VF_ARENA_ALIGN */
    bool too_large; /* sticky: a buffer, or all of them, can't be addressed */
};

/* A buffer of count x width elements; NULL when it is empty or the arena counts. */
void *vf_arena_take(struct vf_arena *a, uint64_t count, uint64_t width, uint64_t element_bytes);

#endif
