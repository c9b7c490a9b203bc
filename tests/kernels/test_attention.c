/* attention_block: the scalar tier against double arithmetic, the others against it to the bit, and
 * queries of several columns against each alone.
 *
 * Uncounted keys hold NaN, keys end at a guard page after the last group of sixteen that counts,
 * values right after the last key that counts.
 */
#include "kernel_test.h"

static const uint32_t head_dims[] = {1, 3, 4, 8, 15, 16, 17, 31, 32, 48, 64, 80, 128, 200, 256};
#define HEAD_DIM_COUNT (sizeof(head_dims) / sizeof(head_dims[0]))
#define N_Q_MAX        19u

struct block {
    struct guarded q, k, v;
    struct vf_attn_args args; /* without outputs */
};

static size_t key_index(uint32_t hd, uint32_t t, uint32_t i)
{
    return ((size_t)(t / 16) * hd + i) * 16 + t % 16;
}

static void put(struct guarded *kv, bool f16, size_t i, float value)
{
    if (f16)
        ((uint16_t *)kv->p)[i] = vf_f32_to_f16(value);
    else
        ((float *)kv->p)[i] = value;
}

static double get(const void *kv, bool f16, size_t i)
{
    return f16 ? (double)vf_f16_to_f32(((const uint16_t *)kv)[i]) : (double)((const float *)kv)[i];
}

static void fill_keys(struct block *b, enum kind kind)
{
    struct vf_attn_args *a = &b->args;
    for (uint32_t t = 0; t < (a->key_end + 15) / 16 * 16; t++)
        for (uint32_t i = 0; i < a->head_dim; i++) {
            bool counted = t >= a->key_begin && t < a->key_end;
            put(&b->k, a->kv_f16, key_index(a->head_dim, t, i), counted ? rng_value(kind) : NAN);
            if (t < a->key_end)
                put(&b->v, a->kv_f16, (size_t)t * a->head_dim + i, counted ? rng_value(kind) : NAN);
        }
}

static void block_create(struct block *b, uint32_t hd, uint32_t n_q, enum kind kind)
{
    struct vf_attn_args *a = &b->args;
    memset(a, 0, sizeof(*a));
    a->head_dim = hd;
    a->n_q = n_q;
    a->q_stride = hd + rng_below(4);
    a->kv_f16 = rng_below(2);
    a->key_begin = rng_below(3) ? 0 : rng_below(VF_ATTN_BLOCK);
    a->key_end = a->key_begin + 1 + rng_below(VF_ATTN_BLOCK - a->key_begin);
    a->scale = 1.0f / sqrtf((float)hd);
    a->softcap = rng_below(3) ? 0.0f : 5.0f;
    size_t element = a->kv_f16 ? 2 : 4;
    size_t q_count = (n_q - 1) * a->q_stride + hd;
    b->q = guarded_alloc(q_count * sizeof(float), GUARD_END);
    b->k = guarded_alloc((size_t)(a->key_end + 15) / 16 * 16 * hd * element, GUARD_END);
    b->v = guarded_alloc((size_t)a->key_end * hd * element, GUARD_END);
    rng_fill(b->q.p, q_count, kind);
    fill_keys(b, kind);
    a->q = b->q.p;
    a->k = b->k.p;
    a->v = b->v.p;
}

static void block_destroy(struct block *b)
{
    guarded_free(&b->q);
    guarded_free(&b->k);
    guarded_free(&b->v);
}

struct result {
    struct guarded max, sum, out;
    size_t out_count;
};

static void run(const struct vf_kernels *k, struct block *b, size_t out_stride, struct result *r)
{
    struct vf_attn_args a = b->args;
    r->out_count = (a.n_q - 1) * out_stride + a.head_dim;
    r->max = guarded_alloc(a.n_q * sizeof(float), GUARD_END);
    r->sum = guarded_alloc(a.n_q * sizeof(float), GUARD_END);
    r->out = guarded_alloc(r->out_count * sizeof(float), GUARD_END);
    a.max = r->max.p;
    a.sum = r->sum.p;
    a.out = r->out.p;
    a.out_stride = out_stride;
    k->attention_block(&a);
}

static void result_destroy(struct result *r)
{
    guarded_free(&r->max);
    guarded_free(&r->sum);
    guarded_free(&r->out);
}

/* ---- double reference ---- */

static double reference_score(const struct vf_attn_args *a, uint32_t query, uint32_t t)
{
    double s = 0.0;
    for (uint32_t i = 0; i < a->head_dim; i++)
        s += (double)a->q[query * a->q_stride + i] *
             get(a->k, a->kv_f16, key_index(a->head_dim, t, i));
    s *= (double)a->scale;
    return a->softcap > 0.0f ? (double)a->softcap * tanh(s / (double)a->softcap) : s;
}

static bool query_is_right(const struct vf_attn_args *a, const struct result *r, uint32_t query,
                           size_t out_stride)
{
    double p[VF_ATTN_BLOCK], max = -INFINITY, sum = 0.0;
    for (uint32_t t = a->key_begin; t < a->key_end; t++)
        max = fmax(max, p[t] = reference_score(a, query, t));
    for (uint32_t t = a->key_begin; t < a->key_end; t++)
        sum += p[t] = exp(p[t] - max);
    bool right = close_to(((float *)r->max.p)[query], max, 2e-5 * (1.0 + fabs(max))) &&
                 close_to(((float *)r->sum.p)[query], sum, 2e-4 * sum);
    for (uint32_t i = 0; i < a->head_dim; i++) {
        double out = 0.0;
        for (uint32_t t = a->key_begin; t < a->key_end; t++)
            out += p[t] * get(a->v, a->kv_f16, (size_t)t * a->head_dim + i);
        right &= close_to(((float *)r->out.p)[query * out_stride + i], out, 1e-3 * sum);
    }
    return right;
}

