#include "common/base/arena.h"

#include "common/base/util.h"

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define GUARD(at, bytes) __asan_poison_memory_region(at, bytes)
#else
#define GUARD(at, bytes) ((void)0)
#endif

#define BYTES_MAX ((uint64_t)1 << 46) /* beyond any address space we map */

static uint64_t mul(struct vf_arena *a, uint64_t x, uint64_t y)
{
    uint64_t out;
    if (vf_mul_u64(x, y, &out) && out <= BYTES_MAX)
        return out;
    a->too_large = true;
    return 0;
}

void *vf_arena_take(struct vf_arena *a, uint64_t count, uint64_t width, uint64_t element_bytes)
{
    uint64_t bytes = mul(a, mul(a, count, width), element_bytes), at = a->used;
    if (bytes == 0)
        return NULL;
    uint64_t end = at + vf_round_up(bytes, VF_ARENA_ALIGN) + VF_ARENA_ALIGN;
    if (end > BYTES_MAX) {
        a->too_large = true;
        return NULL;
    }
    a->used = end;
    if (!a->base)
        return NULL;
    GUARD(a->base + at + bytes, end - at - bytes);
    return a->base + at;
}
