/* The offline replay against slow and obvious models of its policies, Belady's against every
 * possible choice of victims; routing traces as files; and that the engine's policy is the best of
 * the usual ones where real models are concerned. */
#include "bench/experts/replay_sim.h"
#include "bench/experts/synthetic_routing.h"
#include "common/base/npy.h"
#include "tap.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t state = 7;

static uint32_t random_below(uint32_t n)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

static struct vf_routing_trace random_trace(uint32_t tokens, uint32_t layers, uint32_t experts,
                                            uint32_t k)
{
    struct vf_routing_trace t = {tokens, layers, k, experts - 1, NULL};
    t.experts = calloc((size_t)tokens * layers * k, sizeof *t.experts);
    if (!t.experts)
        abort();
    for (uint32_t s = 0; s < tokens * layers; s++)
        for (uint32_t i = 0; i < k; i++) {
            uint16_t *set = t.experts + s * k;
            bool again = true;
            while (again) {
                set[i] = (uint16_t)random_below(random_below(2) ? experts : (experts + 1) / 2 + 1);
                again = set[i] >= experts;
                for (uint32_t j = 0; j < i; j++)
                    again = again || set[j] == set[i];
            }
        }
    return t;
}

static uint64_t hits_of(const struct vf_routing_trace *t, enum replay_policy policy, uint32_t slots,
                        double half_life)
{
    struct replay_setup setup = {policy, half_life, slots, 0, t->expert_max + 1};
    struct replay_result r = {0};
    struct vf_err err;
    if (replay_run(t, &setup, &r, &err) != VF_OK) {
        note("%s", err.text);
        return UINT64_MAX;
    }
    return r.hits;
}

/* ---- Belady ---------------------------------------------------------------------------------- */

/* The most hits from the set number `at` on, whatever is evicted: every subset of what is cached
 * that leaves room. best[at][cached]. */
enum { SMALL_KEYS = 8, SMALL_SETS = 16 };
struct search {
    const struct vf_routing_trace *t;
    uint32_t slots;
    int best[SMALL_SETS + 1][1 << SMALL_KEYS]; /* -1: not known yet */
};

static int most_hits(struct search *s, uint32_t at, uint32_t cached)
{
    const struct vf_routing_trace *t = s->t;
    if (at == t->token_count * t->layer_count)
        return 0;
    int *best = &s->best[at][cached];
    if (*best >= 0)
        return *best;
    uint32_t set = 0, experts = t->expert_max + 1;
    for (uint32_t i = 0; i < t->top_k; i++)
        set |= 1u << (at % t->layer_count * experts + t->experts[at * t->top_k + i]);
    int most = 0;
    uint32_t others = cached & ~set;
    for (uint32_t kept = others;; kept = (kept - 1) & others) {
        if ((uint32_t)__builtin_popcount(kept | set) <= s->slots) {
            int hits = most_hits(s, at + 1, kept | set);
            most = hits > most ? hits : most;
        }
        if (kept == 0)
            break;
    }
    *best = most + __builtin_popcount(cached & set);
    return *best;
}

static void test_belady(void)
{
    enum { ROUNDS = 400 };
    static struct search s;
    int right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t layers = 1 + random_below(2), experts = layers == 2 ? 4 : 4 + random_below(5);
        uint32_t k = 1 + random_below(2), tokens = 2 + random_below(SMALL_SETS / layers - 1);
        struct vf_routing_trace t = random_trace(tokens, layers, experts, k);
        s.t = &t;
        s.slots = k + random_below(4);
        memset(s.best, -1, sizeof s.best);
        uint64_t found = hits_of(&t, REPLAY_BELADY, s.slots, 0);
        int most = most_hits(&s, 0, 0);
        right += found == (uint64_t)most;
        if (found != (uint64_t)most)
            note("round %d: %llu hits, %d are possible", round, (unsigned long long)found, most);
        vf_routing_trace_deinit(&t);
    }
    ok(right == ROUNDS, "Belady's hits are the most that are possible: %d of %d", right, ROUNDS);
}

/* ---- LRU and LFU ----------------------------------------------------------------------------- */

struct slow_key {
    bool cached, in_set;
    int last_use;
    double uses; /* decayed to now */
};

