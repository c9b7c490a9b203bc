/* The live expert cache decides as its offline replay does, and counts what became of prefetches.
 */
#include "bench/experts/replay_sim.h"
#include "common/run/shm.h"
#include "doors.h"

#include <math.h>

enum { LAYERS = 6, EXPERTS = 16, TOP = 3, TOKENS = 300 };

static struct vf_run_dir *rd;

static struct vf_expert_cache *make_cache(uint32_t slots)
{
    struct vf_cache_geometry g = {.layer_count = LAYERS,
                                  .expert_count = EXPERTS,
                                  .slot_count = slots,
                                  .io_worker_count = 1,
                                  .record_bytes = 4096,
                                  .fingerprint = 42};
    struct vf_expert_cache *c;
    MUST(vf_expert_cache_create(rd, &g, &c, &must_err));
    open_doors(c);
    return c;
}

static void drop_cache(struct vf_expert_cache *c)
{
    char name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    close_doors();
    vf_expert_cache_close(c);
    vf_shm_unlink(name);
}

/* ---- the same decisions ---------------------------------------------------------------------- */

/* Favourites and neighbours, so that every part of the policy has something to say. */
static struct vf_routing_trace make_trace(uint64_t seed)
{
    struct vf_routing_trace t = {TOKENS, LAYERS, TOP, EXPERTS - 1, NULL};
    t.experts = calloc((size_t)TOKENS * LAYERS * TOP, sizeof *t.experts);
    if (!t.experts)
        DIE("memory");
    for (uint32_t s = 0; s < TOKENS * LAYERS; s++) {
        uint16_t *set = t.experts + s * TOP;
        bool taken[EXPERTS] = {0};
        for (uint32_t i = 0; i < TOP;) {
            uint32_t kind = random_below(&seed, 3);
            uint32_t e = kind == 0                 ? random_below(&seed, EXPERTS)
                         : kind == 1 || s < LAYERS ? random_below(&seed, EXPERTS / 3)
                                                   : set[(int)i - LAYERS * TOP];
            if (taken[e])
                continue;
            taken[e] = true;
            set[i++] = (uint16_t)e;
        }
    }
    return t;
}

static void load(struct vf_expert_cache *c, struct vf_expert_ref ref, uint64_t deadline,
                 bool speculative, bool demand)
{
    struct vf_cache_order order = {ref, deadline, 0, demand, speculative};
    enum vf_cache_begin result;
    uint32_t slot;
    MUST(vf_cache_loader_begin(loader_of(c, 0), &order, &result, &slot, &must_err));
    if (result != VF_CACHE_BEGUN)
        DIE("layer %u, expert %u: no slot (%d)", ref.layer, ref.expert, (int)result);
    MUST(vf_cache_loader_finish(loader_of(c, 0), slot, NULL, &must_err));
}

/* One layer of one step as a stage worker does it; returns the hits. */
static uint32_t step(struct vf_expert_cache *c, uint32_t layer, const uint16_t *set,
                     uint64_t deadline)
{
    struct vf_expert_ref refs[TOP];
    enum vf_cache_found found[TOP];
    struct vf_cache_failure failures[TOP];
    const uint8_t *data[TOP];
    uint32_t experts[TOP], hits = 0;
    for (uint32_t i = 0; i < TOP; i++) {
        experts[i] = set[i];
        refs[i] = (struct vf_expert_ref){layer, set[i]};
    }
    MUST(vf_cache_reader_visit(reader_of(c, 0), layer, experts, TOP, &must_err));
    MUST(vf_cache_reader_order(reader_of(c, 0), refs, TOP, deadline, false, found, &must_err));
    for (uint32_t i = 0; i < TOP; i++) {
        hits += found[i] == VF_CACHE_READY;
        if (found[i] != VF_CACHE_READY)
            load(c, refs[i], deadline, false, false);
    }
    MUST(vf_cache_reader_pin(reader_of(c, 0), refs, TOP, deadline, found, data, NULL, failures,
                             &must_err));
    for (uint32_t i = 0; i < TOP; i++)
        if (found[i] != VF_CACHE_READY)
            DIE("layer %u, expert %u isn't there", layer, set[i]);
    MUST(vf_cache_reader_unpin(reader_of(c, 0), data, TOP, &must_err));
    return hits;
}

static void test_same_as_replay(uint32_t slots)
{
    struct vf_routing_trace t = make_trace(slots);
    struct vf_expert_cache *c = make_cache(slots);
    struct replay_setup setup = {.policy = REPLAY_VFLOW, .slots = slots, .experts = EXPERTS};
    struct replay_result offline = {0};
    uint64_t live = 0, deadline = 0;
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            live += step(c, layer, vf_routing_trace_at(&t, token, layer), ++deadline);
    MUST(replay_run(&t, &setup, &offline, &must_err));
    ok(live == offline.hits, "%u slots: %" PRIu64 " hits live, %" PRIu64 " of %" PRIu64 " offline",
       slots, live, offline.hits, offline.wanted);
    struct vf_cache_totals totals = vf_expert_cache_totals(c);
    ok(totals.prefetched_used == offline.wanted - offline.hits && totals.prefetched_wasted == 0 &&
           totals.guessed_used == 0 && totals.guessed_wasted == 0,
       "every load was ordered ahead and used");
    drop_cache(c);
    vf_routing_trace_deinit(&t);
}

/* ---- what became of prefetches --------------------------------------------------------------- */

