/* The whole of expert streaming over real processes, sockets, files and rings: readers with random
 * orders get exactly the bytes of the file, whatever the cache size, I/O mode and number of
 * workers.
 */
#include "io_test.h"

#include <poll.h>

enum { LAYERS = 6, EXPERTS = 10, RECORD = 5 * 4096, FRONT = 3 * 4096 - 96 };

static struct test_bank bank;

struct reader_options {
    uint32_t process;
    uint64_t seed;
    uint32_t steps;
    uint32_t top;  /* experts of a step's layer, at most */
    bool prefetch; /* order a step ahead */
    bool hold;     /* keep everything of a step until its end; needs slots for it */
};

/* ---- readers -------------------------------------------------------------------------------- */

/* Different experts of one layer. */
static uint32_t choose_experts(uint64_t *state, uint32_t layer, uint32_t top,
                               struct vf_expert_ref *refs)
{
    uint32_t n = 1 + random_below(state, top), count = 0;
    while (count < n) {
        /* Some experts are chosen more often than others. */
        uint32_t e = random_below(state, 3) ? random_below(state, 4) : random_below(state, EXPERTS);
        bool known = false;
        for (uint32_t i = 0; i < count; i++)
            known = known || refs[i].expert == e;
        if (!known)
            refs[count++] = (struct vf_expert_ref){layer, e};
    }
    return count;
}

/* What was seen of fronts: must be the record's if the record is from the same load. */
static uint8_t seen[EXPERTS][FRONT];

static bool front_is_right(struct vf_expert_ref ref, const uint8_t *got,
                           const struct vf_expert_front *front)
{
    if (front->data)
        memcpy(seen[ref.expert], front->data, FRONT);
    return !got || front->load == 0 || memcmp(seen[ref.expert], got, FRONT) == 0;
}

/* Acquires and checks all of refs, as the executor does: what is ready first, then the rest. */
static enum vf_code consume(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                            uint32_t n, uint64_t deadline, struct vf_err *err)
{
    struct vf_expert_ref left[EXPERTS];
    struct vf_expert_front fronts[EXPERTS] = {{0}};
    const uint8_t *got[EXPERTS];
    memcpy(left, refs, n * sizeof *refs);
    while (n > 0) {
        enum vf_code code = s->ops->acquire(s, left, n, deadline, got, fronts, err);
        if (code != VF_OK)
            return code;
        uint32_t missing = 0, ready = 0;
        for (uint32_t i = 0; i < n; i++) {
            ready += got[i] || fronts[i].data;
            if (!front_is_right(left[i], got[i], &fronts[i]))
                return vf_err_set(err, VF_ERR_INTERNAL, "layer %u, expert %u: another front",
                                  left[i].layer, left[i].expert);
            if (got[i] && !record_is(got[i], left[i].layer, left[i].expert, RECORD))
                return vf_err_set(err, VF_ERR_INTERNAL, "layer %u, expert %u: wrong bytes",
                                  left[i].layer, left[i].expert);
        }
        if (ready == 0)
            return vf_err_set(err, VF_ERR_INTERNAL, "acquire gave nothing");
        s->ops->release(s, left, n, got);
        for (uint32_t i = 0; i < n; i++)
            if (!got[i]) {
                fronts[missing] = fronts[i];
                left[missing++] = left[i];
            }
        n = missing;
    }
    return VF_OK;
}

static void run_reader(const struct vf_run_dir *rd, struct reader_options o)
{
    void *zmq = vf_wire_context_create(NULL);
    struct vf_expert_source *s = open_source(zmq, rd, &bank, o.process, VF_S(20));
    struct vf_expert_ref now[EXPERTS], next[EXPERTS];
    uint64_t state = o.seed, wanted = 0;
    uint32_t now_n = choose_experts(&state, 0, o.top, now);
    struct vf_err err;
    for (uint32_t step = 0; step < o.steps; step++) {
        uint32_t next_n = choose_experts(&state, (step + 1) % LAYERS, o.top, next);
        if (o.prefetch)
            s->ops->fetch(s, next, next_n, step + 2, VF_FETCH_SCHEDULED);
        wanted += now_n;
        /* Sometimes a step is given up, as when a request is cancelled. */
        if (random_below(&state, 20) == 0)
            wanted -= now_n;
        else if (consume(s, now, now_n, step + 1, &err) != VF_OK) {
            fprintf(stderr, "# reader %u, step %u: %s\n", o.process, step, err.text);
            _exit(1);
        }
        memcpy(now, next, sizeof next);
        now_n = next_n;
    }
    struct vf_expert_stats stats;
    s->ops->stats(s, &stats);
    if (getenv("VFT_VERBOSE"))
        fprintf(stderr, "# reader %u: stall %.3f s\n", o.process, (double)stats.stall_ns / 1e9);
    if (stats.wanted != wanted || stats.hits + stats.late + stats.demand != wanted ||
        stats.early > stats.late + stats.demand || stats.bytes_read % RECORD) {
        fprintf(stderr,
                "# reader %u: wanted %" PRIu64 ", counted %" PRIu64 " = %" PRIu64 " hits + %" PRIu64
                " late + %" PRIu64 " demand\n",
                o.process, wanted, stats.wanted, stats.hits, stats.late, stats.demand);
        _exit(2);
    }
    s->ops->destroy(s);
    vf_wire_context_destroy(zmq);
    _exit(0);
}

