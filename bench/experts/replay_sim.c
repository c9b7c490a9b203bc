/* The cache of a replay is a set of experts and a policy's candidates among them; slots have no
 * identity. LRU, LFU and Belady are one heap each over a value per expert; the engine's policy is
 * the engine's code.
 */
#include "bench/experts/replay_sim.h"

#include "common/base/index_heap.h"
#include "common/base/util.h"
#include "common/experts/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct key_state {
    double value;      /* the lowest goes first */
    uint64_t last_use; /* breaks ties: the oldest first */
    uint32_t place;
    bool cached;
};

struct sim {
    const struct vf_routing_trace *trace;
    const struct replay_setup *setup;
    struct key_state *keys; /* [layers * experts] */
    uint32_t cached_count;
    uint64_t now; /* (token, layer) pairs so far */
    uint32_t *heap_items, heap_count;
    struct vf_index_heap heap; /* all but REPLAY_VFLOW */
    struct vf_policy policy;
    void *policy_block;
    uint64_t *next_use; /* REPLAY_BELADY: [tokens * layers * top_k], UINT64_MAX: never */
};

/* ---- the policies -------------------------------------------------------------------------- */

static bool goes_first(const void *ctx, uint32_t a, uint32_t b)
{
    const struct key_state *ka = &((const struct sim *)ctx)->keys[a];
    const struct key_state *kb = &((const struct sim *)ctx)->keys[b];
    if (ka->value != kb->value)
        return ka->value < kb->value;
    return ka->last_use != kb->last_use ? ka->last_use < kb->last_use : a < b;
}

static uint32_t *place_of(void *ctx, uint32_t key)
{
    return &((struct sim *)ctx)->keys[key].place;
}

static void add_candidate(struct sim *s, uint32_t key)
{
    if (s->setup->policy == REPLAY_VFLOW)
        vf_policy_add(&s->policy, key);
    else
        vf_index_heap_add(&s->heap, key);
}

static void remove_candidate(struct sim *s, uint32_t key)
{
    if (s->setup->policy == REPLAY_VFLOW)
        vf_policy_remove(&s->policy, key);
    else
        vf_index_heap_remove(&s->heap, key);
}

static uint32_t take_victim(struct sim *s)
{
    uint32_t key = 0;
    bool found;
    if (s->setup->policy == REPLAY_VFLOW) {
        found = vf_policy_victim(&s->policy, &key);
        if (found)
            vf_policy_note_eviction(&s->policy, key);
    } else {
        found = vf_index_heap_first(&s->heap, &key);
    }
    VF_ASSERT(found && s->keys[key].cached); /* there are as many slots as pins at least */
    remove_candidate(s, key);
    return key;
}

/* A use counts 2^(t / half life), so that values need no decay to be compared; kept as the binary
 * logarithm, which doesn't overflow. */
static double add_use(double log2_value, double token, double half_life)
{
    double use = token / half_life, most = fmax(log2_value, use);
    return most + log2(exp2(log2_value - most) + exp2(use - most));
}

/* The values of what a token wants of a layer, none of it a candidate now. */
static void note_uses(struct sim *s, uint32_t token, uint32_t layer, const uint32_t *experts)
{
    uint32_t k = s->trace->top_k;
    for (uint32_t i = 0; i < k; i++) {
        struct key_state *key = &s->keys[(size_t)layer * s->setup->experts + experts[i]];
        key->last_use = s->now;
        if (s->setup->policy == REPLAY_LRU)
            key->value = (double)s->now;
        else if (s->setup->policy == REPLAY_LFU)
            key->value = add_use(key->value, token, s->setup->half_life);
        else
            key->value = -(double)s->next_use[(s->now - 1) * k + i];
    }
}

/* ---- the walk ------------------------------------------------------------------------------ */

static void find_next_uses(struct sim *s)
{
    const struct vf_routing_trace *t = s->trace;
    uint64_t sets = (uint64_t)t->token_count * t->layer_count;
    for (uint64_t at = sets; at-- > 0;)
        for (uint32_t i = 0; i < t->top_k; i++) {
            size_t use = at * t->top_k + i;
            struct key_state *key =
                &s->keys[at % t->layer_count * s->setup->experts + t->experts[use]];
            s->next_use[use] = key->last_use ? key->last_use : UINT64_MAX;
            key->last_use = at + 1;
        }
    for (uint64_t k = 0; k < (uint64_t)t->layer_count * s->setup->experts; k++)
        s->keys[k].last_use = 0;
}

static void bring_in(struct sim *s, uint32_t key)
{
    if (s->cached_count < s->setup->slots)
        s->cached_count++;
    else
        s->keys[take_victim(s)].cached = false;
    s->keys[key].cached = true;
}

/* Returns how many of the experts were there. */
static uint32_t walk_set(struct sim *s, uint32_t token, uint32_t layer)
{
    const uint16_t *set = vf_routing_trace_at(s->trace, token, layer);
    uint32_t experts[VF_TRACE_TOP_MAX] = {0}, missing[VF_TRACE_TOP_MAX], missing_count = 0;
    uint32_t k = s->trace->top_k, first = layer * s->setup->experts;
    s->now++;
    for (uint32_t i = 0; i < k; i++)
        experts[i] = set[i];
    if (s->setup->policy == REPLAY_VFLOW)
        vf_policy_visit(&s->policy, layer, experts, k);
    for (uint32_t i = 0; i < k; i++) {
        if (s->keys[first + experts[i]].cached)
            remove_candidate(s, first + experts[i]);
        else
            missing[missing_count++] = first + experts[i];
    }
    if (s->setup->policy != REPLAY_VFLOW)
        note_uses(s, token, layer, experts);
    for (uint32_t i = 0; i < missing_count; i++)
        bring_in(s, missing[i]);
    for (uint32_t i = 0; i < k; i++)
        add_candidate(s, first + experts[i]);
    return k - missing_count;
}

