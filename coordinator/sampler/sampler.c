/* The ranking is never sorted as a whole: top_k is a heap of the best k, top_p sorts only the
 * tokens in the buckets of L that its front reaches into. Built with -O3: the weights of a whole
 * vocabulary are one vectorized loop. */
#include "coordinator/sampler/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logp;
    uint32_t id;
};

/* M - L as a float, by exponent and 3 bits of mantissa: monotonic, at most 12% wide. */
#define BUCKET_SHIFT 20
#define BUCKET_COUNT (1u << (31 - BUCKET_SHIFT))

/* Tokens summed up at a time, and skipped over at a time by the walk. */
#define BLOCK 256

struct vf_sampler {
    uint32_t vocab_size;
    /* The tokens left, by ascending id; all [vocab_size]. */
    uint32_t *id;
    float *logp;
    double *w;
    size_t n;
    struct candidate *ranked; /* [vocab_size]: the heap of top_k, the sorted front of top_p */
    double bucket_w[BUCKET_COUNT][4]; /* four sums: neighbours often share a bucket */
};

/* --- parameters --- */

static enum vf_code check_range(const char *option, double v, double max, struct vf_err *err)
{
    if (v >= 0 && v <= max)
        return VF_OK;
    return vf_err_set(err, VF_ERR_USAGE, "%s: found %g, must be from 0 to %g", option, v, max);
}

enum vf_code vf_sampling_check(const struct vf_sampling *s, struct vf_err *err)
{
    enum vf_code code = check_range("--temperature", s->temperature, VF_TEMPERATURE_MAX, err);
    if (code == VF_OK)
        code = check_range("--top-p", s->top_p, 1, err);
    if (code == VF_OK)
        code = check_range("--min-p", s->min_p, 1, err);
    return code;
}

enum vf_code vf_sampler_create(uint32_t vocab_size, struct vf_sampler **out, struct vf_err *err)
{
    *out = NULL;
    if (vocab_size == 0)
        return vf_err_set(err, VF_ERR_USAGE, "sampler: the vocabulary is empty");
    struct vf_sampler *s = calloc(1, sizeof(*s));
    if (s) {
        s->vocab_size = vocab_size;
        s->id = malloc((size_t)vocab_size * sizeof(*s->id));
        s->logp = malloc((size_t)vocab_size * sizeof(*s->logp));
        s->w = malloc((size_t)vocab_size * sizeof(*s->w));
        s->ranked = malloc((size_t)vocab_size * sizeof(*s->ranked));
    }
    if (!s || !s->id || !s->logp || !s->w || !s->ranked) {
        vf_sampler_destroy(s);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "sampler: no memory for %u tokens", vocab_size);
    }
    *out = s;
    return VF_OK;
}

void vf_sampler_destroy(struct vf_sampler *s)
{
    if (!s)
        return;
    free(s->id);
    free(s->logp);
    free(s->w);
    free(s->ranked);
    free(s);
}

/* --- random numbers --- */

void vf_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c[0], p1 = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
        memcpy(c, next, sizeof(c));
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof(c));
}

double vf_sampler_uniform(uint64_t seed, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, r[4];
    vf_philox4x32(counter, key, r);
    uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* --- weights --- */

/* exp for x <= 0: 2^n exp(r), |r| <= ln(2) / 2, Taylor to r^12 / 12! (relative error below 1e-15);
 * 0 below the smallest normal result. Plain double operations only, so the same everywhere, and
 * no branches, so that a loop over it is vectorized. */
static inline double exp_nonpositive(double x)
{
    double clamped = x < -708 ? -708 : x;
    /* Adding 1.5 * 2^52 rounds to an integer, which then is the low bits of the sum. */
    double shifted = clamped * 0x1.71547652b82fep+0 + 0x1.8p52, n = shifted - 0x1.8p52;
    double r = (clamped - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits;
    double scale;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 1023) << 52;
    memcpy(&scale, &bits, sizeof(scale));
    return x < -708 ? 0 : p * scale;
}

static void fill_weights(const float *restrict logp, size_t n, double max, double temperature,
                         double *restrict w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = exp_nonpositive((logp[i] - max) / temperature);
}

/* The weights of one block of the tokens left, in eight lanes: a single chain of additions would
 * take as long as the exponentials. */
static double sum_block(const double *w, size_t n)
{
    double lane[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++)
            lane[k] += w[i + k];
    for (size_t k = 0; i + k < n; k++)
        lane[k] += w[i + k];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static size_t block_len(const struct vf_sampler *s, size_t begin)
{
    return s->n - begin < BLOCK ? s->n - begin : BLOCK;
}

static double sum_weights(const struct vf_sampler *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i += BLOCK)
        sum += sum_block(s->w + i, block_len(s, i));
    return sum;
}

/* --- ranking --- */

static bool ranks_before(float logp, uint32_t id, const struct candidate *c)
{
    return logp != c->logp ? logp > c->logp : id < c->id;
}

static int compare_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return ranks_before(x->logp, x->id, y) ? -1 : ranks_before(y->logp, y->id, x) ? 1 : 0;
}

