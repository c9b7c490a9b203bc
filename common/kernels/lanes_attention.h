/* attention_block over sixteen lanes: keys are lanes for the scores, dimensions for the values.
 *
 * Up to ATTN_QUERIES queries run together, so that a group of sixteen keys is fetched once and
 * stays in the first-level cache for all of them. Included after lanes_vector.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_ATTENTION_H
#define VF_COMMON_KERNELS_LANES_ATTENTION_H

#include "common/kernels/lanes_vector.h"

#define ATTN_QUERIES 8u

struct attention {
    const struct vf_attn_args *args;
    float p[ATTN_QUERIES][VF_ATTN_BLOCK]; /* scores, then weights */
    lanes max[ATTN_QUERIES];
};

static ALWAYS_INLINE lanes load_kv(const void *kv, bool f16, size_t i)
{
    return f16 ? lanes_load_f16((const uint16_t *)kv + i) : lanes_load((const float *)kv + i);
}

static ALWAYS_INLINE lanes load_kv_part(const void *kv, bool f16, size_t i, uint32_t count)
{
    return f16 ? lanes_load_part_f16((const uint16_t *)kv + i, count)
               : lanes_load_part((const float *)kv + i, count, 0.0f);
}

/* The counted keys of the group that starts at key t. */
static inline lanes_mask counted_keys(const struct vf_attn_args *a, uint32_t t)
{
    uint32_t begin = a->key_begin > t ? a->key_begin - t : 0;
    return lanes_between(begin, lanes_left(a->key_end, t));
}

/* Scores of sixteen keys from t on for `count` queries (a constant) from the first-th on. */
static ALWAYS_INLINE void score_keys(struct attention *at, bool f16, const float *q, uint32_t t,
                                     uint32_t first, uint32_t count)
{
    const struct vf_attn_args *a = at->args;
    size_t k = (size_t)t * a->head_dim;
    lanes chain[SCORE_QUERIES][4];
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t c = 0; c < 4; c++)
            chain[j][c] = lanes_zero();
    for (uint32_t i = 0; i < a->head_dim; i += 4) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++) {
            if (i + c >= a->head_dim)
                break;
            lanes key = load_kv(a->k, f16, k + (size_t)(i + c) * LANES);
#pragma GCC unroll 4
            for (uint32_t j = 0; j < count; j++)
                chain[j][c] =
                    lanes_fma(lanes_set(q[(first + j) * a->q_stride + i + c]), key, chain[j][c]);
        }
    }
    lanes_mask counted = counted_keys(a, t);
    for (uint32_t j = 0; j < count; j++) {
        lanes s =
            lanes_add(lanes_add(chain[j][0], chain[j][1]), lanes_add(chain[j][2], chain[j][3]));
        s = lanes_mul(s, lanes_set(a->scale));
        if (a->softcap > 0.0f)
            s = lanes_softcap(a->softcap, s);
        s = lanes_select(counted, s, lanes_set(-INFINITY));
        lanes_store(at->p[first + j] + t, s);
        at->max[first + j] = lanes_max(at->max[first + j], s);
    }
}

static ALWAYS_INLINE void score_queries(struct attention *at, bool f16, const float *q,
                                        uint32_t count)
{
    for (uint32_t j = 0; j < count; j++)
        at->max[j] = lanes_set(-INFINITY);
    uint32_t begin = at->args->key_begin / LANES * LANES;
    for (uint32_t t = begin; t < at->args->key_end; t += LANES) {
        uint32_t j = 0;
        for (; j + SCORE_QUERIES <= count; j += SCORE_QUERIES)
            score_keys(at, f16, q, t, j, SCORE_QUERIES);
        for (; j < count; j++)
            score_keys(at, f16, q, t, j, 1);
    }
}

/* Scores to weights exp(s - max); fills the query's max and sum. */
static inline void weigh_keys(struct attention *at, uint32_t j, float *max, float *sum)
{
    const struct vf_attn_args *a = at->args;
    lanes total = lanes_zero();
    *max = lanes_fold_max(at->max[j]);
    for (uint32_t t = a->key_begin / LANES * LANES; t < a->key_end; t += LANES) {
        lanes e = lanes_exp(lanes_sub(lanes_load(at->p[j] + t), lanes_set(*max)));
        e = lanes_select(counted_keys(a, t), e, lanes_zero());
        lanes_store(at->p[j] + t, e);
        total = lanes_add(total, e);
    }
    *sum = lanes_fold_add(total);
}

/* `vectors` registers of dimensions from i on for `count` queries (both constant); only the
 * last register may be partial. */
static ALWAYS_INLINE void sum_values(const struct attention *at, bool f16, float *out, uint32_t i,
                                     uint32_t vectors, uint32_t first, uint32_t count)
{
    const struct vf_attn_args *a = at->args;
    uint32_t last_count = lanes_left(a->head_dim, i + (vectors - 1) * LANES);
    lanes acc[VALUE_QUERIES][VALUE_VECTORS];
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t v = 0; v < vectors; v++)
            acc[j][v] = lanes_zero();
    for (uint32_t t = a->key_begin; t < a->key_end; t++) {
        size_t row = (size_t)t * a->head_dim + i;
#pragma GCC unroll 4
        for (uint32_t v = 0; v < vectors; v++) {
            lanes value = vectors > 1 ? load_kv(a->v, f16, row + v * LANES)
                                      : load_kv_part(a->v, f16, row, last_count);
#pragma GCC unroll 4
            for (uint32_t j = 0; j < count; j++)
                acc[j][v] = lanes_fma(lanes_set(at->p[first + j][t]), value, acc[j][v]);
        }
    }
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t v = 0; v < vectors; v++)
            lanes_store_part(out + (first + j) * a->out_stride + i + v * LANES,
                             vectors > 1 ? LANES : last_count, acc[j][v]);
}

static ALWAYS_INLINE void sum_value_queries(const struct attention *at, bool f16, float *out,
                                            uint32_t first, uint32_t count)
{
    uint32_t i = 0;
    for (; i + VALUE_VECTORS * LANES <= at->args->head_dim; i += VALUE_VECTORS * LANES)
        sum_values(at, f16, out, i, VALUE_VECTORS, first, count);
    for (; i < at->args->head_dim; i += LANES)
        sum_values(at, f16, out, i, 1, first, count);
}

static ALWAYS_INLINE void attend(struct attention *at, bool f16, uint32_t query, uint32_t count)
{
    const struct vf_attn_args *a = at->args;
    float *out = a->out + query * a->out_stride;
    score_queries(at, f16, a->q + query * a->q_stride, count);
    for (uint32_t j = 0; j < count; j++)
        weigh_keys(at, j, a->max + query + j, a->sum + query + j);
    uint32_t j = 0;
    for (; j + VALUE_QUERIES <= count; j += VALUE_QUERIES)
        sum_value_queries(at, f16, out, j, VALUE_QUERIES);
    for (; j < count; j++)
        sum_value_queries(at, f16, out, j, 1);
}

static void attention_block(const struct vf_attn_args *args)
{
    VF_ASSERT(args->key_begin < args->key_end && args->key_end <= VF_ATTN_BLOCK);
    struct attention at;
    at.args = args;
    for (uint32_t query = 0; query < args->n_q; query += ATTN_QUERIES) {
        uint32_t left = args->n_q - query;
        uint32_t count = left < ATTN_QUERIES ? left : ATTN_QUERIES;
        if (args->kv_f16)
            attend(&at, true, query, count);
        else
            attend(&at, false, query, count);
    }
}

#endif