/* The uses count half after half_life tokens, and everything is looked at each time. */
static uint64_t slow_hits(const struct vf_routing_trace *t, uint32_t slots, double half_life)
{
    struct slow_key keys[256] = {0};
    uint32_t experts = t->expert_max + 1, count = 0;
    uint64_t hits = 0;
    int now = 0;
    for (uint32_t token = 0; token < t->token_count; token++) {
        for (uint32_t k = 0; k < t->layer_count * experts && half_life > 0; k++)
            keys[k].uses *= token ? exp2(-1 / half_life) : 1;
        for (uint32_t layer = 0; layer < t->layer_count; layer++) {
            const uint16_t *set = vf_routing_trace_at(t, token, layer);
            now++;
            for (uint32_t i = 0; i < t->top_k; i++) {
                struct slow_key *k = &keys[layer * experts + set[i]];
                k->in_set = true;
                k->last_use = now;
                k->uses += 1;
                hits += k->cached;
                count += !k->cached;
                k->cached = true;
            }
            for (; count > slots; count--) {
                struct slow_key *worst = NULL;
                for (uint32_t i = 0; i < t->layer_count * experts; i++) {
                    struct slow_key *k = &keys[i];
                    if (!k->cached || k->in_set)
                        continue;
                    bool worse = !worst || (half_life > 0 && fabs(k->uses - worst->uses) > 1e-9
                                                ? k->uses < worst->uses
                                                : k->last_use < worst->last_use);
                    worst = worse ? k : worst;
                }
                worst->cached = false;
            }
            for (uint32_t i = 0; i < t->top_k; i++)
                keys[layer * experts + set[i]].in_set = false;
        }
    }
    return hits;
}

static void test_usual(void)
{
    enum { ROUNDS = 60 };
    int lru = 0, lfu = 0, bound = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct vf_routing_trace t = random_trace(60, 3, 16, 3);
        uint32_t slots = 4 + random_below(30);
        lru += hits_of(&t, REPLAY_LRU, slots, 0) == slow_hits(&t, slots, 0);
        /* Two uses may decay to values that differ by rounding only: the tie goes either way. */
        double fast = (double)hits_of(&t, REPLAY_LFU, slots, 5.3);
        lfu += fabs(fast - (double)slow_hits(&t, slots, 5.3)) <= 2;
        bound += hits_of(&t, REPLAY_BELADY, slots, 0) >= hits_of(&t, REPLAY_VFLOW, slots, 0);
        vf_routing_trace_deinit(&t);
    }
    ok(lru == ROUNDS, "LRU as by a scan: %d of %d", lru, ROUNDS);
    ok(lfu == ROUNDS, "LFU as by a scan: %d of %d", lfu, ROUNDS);
    ok(bound == ROUNDS, "Belady bounds the engine's policy: %d of %d", bound, ROUNDS);

    struct vf_routing_trace cycle = random_trace(30, 4, 4, 1);
    for (uint32_t i = 0; i < 30 * 4; i++)
        cycle.experts[i] = 0; /* four experts in turn, three slots */
    cycle.expert_max = 3;
    ok(hits_of(&cycle, REPLAY_LRU, 3, 0) == 0, "LRU hits nothing below one token's cycle");
    ok(hits_of(&cycle, REPLAY_BELADY, 3, 0) > 30 && hits_of(&cycle, REPLAY_VFLOW, 3, 0) > 30,
       "the engine's policy does");
    vf_routing_trace_deinit(&cycle);
}

/* ---- statistics and promises ----------------------------------------------------------------- */

static double rate(const struct vf_routing_trace *t, enum replay_policy policy, double half_life,
                   uint32_t experts, double share)
{
    struct replay_setup setup = {policy, half_life,
                                 (uint32_t)(share * t->layer_count * experts + 0.5),
                                 t->token_count / 4, experts};
    struct replay_result r = {0};
    struct vf_err err;
    return replay_run(t, &setup, &r, &err) == VF_OK ? (double)r.hits / (double)r.wanted : NAN;
}

static void test_synthetic(const char *name, double overlap, double entropy)
{
    static const double shares[3] = {0.125, 0.25, 0.5};
    const struct synthetic_routing *s = synthetic_routing_find(name);
    struct vf_routing_trace t;
    struct replay_statistics stats;
    struct vf_err err;
    if (!s || synthetic_routing_make(s, 600, 42, &t, &err) != VF_OK ||
        replay_describe(&t, s->experts, &stats, &err) != VF_OK)
        abort();
    ok(fabs(stats.overlap - overlap) < 0.03 && fabs(stats.entropy - entropy) < 0.25,
       "%s: overlap %.3f, entropy %.2f bits", name, stats.overlap, stats.entropy);
    int wins = 0;
    double closed = 0;
    for (int i = 0; i < 3; i++) {
        double lru = rate(&t, REPLAY_LRU, 0, s->experts, shares[i]);
        double ours = rate(&t, REPLAY_VFLOW, 0, s->experts, shares[i]);
        double best = rate(&t, REPLAY_BELADY, 0, s->experts, shares[i]);
        bool win = ours > lru && ours <= best;
        for (double half_life = 4; half_life < 1000; half_life *= 4)
            win = win && ours > rate(&t, REPLAY_LFU, half_life, s->experts, shares[i]);
        wins += win;
        closed += (ours - lru) / (best - lru) / 3;
    }
    ok(wins == 3, "%s: better than LRU and LFU at 12.5, 25 and 50%%, %.0f%% of the gap closed",
       name, 100 * closed);
    vf_routing_trace_deinit(&t);
}

/* ---- files ----------------------------------------------------------------------------------- */

static char path[128];

static void write_bytes(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
}

