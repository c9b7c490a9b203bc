/* A hash table from 64-bit keys to two 32-bit values: BPE merges and the edges of the
 * added-token tree. Its hash is seeded from the system, so a file can't be made whose keys all
 * collide. Read-only use is thread-safe.
 */
#ifndef VF_COMMON_TOKENIZER_U64_MAP_H
#define VF_COMMON_TOKENIZER_U64_MAP_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct vf_u64_entry {
    uint64_t key;
    uint32_t a, b;
};
struct vf_u64_map {
    struct vf_u64_entry *slots; /* b of an empty slot is UINT32_MAX */
    size_t slot_count;          /* a power of two */
    size_t count;
    uint64_t seed[2];
};

/* Room for `expect` keys at first; grows by itself. */
enum vf_code vf_u64_map_init(struct vf_u64_map *m, size_t expect, struct vf_err *err);
void vf_u64_map_deinit(struct vf_u64_map *m);
/* Sets key's values (b is not UINT32_MAX), replacing those it had. */
enum vf_code vf_u64_map_put(struct vf_u64_map *m, uint64_t key, uint32_t a, uint32_t b,
                            struct vf_err *err);
/* NULL when key isn't there. */
const struct vf_u64_entry *vf_u64_map_get(const struct vf_u64_map *m, uint64_t key);

/* Random bits for a hash seed. */
enum vf_code vf_hash_seed(uint64_t *seed, size_t count, struct vf_err *err);

#endif
