/* The shares of the named kinds were fitted on the logits' formula against what real models do:
 * overlap of consecutive tokens' experts, hit rate of LRU caches, entropy of use, and for the
 * drift the recall of a layer's router one and more layers early (docs/BENCHMARKS.md).
 */
#include "bench/models/routing.h"

#include "common/base/util.h"
#include "common/kernels/kernels_math.h"
#include "common/tile/tile.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANY_EXPERTS 96u /* from here on a model is like Qwen3-30B-A3B, below like OLMoE */
#define HIDDEN_MIN   64u
#define WINDOW_MIN   4u    /* dimensions: fewer would move all experts' noise together */
#define HEAD_LOGIT   20.0f /* of the next id, the others' being about 0 */
#define SAMPLES      16384u

static const struct bench_routing_shares olmoe = {
    .popularity = 0.3, .persistent = 0.5, .coefficient = 0.55, .fresh = 0.08, .older = 0.028};
static const struct bench_routing_shares qwen3 = {
    .popularity = 0.5, .persistent = 0.2, .coefficient = 0.9, .fresh = 0.055, .older = 0.02};
/* The first layer of Qwen3-30B-A3B looks at the token and little else. */
static const struct bench_routing_shares qwen3_first = {
    .popularity = 0.02, .persistent = 0, .coefficient = 0.9, .fresh = 0.055, .older = 0.02};

static enum vf_code parse_shares(const char *text, struct bench_routing_shares *s,
                                 struct vf_err *err)
{
    double v[3];
    const char *at = text;
    bool good = true;
    for (int i = 0; i < 3 && good; i++) {
        char *end;
        v[i] = strtod(at, &end);
        good = end != at && *end == (i < 2 ? ',' : 0) && v[i] >= 0 && v[i] <= 1;
        at = end + 1;
    }
    if (!good || v[0] + v[1] > 1 || v[2] >= 1)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--routing: found '%s', allowed: realistic, flat, or A,B,R with A and B "
                          "from 0 and A + B up to 1, R from 0 and below 1",
                          text);
    s->popularity = v[0];
    s->persistent = v[1];
    s->coefficient = v[2];
    /* Drift can't be more than there is noise. */
    double noise = 1 - v[0] - v[1], drift = s->fresh + BENCH_ROUTING_OLDER * s->older;
    if (drift > noise) {
        s->fresh *= noise / drift;
        s->older *= noise / drift;
    }
    return VF_OK;
}

static enum vf_code choose_shares(struct bench_routing *r, const char *text, struct vf_err *err)
{
    bool many = r->config->expert_count >= MANY_EXPERTS, real = strcmp(text, "realistic") == 0;
    r->shares = many ? qwen3 : olmoe;
    enum vf_code code = VF_OK;
    if (!real)
        code = parse_shares(strcmp(text, "flat") == 0 ? "0,0,0" : text, &r->shares, err);
    r->first = real && many ? qwen3_first : r->shares;
    return code;
}

static enum vf_code check_config(const struct vf_config *c, struct vf_err *err)
{
    const char *fault = !c->expert_count ? "has no experts"
                        : c->style != VF_STYLE_DELAYED_SUM
                            ? "has a combine_style other than delayed_sum"
                        : c->flow_count > 1  ? "has several flows"
                        : c->embedding_scale ? "scales its embedding"
                        : c->tie_embeddings  ? "ties head and embedding"
                        : c->attention_bias  ? "has attention biases"
                        : c->hidden_size < HIDDEN_MIN || c->hidden_size % VF_RECORD_COLS
                            ? "has a hidden size below 64 or not a multiple of 32"
                            : NULL;
    if (fault)
        return vf_err_set(err, VF_ERR_USAGE, "--routing: can't be made for a model that %s", fault);
    return VF_OK;
}

static enum vf_code place_regions(struct bench_routing *r, struct vf_err *err)
{
    uint32_t d = r->config->hidden_size;
    r->constant = 0;
    r->persistent = d / 32;
    r->noise = r->persistent + d / 8;
    r->windows = r->noise + d / 8;
    r->window_dims = d * 3 / 8 / r->config->layer_count;
    r->rest = r->windows + r->window_dims * r->config->layer_count;
    if (r->window_dims < WINDOW_MIN)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--routing: a hidden size of %u is too small for %u layers, which need "
                          "%u dimensions each out of three eighths of it",
                          d, r->config->layer_count, WINDOW_MIN);
    return VF_OK;
}

