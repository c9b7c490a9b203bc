/* Uses are sums that decay by a factor at each visit of the layer: sum = sum * factor + used. They
 * are brought up to date when they are needed (advance), so an expert that isn't cached costs
 * nothing. The slowest sum over the sum of a constant 1 (`norm`) is the expert's rate.
 *
 * Regression: chance = sigmoid(weights . features). At a visit the candidates' features as of the
 * visit before are known again, and whether they were used now; the mean gradient over them moves
 * the weights once, by AdaGrad. Only cached experts teach, since only they are chosen among.
 */
#include "common/experts/policy.h"

#include "common/base/index_heap.h"
#include "common/base/util.h"

#include <math.h>
#include <string.h>

enum { SPAN_SHORT, SPAN_MIDDLE, SPAN_LONG, SPAN_RATE, SPAN_COUNT };
enum { FEATURE_COUNT = 3 + SPAN_RATE };

static const float decay[SPAN_COUNT] = {0.5f, 0.85f, 0.95f, 1 - 1.0f / 1024};
/* Where the regression begins: between what it learns on the routing of real models' statistics. */
static const float first_weights[FEATURE_COUNT] = {-0.6f, 0.8f, 0.6f, 0.4f, 0.2f, 0.1f};

#define SUM_MAX(span)  (0.999f / (1 - decay[span]))
#define PRIOR_VISITS   2.0f   /* an expert starts as if seen so often at the layer's mean rate */
#define LEARN_MAX      32u    /* candidates a visit learns from; others at the next ones */
#define LEARNING_RATE  0.05f  /* AdaGrad */
#define GRADIENT_START 1e-2f  /* sum of squares before the first step, so that it is small */
#define WEIGHT_MAX     20.0f  /* beyond it a weight is nonsense */
#define RENT_RATE      0.002f /* of one eviction */

struct vf_policy_head {
    uint32_t started; /* 1: weights and rent are set */
    uint32_t layer;   /* visited last */
    float rent;       /* of a slot for one cycle, in uses */
    float weights[FEATURE_COUNT];
    float squares[FEATURE_COUNT]; /* of past gradients */
    uint32_t reserved[16 - 3 - 2 * FEATURE_COUNT + 16];
};
struct vf_policy_layer {
    uint32_t visits;
    uint32_t candidate_count;
    uint32_t turn; /* place in the heap where the next visit's work begins */
    float norm;    /* sum of the slowest decay */
    float mean;    /* experts a visit used, decayed like norm */
    uint32_t reserved[3];
};
struct vf_policy_key {
    uint32_t visit; /* of the layer that the sums stand at; up to it */
    uint32_t last_use;
    float sums[SPAN_COUNT];
    float chance;
    uint32_t place;
};

_Static_assert(sizeof(struct vf_policy_head) == 128, "the policy's block is fixed-width");
_Static_assert(sizeof(struct vf_policy_layer) == 32, "the policy's block is fixed-width");
_Static_assert(sizeof(struct vf_policy_key) == 32, "the policy's block is fixed-width");

/* ---- the block ----------------------------------------------------------------------------- */

uint64_t vf_policy_bytes(uint32_t layer_count, uint32_t expert_count)
{
    uint64_t keys = (uint64_t)layer_count * expert_count;
    return vf_round_up(sizeof(struct vf_policy_head) +
                           layer_count * sizeof(struct vf_policy_layer) +
                           keys * (sizeof(struct vf_policy_key) + sizeof(uint32_t)),
                       64);
}

static void start_learning(struct vf_policy *p)
{
    struct vf_policy_head *h = p->head;
    for (int i = 0; i < FEATURE_COUNT; i++) {
        h->weights[i] = first_weights[i];
        h->squares[i] = GRADIENT_START;
    }
    h->rent = 0;
    h->started = 1;
}

struct vf_policy vf_policy_open(void *block, uint32_t layer_count, uint32_t expert_count)
{
    uint64_t keys = (uint64_t)layer_count * expert_count;
    VF_ASSERT(keys >= 1 && keys <= VF_POLICY_KEYS_MAX);
    struct vf_policy p = {.layer_count = layer_count, .expert_count = expert_count};
    uint8_t *at = block;
    p.head = (void *)at;
    at += sizeof *p.head;
    p.layers = (void *)at;
    at += layer_count * sizeof *p.layers;
    p.keys = (void *)at;
    p.candidates = (void *)(at + keys * sizeof *p.keys);
    if (p.head->started != 1)
        start_learning(&p);
    return p;
}

bool vf_policy_is_broken(const struct vf_policy *p)
{
    return p->broken;
}

/* ---- candidates ---------------------------------------------------------------------------- */

struct layer_heap {
    struct vf_policy_key *keys; /* of the layer */
};

/* Ties to the one used longer ago, then to the lower number. */
static bool is_worse(const void *ctx, uint32_t a, uint32_t b)
{
    const struct layer_heap *l = ctx;
    const struct vf_policy_key *ka = &l->keys[a], *kb = &l->keys[b];
    if (ka->chance != kb->chance)
        return ka->chance < kb->chance;
    return ka->last_use != kb->last_use ? ka->last_use < kb->last_use : a < b;
}

