/* Keys and values of the attention operations one worker runs.
 *
 * One cache per effective layer, sequence slot and KV head, each of `context` positions rounded up
 * to whole attention blocks. Keys lie 16 positions side by side (see vf_attn_args), values row by
 * row. Memory is mapped lazily: positions never written cost nothing. Positions may be overwritten.
 */
#ifndef VF_STAGE_WORKER_KV_CACHE_H
#define VF_STAGE_WORKER_KV_CACHE_H

#include "common/base/err.h"
#include "common/kernels/kernels.h"
#include "common/model/step_memory.h"

struct vf_kv_cache;
enum vf_code vf_kv_cache_create(const struct vf_kv_shape *shape, struct vf_kv_cache **out,
                                struct vf_err *err);
void vf_kv_cache_destroy(struct vf_kv_cache *kv);
uint64_t vf_kv_cache_bytes(const struct vf_kv_cache *kv);

/* Stores one position's key and value of one KV head, [head_dim] f32 each. */
void vf_kv_cache_put(struct vf_kv_cache *kv, const struct vf_kernels *kernels, uint32_t layer,
                     uint32_t sequence, uint32_t kv_head, uint32_t position, const float *key,
                     const float *value);
/* Whether a position's key and value of one head are finite; *of_key and *is_nan tell of the first
 * number that isn't. */
bool vf_kv_cache_finite(const struct vf_kv_cache *kv, uint32_t layer, uint32_t sequence,
                        uint32_t kv_head, uint32_t position, bool *of_key, bool *is_nan);
/* The keys and values of one block of VF_ATTN_BLOCK positions. */
void vf_kv_cache_block(const struct vf_kv_cache *kv, uint32_t layer, uint32_t sequence,
                       uint32_t kv_head, uint32_t block, const void **keys, const void **values);

#endif
