/* attention_block over sixteen lanes: keys are lanes for the scores, dimensions for the values.
 *
 * Up to ATTN_QUERIES queries run together, ATTN_TILE of them at a time in registers, so that a
 * group of sixteen keys is fetched once, converted once per tile, and stays in the first-level
 * cache for all tiles. While the scores run over the keys, the values of the same keys are
 * fetched. Where the queries of a tile count different keys, those that all count run together
 * and the rest query by query, in the same order. Included after lanes_vector.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_ATTENTION_H
#define VF_COMMON_KERNELS_LANES_ATTENTION_H

#include "common/kernels/kernels_tiers.h"
#include "common/kernels/lanes_vector.h"
#include "common/kernels/lanes_walk.h"

#define ATTN_QUERIES 16u

struct attention {
    const struct vf_attn_args *args;
    uint32_t count; /* queries at hand */
    const float *q[ATTN_QUERIES];
    float *out[ATTN_QUERIES];
    struct vf_attn_keys keys[ATTN_QUERIES];
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

/* The keys that any of the queries [first, first + count) counts; all of them if `all`. */
static inline struct vf_attn_keys keys_of(const struct attention *at, uint32_t first,
                                          uint32_t count, bool all)
{
    struct vf_attn_keys r = at->keys[first];
    for (uint32_t j = first + 1; j < first + count; j++) {
        struct vf_attn_keys k = at->keys[j];
        if (all ? k.begin > r.begin : k.begin < r.begin)
            r.begin = k.begin;
        if (all ? k.end < r.end : k.end > r.end)
            r.end = k.end;
    }
    return r;
}

/* Those of the sixteen keys from t on that a query counts. */
static inline lanes_mask counted_keys(struct vf_attn_keys keys, uint32_t t)
{
    uint32_t begin = keys.begin > t ? smaller(keys.begin - t, LANES) : 0;
    uint32_t end = keys.end > t ? smaller(keys.end - t, LANES) : 0;
    return lanes_between(begin < end ? begin : end, end);
}

/* ---- scores ---- */

/* Sixteen elements of the keys are at hand; those of the next group of keys and the values of this
 * one are on their way while it is computed, line by line, since a burst of them stalls the loads
 * behind it. */
static ALWAYS_INLINE void fetch_ahead(const struct vf_attn_args *a, bool f16, size_t at)
{
    const char *k = a->k, *v = a->v;
    const size_t bytes = f16 ? sizeof(uint16_t) : sizeof(float);
    if (PREFETCH_BYTES == 0)
        return;
    _mm_prefetch(k + (at + (size_t)LANES * a->head_dim) * bytes, _MM_HINT_T0);
    _mm_prefetch(v + at * bytes, _MM_HINT_T1);
}

static NO_INLINE void keep_scores(struct attention *at, uint32_t query, uint32_t t, lanes s)
{
    const struct vf_attn_args *a = at->args;
    s = lanes_mul(s, lanes_set(a->scale));
    if (a->softcap > 0.0f)
        s = lanes_softcap(a->softcap, s);
    s = lanes_select(counted_keys(at->keys[query], t), s, lanes_set(-INFINITY));
    lanes_store(at->p[query] + t, s);
    at->max[query] = lanes_max(at->max[query], s);
}

/* Scores of the sixteen keys from t on for `count` queries (a constant) from the first-th on. */
static ALWAYS_INLINE void score_keys(struct attention *at, bool f16, bool fetch, uint32_t t,
                                     uint32_t first, uint32_t count)
{
    const uint32_t chains = SCORE_CHAINS(count), dim = at->args->head_dim;
    const float *const *q = at->q + first;
    size_t k = (size_t)t * dim;
    lanes part[4][ATTN_TILE];
    UNROLLED
    for (uint32_t c = 0; c < 4; c += chains) {
        lanes chain[4][ATTN_TILE];
        for (uint32_t n = 0; n < chains; n++)
            for (uint32_t j = 0; j < count; j++)
                chain[n][j] = lanes_zero();
        for (uint32_t i = c; i < dim; i += 4) {
            UNROLLED
            for (uint32_t n = 0; n < chains; n++) {
                if (i + n >= dim)
                    break;
                if (fetch && !(f16 && (c + n) % 2))
                    fetch_ahead(at->args, f16, k + (size_t)(i + n) * LANES);
                lanes key = load_kv(at->args->k, f16, k + (size_t)(i + n) * LANES);
                UNROLLED
                for (uint32_t j = 0; j < count; j++)
                    chain[n][j] = lanes_fma(lanes_set(q[j][i + n]), key, chain[n][j]);
            }
        }
        for (uint32_t n = 0; n < chains; n++)
            for (uint32_t j = 0; j < count; j++)
                part[c + n][j] = chain[n][j];
    }
    UNROLLED
    for (uint32_t j = 0; j < count; j++)
        keep_scores(
            at, first + j, t,
            lanes_add(lanes_add(part[0][j], part[1][j]), lanes_add(part[2][j], part[3][j])));
}