/* The mean square of act(gate) * up. */
static double hidden_square(const struct vf_config *c, struct bench_random *random)
{
    double sum = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        float h = vf_math_activate(c->activation, bench_random_normal(random)) *
                  bench_random_normal(random);
        sum += (double)h * (double)h;
    }
    return sum / SAMPLES;
}

static int compare_descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The mean of the sum of the chosen experts' squared weights, logits having variance 1. */
static double weight_square(const struct vf_config *c, float *logits, struct bench_random *random)
{
    uint32_t n = c->expert_count, rounds = SAMPLES / n + 16;
    double mean = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        double all = 0, squares = 0;
        for (uint32_t e = 0; e < n; e++)
            logits[e] = bench_random_normal(random);
        qsort(logits, n, sizeof *logits, compare_descending);
        for (uint32_t e = 0; e < n; e++) {
            double p = (double)vf_math_exp(logits[e]);
            all += e < c->expert_top_k || !c->norm_topk_prob ? p : 0;
            squares += e < c->expert_top_k ? p * p : 0;
        }
        mean += squares / (all * all);
    }
    return mean / rounds;
}

/* What makes the outputs' variance 1: attention's is, since values have it and one key has all the
 * weight. */
static enum vf_code set_gains(struct bench_routing *r, struct vf_err *err)
{
    const struct vf_config *c = r->config;
    struct bench_random random = {r->seed};
    float *logits = malloc(c->expert_count * sizeof *logits);
    if (!logits)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u logits", c->expert_count);
    double h = hidden_square(c, &random), s = weight_square(c, logits, &random);
    r->dense_gain = (float)sqrt(1 / h);
    r->expert_gain = (float)sqrt(1 / (h * s));
    r->window_gain = (float)sqrt(0.5);
    r->rest_gain = (float)sqrt(0.5 / c->layer_count);
    free(logits);
    return VF_OK;
}

enum vf_code bench_routing_init(struct bench_routing *r, const char *text,
                                const struct vf_config *config, uint64_t seed, struct vf_err *err)
{
    *r = (struct bench_routing){.config = config, .seed = seed};
    enum vf_code code = check_config(config, err);
    if (code == VF_OK)
        code = choose_shares(r, text, err);
    if (code == VF_OK)
        code = place_regions(r, err);
    if (code == VF_OK)
        code = set_gains(r, err);
    if (code != VF_OK)
        return code;
    r->row = calloc(r->noise - r->persistent, sizeof *r->row);
    return r->row ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an embedding row");
}

void bench_routing_deinit(struct bench_routing *r)
{
    free(r->row);
}

/* ---- embedding and head ---- */

static void fill_normal(struct bench_random *random, float deviation, float *out, uint32_t begin,
                        uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        out[i] = deviation * bench_random_normal(random);
}

/* The noise region comes first, since the head's rows repeat it. */
static struct bench_random begin_token(const struct bench_routing *r, uint64_t token, float scale,
                                       float *out)
{
    const struct vf_tensor_id id = {.kind = VF_T_EMBED, .layer = VF_LAYER_NONE};
    struct bench_random random = bench_random_row(r->seed, id, token);
    fill_normal(&random, scale, out, r->noise, r->windows);
    return random;
}

/* Windows whose experts run too late, or not at all, have that half from the embedding. */
static uint32_t embedded_windows_end(const struct bench_routing *r)
{
    uint64_t n = vf_min_u64(r->config->expert_delay + 1ull, r->config->layer_count);
    return r->windows + (uint32_t)n * r->window_dims;
}

static void make_embedding(struct bench_routing *r, uint32_t token, float *out)
{
    float kept = token ? (float)r->shares.coefficient : 0.0f;
    float added = sqrtf(1.0f - kept * kept);
    uint32_t dims = r->noise - r->persistent, embedded = embedded_windows_end(r);
    VF_ASSERT(token == r->rows_made);
    struct bench_random random = begin_token(r, token, 1.0f, out);
    for (uint32_t i = 0; i < r->persistent; i++)
        out[i] = 1.0f;
    for (uint32_t i = 0; i < dims; i++)
        r->row[i] = kept * r->row[i] + added * bench_random_normal(&random);
    memcpy(out + r->persistent, r->row, dims * sizeof *out);
    fill_normal(&random, r->window_gain, out, r->windows, embedded);
    memset(out + embedded, 0, (r->rest - embedded) * sizeof *out);
    fill_normal(&random, 1.0f, out, r->rest, r->config->hidden_size);
    r->rows_made++;
}

