#include "bench/experts/synthetic_routing.h"

#include "common/base/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct synthetic_routing synthetic_routings[] = {
    {"olmoe", 16, 64, 8, 0.4, 0.4, 0.5, -1, "OLMoE-1B-7B"},
    {"qwen3", 48, 128, 8, 0.55, 0.25, 0.4, 0.02, "Qwen3-30B-A3B, its first layer nearly flat"},
    {"olmoe-fitted", 16, 64, 8, 0.3, 0.5, 0.55, -1, "nearer to OLMoE's LRU hit rates"},
    {"qwen3-fitted", 48, 128, 8, 0.5, 0.2, 0.9, 0.02, "nearer to Qwen3-30B-A3B's"},
    {"flat", 48, 128, 8, 0, 0, 0, -1, "every expert as likely as any other, no memory"},
    {"sticky", 24, 64, 8, 0.2, 0.6, 0.9, -1, "few favourites, but tokens like their neighbours"},
    {NULL, 0, 0, 0, 0, 0, 0, 0, NULL},
};

const struct synthetic_routing *synthetic_routing_find(const char *name)
{
    for (const struct synthetic_routing *s = synthetic_routings; s->name; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

/* ---- random numbers ------------------------------------------------------------------------ */

struct source {
    uint64_t state;
    double spare; /* Gaussians come in pairs */
    bool has_spare;
};

static uint64_t next_random(struct source *s)
{
    uint64_t z = (s->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double next_uniform(struct source *s) /* inside (0, 1) */
{
    return ((double)(next_random(s) >> 12) + 0.5) * 0x1p-52;
}

static float next_gaussian(struct source *s)
{
    s->has_spare = !s->has_spare;
    if (!s->has_spare)
        return (float)s->spare;
    double radius = sqrt(-2 * log(next_uniform(s))), angle = 2 * M_PI * next_uniform(s);
    s->spare = radius * sin(angle);
    return (float)(radius * cos(angle));
}

/* ---- logits -------------------------------------------------------------------------------- */

struct mix {
    float popularity, persistent, noise, keep, renew;
};

static struct mix mix_of(const struct synthetic_routing *s, uint32_t layer)
{
    bool first = layer == 0 && s->first_a >= 0;
    double a = first ? s->first_a : s->a, b = first ? 0 : s->b;
    return (struct mix){(float)sqrt(a), (float)sqrt(b), (float)sqrt(1 - a - b), (float)s->r,
                        (float)sqrt(1 - s->r * s->r)};
}

/* The next token's logits of one layer; persistent moves on. */
static void next_logits(const struct mix *m, uint32_t n, const float *popularity, float *persistent,
                        float *logits, struct source *random)
{
    for (uint32_t e = 0; e < n; e++) {
        if (m->persistent > 0)
            persistent[e] = m->keep * persistent[e] + m->renew * next_gaussian(random);
        logits[e] = m->popularity * popularity[e] + m->persistent * persistent[e] +
                    m->noise * next_gaussian(random);
    }
}

/* The k largest, best first. */
static void choose(const float *logits, uint32_t n, uint32_t k, uint16_t *chosen)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (count == k && logits[e] <= logits[chosen[k - 1]])
            continue;
        uint32_t at = count < k ? count++ : k - 1;
        for (; at > 0 && logits[e] > logits[chosen[at - 1]]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = (uint16_t)e;
    }
}

static void fill(const struct synthetic_routing *s, uint64_t seed, float *popularity,
                 float *persistent, float *logits, struct vf_routing_trace *out)
{
    struct source random = {.state = seed * 0x2545f4914f6cdd1du + 1};
    for (uint32_t i = 0; i < s->layers * s->experts; i++) {
        popularity[i] = next_gaussian(&random);
        persistent[i] = next_gaussian(&random);
    }
    for (uint32_t t = 0; t < out->token_count; t++)
        for (uint32_t l = 0; l < s->layers; l++) {
            struct mix m = mix_of(s, l);
            size_t at = (size_t)l * s->experts;
            next_logits(&m, s->experts, popularity + at, persistent + at, logits, &random);
            choose(logits, s->experts, s->top_k,
                   out->experts + ((size_t)t * s->layers + l) * s->top_k);
        }
}

enum vf_code synthetic_routing_make(const struct synthetic_routing *s, uint32_t token_count,
                                    uint64_t seed, struct vf_routing_trace *out, struct vf_err *err)
{
    size_t keys = (size_t)s->layers * s->experts;
    *out = (struct vf_routing_trace){.token_count = token_count,
                                     .layer_count = s->layers,
                                     .top_k = s->top_k,
                                     .expert_max = s->experts - 1};
    out->experts = calloc((size_t)token_count * s->layers * s->top_k, sizeof *out->experts);
    float *space = calloc(2 * keys + s->experts, sizeof *space);
    enum vf_code code = VF_OK;
    if (out->experts && space)
        fill(s, seed, space, space + keys, space + 2 * keys, out);
    else
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a trace of %u tokens", token_count);
    free(space);
    if (code)
        vf_routing_trace_deinit(out);
    return code;
}
