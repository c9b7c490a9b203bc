#include "common/tokenizer/u64_map.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

enum vf_code vf_hash_seed(uint64_t *seed, size_t count, struct vf_err *err)
{
    size_t bytes = count * sizeof(*seed);
    ssize_t got = getrandom(seed, bytes, 0);
    if (got < 0 || (size_t)got != bytes)
        return vf_err_errno(err, VF_ERR_IO, got < 0 ? errno : EIO, "random bits for a hash seed");
    return VF_OK;
}

static enum vf_code alloc_slots(struct vf_u64_map *m, size_t slot_count, struct vf_err *err)
{
    m->slots = malloc(slot_count * sizeof(*m->slots));
    if (!m->slots)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for a table of %zu slots",
                          slot_count);
    m->slot_count = slot_count;
    for (size_t i = 0; i < slot_count; i++)
        m->slots[i].b = UINT32_MAX;
    return VF_OK;
}

enum vf_code vf_u64_map_init(struct vf_u64_map *m, size_t expect, struct vf_err *err)
{
    *m = (struct vf_u64_map){0};
    enum vf_code code = vf_hash_seed(m->seed, 2, err);
    if (code != VF_OK)
        return code;
    size_t slot_count = 16;
    while (slot_count < expect * 2)
        slot_count *= 2;
    return alloc_slots(m, slot_count, err);
}

void vf_u64_map_deinit(struct vf_u64_map *m)
{
    free(m->slots);
    *m = (struct vf_u64_map){0};
}

/* Folded 128-bit products with two secret factors. */
static uint64_t hash(const struct vf_u64_map *m, uint64_t key)
{
    unsigned __int128 p = (unsigned __int128)(key ^ m->seed[0]) * (m->seed[1] | 1);
    uint64_t h = (uint64_t)p ^ (uint64_t)(p >> 64);
    p = (unsigned __int128)(h ^ m->seed[1]) * 0x9e3779b97f4a7c15u;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static struct vf_u64_entry *slot_of(const struct vf_u64_map *m, uint64_t key)
{
    size_t i = hash(m, key) & (m->slot_count - 1);
    while (m->slots[i].b != UINT32_MAX && m->slots[i].key != key)
        i = (i + 1) & (m->slot_count - 1);
    return &m->slots[i];
}

static enum vf_code double_slots(struct vf_u64_map *m, struct vf_err *err)
{
    struct vf_u64_map old = *m;
    enum vf_code code = alloc_slots(m, old.slot_count * 2, err);
    if (code != VF_OK) {
        m->slots = old.slots;
        return code;
    }
    for (size_t i = 0; i < old.slot_count; i++)
        if (old.slots[i].b != UINT32_MAX)
            *slot_of(m, old.slots[i].key) = old.slots[i];
    free(old.slots);
    return VF_OK;
}

enum vf_code vf_u64_map_put(struct vf_u64_map *m, uint64_t key, uint32_t a, uint32_t b,
                            struct vf_err *err)
{
    if ((m->count + 1) * 2 > m->slot_count) {
        enum vf_code code = double_slots(m, err);
        if (code != VF_OK)
            return code;
    }
    struct vf_u64_entry *e = slot_of(m, key);
    if (e->b == UINT32_MAX)
        m->count++;
    *e = (struct vf_u64_entry){.key = key, .a = a, .b = b};
    return VF_OK;
}

const struct vf_u64_entry *vf_u64_map_get(const struct vf_u64_map *m, uint64_t key)
{
    const struct vf_u64_entry *e = slot_of(m, key);
    return e->b == UINT32_MAX ? NULL : e;
}
