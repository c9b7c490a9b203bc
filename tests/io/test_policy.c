/* The policy of the expert cache and the heap it stands on, against scans over everything; and what
 * a policy has to know: frequency, recency, layers ahead. */
#include "common/base/index_heap.h"
#include "common/experts/policy.h"
#include "tap.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(next_random(state) % n);
}

/* ---- the heap ------------------------------------------------------------------------------- */

enum { ITEMS = 50, CAPACITY = 40 };
struct items {
    uint32_t rank[ITEMS], place[ITEMS];
};

static bool before(const void *ctx, uint32_t a, uint32_t b)
{
    const struct items *it = ctx;
    return it->rank[a] < it->rank[b];
}

static uint32_t *place(void *ctx, uint32_t item)
{
    return &((struct items *)ctx)->place[item];
}

static bool first_is_least(struct vf_index_heap *h, const struct items *it, const bool *in)
{
    uint32_t first, least = UINT32_MAX, count = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        count += in[i];
        if (in[i] && it->rank[i] < least)
            least = it->rank[i];
    }
    if (*h->count != count)
        return false;
    return vf_index_heap_first(h, &first) ? in[first] && it->rank[first] == least : count == 0;
}

static void test_heap(void)
{
    struct items it = {0};
    bool in[ITEMS] = {0};
    uint32_t slots[CAPACITY], count = 0, inside = 0;
    struct vf_index_heap h = {slots, &count, CAPACITY, ITEMS, before, place, &it, false};
    uint64_t state = 1;
    int right = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t i = random_below(&state, ITEMS);
        if (!in[i] && inside < CAPACITY) {
            it.rank[i] = random_below(&state, 30);
            vf_index_heap_add(&h, i);
            in[i] = true;
            inside++;
        } else if (in[i] && random_below(&state, 2)) {
            vf_index_heap_remove(&h, i);
            in[i] = false;
            inside--;
        } else if (in[i]) {
            it.rank[i] = random_below(&state, 30);
            vf_index_heap_update(&h, i);
        } else {
            vf_index_heap_remove(&h, i);
        }
        right += first_is_least(&h, &it, in);
    }
    ok(right == 20000 && !h.broken, "the heap's first is the least of all: %d of 20000", right);
    for (int round = 0; round < 20000; round++) {
        uint32_t *words[3] = {slots, it.place, &count};
        uint32_t w = random_below(&state, 3), n = w == 0 ? CAPACITY : w == 1 ? ITEMS : 1, first;
        words[w][random_below(&state, n)] = (uint32_t)next_random(&state);
        uint32_t i = random_below(&state, ITEMS);
        vf_index_heap_add(&h, i);
        vf_index_heap_update(&h, random_below(&state, ITEMS));
        vf_index_heap_remove(&h, random_below(&state, ITEMS));
        if (vf_index_heap_first(&h, &first) && first >= ITEMS)
            break;
    }
    ok(h.broken, "nonsense in the heap is survived and told");
}

/* ---- the policy against a scan --------------------------------------------------------------- */

enum { LAYERS = 5, EXPERTS = 24, KEYS = LAYERS * EXPERTS };

static void *make_block(uint32_t layers, uint32_t experts)
{
    uint64_t bytes = vf_policy_bytes(layers, experts);
    void *block = aligned_alloc(64, bytes);
    if (!block)
        abort();
    memset(block, 0, bytes);
    return block;
}

static void random_set(uint64_t *state, uint32_t *experts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool again = true;
        while (again) {
            experts[i] = random_below(state, random_below(state, 2) ? EXPERTS : 8);
            again = false;
            for (uint32_t j = 0; j < i; j++)
                again = again || experts[j] == experts[i];
        }
    }
}

static bool victim_is_least(struct vf_policy *p, const bool *candidate)
{
    uint32_t victim;
    bool found = vf_policy_victim(p, &victim), any = false;
    float least = INFINITY;
    for (uint32_t k = 0; k < KEYS; k++) {
        if (vf_policy_has(p, k) != candidate[k])
            return false;
        any = any || candidate[k];
        if (candidate[k])
            least = fminf(least, vf_policy_worth(p, k));
    }
    return found == any && (!any || (candidate[victim] && vf_policy_worth(p, victim) == least));
}

/* The chances in the index are those of now: taking a candidate out and in again scores it anew. */
static bool scores_are_fresh(struct vf_policy *p, const bool *candidate)
{
    for (uint32_t k = 0; k < KEYS; k++) {
        if (!candidate[k])
            continue;
        float indexed = vf_policy_chance(p, k);
        vf_policy_remove(p, k);
        vf_policy_add(p, k);
        /* The regression learned in other layers' visits since. */
        if (!(fabsf(vf_policy_chance(p, k) - indexed) < 0.1f))
            return false;
    }
    return true;
}