static ALWAYS_INLINE void score_all(struct attention *at, bool f16, bool fetch, uint32_t t)
{
    uint32_t j = 0;
    for (; j + ATTN_TILE <= at->count; j += ATTN_TILE)
        score_keys(at, f16, fetch && j == 0, t, j, ATTN_TILE);
    for (; ATTN_TILE > 4 && j + 4 <= at->count; j += 4)
        score_keys(at, f16, fetch && j == 0, t, j, 4);
    if (at->count - j == 3)
        score_keys(at, f16, fetch && j == 0, t, j, 3);
    else if (at->count - j == 2)
        score_keys(at, f16, fetch && j == 0, t, j, 2);
    else if (at->count - j == 1)
        score_keys(at, f16, fetch && j == 0, t, j, 1);
}

static NO_INLINE void score_all_f16(struct attention *at, bool fetch, uint32_t t)
{
    score_all(at, true, fetch, t);
}

static NO_INLINE void score_all_f32(struct attention *at, bool fetch, uint32_t t)
{
    score_all(at, false, fetch, t);
}

/* Scores to weights exp(s - max); fills the query's max and sum. */
static inline void weigh_keys(struct attention *at, uint32_t j, float *max, float *sum)
{
    struct vf_attn_keys keys = at->keys[j];
    lanes total = lanes_zero();
    *max = lanes_fold_max(at->max[j]);
    for (uint32_t t = keys.begin / LANES * LANES; t < keys.end; t += LANES) {
        lanes e = lanes_exp(lanes_sub(lanes_load(at->p[j] + t), lanes_set(*max)));
        e = lanes_select(counted_keys(keys, t), e, lanes_zero());
        lanes_store(at->p[j] + t, e);
        total = lanes_add(total, e);
    }
    *sum = lanes_fold_add(total);
}

/* ---- values ---- */

/* While the values are summed up, the keys of the next block are on their way, from its begin to
 * its end: sixteen of them for sixteen values at hand, those of dimension i and key t. */
static ALWAYS_INLINE void fetch_next(const struct vf_attn_args *a, bool f16, uint32_t i, uint32_t t)
{
    const size_t bytes = f16 ? sizeof(uint16_t) : sizeof(float);
    if (PREFETCH_BYTES != 0)
        _mm_prefetch((const char *)a->next_k + ((size_t)i * VF_ATTN_BLOCK + t * LANES) * bytes,
                     _MM_HINT_T1);
}

/* Adds the keys' part to `vectors` registers of dimensions from i on of `count` queries (both
 * constant). */
static ALWAYS_INLINE void sum_values(const struct attention *at, bool f16, struct vf_attn_keys keys,
                                     uint32_t i, uint32_t vectors, uint32_t first, uint32_t count)
{
    const struct vf_attn_args *a = at->args;
    const bool fetch = first == 0 && a->next_k;
    lanes acc[ATTN_TILE][VALUE_VECTORS_MAX];
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t v = 0; v < vectors; v++)
            acc[j][v] = lanes_load(at->out[first + j] + i + v * LANES);
    for (uint32_t t = keys.begin; t < keys.end; t++) {
        size_t row = (size_t)t * a->head_dim + i;
        UNROLLED
        for (uint32_t v = 0; v < vectors; v++) {
            if (fetch && !(f16 && t % 2)) /* a line holds 32 halves */
                fetch_next(a, f16, i + v * LANES, t);
            lanes value = load_kv(a->v, f16, row + v * LANES);
            UNROLLED
            for (uint32_t j = 0; j < count; j++)
                acc[j][v] = lanes_fma(lanes_set(at->p[first + j][t]), value, acc[j][v]);
        }
    }
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t v = 0; v < vectors; v++)
            lanes_store(at->out[first + j] + i + v * LANES, acc[j][v]);
}

