/* The read engines and the order queue by themselves. */
#include "io_test.h"
#include "io_worker/engine.h"
#include "io_worker/orders.h"

#include <poll.h>
#include <sys/mman.h>

enum { LAYERS = 2, EXPERTS = 16, RECORD = 3 * 4096, SLOTS = 8 };

static struct test_bank bank;

static uint8_t *map_region(void)
{
    uint8_t *region =
        mmap(NULL, SLOTS * RECORD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED)
        DIE("mmap");
    return region;
}

static struct vf_read_engine *make_engine(uint8_t *region, bool buffered, bool no_uring)
{
    struct vf_read_params p = {.path = bank.path,
                               .buffered = buffered,
                               .no_uring = no_uring,
                               .depth = SLOTS,
                               .region = region,
                               .slot_bytes = RECORD,
                               .slot_count = SLOTS};
    struct vf_read_engine *e;
    MUST(vf_read_engine_create(&p, &e, &must_err));
    return e;
}

static uint32_t wait_and_reap(struct vf_read_engine *e, struct vf_read_done *done)
{
    struct pollfd p = {.fd = vf_read_engine_fd(e), .events = POLLIN};
    uint32_t n = 0;
    while (n == 0) { /* a signal may come after its completion was reaped with another's */
        if (poll(&p, 1, 10000) != 1)
            DIE("no completion in ten seconds");
        n = vf_read_engine_reap(e, done, SLOTS);
    }
    return n;
}

static void submit(struct vf_read_engine *e, uint32_t slot, uint32_t key)
{
    struct vf_expert_extent x = bank.extents[key];
    struct vf_read r = {.tag = slot, .slot = slot, .bytes = x.bytes, .file_offset = x.offset};
    MUST(vf_read_engine_submit(e, &r, &must_err));
}

/* Every expert several times, always as many in flight as fit. */
static void test_reads(bool buffered, bool no_uring)
{
    enum { READS = 400 };
    uint8_t *region = map_region();
    struct vf_read_engine *e = make_engine(region, buffered, no_uring);
    struct vf_read_done done[SLOTS];
    uint32_t in_slot[SLOTS], started = 0, ended = 0, good = 0;
    for (; started < SLOTS; started++) {
        in_slot[started] = started;
        submit(e, started, started);
    }
    while (ended < READS) {
        uint32_t n = wait_and_reap(e, done);
        for (uint32_t i = 0; i < n; i++, ended++) {
            uint32_t slot = done[i].tag, key = in_slot[slot];
            good += done[i].result == RECORD &&
                    record_is(region + slot * RECORD, key / EXPERTS, key % EXPERTS, RECORD);
            if (started < READS) {
                in_slot[slot] = started * 7 % (LAYERS * EXPERTS);
                submit(e, slot, in_slot[slot]);
                started++;
            }
        }
    }
    ok(good == READS, "%s: %u of %u reads right", vf_read_engine_name(e), good, READS);
    bool is_uring = strncmp(vf_read_engine_name(e), "uring", 5) == 0;
    ok(!(no_uring && is_uring), "it is the engine that was asked for");

    struct vf_read tail = {.tag = 1,
                           .slot = 1,
                           .bytes = RECORD,
                           .file_offset = bank.bank.file_bytes - VF_EXPERT_ALIGN};
    MUST(vf_read_engine_submit(e, &tail, &must_err));
    uint32_t n = wait_and_reap(e, done);
    ok(n == 1 && done[0].tag == 1 && done[0].result == VF_EXPERT_ALIGN, "a short read says so");
    tail.file_offset = vf_round_up(bank.bank.file_bytes, VF_EXPERT_ALIGN) + VF_EXPERT_ALIGN;
    MUST(vf_read_engine_submit(e, &tail, &must_err));
    n = wait_and_reap(e, done);
    ok(n == 1 && done[0].result == 0, "behind the end there is nothing");

    for (uint32_t slot = 0; slot < SLOTS; slot++)
        submit(e, slot, slot);
    vf_read_engine_destroy(e);
    memset(region, 0, SLOTS * RECORD);
    usleep(20000);
    bool quiet = true;
    for (size_t i = 0; i < SLOTS * RECORD; i++)
        quiet = quiet && region[i] == 0;
    ok(quiet, "after destroy nothing lands in the region any more");
    munmap(region, SLOTS * RECORD);
}

static void test_missing_file(void)
{
    uint8_t *region = map_region();
    struct vf_read_params p = {.path = "/nonexistent/model.vflow",
                               .depth = 1,
                               .region = region,
                               .slot_bytes = RECORD,
                               .slot_count = SLOTS};
    struct vf_read_engine *e;
    struct vf_err err;
    ok(vf_read_engine_create(&p, &e, &err) == VF_ERR_NOT_FOUND && !e, "a missing file: %s",
       err.text);
    munmap(region, SLOTS * RECORD);
}

/* The queue against a list that is searched from end to end. */
static void test_orders(void)
{
    enum { KEYS = LAYERS * EXPERTS };
    struct {
        bool there;
        struct vf_cache_order order;
        uint64_t arrival;
    } list[KEYS] = {0};
    struct vf_orders *q;
    uint64_t state = 11, arrivals = 0;
    int wrong = 0;
    MUST(vf_orders_create(LAYERS, EXPERTS, &q, &must_err));
    for (int i = 0; i < 20000; i++) {
        if (random_below(&state, 5) < 3) {
            uint32_t key = random_below(&state, KEYS);
            struct vf_cache_order o = {.ref = {key / EXPERTS, key % EXPERTS},
                                       .deadline = random_below(&state, 12),
                                       .process = random_below(&state, 3),
                                       .demand = random_below(&state, 4) == 0};
            enum vf_orders_put put = vf_orders_put(q, &o);
            wrong += put != (list[key].there ? VF_ORDERS_MERGED : VF_ORDERS_NEW);
            if (!list[key].there) {
                list[key].there = true;
                list[key].order = o;
                list[key].arrival = arrivals++;
            } else {
                struct vf_cache_order *into = &list[key].order;
                into->demand |= o.demand;
                if (o.deadline < into->deadline) {
                    into->deadline = o.deadline;
                    into->process = o.process;
                }
            }
            continue;
        }
        int best = -1;
        for (int k = 0; k < KEYS; k++) {
            const struct vf_cache_order *a = &list[k].order;
            const struct vf_cache_order *b = best < 0 ? NULL : &list[best].order;
            if (!list[k].there)
                continue;
            if (!b || (a->demand && !b->demand) ||
                (a->demand == b->demand &&
                 (a->deadline < b->deadline ||
                  (a->deadline == b->deadline && list[k].arrival < list[best].arrival))))
                best = k;
        }
        const struct vf_cache_order *first = vf_orders_first(q);
        if (best < 0) {
            wrong += first != NULL;
            continue;
        }
        const struct vf_cache_order *want = &list[best].order;
        wrong += !first || first->ref.layer != want->ref.layer ||
                 first->ref.expert != want->ref.expert || first->deadline != want->deadline ||
                 first->demand != want->demand || first->process != want->process;
        vf_orders_take_first(q);
        list[best].there = false;
    }
    ok(wrong == 0, "20000 random operations on the queue agree with a plain list");
    vf_orders_destroy(q);
}

int main(void)
{
    plan(4 * 5 + 2);
    make_test_base();
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
    test_reads(false, false);
    test_reads(true, false);
    test_reads(false, true);
    test_reads(true, true);
    test_missing_file();
    test_orders();
    free_test_bank(&bank);
    remove_test_base();
    return 0;
}
