/* The expert cache: who may take which slot, what survives a killed process, what is refused. */
#include "common/experts/policy.h"
#include "common/run/shm.h"
#include "doors.h"

#define RECORD 4096u

static struct vf_run_dir *rd;

static struct vf_expert_cache *make_cache(uint32_t slots, uint32_t io_workers)
{
    struct vf_cache_geometry g = {.layer_count = 4,
                                  .expert_count = 8,
                                  .slot_count = slots,
                                  .io_worker_count = io_workers,
                                  .record_bytes = RECORD,
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

/* Experts are named by one number here: layer * 8 + expert. */
static struct vf_expert_ref ref(uint32_t key)
{
    return (struct vf_expert_ref){key / 8, key % 8};
}

static enum vf_cache_begin begin(struct vf_expert_cache *c, uint32_t key, uint64_t deadline,
                                 bool demand, uint32_t *slot)
{
    struct vf_cache_order order = {ref(key), deadline, 0, demand, false};
    enum vf_cache_begin result;
    enum vf_cache_found found;
    MUST(vf_cache_reader_order(reader_of(c, 0), &order.ref, 1, deadline, false, &found, &must_err));
    uint32_t io = vf_expert_cache_io_of(c, order.ref);
    MUST(vf_cache_loader_begin(loader_of(c, io), &order, &result, slot, &must_err));
    return result;
}

static void finish(struct vf_expert_cache *c, uint32_t key, uint32_t slot)
{
    MUST(vf_cache_loader_finish(loader_of(c, vf_expert_cache_io_of(c, ref(key))), slot, NULL,
                                &must_err));
}

/* Order, load and finish in one; true when a slot was granted. */
static bool load(struct vf_expert_cache *c, uint32_t key, uint64_t deadline)
{
    uint32_t slot;
    if (begin(c, key, deadline, false, &slot) != VF_CACHE_BEGUN)
        return false;
    finish(c, key, slot);
    return true;
}

static enum vf_cache_found pin(struct vf_expert_cache *c, uint32_t process, uint32_t key,
                               uint64_t deadline, const uint8_t **data)
{
    struct vf_expert_ref r = ref(key);
    enum vf_cache_found found;
    struct vf_cache_failure failure;
    MUST(vf_cache_reader_pin(reader_of(c, process), &r, 1, deadline, &found, data, NULL, &failure,
                             &must_err));
    return found;
}

/* What pin tells of an expert's load; the pin is given back. */
static struct vf_expert_front landed(struct vf_expert_cache *c, uint32_t key, uint64_t deadline)
{
    struct vf_expert_ref r = ref(key);
    enum vf_cache_found found;
    struct vf_cache_failure failure;
    struct vf_expert_front front = {NULL, 99};
    const uint8_t *data;
    MUST(vf_cache_reader_pin(reader_of(c, 0), &r, 1, deadline, &found, &data, &front, &failure,
                             &must_err));
    MUST(vf_cache_reader_unpin(reader_of(c, 0), &data, 1, &must_err));
    return front;
}

static uint32_t unpin(struct vf_expert_cache *c, uint32_t process, const uint8_t *data)
{
    doors.woken = 0;
    MUST(vf_cache_reader_unpin(reader_of(c, process), &data, 1, &must_err));
    return doors.woken;
}

/* A step whose routing wants this expert of its layer. */
static void use(struct vf_expert_cache *c, uint32_t key, uint64_t deadline)
{
    const uint8_t *data;
    uint32_t expert = key % 8;
    MUST(vf_cache_reader_visit(reader_of(c, 0), key / 8, &expert, 1, &must_err));
    if (pin(c, 0, key, deadline, &data) != VF_CACHE_READY)
        DIE("expert %u isn't there", key);
    unpin(c, 0, data);
}

static bool holds(struct vf_expert_cache *c, uint32_t key)
{
    for (uint32_t i = 0; i < vf_expert_cache_geometry(c)->slot_count; i++) {
        struct vf_cache_slot_view v;
        MUST(vf_expert_cache_view(c, i, &v, &must_err));
        if (v.state == VF_SLOT_READY && v.ref.layer == key / 8 && v.ref.expert == key % 8)
            return true;
    }
    return false;
}

/* ---- fronts --------------------------------------------------------------------------------- */

static bool is_none(struct vf_expert_front f)
{
    return !f.data && f.load == 0;
}

static void test_fronts(void)
{
    struct vf_expert_cache *c = make_cache(3, 1);
    struct vf_expert_front first, second, whole;
    struct vf_err err = {0};
    uint32_t slot;
    ok(is_none(landed(c, 0, 1)), "what isn't there has no front");
    begin(c, 0, 1, true, &slot);
    ok(is_none(landed(c, 0, 1)), "nor what is loading");
    MUST(vf_cache_loader_mark_front(loader_of(c, 0), slot, &must_err));
    first = landed(c, 0, 1);
    ok(first.data == vf_expert_cache_slot_data(c, slot) && first.load != 0,
       "until its loader says that it has landed");
    finish(c, 0, slot);
    whole = landed(c, 0, 1);
    ok(!whole.data && whole.load == first.load, "the record that follows is of the same load");
    ok(vf_cache_loader_mark_front(loader_of(c, 0), slot, &err) == VF_ERR_INTERNAL,
       "a front of what isn't loading is refused: %s", err.text);

    begin(c, 1, 1, true, &slot);
    MUST(vf_cache_loader_mark_front(loader_of(c, 0), slot, &must_err));
    first = landed(c, 1, 1);
    MUST(vf_expert_cache_release_loader(c, 0, &must_err));
    ok(first.data && is_none(landed(c, 1, 1)), "a front goes with its load");
    begin(c, 1, 1, true, &slot);
    ok(is_none(landed(c, 1, 1)), "the next load has none yet");
    MUST(vf_cache_loader_mark_front(loader_of(c, 0), slot, &must_err));
    second = landed(c, 1, 1);
    finish(c, 1, slot);
    whole = landed(c, 1, 1);
    ok(second.data && first.load != second.load && whole.load == second.load,
       "and another number, which is the record's");

    struct vf_cache_failure failure = {.code = VF_ERR_CORRUPT};
    begin(c, 2, 1, false, &slot);
    MUST(vf_cache_loader_mark_front(loader_of(c, 0), slot, &must_err));
    MUST(vf_cache_loader_finish(loader_of(c, 0), slot, &failure, &must_err));
    begin(c, 3, 1, false, &slot);
    ok(is_none(landed(c, 2, 1)) && is_none(landed(c, 3, 1)), "a failed load leaves none behind");
    drop_cache(c);
}

/* ---- who may take which slot ---------------------------------------------------------------- */

static void test_never_taken(void)
{
    struct vf_expert_cache *c = make_cache(2, 1);
    uint32_t slot, other;
    const uint8_t *data;
    ok(load(c, 0, 10), "an expert is loaded");
    ok(pin(c, 0, 0, 10, &data) == VF_CACHE_READY && data, "and pinned");
    ok(begin(c, 1, 10, false, &slot) == VF_CACHE_BEGUN, "the second slot is loading");
    ok(begin(c, 1, 10, false, &other) == VF_CACHE_PRESENT, "a second order finds it loading");
    ok(begin(c, 2, 1, true, &other) == VF_CACHE_STARVED,
       "an urgent demand takes neither a pinned nor a loading slot");
    finish(c, 1, slot);
    ok(unpin(c, 0, data) == 1, "unpinning tells that I/O worker 0 waits for a slot");
    ok(begin(c, 2, 50, true, &other) == VF_CACHE_BEGUN, "which it gets");
    ok(!holds(c, 0) && holds(c, 1), "the used one went, the prefetched one stayed");
    finish(c, 2, other);
    use(c, 2, 10);
    ok(pin(c, 0, 2, 10, &data) == VF_CACHE_READY && unpin(c, 0, data) == 0,
       "nobody waits any more");
    drop_cache(c);
}

/* A demand gets no slot, unless the machine is so busy that the grace has run out since start. */
static bool is_denied(struct vf_expert_cache *c, uint32_t key, uint64_t deadline, uint64_t start)
{
    uint32_t slot;
    if (begin(c, key, deadline, true, &slot) == VF_CACHE_STARVED)
        return true;
    if (vf_now_ns() - start < VF_CACHE_GRACE_NS)
        return false;
    vf_run_dir_remove(rd);
    remove_test_base();
    printf("# SKIP the machine is too busy for a test that needs a quarter of a second\n");
    fflush(stdout);
    _exit(77);
}

static void test_protection(void)
{
    struct vf_expert_cache *c = make_cache(1, 1);
    uint32_t slot;
    uint64_t start = vf_now_ns();
    ok(load(c, 0, 100), "a prefetch is loaded");
    ok(begin(c, 1, 200, false, &slot) == VF_CACHE_STARVED, "a later order doesn't take it");
    ok(begin(c, 1, 100, false, &slot) == VF_CACHE_STARVED, "one of the same deadline doesn't");
    ok(begin(c, 1, 100, true, &slot) == VF_CACHE_BEGUN,
       "a demand of the same one does, while nobody waits for the prefetch");
    finish(c, 1, slot);
    ok(is_denied(c, 2, 100, start), "another demand has to wait for the first");
    ok(load(c, 3, 99), "an earlier order does");
    use(c, 3, 99);
    ok(load(c, 2, 500), "after its use anybody may take it");

    const uint8_t *data;
    ok(pin(c, 0, 3, 501, &data) == VF_CACHE_MISSING, "the process moves past a prefetch");
    start = vf_now_ns();
    ok(load(c, 3, 600), "which isn't protected any more");
    ok(begin(c, 4, 400, false, &slot) == VF_CACHE_STALE, "a prefetch it is past is stale");
    ok(is_denied(c, 4, 700, start), "the new one is protected");
    usleep((unsigned)(VF_CACHE_GRACE_NS / 1000) + 20000);
    ok(begin(c, 4, 700, false, &slot) == VF_CACHE_STARVED, "against prefetches for good");
    ok(begin(c, 4, 700, true, &slot) == VF_CACHE_BEGUN,
       "against a demand until its grace has run out");
    finish(c, 4, slot);
    replace_reader(c, 0);
    ok(load(c, 5, 900), "a dead process's prefetch is free for all");
    drop_cache(c);
}

static void test_batch(void)
{
    struct vf_expert_cache *c = make_cache(3, 2);
    struct vf_expert_ref refs[3] = {ref(0), ref(1), ref(2)};
    enum vf_cache_found found[3];
    for (uint32_t key = 0; key < 3; key++) {
        load(c, key == 2 ? 9 : key, 1);
        use(c, key == 2 ? 9 : key, 1);
    }
    /* 0 and 1 are the least recently used of 0, 1, 9. */
    MUST(vf_cache_reader_order(reader_of(c, 0), refs, 3, 10, false, found, &must_err));
    ok(found[0] == VF_CACHE_READY && found[1] == VF_CACHE_READY && found[2] == VF_CACHE_MISSING,
       "an order tells what is there");
    ok(load(c, 2, 10) && holds(c, 0) && holds(c, 1) && !holds(c, 9),
       "the hits of a batch aren't evicted for its misses");
    MUST(vf_cache_reader_order(reader_of(c, 0), refs, 3, 11, false, found, &must_err));
    ok(found[2] == VF_CACHE_READY, "all three are there");
    struct vf_expert_ref far = ref(20);
    MUST(vf_cache_reader_order(reader_of(c, 0), &far, 1, 12, false, found, &must_err));
    const uint8_t *data;
    ok(pin(c, 0, 20, 12, &data) == VF_CACHE_ORDERED && !data, "an order without slot is known");
    drop_cache(c);
}

static void test_value(void)
{
    struct vf_expert_cache *c = make_cache(4, 1);
    for (uint32_t key = 0; key < 4; key++)
        load(c, key, 1);
    /* 0 four times long ago, 1 to 3 once each, 3 last. */
    for (int i = 0; i < 4; i++)
        use(c, 0, 1);
    for (uint32_t key = 1; key < 4; key++)
        use(c, key, 1);
    ok(load(c, 4, 2) && !holds(c, 1), "among those used once the least recent goes");
    use(c, 4, 2);
    ok(load(c, 5, 2) && !holds(c, 2) && holds(c, 0), "frequent use protects against recent use");
    use(c, 5, 2);
    for (int i = 0; i < 40; i++)
        use(c, 3 + (uint32_t)i % 3, 2);
    ok(load(c, 6, 3) && !holds(c, 0), "but not for ever");
    use(c, 6, 3);
    /* 3, 4, 5 have been used about 13 times each: 0, loaded again, must bring its value along. */
    ok(load(c, 0, 3) && !holds(c, 6), "the newcomer of a single use goes first");
    use(c, 0, 3);
    ok(load(c, 7, 3) && !holds(c, 0), "as does the one that came back");
    use(c, 7, 3);
    ok(load(c, 8, 4), "an expert of another layer finds a slot");
    for (uint32_t i = 0; i < 40; i++) /* of two layers in turn, one favourite each */
        use(c, i % 2 ? 4 : 8, 4);
    ok(load(c, 1, 5) && load(c, 9, 5) && holds(c, 4) && holds(c, 8),
       "the favourites of two layers stay");
    drop_cache(c);
}

static void test_value_is_kept(void)
{
    struct vf_expert_cache *c = make_cache(2, 1);
    const uint8_t *data;
    load(c, 0, 1);
    load(c, 1, 1);
    for (int i = 0; i < 4; i++)
        use(c, 0, 1);
    pin(c, 0, 1, 1, &data);
    ok(load(c, 2, 2) && !holds(c, 0), "an expert used four times has to go, the other is pinned");
    unpin(c, 0, data);
    use(c, 2, 2);
    pin(c, 0, 2, 2, &data);
    ok(load(c, 0, 3) && !holds(c, 1), "and comes back");
    unpin(c, 0, data);
    use(c, 0, 3);
    use(c, 2, 3);
    ok(load(c, 3, 4) && holds(c, 0) && !holds(c, 2),
       "its earlier uses count against three of the other, which is more recent");
    drop_cache(c);
}

static void test_single_slot(void)
{
    struct vf_expert_cache *c = make_cache(1, 2);
    int done = 0;
    uint64_t state = 3;
    for (uint64_t step = 1; step <= 2000; step++) {
        uint32_t key = random_below(&state, 32), slot;
        const uint8_t *data;
        /* A prefetch for later gets in the way every time. */
        load(c, random_below(&state, 32), step + 1 + random_below(&state, 5));
        enum vf_cache_found found = pin(c, 0, key, step, &data);
        if (found != VF_CACHE_READY) {
            if (begin(c, key, step, true, &slot) != VF_CACHE_BEGUN)
                break;
            finish(c, key, slot);
            found = pin(c, 0, key, step, &data);
        }
        if (found != VF_CACHE_READY)
            break;
        unpin(c, 0, data);
        done++;
    }
    ok(done == 2000, "one slot makes progress past any prefetch: %d of 2000 steps", done);
    drop_cache(c);
}

/* ---- failures ------------------------------------------------------------------------------- */

static void test_failures(void)
{
    struct vf_expert_cache *c = make_cache(2, 1);
    struct vf_cache_failure failure = {.code = VF_ERR_IO, .sys_errno = EIO}, seen;
    struct vf_expert_ref r = ref(3);
    enum vf_cache_found found;
    const uint8_t *data;
    uint32_t slot, before = vf_cache_reader_event_count(reader_of(c, 0));
    begin(c, 3, 5, false, &slot);
    MUST(vf_cache_loader_finish(loader_of(c, 0), slot, &failure, &must_err));
    ok(vf_cache_reader_event_count(reader_of(c, 0)) != before, "a failure is an event");
    ok(pin(c, 0, 3, 5, &data) == VF_CACHE_MISSING,
       "a failed prefetch nobody waits for is forgotten");
    begin(c, 3, 5, false, &slot);
    ok(pin(c, 1, 3, 5, &data) == VF_CACHE_LOADING, "now somebody waits");
    MUST(vf_cache_loader_finish(loader_of(c, 0), slot, &failure, &must_err));
    MUST(vf_cache_reader_pin(reader_of(c, 1), &r, 1, 5, &found, &data, NULL, &seen, &must_err));
    ok(found == VF_CACHE_FAILED && seen.code == VF_ERR_IO && seen.sys_errno == EIO && !data,
       "who waited is told");
    ok(pin(c, 1, 3, 5, &data) == VF_CACHE_MISSING, "once; then it may be ordered again");
    ok(begin(c, 3, 5, true, &slot) == VF_CACHE_BEGUN, "and is");
    struct vf_err err;
    ok(vf_cache_loader_finish(loader_of(c, 0), 1 - slot, NULL, &err) == VF_ERR_INTERNAL,
       "finishing a slot that isn't loading is refused");
    const uint8_t *other = vf_expert_cache_slot_data(c, slot);
    ok(vf_cache_reader_unpin(reader_of(c, 2), &other, 1, &err) == VF_ERR_INTERNAL,
       "unpinning what isn't pinned is refused");
    ok(vf_cache_reader_wait(reader_of(c, 0), vf_cache_reader_event_count(reader_of(c, 0)),
                            vf_now_ns() + VF_MS(20)) == VF_ERR_TIMEOUT,
       "waiting ends at its deadline");
    ok(vf_cache_reader_wait(reader_of(c, 0), vf_cache_reader_event_count(reader_of(c, 0)) - 1,
                            vf_now_ns() + VF_S(60)) == VF_OK,
       "and at once when something happened since");
    drop_cache(c);
}

static void test_dead_io_worker(void)
{
    struct vf_expert_cache *c = make_cache(1, 1);
    uint32_t slot;
    const uint8_t *data;
    begin(c, 0, 5, true, &slot);
    MUST(vf_expert_cache_release_loader(c, 0, &must_err));
    ok(pin(c, 0, 0, 5, &data) == VF_CACHE_MISSING, "a dead I/O worker's slot holds nothing");
    ok(begin(c, 0, 5, true, &slot) == VF_CACHE_STARVED, "and rests, a read may still land in it");
    usleep(2100000);
    ok(begin(c, 0, 5, true, &slot) == VF_CACHE_BEGUN, "then it is used again");
    drop_cache(c);
}

/* ---- killed processes ----------------------------------------------------------------------- */

static void test_killed_holder(void)
{
    struct vf_expert_cache *c = make_cache(2, 1);
    load(c, 0, 5);
    load(c, 1, 5);
    int fd[2];
    if (pipe(fd) != 0)
        DIE("pipe");
    pid_t pid = fork_child();
    if (pid == 0) {
        const uint8_t *data;
        pin(c, 7, 0, 5, &data);
        pin(c, 7, 0, 5, &data);
        pin(c, 7, 1, 5, &data);
        MUST(vf_expert_cache_lock_for_test(c, &must_err));
        ssize_t n = write(fd[1], "x", 1);
        (void)n;
        for (;;)
            pause();
    }
    char byte;
    if (read(fd[0], &byte, 1) != 1)
        DIE("child");
    close(fd[0]);
    close(fd[1]);
    end_child(pid);
    struct vf_cache_slot_view v;
    struct vf_err err;
    ok(vf_expert_cache_view(c, 0, &v, &err) == VF_OK && v.state == VF_SLOT_READY,
       "the table is usable after its holder was killed");
    ok(v.pin_count == 2, "the dead process's pins are known");
    uint32_t slot;
    ok(begin(c, 2, 1, true, &slot) == VF_CACHE_STARVED, "and respected");
    replace_reader(c, 7);
    ok(begin(c, 2, 1, true, &slot) == VF_CACHE_BEGUN, "until they are given back");
    ok(vf_expert_cache_view(c, 1 - slot, &v, &err) == VF_OK && v.pin_count == 0, "all of them");
    drop_cache(c);
}

/* Changes the table as fast as it can, as process 1 and I/O worker io. */
static void hammer(struct vf_expert_cache *c, uint32_t io, uint64_t seed)
{
    const uint8_t *data[4] = {0};
    for (uint64_t step = 1;; step++) {
        uint32_t key = random_below(&seed, 16) * 2 + io, slot, i = random_below(&seed, 4);
        if (data[i])
            unpin(c, 1 + io, data[i]);
        pin(c, 1 + io, random_below(&seed, 32), step, &data[i]);
        if (begin(c, key, step + random_below(&seed, 3), random_below(&seed, 2), &slot) ==
            VF_CACHE_BEGUN)
            finish(c, key, slot);
    }
}

static bool table_is_sound(struct vf_expert_cache *c, uint32_t slots)
{
    bool seen[32] = {0};
    for (uint32_t i = 0; i < slots; i++) {
        struct vf_cache_slot_view v;
        MUST(vf_expert_cache_view(c, i, &v, &must_err));
        if (v.state == VF_SLOT_FREE)
            continue;
        uint32_t key = v.ref.layer * 8 + v.ref.expert;
        if (v.state != VF_SLOT_READY || v.pin_count || key >= 32 || seen[key]) {
            note("slot %u: state %d, %u pins, expert %u", i, (int)v.state, v.pin_count, key);
            return false;
        }
        seen[key] = true;
    }
    return true;
}

static void test_random_kills(void)
{
    enum { SLOTS = 12, ROUNDS = 60 };
    struct vf_expert_cache *c = make_cache(SLOTS, 2);
    uint64_t state = 77;
    int sound = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[2];
        for (uint32_t io = 0; io < 2; io++) {
            pids[io] = fork_child();
            if (pids[io] == 0)
                hammer(c, io, next_random(&state) + io);
        }
        usleep(500 + random_below(&state, 3000));
        /* One is killed first, so that the other meets what it left. */
        end_child(pids[0]);
        usleep(500);
        end_child(pids[1]);
        for (uint32_t i = 0; i < 2; i++) {
            replace_reader(c, 1 + i);
            MUST(vf_expert_cache_release_loader(c, i, &must_err));
        }
        sound += table_is_sound(c, SLOTS);
    }
    ok(sound == ROUNDS, "the table is sound after killed processes: %d of %d rounds", sound,
       ROUNDS);
    drop_cache(c);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void test_limits(void)
{
    struct vf_err err = {0};
    uint64_t bytes;
    struct vf_cache_geometry good = {.layer_count = 4,
                                     .expert_count = 8,
                                     .slot_count = 3,
                                     .io_worker_count = 1,
                                     .record_bytes = RECORD};
    ok(vf_expert_cache_bytes(&good, &bytes, &err) == VF_OK && bytes > 3 * RECORD,
       "a good geometry");
    struct vf_cache_geometry bad[6] = {good, good, good, good, good, good};
    bad[0].layer_count = 0;
    bad[1].expert_count = UINT32_MAX;
    bad[2].slot_count = 0;
    bad[3].io_worker_count = VF_CACHE_IO_WORKERS_MAX + 1;
    bad[4].record_bytes = RECORD + 1;
    bad[5].record_bytes = 1ull << 40;
    for (int i = 0; i < 6; i++)
        ok(vf_expert_cache_bytes(&bad[i], &bytes, &err) == VF_ERR_LIMIT, "refused: %s", err.text);
    ok(vf_expert_cache_slots_for(&good, 0) == 1, "the smallest budget gives one slot");
    ok(vf_expert_cache_slots_for(&good, 5 * RECORD + 1) == 5, "whole slots only");
    ok(vf_expert_cache_slots_for(&good, UINT64_MAX) == 32, "never more than experts");
}

/* Every 4-byte word of the header's fixed part, flipped: open refuses or works, never crashes. */
static void test_broken_header(void)
{
    struct vf_expert_cache *c = make_cache(2, 1), *opened;
    char name[VF_RUN_SHM_NAME_MAX];
    struct vf_shm shm;
    struct vf_err err;
    int refused = 0, opens = 0;
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    MUST(vf_shm_open(name, 4096, &shm, &must_err));
    uint32_t *words = shm.base;
    for (int i = 0; i < 38; i++) {
        uint32_t old = words[i];
        words[i] ^= 0x40000001u;
        enum vf_code code = vf_expert_cache_open(rd, &opened, &err);
        refused += code != VF_OK;
        opens += code == VF_OK;
        vf_expert_cache_close(opened);
        words[i] = old;
    }
    note("%d flipped words refused, %d harmless (unused tail of the run id, fingerprint)", refused,
         opens);
    ok(refused >= 25, "a broken header is refused");
    ok(vf_expert_cache_open(rd, &opened, &err) == VF_OK, "the whole one opens");
    vf_expert_cache_close(opened);
    vf_shm_close(&shm);
    close_doors();
    char path[160];
    snprintf(path, sizeof path, "/dev/shm%s", name);
    struct stat st;
    if (stat(path, &st) != 0 || truncate(path, st.st_size - 4096) != 0)
        DIE("truncate");
    ok(vf_expert_cache_open(rd, &opened, &err) == VF_ERR_CORRUPT, "a short object is refused: %s",
       err.text);
    chmod(path, 0666);
    ok(vf_expert_cache_open(rd, &opened, &err) == VF_ERR_DENIED, "one open to others is refused");
    vf_expert_cache_close(c);
    vf_shm_unlink(name);
    ok(vf_expert_cache_open(rd, &opened, &err) == VF_ERR_NOT_FOUND, "a missing one is refused");
}

/* Nonsense in the tables behind the header: calls end with some answer. */
static void test_broken_tables(void)
{
    struct vf_expert_cache *c = make_cache(4, 1);
    char name[VF_RUN_SHM_NAME_MAX];
    struct vf_shm shm;
    uint64_t state = 5;
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    MUST(vf_shm_open(name, 4096, &shm, &must_err));
    /* From the header: where keys begin and pins do; slots, lists and policy lie between. The pins
     * are left alone, so counts stay true. */
    uint64_t keys_at, pins_at;
    memcpy(&keys_at, (uint8_t *)shm.base + 112, 8);
    memcpy(&pins_at, (uint8_t *)shm.base + 128, 8);
    if (pins_at - keys_at != 32 * 8 + 4 * 128 + 64 + vf_policy_bytes(4, 8))
        DIE("tables from %" PRIu64 " to %" PRIu64, keys_at, pins_at);
    for (int round = 0; round < 3000; round++) {
        size_t at = keys_at + random_below(&state, (uint32_t)(pins_at - keys_at));
        ((uint8_t *)shm.base)[at] = (uint8_t)next_random(&state);
        const uint8_t *data;
        uint32_t key = random_below(&state, 32), slot;
        if (pin(c, 0, key, (uint64_t)round, &data) == VF_CACHE_READY)
            unpin(c, 0, data);
        if (begin(c, key, (uint64_t)round, true, &slot) == VF_CACHE_BEGUN) {
            struct vf_err err;
            vf_cache_loader_finish(loader_of(c, 0), slot, NULL, &err);
        }
    }
    ok(1, "nonsense in the tables is survived");
    vf_shm_close(&shm);
    drop_cache(c);
}

int main(void)
{
    plan(73 + 9);
    make_test_base();
    vf_log_init("test", VF_LOG_WARN);
    MUST(vf_run_dir_create(&rd, &must_err));
    test_fronts();
    test_never_taken();
    test_protection();
    test_batch();
    test_value();
    test_value_is_kept();
    test_single_slot();
    test_failures();
    test_dead_io_worker();
    test_killed_holder();
    test_random_kills();
    test_limits();
    test_broken_header();
    test_broken_tables();
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    remove_test_base();
    return 0;
}