/* ---- runs ----------------------------------------------------------------------------------- */

struct setting {
    const char *name;
    uint32_t slots, io_workers, readers, depth, steps;
    bool buffered, no_uring, prefetch;
};

static bool sums_agree(struct vf_expert_cache *c, uint32_t readers, struct vf_cache_io_stats *sum)
{
    uint64_t for_readers = 0;
    *sum = (struct vf_cache_io_stats){0};
    for (uint32_t i = 0; i < vf_expert_cache_geometry(c)->io_worker_count; i++) {
        struct vf_cache_io_stats s = vf_expert_cache_io_state(c, i).stats;
        sum->reads += s.reads;
        sum->bytes += s.bytes;
        sum->read_errors += s.read_errors;
        sum->evictions += s.evictions;
        sum->merged += s.merged;
        sum->stale += s.stale;
        sum->latency_ns_sum += s.latency_ns_sum;
    }
    for (uint32_t p = 0; p < readers; p++)
        for_readers += vf_expert_cache_process_stats(c, p).bytes_read;
    return sum->reads > 0 && sum->bytes == sum->reads * RECORD && sum->read_errors == 0 &&
           for_readers == sum->bytes;
}

static bool nothing_pinned(struct vf_expert_cache *c)
{
    for (uint32_t i = 0; i < vf_expert_cache_geometry(c)->slot_count; i++) {
        struct vf_cache_slot_view v;
        MUST(vf_expert_cache_view(c, i, &v, &must_err));
        if (v.pin_count)
            return false;
    }
    return true;
}

static void run_setting(const struct setting *x)
{
    struct vf_run_dir *rd;
    struct vf_expert_cache *c;
    struct vf_cache_geometry g = test_geometry(&bank, x->slots, x->io_workers);
    pid_t io[4], readers[8];
    uint64_t start = vf_now_ns();
    int bad = 0;
    MUST(vf_run_dir_create(&rd, &must_err));
    MUST(vf_expert_cache_create(rd, &g, &c, &must_err));
    /* Readers first: orders sent before the I/O workers are there must not be lost. */
    for (uint32_t i = 0; i < x->readers; i++) {
        readers[i] = fork_child();
        if (readers[i] == 0)
            run_reader(rd, (struct reader_options){.process = i,
                                                   .seed = 1000 + i,
                                                   .steps = x->steps,
                                                   .top = 5,
                                                   .prefetch = x->prefetch});
    }
    for (uint32_t i = 0; i < x->io_workers; i++)
        io[i] = start_io(rd, &bank,
                         (struct io_options){.index = i,
                                             .depth = x->depth,
                                             .piece_bytes = 8192,
                                             .buffered = x->buffered,
                                             .no_uring = x->no_uring});
    for (uint32_t i = 0; i < x->readers; i++)
        bad += wait_status(readers[i]) != 0;
    double seconds = (double)(vf_now_ns() - start) / 1e9;
    for (uint32_t i = 0; i < x->io_workers; i++)
        end_child(io[i]);
    struct vf_cache_io_stats sum;
    ok(bad == 0, "%s: every reader got the file's bytes", x->name);
    ok(sums_agree(c, x->readers, &sum), "%s: the counters agree", x->name);
    ok(nothing_pinned(c), "%s: nothing stays pinned", x->name);
    note("%.2f s, %" PRIu64 " reads, mean %.3f ms, %" PRIu64 " evictions, %" PRIu64
         " merged, %" PRIu64 " stale",
         seconds, sum.reads, (double)sum.latency_ns_sum / (double)sum.reads / 1e6, sum.evictions,
         sum.merged, sum.stale);
    vf_expert_cache_close(c);
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
}

static const struct setting settings[] = {
    {"uring direct", 16, 1, 1, 4, 600, false, false, true},
    {"uring direct, no prefetch", 16, 1, 1, 4, 300, false, false, false},
    {"uring buffered", 16, 1, 1, 4, 600, true, false, true},
    {"pread direct", 16, 1, 1, 4, 600, false, true, true},
    {"pread buffered", 16, 1, 1, 4, 600, true, true, true},
    {"one slot", 1, 1, 1, 4, 300, false, false, true},
    {"one slot, 2 I/O workers, 3 readers", 1, 2, 3, 4, 150, false, false, true},
    {"two slots, 2 I/O workers, 2 readers, depth 1", 2, 2, 2, 1, 200, false, false, true},
    {"2 I/O workers, 3 readers", 12, 2, 3, 8, 400, false, false, true},
    {"2 I/O workers, 3 readers, pread buffered", 12, 2, 3, 8, 400, true, true, true},
    {"everything fits", LAYERS *EXPERTS, 2, 2, 4, 400, false, false, true},
};

int main(void)
{
    enum { N = sizeof settings / sizeof settings[0] };
    plan(3 * N);
    make_test_base();
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
    bank.bank.front_bytes = FRONT;
    for (int i = 0; i < N; i++)
        run_setting(&settings[i]);
    free_test_bank(&bank);
    remove_test_base();
    return 0;
}