/* The last dimensions, fewer than sixteen, of one query. */
static NO_INLINE void sum_last_values(const struct attention *at, struct vf_attn_keys keys,
                                      uint32_t i, uint32_t query)
{
    const struct vf_attn_args *a = at->args;
    uint32_t width = a->head_dim - i;
    lanes acc = lanes_load_part(at->out[query] + i, width, 0.0f);
    for (uint32_t t = keys.begin; t < keys.end; t++) {
        lanes value = load_kv_part(a->v, a->kv_f16, (size_t)t * a->head_dim + i, width);
        acc = lanes_fma(lanes_set(at->p[query][t]), value, acc);
    }
    lanes_store_part(at->out[query] + i, width, acc);
}

static ALWAYS_INLINE void sum_dimensions(const struct attention *at, bool f16,
                                         struct vf_attn_keys keys, uint32_t first, uint32_t count)
{
    const uint32_t vectors = VALUE_VECTORS(count), dim = at->args->head_dim;
    uint32_t i = 0;
    for (; i + vectors * LANES <= dim; i += vectors * LANES)
        sum_values(at, f16, keys, i, vectors, first, count);
    for (; i + LANES <= dim; i += LANES)
        sum_values(at, f16, keys, i, 1, first, count);
    for (uint32_t j = first; i < dim && j < first + count; j++)
        sum_last_values(at, keys, i, j);
}

/* Keys [begin, end), perhaps none. */
static NO_INLINE void sum_one(const struct attention *at, uint32_t begin, uint32_t end,
                              uint32_t query)
{
    struct vf_attn_keys keys = {begin, end};
    if (begin >= end)
        return;
    if (at->args->kv_f16)
        sum_dimensions(at, true, keys, query, 1);
    else
        sum_dimensions(at, false, keys, query, 1);
}

static ALWAYS_INLINE void sum_queries(struct attention *at, bool f16, uint32_t first,
                                      uint32_t count)
{
    struct vf_attn_keys common = keys_of(at, first, count, true);
    if (common.begin >= common.end) {
        for (uint32_t j = first; j < first + count; j++)
            sum_one(at, at->keys[j].begin, at->keys[j].end, j);
        return;
    }
    for (uint32_t j = first; j < first + count; j++)
        sum_one(at, at->keys[j].begin, common.begin, j);
    sum_dimensions(at, f16, common, first, count);
    for (uint32_t j = first; j < first + count; j++)
        sum_one(at, common.end, at->keys[j].end, j);
}

static ALWAYS_INLINE void sum_all(struct attention *at, bool f16)
{
    uint32_t j = 0;
    for (; j + ATTN_TILE <= at->count; j += ATTN_TILE)
        sum_queries(at, f16, j, ATTN_TILE);
    for (; ATTN_TILE > 4 && j + 4 <= at->count; j += 4)
        sum_queries(at, f16, j, 4);
    if (at->count - j == 3)
        sum_queries(at, f16, j, 3);
    else if (at->count - j == 2)
        sum_queries(at, f16, j, 2);
    else if (at->count - j == 1)
        sum_one(at, at->keys[j].begin, at->keys[j].end, j);
}

static NO_INLINE void sum_all_f16(struct attention *at)
{
    sum_all(at, true);
}

static NO_INLINE void sum_all_f32(struct attention *at)
{
    sum_all(at, false);
}

/* ---- the block ---- */

static void attend(struct attention *at, uint32_t query)
{
    const struct vf_attn_args *a = at->args;
    struct vf_attn_keys any = keys_of(at, 0, at->count, false);
    for (uint32_t t = any.begin / LANES * LANES; t < any.end; t += LANES) {
        if (a->kv_f16)
            score_all_f16(at, query == 0, t);
        else
            score_all_f32(at, query == 0, t);
    }
    for (uint32_t j = 0; j < at->count; j++)
        weigh_keys(at, j, a->max + query + j, a->sum + query + j);
    if (a->kv_f16)
        sum_all_f16(at);
    else
        sum_all_f32(at);
}

static void attention_block(const struct vf_attn_args *args)
{
    struct attention at;
    at.args = args;
    for (uint32_t query = 0; query < args->n_q; query += at.count) {
        at.count = smaller(ATTN_QUERIES, args->n_q - query);
        for (uint32_t j = 0; j < at.count; j++) {
            at.q[j] = vf_attn_query(args, query + j);
            at.out[j] = args->out + (query + j) * args->out_stride;
            at.keys[j] = vf_attn_keys_of(args, query + j);
            at.max[j] = lanes_set(-INFINITY);
            memset(at.out[j], 0, args->head_dim * sizeof(*args->out));
        }
        attend(&at, query);
    }
}

#endif
