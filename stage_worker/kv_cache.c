#include "stage_worker/kv_cache.h"

#include "common/base/util.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(VF_KEY_BLOCK == VF_ATTN_BLOCK, "attention's blocks are what the plan counts");

struct vf_kv_cache {
    struct vf_kv_shape shape;
    uint64_t element_bytes; /* 2 or 4 */
    uint64_t head_bytes;    /* keys (or values) of one head of one sequence in one layer */
    uint64_t bytes;
    uint8_t *base; /* per (layer, sequence, head): keys, then values */
};

enum vf_code vf_kv_cache_create(const struct vf_kv_shape *shape, struct vf_kv_cache **out,
                                struct vf_err *err)
{
    struct vf_kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a KV cache");
    kv->shape = *shape;
    kv->element_bytes = shape->f16 ? 2 : 4;
    kv->head_bytes = vf_kv_head_bytes(shape);
    uint64_t bytes;
    enum vf_code code = vf_kv_bytes(shape, &bytes, err);
    if (code != VF_OK) {
        free(kv);
        return code;
    }
    kv->bytes = bytes;
    if (bytes > 0) {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            vf_err_errno(err, VF_ERR_NO_MEMORY, errno, "mapping a KV cache of %llu bytes",
                         (unsigned long long)bytes);
            free(kv);
            return VF_ERR_NO_MEMORY;
        }
        kv->base = base;
    }
    *out = kv;
    return VF_OK;
}

void vf_kv_cache_destroy(struct vf_kv_cache *kv)
{
    if (!kv)
        return;
    if (kv->base)
        munmap(kv->base, kv->bytes);
    free(kv);
}

uint64_t vf_kv_cache_bytes(const struct vf_kv_cache *kv)
{
    return kv->bytes;
}

static uint8_t *head_base(const struct vf_kv_cache *kv, uint32_t layer, uint32_t sequence,
                          uint32_t kv_head)
{
    uint64_t idx =
        ((uint64_t)layer * kv->shape.sequences + sequence) * kv->shape.kv_heads + kv_head;
    return kv->base + idx * 2 * kv->head_bytes;
}

void vf_kv_cache_put(struct vf_kv_cache *kv, const struct vf_kernels *kernels, uint32_t layer,
                     uint32_t sequence, uint32_t kv_head, uint32_t position, const float *key,
                     const float *value)
{
    uint32_t hd = kv->shape.head_dim;
    uint8_t *keys = head_base(kv, layer, sequence, kv_head);
    uint8_t *values = keys + kv->head_bytes;
    uint64_t first = (uint64_t)(position / 16) * hd * 16 + position % 16;
    if (kv->shape.f16) {
        uint16_t half[VF_HEAD_DIM_MAX];
        kernels->f32_to_f16(key, hd, half);
        for (uint32_t i = 0; i < hd; i++)
            ((uint16_t *)keys)[first + (uint64_t)i * 16] = half[i];
        kernels->f32_to_f16(value, hd, (uint16_t *)values + (uint64_t)position * hd);
    } else {
        for (uint32_t i = 0; i < hd; i++)
            ((float *)keys)[first + (uint64_t)i * 16] = key[i];
        memcpy((float *)values + (uint64_t)position * hd, value, hd * sizeof *value);
    }
}

static float number_at(const struct vf_kv_cache *kv, const uint8_t *base, uint64_t i)
{
    return kv->shape.f16 ? vf_f16_to_f32(((const uint16_t *)(const void *)base)[i])
                         : ((const float *)(const void *)base)[i];
}

bool vf_kv_cache_finite(const struct vf_kv_cache *kv, uint32_t layer, uint32_t sequence,
                        uint32_t kv_head, uint32_t position, bool *of_key, bool *is_nan)
{
    uint32_t hd = kv->shape.head_dim;
    const uint8_t *keys = head_base(kv, layer, sequence, kv_head);
    uint64_t first = (uint64_t)(position / 16) * hd * 16 + position % 16;
    for (uint32_t i = 0; i < hd; i++) {
        float key = number_at(kv, keys, first + (uint64_t)i * 16);
        float value = number_at(kv, keys + kv->head_bytes, (uint64_t)position * hd + i);
        *of_key = !isfinite(key);
        *is_nan = isnan(*of_key ? key : value);
        if (*of_key || !isfinite(value))
            return false;
    }
    return true;
}

void vf_kv_cache_block(const struct vf_kv_cache *kv, uint32_t layer, uint32_t sequence,
                       uint32_t kv_head, uint32_t block, const void **keys, const void **values)
{
    const uint8_t *base = head_base(kv, layer, sequence, kv_head);
    uint64_t offset = (uint64_t)block * VF_ATTN_BLOCK * kv->shape.head_dim * kv->element_bytes;
    *keys = base + offset;
    *values = base + kv->head_bytes + offset;
}