static void test_index(void)
{
    void *block = make_block(LAYERS, EXPERTS);
    struct vf_policy p = vf_policy_open(block, LAYERS, EXPERTS);
    bool candidate[KEYS] = {0};
    uint64_t state = 2;
    int right = 0, fresh = 0, chances = 0;
    for (int round = 0; round < 6000; round++) {
        uint32_t experts[8], n = 1 + random_below(&state, 8), victim;
        random_set(&state, experts, n);
        vf_policy_visit(&p, (uint32_t)round % LAYERS, experts, n);
        for (int i = 0; i < 4; i++) {
            uint32_t k = random_below(&state, KEYS);
            if (random_below(&state, 2))
                vf_policy_add(&p, k);
            else
                vf_policy_remove(&p, k);
            candidate[k] = vf_policy_has(&p, k);
        }
        right += victim_is_least(&p, candidate);
        if (round % 7 == 0 && vf_policy_victim(&p, &victim)) {
            vf_policy_note_eviction(&p, victim);
            vf_policy_remove(&p, victim);
            candidate[victim] = false;
        }
        if (round % 100 == 0)
            fresh += scores_are_fresh(&p, candidate);
        float chance = vf_policy_chance(&p, random_below(&state, KEYS));
        chances += chance >= 0 && chance <= 1;
    }
    ok(right == 6000, "the victim is the one of least worth: %d of 6000", right);
    ok(fresh == 60, "scores follow what was learned: %d of 60", fresh);
    ok(chances == 6000, "chances stay in [0, 1]: %d of 6000", chances);
    struct vf_policy again = vf_policy_open(block, LAYERS, EXPERTS);
    ok(victim_is_least(&again, candidate), "another handle on the block sees the same");
    vf_policy_clear_candidates(&again);
    memset(candidate, 0, sizeof candidate);
    ok(victim_is_least(&again, candidate) && !vf_policy_is_broken(&again), "cleared: no victim");
    free(block);
}

static void test_nonsense(void)
{
    uint8_t *block = make_block(LAYERS, EXPERTS);
    struct vf_policy p = vf_policy_open(block, LAYERS, EXPERTS);
    uint64_t state = 3;
    int sane = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t experts[8], victim = 0;
        block[next_random(&state) % vf_policy_bytes(LAYERS, EXPERTS)] =
            (uint8_t)next_random(&state);
        random_set(&state, experts, 4);
        vf_policy_visit(&p, random_below(&state, LAYERS), experts, 4);
        vf_policy_add(&p, random_below(&state, KEYS));
        vf_policy_remove(&p, random_below(&state, KEYS));
        if (vf_policy_victim(&p, &victim) && victim < KEYS)
            vf_policy_note_eviction(&p, victim);
        float chance = vf_policy_chance(&p, random_below(&state, KEYS));
        sane += victim < KEYS && chance >= 0 && chance <= 1;
        if (vf_policy_is_broken(&p))
            vf_policy_clear_candidates(&p);
    }
    ok(sane == 20000, "nonsense in the block is survived: %d of 20000", sane);
    free(block);
}

/* ---- what it has to know --------------------------------------------------------------------- */

/* Visits layer 0 with one expert at a time, all of them candidates. */
static struct vf_policy open_with_candidates(void *block, uint32_t layers)
{
    struct vf_policy p = vf_policy_open(block, layers, 8);
    for (uint32_t k = 0; k < layers * 8; k++)
        vf_policy_add(&p, k);
    return p;
}

static void visit_one(struct vf_policy *p, uint32_t layer, uint32_t expert)
{
    vf_policy_visit(p, layer, &expert, 1);
}

static void test_knowledge(void)
{
    void *block = make_block(1, 8);
    struct vf_policy p = open_with_candidates(block, 1);
    for (uint32_t i = 0; i < 64; i++)
        visit_one(&p, 0, i % 4 == 3 ? 1 + i / 4 % 7 : 0);
    ok(vf_policy_chance(&p, 0) > vf_policy_chance(&p, 1), "frequent use counts");
    visit_one(&p, 0, 1);
    ok(vf_policy_chance(&p, 1) > vf_policy_chance(&p, 2), "recent use counts");
    float before_pause = vf_policy_chance(&p, 0);
    for (uint32_t i = 0; i < 3000; i++)
        visit_one(&p, 0, 1 + i % 7);
    ok(vf_policy_chance(&p, 0) < before_pause / 4 &&
           vf_policy_chance(&p, 0) < vf_policy_chance(&p, 1),
       "but what was frequent long ago doesn't");
    free(block);

    block = make_block(4, 8);
    p = open_with_candidates(block, 4);
    for (uint32_t i = 0; i < 400; i++)
        visit_one(&p, i % 4, i / 4 % 8); /* in all layers alike, no expert better than another */
    for (uint32_t i = 0; i < 1000; i++)
        vf_policy_note_eviction(&p, 5);
    uint32_t victim = UINT32_MAX;
    visit_one(&p, 0, 4);
    visit_one(&p, 1, 4);
    bool found = vf_policy_victim(&p, &victim);
    ok(found && victim / 8 == 1,
       "among equals one of the layer just visited goes, which comes up last: layer %u",
       victim / 8);
    ok(vf_policy_worth(&p, 2 * 8 + 7) > vf_policy_worth(&p, 0 * 8 + 7),
       "the next layer's are worth more than the one before's");
    free(block);
}

/* More experts in a layer than a visit rescores: all of them get their turn. */
static void test_many_experts(void)
{
    enum { MANY = 3000 };
    void *block = make_block(1, MANY);
    struct vf_policy p = vf_policy_open(block, 1, MANY);
    for (uint32_t e = 0; e < MANY; e++) {
        visit_one(&p, 0, e);
        vf_policy_add(&p, e);
    }
    float fresh = vf_policy_chance(&p, MANY - 1);
    for (uint32_t i = 0; i < 20; i++)
        visit_one(&p, 0, 5);
    int lower = 0;
    for (uint32_t e = 6; e < MANY; e++)
        lower += vf_policy_chance(&p, e) < fresh;
    ok(lower == MANY - 6, "every candidate of a large layer is scored in turn: %d of %d", lower,
       MANY - 6);
    free(block);
}

int main(void)
{
    plan(14);
    test_heap();
    test_index();
    test_nonsense();
    test_knowledge();
    test_many_experts();
    return 0;
}