/* A NumPy file as its documentation has it, with this dictionary and data. */
static void write_npy(const char *dictionary, const void *data, size_t bytes)
{
    uint8_t file[512] = "\x93NUMPY\x01\x00";
    size_t length = 118;
    memset(file + 10, ' ', length);
    memcpy(file + 10, dictionary, strlen(dictionary));
    file[8] = (uint8_t)length;
    file[10 + length - 1] = '\n';
    memcpy(file + 10 + length, data, bytes);
    write_bytes(file, 10 + length + bytes);
}

static void test_files(void)
{
    struct vf_routing_trace t = random_trace(9, 4, 30, 3), back;
    struct vf_err err = {0};
    ok(vf_routing_trace_write(&t, path, &err) == VF_OK &&
           vf_routing_trace_read(path, &back, &err) == VF_OK && back.token_count == 9 &&
           back.layer_count == 4 && back.top_k == 3 &&
           memcmp(back.experts, t.experts, 9 * 4 * 3 * 2) == 0,
       "a trace comes back as it was written");
    vf_routing_trace_deinit(&t);
    vf_routing_trace_deinit(&back);

    const int32_t wide[4] = {3, 1, 7, 65534}, negative[4] = {3, 1, 7, -1},
                  large[4] = {1, 2, 3, 65535}, twice[4] = {3, 1, 7, 7};
    const char *good = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 2), }";
    write_npy(good, wide, 16);
    ok(vf_routing_trace_read(path, &back, &err) == VF_OK && back.experts[3] == 65534 &&
           back.expert_max == 65534,
       "int32 is read too");
    vf_routing_trace_deinit(&back);
    const struct {
        const char *dictionary;
        const void *data;
        size_t bytes;
        enum vf_code code;
    } bad[] = {
        {good, negative, 16, VF_ERR_CORRUPT},
        {good, large, 16, VF_ERR_CORRUPT},
        {good, twice, 16, VF_ERR_CORRUPT},
        {good, wide, 15, VF_ERR_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 2), }", wide, 16,
         VF_ERR_UNSUPPORTED},
        {"{'descr': '<i4', 'fortran_order': True, 'shape': (2, 1, 2), }", wide, 16,
         VF_ERR_UNSUPPORTED},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }", wide, 16,
         VF_ERR_UNSUPPORTED},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 2, 1), }", wide, 16,
         VF_ERR_UNSUPPORTED},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (0, 1, 2), }", wide, 16,
         VF_ERR_CORRUPT},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (18446744073709551615, 9, 9), }", wide,
         16, VF_ERR_CORRUPT},
        {"{'descr': '<i4', 'shape': (2, 1, 2), }", wide, 16, VF_ERR_CORRUPT},
        {"", wide, 16, VF_ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_npy(bad[i].dictionary, bad[i].data, bad[i].bytes);
        enum vf_code code = vf_routing_trace_read(path, &back, &err);
        ok(code == bad[i].code && !back.experts, "refused: %s", err.text);
    }
    write_bytes("\x93NUMPY\x01\x00\xff\xff{'descr'", 18);
    ok(vf_routing_trace_read(path, &back, &err) == VF_ERR_CORRUPT, "refused: %s", err.text);
    unlink(path);
}

static void test_recorder(void)
{
    struct vf_routing_recorder *r;
    struct vf_routing_trace t;
    struct vf_err err;
    if (vf_routing_recorder_create(2, 2, &r, &err) != VF_OK)
        abort();
    const uint32_t prompt[6] = {5, 6, 99, 7, 8, 99}, next[2] = {1, 2};
    ok(vf_routing_recorder_finish(r, &t, &err) == VF_ERR_UNSUPPORTED, "an empty trace is none");
    vf_routing_recorder_add(r, 0, prompt, 3, 2);
    vf_routing_recorder_add(r, 1, prompt, 3, 2);
    vf_routing_recorder_add(r, 0, next, 2, 1);
    ok(vf_routing_recorder_finish(r, &t, &err) == VF_ERR_UNSUPPORTED, "nor is half a token: %s",
       err.text);
    vf_routing_recorder_add(r, 1, next, 2, 1);
    ok(vf_routing_recorder_finish(r, &t, &err) == VF_OK && t.token_count == 3 &&
           vf_routing_trace_at(&t, 1, 1)[1] == 8 && vf_routing_trace_at(&t, 2, 0)[0] == 1 &&
           t.expert_max == 8,
       "tokens of several steps follow each other");
    vf_routing_trace_deinit(&t);
    vf_routing_recorder_destroy(r);
}

int main(void)
{
    plan(30);
    snprintf(path, sizeof path, "/tmp/vflow-trace-%ld.npy", (long)getpid());
    test_belady();
    test_usual();
    test_synthetic("olmoe", 0.42, 5.1);
    test_synthetic("qwen3", 0.37, 5.35);
    test_synthetic("flat", 0.0625, 6.95);
    test_files();
    test_recorder();
    return 0;
}