static void walk(struct sim *s, struct replay_result *r)
{
    const struct vf_routing_trace *t = s->trace;
    for (uint32_t token = 0; token < t->token_count; token++)
        for (uint32_t layer = 0; layer < t->layer_count; layer++) {
            uint32_t hits = walk_set(s, token, layer);
            if (token < s->setup->warmup)
                continue;
            r->wanted += t->top_k;
            r->hits += hits;
            if (r->layer_hits)
                r->layer_hits[layer] += hits;
        }
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code check_setup(const struct vf_routing_trace *t, const struct replay_setup *o,
                                struct vf_err *err)
{
    uint64_t keys = (uint64_t)t->layer_count * o->experts;
    if (o->slots < t->top_k)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "a cache of %u experts; a token wants %u of a layer at once", o->slots,
                          t->top_k);
    if (keys > VF_POLICY_KEYS_MAX || o->experts <= t->expert_max)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "%u experts in each of %u layers; the trace names expert %u, and there "
                          "may be %u in all",
                          o->experts, t->layer_count, t->expert_max, VF_POLICY_KEYS_MAX);
    return VF_OK;
}

static bool allocate(struct sim *s)
{
    const struct vf_routing_trace *t = s->trace;
    uint32_t experts = s->setup->experts;
    size_t keys = (size_t)t->layer_count * experts;
    s->keys = calloc(keys, sizeof *s->keys);
    s->heap_items = calloc(keys, sizeof *s->heap_items);
    if (s->setup->policy == REPLAY_BELADY)
        s->next_use =
            calloc((size_t)t->token_count * t->layer_count * t->top_k, sizeof *s->next_use);
    if (s->setup->policy == REPLAY_VFLOW)
        s->policy_block = aligned_alloc(64, vf_policy_bytes(t->layer_count, experts));
    return s->keys && s->heap_items && (s->setup->policy != REPLAY_BELADY || s->next_use) &&
           (s->setup->policy != REPLAY_VFLOW || s->policy_block);
}

static void init(struct sim *s)
{
    uint32_t keys = s->trace->layer_count * s->setup->experts;
    s->heap = (struct vf_index_heap){.items = s->heap_items,
                                     .count = &s->heap_count,
                                     .capacity = keys,
                                     .item_limit = keys,
                                     .before = goes_first,
                                     .place = place_of,
                                     .ctx = s};
    for (uint32_t k = 0; k < keys && s->setup->policy == REPLAY_LFU; k++)
        s->keys[k].value = -INFINITY;
    if (s->setup->policy == REPLAY_BELADY)
        find_next_uses(s);
    if (s->setup->policy != REPLAY_VFLOW)
        return;
    memset(s->policy_block, 0, vf_policy_bytes(s->trace->layer_count, s->setup->experts));
    s->policy = vf_policy_open(s->policy_block, s->trace->layer_count, s->setup->experts);
}

enum vf_code replay_run(const struct vf_routing_trace *trace, const struct replay_setup *setup,
                        struct replay_result *result, struct vf_err *err)
{
    struct sim s = {.trace = trace, .setup = setup};
    enum vf_code code = check_setup(trace, setup, err);
    if (code)
        return code;
    if (allocate(&s)) {
        init(&s);
        walk(&s, result);
        VF_ASSERT(!s.heap.broken && !vf_policy_is_broken(&s.policy));
    } else {
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a replay");
    }
    free(s.keys);
    free(s.heap_items);
    free(s.next_use);
    free(s.policy_block);
    return code;
}

/* ---- statistics ---------------------------------------------------------------------------- */

static double layer_overlap(const struct vf_routing_trace *t, uint32_t layer)
{
    uint64_t same = 0;
    for (uint32_t token = 1; token < t->token_count; token++) {
        const uint16_t *now = vf_routing_trace_at(t, token, layer);
        const uint16_t *before = vf_routing_trace_at(t, token - 1, layer);
        for (uint32_t i = 0; i < t->top_k; i++)
            for (uint32_t j = 0; j < t->top_k; j++)
                same += now[i] == before[j];
    }
    return (double)same / ((double)(t->token_count - 1) * t->top_k);
}

static double layer_entropy(const struct vf_routing_trace *t, uint32_t layer, uint64_t *counts,
                            uint32_t experts)
{
    memset(counts, 0, experts * sizeof *counts);
    for (uint32_t token = 0; token < t->token_count; token++)
        for (uint32_t i = 0; i < t->top_k; i++)
            counts[vf_routing_trace_at(t, token, layer)[i]]++;
    double entropy = 0;
    for (uint32_t e = 0; e < experts; e++) {
        double share = (double)counts[e] / ((double)t->token_count * t->top_k);
        if (counts[e])
            entropy -= share * log2(share);
    }
    return entropy;
}

enum vf_code replay_describe(const struct vf_routing_trace *t, uint32_t experts,
                             struct replay_statistics *out, struct vf_err *err)
{
    *out = (struct replay_statistics){.overlap_first = layer_overlap(t, 0)};
    uint64_t *counts = calloc(experts, sizeof *counts);
    if (!counts)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a trace's statistics");
    for (uint32_t l = 0; l < t->layer_count; l++) {
        out->overlap += layer_overlap(t, l) / t->layer_count;
        out->entropy += layer_entropy(t, l, counts, experts) / t->layer_count;
    }
    free(counts);
    return VF_OK;
}
