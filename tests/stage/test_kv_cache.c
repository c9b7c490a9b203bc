/* Keys come back 16 positions side by side, values row by row, for f16 and f32, per head and
 * sequence; the layout is recomputed here from the comment of struct vf_attn_args. */
#include "stage_worker/kv_cache.h"
#include "tap.h"

#include <stdlib.h>

static float value_at(uint32_t seq, uint32_t head, uint32_t pos, uint32_t i, int key)
{
    /* small integers: exact in f16 */
    return (float)((int)(seq * 31 + head * 17 + pos * 7 + i * 3 + (uint32_t)key * 5) % 2000 - 1000);
}

static int check(int f16, uint32_t hd, uint32_t positions)
{
    const struct vf_kernels *kernels;
    struct vf_err err;
    if (vf_kernels_get(VF_KERNEL_SCALAR, &kernels, &err) != VF_OK)
        return 0;
    struct vf_kv_shape shape = {.layers = 2,
                                .sequences = 2,
                                .kv_heads = 3,
                                .head_dim = hd,
                                .context = positions,
                                .f16 = f16};
    struct vf_kv_cache *kv;
    if (vf_kv_cache_create(&shape, &kv, &err) != VF_OK)
        return 0;
    float *k = malloc(hd * sizeof *k), *v = malloc(hd * sizeof *v);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t p = 0; p < positions; p++) {
                for (uint32_t i = 0; i < hd; i++) {
                    k[i] = value_at(s, h, p, i, 1);
                    v[i] = value_at(s, h, p, i, 0);
                }
                vf_kv_cache_put(kv, kernels, 1, s, h, p, k, v);
            }
    int good = 1;
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t p = 0; p < positions; p++) {
                const void *keys, *values;
                uint32_t t = p % VF_ATTN_BLOCK;
                vf_kv_cache_block(kv, 1, s, h, p / VF_ATTN_BLOCK, &keys, &values);
                for (uint32_t i = 0; i < hd; i++) {
                    size_t ka = (size_t)(t / 16) * hd * 16 + i * 16 + t % 16, va = t * hd + i;
                    float kf = f16 ? vf_f16_to_f32(((const uint16_t *)keys)[ka])
                                   : ((const float *)keys)[ka];
                    float vf = f16 ? vf_f16_to_f32(((const uint16_t *)values)[va])
                                   : ((const float *)values)[va];
                    good &= kf == value_at(s, h, p, i, 1) && vf == value_at(s, h, p, i, 0);
                }
            }
    free(k);
    free(v);
    vf_kv_cache_destroy(kv);
    return good;
}

int main(void)
{
    plan(5);
    ok(check(1, 16, 40), "f16, head of 16, 40 positions");
    ok(check(0, 16, 40), "f32, head of 16, 40 positions");
    ok(check(1, 6, 300), "f16, head of 6, over a block boundary");
    ok(check(0, 80, 257), "f32, head of 80, over a block boundary");
    struct vf_kv_shape absurd = {.layers = 4096,
                                 .sequences = 1u << 16,
                                 .kv_heads = 4096,
                                 .head_dim = 1024,
                                 .context = 1u << 24,
                                 .f16 = 1};
    struct vf_kv_cache *kv;
    struct vf_err err;
    ok(vf_kv_cache_create(&absurd, &kv, &err) == VF_ERR_LIMIT, "an absurd size is refused");
    return 0;
}