/* A heap with the worst of its n on top. */
static void sift_down(struct candidate *heap, size_t n, size_t i, struct candidate c)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && ranks_before(heap[child].logp, heap[child].id, &heap[child + 1]))
            child++;
        if (!ranks_before(c.logp, c.id, &heap[child]))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = c;
}

/* The last token of the ranking that top_k leaves. */
static struct candidate top_k_cut(struct vf_sampler *s, const float *logp, uint32_t k)
{
    struct candidate *heap = s->ranked;
    for (uint32_t i = 0; i < k; i++)
        heap[i] = (struct candidate){.logp = logp[i], .id = i};
    for (size_t i = k / 2; i-- > 0;)
        sift_down(heap, k, i, heap[i]);
    /* Later ids lose ties, so only a larger value enters. */
    for (uint32_t i = k; i < s->vocab_size; i++)
        if (logp[i] > heap[0].logp)
            sift_down(heap, k, 0, (struct candidate){.logp = logp[i], .id = i});
    return heap[0];
}

static uint32_t bucket_of(float max, float logp)
{
    float d = max - logp;
    uint32_t bits;
    memcpy(&bits, &d, sizeof(bits));
    return bits >> BUCKET_SHIFT;
}

static double bucket_sum(const struct vf_sampler *s, uint32_t b)
{
    const double *w = s->bucket_w[b];
    return (w[0] + w[2]) + (w[1] + w[3]);
}

/* The first bucket at which the buckets' weights reach target. */
static uint32_t reach_bucket(struct vf_sampler *s, float max, double target)
{
    memset(s->bucket_w, 0, sizeof(s->bucket_w));
    for (size_t i = 0; i < s->n; i++)
        s->bucket_w[bucket_of(max, s->logp[i])][i % 4] += s->w[i];
    double sum = 0;
    for (uint32_t b = 0; b < BUCKET_COUNT; b++) {
        sum += bucket_sum(s, b);
        if (sum >= target)
            return b;
    }
    return BUCKET_COUNT - 1;
}

/* Sorts the tokens of the buckets up to reach into `ranked`; returns how many. The id is an index
 * into the tokens left, which has the same order. */
static size_t rank_front(struct vf_sampler *s, float max, uint32_t reach)
{
    size_t count = 0;
    for (size_t i = 0; i < s->n; i++)
        if (bucket_of(max, s->logp[i]) <= reach)
            s->ranked[count++] = (struct candidate){s->logp[i], (uint32_t)i};
    qsort(s->ranked, count, sizeof(*s->ranked), compare_rank);
    return count;
}

/* The last token of the ranking that top_p leaves. */
static struct candidate top_p_cut(struct vf_sampler *s, float max, double top_p)
{
    double target = top_p * sum_weights(s);
    /* The buckets add in another order than the ranking: by a rounding, the front may end one
     * bucket further. */
    for (uint32_t reach = reach_bucket(s, max, target);; reach++) {
        size_t count = rank_front(s, max, reach);
        double sum = 0;
        for (size_t i = 0; i < count; i++) {
            struct candidate c = s->ranked[i];
            sum += s->w[c.id];
            if (sum >= target || i + 1 == s->n)
                return (struct candidate){c.logp, s->id[c.id]};
        }
        while (reach + 2 < BUCKET_COUNT && bucket_sum(s, reach + 1) == 0)
            reach++;
    }
}