static void test_scalar(const struct vf_kernels *k)
{
    bool right = true;
    for (size_t i = 0; i < HEAD_DIM_COUNT; i++)
        for (uint32_t n_q = 1; n_q <= 4; n_q++) {
            struct block b;
            struct result r;
            block_create(&b, head_dims[i], n_q, KIND_PLAIN);
            run(k, &b, head_dims[i], &r);
            for (uint32_t query = 0; query < n_q; query++)
                right &= query_is_right(&b.args, &r, query, head_dims[i]);
            result_destroy(&r);
            block_destroy(&b);
        }
    ok(right, "scalar attention_block is attention");
}

static bool tier_equals(const struct tiers *t, const struct vf_kernels *tier, uint32_t hd,
                        uint32_t n_q, enum kind kind)
{
    struct block b;
    struct result wanted, found;
    size_t out_stride = hd + rng_below(3);
    block_create(&b, hd, n_q, kind);
    run(t->scalar, &b, out_stride, &wanted);
    run(tier, &b, out_stride, &found);
    bool same = same_floats(found.max.p, wanted.max.p, n_q) &&
                same_floats(found.sum.p, wanted.sum.p, n_q) &&
                same_floats(found.out.p, wanted.out.p, found.out_count);
    if (!same)
        note("hd %u, %u queries, keys %u to %u, kind %d", hd, n_q, b.args.key_begin, b.args.key_end,
             (int)kind);
    result_destroy(&wanted);
    result_destroy(&found);
    block_destroy(&b);
    return same;
}

static void test_tier(const struct tiers *t, const struct vf_kernels *tier, enum kind kind)
{
    bool same = true;
    for (size_t i = 0; i < HEAD_DIM_COUNT && same; i++)
        for (uint32_t round = 0; round < 8 && same; round++)
            same = tier_equals(t, tier, head_dims[i], 1 + rng_below(N_Q_MAX), kind);
    ok(same, "%s: attention_block has the scalar bits, kind %d", tier->name, (int)kind);
}

/* Columns of one prefill chunk: heads side by side, columns further apart, each with its own
 * keys. The block as a whole must give what it gives a query alone. Keys that nobody counts are
 * NaN, keys that only others count must not be felt: one column's last key is NaN. */
static bool columns_equal_queries(const struct vf_kernels *whole, const struct vf_kernels *single,
                                  uint32_t hd)
{
    struct block b;
    struct result found, wanted;
    uint32_t heads = 1 + rng_below(5), columns = 1 + rng_below(9);
    struct vf_attn_keys keys[9];
    block_create(&b, hd, 1, KIND_PLAIN);
    struct vf_attn_args *a = &b.args;
    uint32_t begin = a->key_begin, length = a->key_end - begin;
    for (uint32_t c = 0; c < columns; c++) {
        keys[c].begin = begin + (rng_below(2) ? rng_below(length) : 0);
        keys[c].end = keys[c].begin + 1 + rng_below(a->key_end - keys[c].begin);
    }
    keys[columns - 1].end = a->key_end;
    put(&b.v, a->kv_f16, (size_t)(a->key_end - 1) * hd, NAN);
    guarded_free(&b.q);
    a->n_q = columns * heads;
    a->heads = heads;
    a->q_stride = hd + rng_below(3);
    a->q_column_stride = heads * a->q_stride + rng_below(50);
    size_t q_count = (columns - 1) * a->q_column_stride + (heads - 1) * a->q_stride + hd;
    b.q = guarded_alloc(q_count * sizeof(float), GUARD_END);
    rng_fill(b.q.p, q_count, KIND_PLAIN);
    a->q = b.q.p;
    a->keys = keys;
    run(whole, &b, hd, &found);
    struct vf_attn_args all = *a;
    bool same = true;
    a->n_q = 1;
    a->heads = 0;
    a->keys = NULL;
    for (uint32_t i = 0; i < columns * heads && same; i++) {
        a->q = all.q + i / heads * all.q_column_stride + i % heads * all.q_stride;
        a->key_begin = keys[i / heads].begin;
        a->key_end = keys[i / heads].end;
        run(single, &b, hd, &wanted);
        same = same_float(((float *)found.max.p)[i], *(float *)wanted.max.p) &&
               same_float(((float *)found.sum.p)[i], *(float *)wanted.sum.p) &&
               same_floats((float *)found.out.p + (size_t)i * hd, wanted.out.p, hd);
        result_destroy(&wanted);
    }
    if (!same)
        note("hd %u, %u columns of %u heads, keys %u to %u", hd, columns, heads, begin,
             begin + length);
    result_destroy(&found);
    block_destroy(&b);
    return same;
}

static void test_columns(const struct vf_kernels *k, const struct vf_kernels *scalar)
{
    bool same = true;
    for (size_t i = 0; i < HEAD_DIM_COUNT && same; i++)
        for (uint32_t round = 0; round < 6 && same; round++)
            same = columns_equal_queries(k, scalar, head_dims[i]);
    ok(same, "%s: a block of columns gives each query what it gets alone", k->name);
}

int main(void)
{
    struct tiers t = tiers_available();
    plan(2 + t.other_count * (1 + KIND_COUNT));
    rng_seed(4);
    test_scalar(t.scalar);
    test_columns(t.scalar, t.scalar);
    for (int i = 0; i < t.other_count; i++) {
        test_columns(t.other[i], t.scalar);
        for (int kind = 0; kind < KIND_COUNT; kind++)
            test_tier(&t, t.other[i], kind);
    }
    return 0;
}