static uint32_t *place_of(void *ctx, uint32_t expert)
{
    return &((struct layer_heap *)ctx)->keys[expert].place;
}

static struct vf_index_heap heap_of(const struct vf_policy *p, uint32_t layer, struct layer_heap *l)
{
    size_t first = (size_t)layer * p->expert_count;
    l->keys = p->keys + first;
    return (struct vf_index_heap){.items = p->candidates + first,
                                  .count = &p->layers[layer].candidate_count,
                                  .capacity = p->expert_count,
                                  .item_limit = p->expert_count,
                                  .before = is_worse,
                                  .place = place_of,
                                  .ctx = l};
}

bool vf_policy_has(const struct vf_policy *p, uint32_t key)
{
    VF_ASSERT((uint64_t)key < (uint64_t)p->layer_count * p->expert_count);
    return p->keys[key].place != 0;
}

void vf_policy_clear_candidates(struct vf_policy *p)
{
    uint32_t keys = p->layer_count * p->expert_count;
    for (uint32_t l = 0; l < p->layer_count; l++)
        p->layers[l].candidate_count = 0;
    for (uint32_t k = 0; k < keys; k++)
        p->keys[k].place = 0;
    p->broken = false;
}

/* ---- chances ------------------------------------------------------------------------------- */

/* A number from the block that makes no sense counts as least. */
static float clamp(float v, float least, float most)
{
    return v >= least ? (v <= most ? v : most) : least;
}

static struct vf_policy_key *key_at(const struct vf_policy *p, uint32_t layer, uint32_t expert)
{
    VF_ASSERT(expert < p->expert_count);
    return &p->keys[(size_t)layer * p->expert_count + expert];
}

static void advance(struct vf_policy_key *k, uint32_t visit)
{
    uint32_t age = visit - k->visit;
    for (int i = 0; age > 0 && i < SPAN_COUNT; i++) {
        float factor = age == 1 ? decay[i] : powf(decay[i], (float)age);
        k->sums[i] = clamp(k->sums[i] * factor, 0, SUM_MAX(i));
    }
    k->visit = visit;
}

/* The sum stays below its limit, so that half of it, after a visit without use, is below 1. */
static void count_use(struct vf_policy_key *k, uint32_t visit)
{
    advance(k, visit);
    for (int i = 0; i < SPAN_COUNT; i++)
        k->sums[i] = clamp(k->sums[i] + 1, 1, SUM_MAX(i));
}

/* The expert's features once it is up to date with the layer. */
static void get_features(const struct vf_policy *p, const struct vf_policy_layer *l,
                         const struct vf_policy_key *k, float *x)
{
    float norm = clamp(l->norm, 0, SUM_MAX(SPAN_RATE));
    float prior = clamp(l->mean / (norm + 1e-6f) / (float)p->expert_count, 1e-6f, 1);
    float rate = (k->sums[SPAN_RATE] + PRIOR_VISITS * prior) / (norm + PRIOR_VISITS);
    rate = clamp(rate, 1e-6f, 1);
    x[0] = 1;
    x[1] = logf(rate / (1 - rate + 1e-3f));
    x[2] = k->sums[SPAN_SHORT] >= 1; /* used at the visit before */
    for (int i = 0; i < SPAN_RATE; i++)
        x[3 + i] = k->sums[i] * (1 - decay[i]);
}

static float chance_of(const struct vf_policy *p, const float *x)
{
    float z = 0;
    for (int i = 0; i < FEATURE_COUNT; i++)
        z += clamp(p->head->weights[i], -WEIGHT_MAX, WEIGHT_MAX) * x[i];
    return 1 / (1 + expf(-clamp(z, -30, 30)));
}

static void rescore(struct vf_policy *p, uint32_t layer, struct vf_policy_key *k)
{
    float x[FEATURE_COUNT];
    advance(k, p->layers[layer].visits);
    get_features(p, &p->layers[layer], k, x);
    k->chance = chance_of(p, x);
}

float vf_policy_chance(const struct vf_policy *p, uint32_t key)
{
    VF_ASSERT((uint64_t)key < (uint64_t)p->layer_count * p->expert_count);
    return clamp(p->keys[key].chance, 0, 1);
}

/* ---- learning ------------------------------------------------------------------------------ */

static void learn(struct vf_policy *p, const float *gradient)
{
    struct vf_policy_head *h = p->head;
    bool sane = true;
    for (int i = 0; i < FEATURE_COUNT; i++) {
        h->squares[i] += gradient[i] * gradient[i];
        h->weights[i] -= LEARNING_RATE * gradient[i] / sqrtf(h->squares[i]);
        sane = sane && h->squares[i] >= GRADIENT_START && fabsf(h->weights[i]) <= WEIGHT_MAX;
    }
    if (!sane)
        start_learning(p);
}