/* --- drawing --- */

static enum vf_code find_max(const float *logp, uint32_t n, uint32_t *best, struct vf_err *err)
{
    float max = -INFINITY;
    *best = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (logp[i] <= max) /* false for NaN */
            continue;
        if (!(logp[i] < INFINITY))
            return vf_err_set(err, VF_ERR_INTERNAL, "the model's log-probability of token %u is %f",
                              i, (double)logp[i]);
        max = logp[i];
        *best = i;
    }
    return *best != UINT32_MAX ? VF_OK
                               : vf_err_set(err, VF_ERR_INTERNAL,
                                            "the model gives all %u tokens probability zero", n);
}

static void keep_all(struct vf_sampler *s, const float *logp)
{
    s->n = s->vocab_size;
    memcpy(s->logp, logp, s->n * sizeof(*logp));
    for (uint32_t i = 0; i < s->vocab_size; i++)
        s->id[i] = i;
}

static void keep_top_k(struct vf_sampler *s, const float *logp, uint32_t k)
{
    struct candidate cut = top_k_cut(s, logp, k);
    s->n = 0;
    for (uint32_t i = 0; i < s->vocab_size; i++) {
        if (logp[i] < cut.logp || (logp[i] == cut.logp && i > cut.id))
            continue;
        s->id[s->n] = i;
        s->logp[s->n++] = logp[i];
    }
}

static void keep_top_p(struct vf_sampler *s, float max, double top_p)
{
    struct candidate cut = top_p_cut(s, max, top_p);
    size_t left = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->logp[i] < cut.logp || (s->logp[i] == cut.logp && s->id[i] > cut.id))
            continue;
        s->id[left] = s->id[i];
        s->w[left++] = s->w[i];
    }
    s->n = left;
}

static void keep_min_p(struct vf_sampler *s, double min_p)
{
    size_t left = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->w[i] < min_p)
            continue;
        s->id[left] = s->id[i];
        s->w[left++] = s->w[i];
    }
    s->n = left;
}

/* The token of [begin, end) at which the sum from `sum` on passes target. Rounding can leave it
 * short; then it is the last token with any weight. */
static uint32_t walk_block(const struct vf_sampler *s, size_t begin, size_t end, double sum,
                           double target)
{
    size_t i = begin;
    for (; i < end; i++) {
        sum += s->w[i];
        if (sum > target)
            return s->id[i];
    }
    while (i > begin + 1 && s->w[i - 1] == 0)
        i--;
    return s->id[i - 1];
}

static uint32_t walk(const struct vf_sampler *s, double u)
{
    double target = u * sum_weights(s), sum = 0;
    size_t last = 0; /* the last block with any weight */
    double before_last = 0;
    for (size_t i = 0; i < s->n; i += BLOCK) {
        double block = sum_block(s->w + i, block_len(s, i));
        if (block == 0)
            continue;
        last = i;
        before_last = sum;
        sum += block;
        if (sum > target)
            break;
    }
    return walk_block(s, last, last + block_len(s, last), before_last, target);
}

enum vf_code vf_sampler_draw(struct vf_sampler *s, const struct vf_sampling *params,
                             const float *logp, uint64_t position, uint32_t *token,
                             struct vf_err *err)
{
    uint32_t best;
    enum vf_code code = vf_sampling_check(params, err);
    if (code == VF_OK)
        code = find_max(logp, s->vocab_size, &best, err);
    if (code != VF_OK)
        return code;
    if (params->temperature == 0) {
        *token = best;
        return VF_OK;
    }
    float max = logp[best];
    if (params->top_k > 0 && params->top_k < s->vocab_size)
        keep_top_k(s, logp, params->top_k);
    else
        keep_all(s, logp);
    fill_weights(s->logp, s->n, max, params->temperature, s->w);
    if (params->top_p < 1)
        keep_top_p(s, max, params->top_p);
    if (params->min_p > 0)
        keep_min_p(s, params->min_p);
    *token = walk(s, vf_sampler_uniform(params->seed, position));
    return VF_OK;
}