static void order_and_load(struct vf_expert_cache *c, uint32_t expert, uint64_t deadline,
                           bool speculative, bool demand)
{
    struct vf_expert_ref ref = {0, expert};
    enum vf_cache_found found;
    MUST(vf_cache_reader_order(reader_of(c, 0), &ref, 1, deadline, speculative, &found, &must_err));
    load(c, ref, deadline, speculative, demand);
}

static enum vf_cache_found pin(struct vf_expert_cache *c, uint32_t expert, uint64_t deadline,
                               const uint8_t **data)
{
    struct vf_expert_ref ref = {0, expert};
    enum vf_cache_found found;
    struct vf_cache_failure failure;
    MUST(vf_cache_reader_pin(reader_of(c, 0), &ref, 1, deadline, &found, data, NULL, &failure,
                             &must_err));
    return found;
}

static void use(struct vf_expert_cache *c, uint32_t expert, uint64_t deadline)
{
    const uint8_t *data;
    if (pin(c, expert, deadline, &data) != VF_CACHE_READY)
        DIE("expert %u isn't there", expert);
    MUST(vf_cache_reader_unpin(reader_of(c, 0), &data, 1, &must_err));
}

static void test_prefetch_counts(void)
{
    struct vf_expert_cache *c = make_cache(2);
    const uint8_t *data;
    order_and_load(c, 0, 1, false, false);
    use(c, 0, 1);
    use(c, 0, 1);
    struct vf_cache_totals t = vf_expert_cache_totals(c);
    ok(t.prefetched_used == 1 && t.prefetched_wasted == 0, "a prefetch that is used counts once");
    order_and_load(c, 1, 2, false, true);
    use(c, 1, 2);
    ok(vf_expert_cache_totals(c).prefetched_used == 1, "a demand is none");
    order_and_load(c, 2, 3, true, false);
    use(c, 1, 4); /* past the guess: it may go */
    order_and_load(c, 3, 4, false, false);
    order_and_load(c, 4, 4, false, false);
    use(c, 4, 4);
    use(c, 4, 5); /* past 3 */
    order_and_load(c, 5, 5, false, false);
    order_and_load(c, 6, 5, false, false);
    t = vf_expert_cache_totals(c);
    ok(t.guessed_used == 0 && t.guessed_wasted == 1, "a guess that goes unused is wasted");
    ok(t.prefetched_wasted == 1, "as is a prefetch");
    order_and_load(c, 7, 4, false, true);
    ok(pin(c, 7, 4, &data) == VF_CACHE_READY, "a demand overrides what is due later");
    drop_cache(c);
}

static void test_read_time(void)
{
    struct vf_expert_cache *c = make_cache(4);
    struct vf_cache_order orders[3] = {
        {{0, 0}, 1, 0, false, false}, {{0, 1}, 1, 0, true, false}, {{0, 2}, 1, 0, false, true}};
    uint32_t slots[3];
    enum vf_cache_begin result;
    enum vf_cache_found found;
    for (int i = 0; i < 3; i++) {
        MUST(vf_cache_reader_order(reader_of(c, 0), &orders[i].ref, 1, 1, i == 2, &found,
                                   &must_err));
        MUST(vf_cache_loader_begin(loader_of(c, 0), &orders[i], &result, &slots[i], &must_err));
    }
    uint64_t began = vf_now_ns();
    usleep(20000);
    MUST(vf_cache_loader_finish(loader_of(c, 0), slots[0], NULL, &must_err));
    ok(vf_expert_cache_process_stats(c, 0).read_ns == 0,
       "reading goes on while one load is in flight");
    usleep(20000);
    MUST(vf_cache_loader_finish(loader_of(c, 0), slots[1], NULL, &must_err));
    uint64_t read_ns = vf_expert_cache_process_stats(c, 0).read_ns, all = vf_now_ns() - began;
    ok(read_ns >= VF_MS(40) && read_ns < all + VF_MS(20),
       "loads at the same time count once: %.1f ms in %.1f ms", (double)read_ns / 1e6,
       (double)all / 1e6);
    usleep(10000);
    MUST(vf_cache_loader_finish(loader_of(c, 0), slots[2], NULL, &must_err));
    ok(vf_expert_cache_process_stats(c, 0).read_ns == read_ns, "guesses don't count");
    drop_cache(c);
}

static void test_latencies(void)
{
    struct vf_expert_cache *c = make_cache(1);
    ok(vf_expert_cache_totals(c).latency_ms_p95 == 0, "no reads, no latency");
    for (uint64_t i = 1; i <= 1000; i++) /* 10 us to 10 ms */
        vf_cache_loader_count_read(loader_of(c, 0), 0, 4096, i * 10000, false);
    vf_cache_loader_count_read(loader_of(c, 0), 0, 4096, VF_S(3600), true);
    vf_cache_loader_count_read(loader_of(c, 0), 0, 4096, 0, false);
    struct vf_cache_totals t = vf_expert_cache_totals(c);
    ok(fabs(t.latency_ms_median / 5.0 - 1) < 0.1 && fabs(t.latency_ms_p95 / 9.5 - 1) < 0.1,
       "quantiles are within a tenth: median %.2f ms, 95%% %.2f ms", t.latency_ms_median,
       t.latency_ms_p95);
    ok(t.reads == 1002 && t.latency_ms_max == 3.6e6, "the longest read is exact");
    drop_cache(c);
}

int main(void)
{
    plan(17);
    make_test_base();
    vf_log_init("test", VF_LOG_WARN);
    MUST(vf_run_dir_create(&rd, &must_err));
    test_same_as_replay(4);
    test_same_as_replay(20);
    test_same_as_replay(60);
    test_prefetch_counts();
    test_read_time();
    test_latencies();
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    remove_test_base();
    return 0;
}
