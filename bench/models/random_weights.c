#include "bench/models/random_weights.h"

#include "common/tile/tile.h"

#include <math.h>
#include <string.h>

#define GOLDEN 0x9e3779b97f4a7c15ull
#define LOW3   0x7777777777777777ull /* three bits of each nibble */
#define ZEROS  0x8888888888888888ull /* the code of weight 0 in each nibble */

/* Of a code: the difference of two uniform numbers out of 0..7. */
#define CODE_DEVIATION 3.2403703f /* sqrt(2 * 63 / 12) */
/* Of a sum of twelve uniform 16-bit numbers. */
#define SUM_MEAN      (12 * 65535 / 2)
#define SUM_DEVIATION 65536.0f

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct bench_random bench_random_row(uint64_t seed, struct vf_tensor_id id, uint64_t row)
{
    uint64_t stream = mix(seed ^ mix(id.kind + 1ull) ^ mix(id.layer + (1ull << 20)) ^
                          mix(id.expert + (1ull << 40)) ^ mix(id.flow + (1ull << 56)));
    return (struct bench_random){mix(stream + row)};
}

/* splitmix64 */
uint64_t bench_random_next(struct bench_random *r)
{
    return mix(r->state += GOLDEN);
}

float bench_random_uniform(struct bench_random *r)
{
    return (float)((int64_t)bench_random_next(r) >> 40) * 0x1p-23f;
}

float bench_random_normal(struct bench_random *r)
{
    int32_t sum = -SUM_MEAN;
    for (int i = 0; i < 3; i++) {
        uint64_t bits = bench_random_next(r);
        sum += (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
               (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);
    }
    return (float)sum / SUM_DEVIATION;
}

void bench_random_groups(struct bench_random *r, uint32_t cols, float deviation, uint8_t *groups)
{
    float scale = deviation / CODE_DEVIATION;
    for (uint32_t g = 0; g < cols / VF_RECORD_COLS; g++) {
        float wander = (float)(bench_random_next(r) >> 40) * 0x1p-24f; /* [0, 1) */
        uint16_t half = vf_f32_to_f16(scale * (0.75f + 0.5f * wander));
        uint64_t codes[2] = {ZEROS, ZEROS};
        for (int i = 0; i < 2; i++) {
            uint64_t up = bench_random_next(r) & LOW3, down = bench_random_next(r) & LOW3;
            codes[i] = half ? ZEROS + up - down : ZEROS; /* within 1..15: no nibble borrows */
        }
        memcpy(groups, &half, sizeof half);
        memcpy(groups + sizeof half, codes, sizeof codes);
        groups += sizeof half + sizeof codes;
    }
}

void bench_expand_groups(const uint8_t *groups, uint32_t cols, float *row)
{
    uint32_t bytes = vf_group_bytes(VF_QUANT_Q4);
    for (uint32_t g = 0; g < cols / VF_RECORD_COLS; g++, groups += bytes, row += VF_RECORD_COLS) {
        float scale = vf_f16_to_f32((uint16_t)(groups[0] | groups[1] << 8));
        for (uint32_t i = 0; i < VF_RECORD_COLS / 2; i++) {
            uint8_t pair = groups[2 + i];
            row[i] = scale * (float)((int)(pair & 15) - 8);
            row[VF_RECORD_COLS / 2 + i] = scale * (float)((int)(pair >> 4) - 8);
        }
    }
}