/* The candidates that this visit works on: all of them, or those of the next so many experts. */
static uint32_t take_turn(struct vf_policy *p, uint32_t layer, uint32_t *experts)
{
    struct vf_policy_layer *l = &p->layers[layer];
    const struct vf_policy_key *keys = p->keys + (size_t)layer * p->expert_count;
    uint32_t looks =
        p->expert_count < VF_POLICY_RESCORE_MAX ? p->expert_count : VF_POLICY_RESCORE_MAX;
    uint32_t at = l->turn < p->expert_count ? l->turn : 0, n = 0;
    for (uint32_t i = 0; i < looks; i++) {
        if (keys[at].place != 0)
            experts[n++] = at;
        at = at + 1 < p->expert_count ? at + 1 : 0;
    }
    l->turn = at;
    return n;
}

/* Compares what was expected of candidates with what this visit, not counted yet, uses. */
static void learn_from(struct vf_policy *p, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    struct vf_policy_layer *l = &p->layers[layer];
    float gradient[FEATURE_COUNT] = {0};
    uint32_t count = n < LEARN_MAX ? n : LEARN_MAX;
    if (n == 0 || l->visits == 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (uint32_t)(((uint64_t)l->visits * LEARN_MAX + i) % n);
        struct vf_policy_key *k = key_at(p, layer, experts[at]);
        float x[FEATURE_COUNT];
        advance(k, l->visits);
        get_features(p, l, k, x);
        float error = chance_of(p, x) - (k->last_use == l->visits + 1 ? 1.0f : 0.0f);
        for (int j = 0; j < FEATURE_COUNT; j++)
            gradient[j] += error * x[j] / (float)count;
    }
    learn(p, gradient);
}

/* ---- visits and victims -------------------------------------------------------------------- */

void vf_policy_visit(struct vf_policy *p, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    VF_ASSERT(layer < p->layer_count);
    struct vf_policy_layer *l = &p->layers[layer];
    uint32_t turn[VF_POLICY_RESCORE_MAX];
    uint32_t turn_count = take_turn(p, layer, turn);
    for (uint32_t i = 0; i < n; i++)
        key_at(p, layer, experts[i])->last_use = l->visits + 1;
    learn_from(p, layer, turn, turn_count);
    l->visits++;
    l->norm = clamp(l->norm * decay[SPAN_RATE], 0, SUM_MAX(SPAN_RATE)) + 1;
    l->mean = clamp(l->mean * decay[SPAN_RATE], 0, 1e12f) + (float)n;
    for (uint32_t i = 0; i < n; i++)
        count_use(key_at(p, layer, experts[i]), l->visits);
    p->head->layer = layer;
    struct layer_heap heap_keys;
    struct vf_index_heap heap = heap_of(p, layer, &heap_keys);
    for (uint32_t i = 0; i < turn_count; i++) {
        rescore(p, layer, key_at(p, layer, turn[i]));
        vf_index_heap_update(&heap, turn[i]);
    }
    p->broken = p->broken || heap.broken;
}

void vf_policy_add(struct vf_policy *p, uint32_t key)
{
    if (vf_policy_has(p, key))
        return;
    uint32_t layer = key / p->expert_count;
    struct layer_heap heap_keys;
    struct vf_index_heap heap = heap_of(p, layer, &heap_keys);
    rescore(p, layer, &p->keys[key]);
    vf_index_heap_add(&heap, key % p->expert_count);
    p->broken = p->broken || heap.broken;
}

void vf_policy_remove(struct vf_policy *p, uint32_t key)
{
    if (!vf_policy_has(p, key))
        return;
    struct layer_heap heap_keys;
    struct vf_index_heap heap = heap_of(p, key / p->expert_count, &heap_keys);
    vf_index_heap_remove(&heap, key % p->expert_count);
    p->broken = p->broken || heap.broken;
}

float vf_policy_worth(const struct vf_policy *p, uint32_t key)
{
    uint32_t layer = key / p->expert_count;
    uint32_t now = p->head->layer < p->layer_count ? p->head->layer : 0;
    uint32_t ahead = layer > now ? layer - now : layer + p->layer_count - now;
    float rent = clamp(p->head->rent, 0, 1);
    return vf_policy_chance(p, key) - rent * (float)ahead / (float)p->layer_count;
}

bool vf_policy_victim(struct vf_policy *p, uint32_t *key)
{
    bool found = false;
    float least = 0;
    for (uint32_t layer = 0; layer < p->layer_count; layer++) {
        struct layer_heap heap_keys;
        struct vf_index_heap heap = heap_of(p, layer, &heap_keys);
        uint32_t expert;
        if (!vf_index_heap_first(&heap, &expert))
            continue;
        uint32_t candidate = layer * p->expert_count + expert;
        float worth = vf_policy_worth(p, candidate);
        if (!found || worth < least) {
            *key = candidate;
            least = worth;
        }
        found = true;
        p->broken = p->broken || heap.broken;
    }
    return found;
}

void vf_policy_note_eviction(struct vf_policy *p, uint32_t key)
{
    float rent = clamp(p->head->rent, 0, 1);
    p->head->rent = rent + RENT_RATE * (vf_policy_chance(p, key) - rent);
}