static void make_head(const struct bench_routing *r, uint32_t token, float *out)
{
    const struct vf_config *c = r->config;
    const struct vf_tensor_id id = {.kind = VF_T_HEAD, .layer = VF_LAYER_NONE};
    uint64_t before = ((uint64_t)token + c->vocab_size - 1) % c->vocab_size;
    struct bench_random random = bench_random_row(r->seed, id, token);
    fill_normal(&random, sqrtf(1.0f / (float)c->hidden_size), out, 0, c->hidden_size);
    begin_token(r, before, HEAD_LOGIT / (float)(r->windows - r->noise), out);
}

/* ---- router ---- */

/* The residual's root mean square where a layer's router reads it: the router undoes the norm. */
static float residual_rms(const struct bench_routing *r, uint32_t layer)
{
    uint32_t d = r->config->hidden_size;
    double windows = (double)r->window_dims * (layer + 1.0);
    double outputs = 2.0 * layer + 1.0; /* that the rest has received */
    double grown = 1.0 + outputs * (double)r->rest_gain * (double)r->rest_gain;
    return (float)sqrt((r->windows + windows + (d - r->rest) * grown) / d);
}

static float deviation_of(double share, uint32_t dims, float rms)
{
    return rms * (float)sqrt(share / dims);
}

static void make_router(const struct bench_routing *r, uint32_t layer, uint32_t row, float *out)
{
    const struct bench_routing_shares *s = layer ? &r->shares : &r->first;
    const struct vf_tensor_id id = {.kind = VF_T_ROUTER, .layer = layer};
    struct bench_random random = bench_random_row(r->seed, id, row);
    uint32_t older = layer < BENCH_ROUTING_OLDER ? layer : BENCH_ROUTING_OLDER;
    uint32_t own = r->windows + layer * r->window_dims;
    double noise = 1.0 - s->popularity - s->persistent - s->fresh - older * s->older;
    float rms = residual_rms(r, layer);
    memset(out, 0, r->config->hidden_size * sizeof *out);
    fill_normal(&random, deviation_of(s->popularity, r->persistent, rms), out, 0, r->persistent);
    fill_normal(&random, deviation_of(s->persistent, r->noise - r->persistent, rms), out,
                r->persistent, r->noise);
    fill_normal(&random, deviation_of(fmax(noise, 0), r->windows - r->noise, rms), out, r->noise,
                r->windows);
    fill_normal(&random, deviation_of(s->older, r->window_dims, rms), out,
                own - older * r->window_dims, own);
    fill_normal(&random, deviation_of(s->fresh, r->window_dims, rms), out, own,
                own + r->window_dims);
}

bool bench_routing_makes(struct vf_tensor_id id)
{
    return id.kind == VF_T_EMBED || id.kind == VF_T_HEAD || id.kind == VF_T_ROUTER;
}

void bench_routing_row(struct bench_routing *r, struct vf_tensor_id id, uint32_t row, float *out)
{
    if (id.kind == VF_T_EMBED)
        make_embedding(r, row, out);
    else if (id.kind == VF_T_HEAD)
        make_head(r, row, out);
    else
        make_router(r, id.layer, row, out);
}

/* ---- everything else ---- */

/* The gain of a row that writes dimension i, for the writer of one window. */
static float output_gain(const struct bench_routing *r, uint64_t window, uint32_t i)
{
    if (i >= r->rest)
        return r->rest_gain;
    uint64_t begin = r->windows + window * r->window_dims;
    return i >= begin && i < begin + r->window_dims ? r->window_gain : 0.0f;
}

float bench_routing_gain(const struct bench_routing *r, struct vf_tensor_id id, uint32_t row)
{
    switch (id.kind) {
    case VF_T_O:
        return output_gain(r, id.layer, row);
    case VF_T_EXPERT_DOWN:
        return r->expert_gain * output_gain(r, id.layer + 1ull + r->config->expert_delay, row);
    case VF_T_DOWN:
        return r->dense_gain * output_gain(r, r->config->layer_count, row);
    default:
        return 1.0f;
    }
}

void bench_routing_source(const struct bench_routing *r, struct vf_tensor_id *id, uint32_t *row)
{
    const struct vf_config *c = r->config;
    if (id->kind != VF_T_Q)
        return;
    uint32_t head = *row / c->head_dim, shared = c->head_count / c->kv_head_count;
    *row = head / shared * c->head_dim + *row % c->head_dim;
    id->kind = VF_T_K;
}
