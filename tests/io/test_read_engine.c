/* The read engines and the order queue by themselves. */
#include "io_test.h"
#include "io_worker/orders.h"
#include "io_worker/read_engine.h"
#include "refuse.h"

#include <poll.h>
#include <sys/mman.h>

enum { LAYERS = 2, EXPERTS = 16, RECORD = 3 * 4096, SLOTS = 8 };

static struct test_bank bank;
static struct vf_read reads[SLOTS]; /* by the slot they go to */

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
    struct vf_read_params p = {.paths = bank.bank.files,
                               .path_count = 1,
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

static uint32_t wait_and_reap(struct vf_read_engine *e, struct vf_read **done)
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
    reads[slot] = (struct vf_read){.slot = slot, .bytes = x.bytes, .file_offset = x.offset};
    MUST(vf_read_engine_submit(e, &reads[slot], &must_err));
}

/* Every expert several times, always as many in flight as fit. */
static void test_reads(bool buffered, bool no_uring)
{
    enum { READS = 400 };
    uint8_t *region = map_region();
    struct vf_read_engine *e = make_engine(region, buffered, no_uring);
    struct vf_read *done[SLOTS];
    uint32_t in_slot[SLOTS], started = 0, ended = 0, good = 0;
    for (; started < SLOTS; started++) {
        in_slot[started] = started;
        submit(e, started, started);
    }
    while (ended < READS) {
        uint32_t n = wait_and_reap(e, done);
        for (uint32_t i = 0; i < n; i++, ended++) {
            uint32_t slot = done[i]->slot, key = in_slot[slot];
            good += done[i]->result == RECORD &&
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

    struct vf_read tail = {
        .slot = 1, .bytes = RECORD, .file_offset = bank.bank.file_bytes - VF_EXPERT_ALIGN};
    MUST(vf_read_engine_submit(e, &tail, &must_err));
    uint32_t n = wait_and_reap(e, done);
    ok(n == 1 && done[0] == &tail && done[0]->result == VF_EXPERT_ALIGN, "a short read says so");
    tail.file_offset = vf_round_up(bank.bank.file_bytes, VF_EXPERT_ALIGN) + VF_EXPERT_ALIGN;
    MUST(vf_read_engine_submit(e, &tail, &must_err));
    n = wait_and_reap(e, done);
    ok(n == 1 && done[0]->result == 0, "behind the end there is nothing");

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
    const char *missing = "/nonexistent/model.vflow";
    struct vf_read_params p = {.paths = &missing,
                               .path_count = 1,
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

/* Two files under one engine, each read telling which. */
static void test_two_files(bool without_uring)
{
    struct test_bank other;
    make_test_bank(&other, LAYERS, EXPERTS, RECORD);
    const char *paths[] = {bank.path, other.path};
    /* Another content under the same names, so that the files can't be taken for each other. */
    uint8_t *region = map_region(), *want = malloc(RECORD);
    int fd = open(other.path, O_WRONLY);
    if (!want || fd < 0)
        DIE("second file");
    memset(want, 0xa5, RECORD);
    if (pwrite(fd, want, RECORD, (off_t)other.extents[3].offset) != RECORD || fsync(fd) != 0)
        DIE("write");
    close(fd);
    struct vf_read_params p = {.paths = paths,
                               .path_count = 2,
                               .no_uring = without_uring,
                               .depth = 2,
                               .region = region,
                               .slot_bytes = RECORD,
                               .slot_count = SLOTS};
    struct vf_read_engine *e;
    struct vf_read *done[SLOTS];
    MUST(vf_read_engine_create(&p, &e, &must_err));
    for (uint32_t i = 0; i < 2; i++) {
        reads[i] = (struct vf_read){
            .slot = i, .bytes = RECORD, .file = i, .file_offset = bank.extents[3].offset};
        MUST(vf_read_engine_submit(e, &reads[i], &must_err));
    }
    for (uint32_t n = 0; n < 2;)
        n += wait_and_reap(e, done);
    ok(record_is(region, 0, 3, RECORD) && memcmp(region + RECORD, want, RECORD) == 0,
       "%s: each file's own bytes", vf_read_engine_name(e));
    vf_read_engine_destroy(e);
    munmap(region, SLOTS * RECORD);
    free(want);
    free_test_bank(&other);
}

/* A throttled engine is never faster than its rate; how much slower is the machine's business. */
static void test_throttle(void)
{
    enum { READS = 12, RATE = 1 << 20 };
    uint8_t *region = map_region();
    struct vf_read_params p = {.paths = bank.bank.files,
                               .path_count = 1,
                               .depth = 3,
                               .throttle_bytes = RATE,
                               .region = region,
                               .slot_bytes = RECORD,
                               .slot_count = SLOTS};
    struct vf_read_engine *e;
    struct vf_read *done[SLOTS];
    MUST(vf_read_engine_create(&p, &e, &must_err));
    uint64_t start_ns = vf_now_ns();
    uint32_t started = 0, ended = 0, ascending = 0;
    for (; started < 3; started++)
        submit(e, started, started);
    while (ended < READS) {
        uint32_t n = wait_and_reap(e, done);
        for (uint32_t i = 0; i < n; i++) {
            ascending += done[i]->slot == ended % 3;
            ended++;
            if (started < READS) {
                submit(e, done[i]->slot, started);
                started++;
            }
        }
    }
    double seconds = (double)(vf_now_ns() - start_ns) * 1e-9, least = READS * (double)RECORD / RATE;
    ok(seconds >= least, "%d reads at %d bytes/s: %.3f s, at least %.3f", READS, RATE, seconds,
       least);
    ok(ascending == READS, "one after another, as they were asked for");
    submit(e, 0, 0);
    vf_read_engine_destroy(e);
    munmap(region, SLOTS * RECORD);
}

static uint64_t pages_cached(const char *path, uint64_t bytes)
{
    unsigned char *there = calloc(bytes / 4096 + 1, 1);
    int fd = open(path, O_RDONLY);
    void *map = fd >= 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (!there || map == MAP_FAILED || mincore(map, bytes, there) != 0)
        DIE("mincore");
    uint64_t n = 0;
    for (uint64_t i = 0; i < (bytes + 4095) / 4096; i++)
        n += there[i] & 1;
    munmap(map, bytes);
    close(fd);
    free(there);
    return n;
}

/* Where direct reads are refused the page cache is only passed through. */
static void test_drop_behind(bool without_uring)
{
    uint8_t *region = map_region();
    struct vf_read *done[SLOTS];
    int fd = open(bank.path, O_RDWR);
    if (fd < 0 || fsync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        DIE("drop");
    close(fd);
    bool can_drop = pages_cached(bank.path, bank.bank.file_bytes) == 0; /* a tmpfs can't */
    MUST(vf_fault_set("io.direct:1=ENOSYS", &must_err));
    struct vf_read_engine *e = make_engine(region, false, without_uring);
    MUST(vf_fault_set(NULL, &must_err));
    ok(strstr(vf_read_engine_name(e), "buffered") != NULL, "refused direct reads: %s",
       vf_read_engine_name(e));
    bool right = true;
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++) {
        submit(e, 0, key);
        wait_and_reap(e, done);
        right = right && done[0]->result == RECORD &&
                record_is(region, key / EXPERTS, key % EXPERTS, RECORD);
    }
    uint64_t cached = pages_cached(bank.path, bank.bank.file_bytes);
    ok(right && (!can_drop || cached <= 4),
       "all read, and %" PRIu64 " pages left in the page cache", cached);
    vf_read_engine_destroy(e);
    munmap(region, SLOTS * RECORD);
}

static int rank(const struct vf_cache_order *o)
{
    return o->demand ? 0 : o->speculative ? 2 : 1;
}

/* What two orders for one expert come to: a guess yields to who knows; of two that know the sooner
 * deadline counts, of two guesses, too. */
static void merge_model(struct vf_cache_order *into, const struct vf_cache_order *o)
{
    if (into->speculative && !o->speculative) {
        *into = *o;
        return;
    }
    if (o->speculative && !into->speculative)
        return;
    into->demand |= o->demand;
    if (o->deadline < into->deadline) {
        into->deadline = o->deadline;
        into->process = o->process;
    }
}

/* Neighbours go to slots all over the region, some by one request, some by several at a time. */
static void test_scattered(bool buffered, bool without_uring)
{
    enum { ROUNDS = 60 };
    struct test_bank dense;
    make_dense_bank(&dense, 1, EXPERTS, RECORD, 1, 0);
    uint8_t *region = map_region();
    struct vf_read_params p = {.paths = dense.bank.files,
                               .path_count = 1,
                               .buffered = buffered,
                               .no_uring = without_uring,
                               .depth = 2,
                               .region = region,
                               .slot_bytes = RECORD,
                               .slot_count = SLOTS};
    struct vf_read_engine *e;
    struct vf_read *done[SLOTS];
    uint64_t state = 5;
    int wrong = 0;
    MUST(vf_read_engine_create(&p, &e, &must_err));
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t slots[SLOTS], n[2], first[2], at = 0, ended = 0;
        for (uint32_t i = 0; i < SLOTS; i++)
            slots[i] = (i * 3 + (uint32_t)round) % SLOTS;
        memset(region, 0, SLOTS * RECORD);
        for (uint32_t k = 0; k < 2; k++) {
            n[k] = 1 + random_below(&state, SLOTS / 2);
            first[k] = random_below(&state, EXPERTS - n[k] + 1);
            reads[k] = (struct vf_read){.slot = slots[at],
                                        .bytes = RECORD,
                                        .file_offset = dense.extents[first[k]].offset,
                                        .more_count = n[k] - 1};
            memcpy(reads[k].more, &slots[at + 1], (n[k] - 1) * sizeof *slots);
            MUST(vf_read_engine_submit(e, &reads[k], &must_err));
            at += n[k];
        }
        while (ended < 2) {
            uint32_t count = wait_and_reap(e, done);
            for (uint32_t i = 0; i < count; i++, ended++)
                wrong += done[i]->result != (int64_t)n[done[i] - reads] * RECORD;
        }
        for (uint32_t i = 0; i < at; i++) {
            uint32_t expert = i < n[0] ? first[0] + i : first[1] + i - n[0];
            wrong += !record_is(region + slots[i] * RECORD, 0, expert, RECORD);
        }
    }
    ok(wrong == 0, "%s: %d rounds of neighbours scattered over slots", vf_read_engine_name(e),
       ROUNDS);

    struct vf_read tail = {.slot = 7,
                           .bytes = RECORD,
                           .file_offset = dense.extents[EXPERTS - 2].offset,
                           .more_count = 3,
                           .more = {5, 3, 1}};
    MUST(vf_read_engine_submit(e, &tail, &must_err));
    uint32_t count = wait_and_reap(e, done);
    ok(count == 1 && done[0]->result == 2 * RECORD &&
           record_is(region + 5 * RECORD, 0, EXPERTS - 1, RECORD),
       "beyond the end of the file it brings what there is");
    vf_read_engine_destroy(e);
    munmap(region, SLOTS * RECORD);
    free_dense_bank(&dense);
}

/* ---- what the kernel refuses ---------------------------------------------------------------- */

static void refuse(const long *calls, int n)
{
    if (!refuse_calls(EPERM, calls, n))
        DIE("seccomp: %s", strerror(errno));
}

/* Every expert once, through slot 0; how many are right. */
static uint32_t read_all(struct vf_read_engine *e, const uint8_t *region)
{
    struct vf_read *done[SLOTS];
    uint32_t right = 0;
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++) {
        submit(e, 0, key);
        wait_and_reap(e, done);
        right +=
            done[0]->result == RECORD && record_is(region, key / EXPERTS, key % EXPERTS, RECORD);
    }
    return right;
}

/* What a child sees; its standard error is in the file that the parent reads. */
static void refused_at_start(const long *calls, int n)
{
    uint8_t *region = map_region();
    refuse(calls, n);
    struct vf_read_engine *e = make_engine(region, false, false);
    bool is_pool = strncmp(vf_read_engine_name(e), "pread", 5) == 0;
    uint32_t right = read_all(e, region);
    vf_read_engine_destroy(e);
    _exit(is_pool && right == LAYERS * EXPERTS ? 0 : 1);
}

/* Half of the reads are the kernel's when the filter comes; all of them are brought. */
static void refused_later(void)
{
    uint8_t *region = map_region();
    struct vf_read *done[SLOTS];
    struct vf_read_engine *e = make_engine(region, false, false);
    for (uint32_t i = 0; i < SLOTS / 2; i++)
        submit(e, i, i);
    refuse((const long[]){SYS_io_uring_enter}, 1);
    for (uint32_t i = SLOTS / 2; i < SLOTS; i++)
        submit(e, i, i);
    uint32_t ended = 0, right = 0;
    while (ended < SLOTS)
        ended += wait_and_reap(e, done);
    for (uint32_t i = 0; i < SLOTS; i++)
        right += reads[i].result == RECORD && record_is(region + i * RECORD, 0, i, RECORD);
    bool is_pool = strncmp(vf_read_engine_name(e), "pread", 5) == 0;
    right += read_all(e, region);
    _exit(is_pool && right == SLOTS + LAYERS * EXPERTS ? 0 : 1);
}

/* The kernel still writes what it has: destroy waits for it without a call of io_uring. */
static void refused_at_the_end(void)
{
    uint8_t *region = map_region();
    struct vf_read_engine *e = make_engine(region, false, false);
    for (uint32_t i = 0; i < SLOTS; i++)
        submit(e, i, i);
    refuse((const long[]){SYS_io_uring_enter}, 1);
    vf_read_engine_destroy(e);
    memset(region, 0, SLOTS * RECORD);
    usleep(20000);
    for (size_t i = 0; i < SLOTS * RECORD; i++)
        if (region[i] != 0)
            _exit(1);
    _exit(0);
}

/* No ring and no thread: reads fail with the reason, soon. */
static void refused_with_threads(void)
{
    uint8_t *region = map_region();
    struct vf_read *done[SLOTS];
    struct vf_read_engine *e = make_engine(region, false, false);
    refuse((const long[]){SYS_io_uring_enter, SYS_clone3, SYS_clone}, 3);
    submit(e, 2, 0);
    uint32_t n = wait_and_reap(e, done);
    _exit(n == 1 && done[0] == &reads[2] && done[0]->result == -EPERM ? 0 : 1);
}

/* Forks for `then`, which leaves with 0 if it found what it should; what it said goes to text. */
static bool in_child(void (*then)(void), const long *calls, int n, char *text, size_t bytes)
{
    char path[96];
    snprintf(path, sizeof path, "%s/said", test_base);
    pid_t pid = fork_child();
    if (pid == 0) {
        if (!freopen(path, "w", stderr))
            _exit(9);
        if (then)
            then();
        refused_at_start(calls, n);
    }
    int status = wait_status(pid);
    FILE *f = fopen(path, "r");
    size_t got = f ? fread(text, 1, bytes - 1, f) : 0;
    text[got] = 0;
    if (f)
        fclose(f);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    return n;
}

static void test_refused(void)
{
    static const struct {
        long call;
        const char *name;
    } calls[] = {{SYS_io_uring_setup, "io_uring_setup"},
                 {SYS_io_uring_enter, "io_uring_enter"},
                 {SYS_io_uring_register, "io_uring_register"}};
    char said[4096], want[128];
    for (size_t i = 0; i < VF_ARRAY_LEN(calls); i++) {
        bool good = in_child(NULL, &calls[i].call, 1, said, sizeof said);
        snprintf(want, sizeof want, "io_uring isn't available here: %s: %s; reading with a pool",
                 calls[i].name, strerror(EPERM));
        ok(good && count_of(said, want) == 1 && count_of(said, "reading with a pool") == 1,
           "%s refused: the pool reads, said once", calls[i].name);
    }
    ok(in_child(refused_later, NULL, 0, said, sizeof said) &&
           count_of(said, "io_uring isn't available any more") == 1,
       "io_uring_enter refused later: the pool takes over what the kernel didn't take, said once");
    ok(in_child(refused_at_the_end, NULL, 0, said, sizeof said),
       "refused before the end: nothing lands after destroy");
    ok(in_child(refused_with_threads, NULL, 0, said, sizeof said) &&
           count_of(said, "can't start a thread") == 1,
       "nor a thread: the read fails and the reason is told");
}

/* The queue against a list that is searched from end to end. */
static void test_orders(void)
{
    enum { KEYS = LAYERS * EXPERTS };
    struct {
        bool there;
        struct vf_cache_order order;
    } list[KEYS] = {0};
    struct vf_orders *q;
    uint64_t state = 11;
    int wrong = 0;
    MUST(vf_orders_create(LAYERS, EXPERTS, &q, &must_err));
    for (int i = 0; i < 20000; i++) {
        if (random_below(&state, 5) < 3) {
            uint32_t key = random_below(&state, KEYS);
            struct vf_cache_order o = {.ref = {key / EXPERTS, key % EXPERTS},
                                       .deadline = random_below(&state, 12),
                                       .process = random_below(&state, 3),
                                       .demand = random_below(&state, 4) == 0};
            o.speculative = !o.demand && random_below(&state, 3) == 0;
            enum vf_orders_put put = vf_orders_put(q, &o);
            wrong += put != (list[key].there ? VF_ORDERS_MERGED : VF_ORDERS_NEW);
            if (!list[key].there) {
                list[key].there = true;
                list[key].order = o;
            } else {
                merge_model(&list[key].order, &o);
            }
            continue;
        }
        int best = -1;
        for (int k = 0; k < KEYS; k++) {
            const struct vf_cache_order *a = &list[k].order;
            const struct vf_cache_order *b = best < 0 ? NULL : &list[best].order;
            if (!list[k].there)
                continue;
            if (!b || rank(a) < rank(b) ||
                (rank(a) == rank(b) && a->deadline < b->deadline)) /* else the lower key */
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
                 first->demand != want->demand || first->speculative != want->speculative ||
                 first->process != want->process;
        uint32_t key = random_below(&state, 2) ? (uint32_t)best : random_below(&state, KEYS);
        struct vf_expert_ref ref = {key / EXPERTS, key % EXPERTS};
        const struct vf_cache_order *found = vf_orders_find(q, ref);
        wrong += (found != NULL) != list[key].there ||
                 (found && found->deadline != list[key].order.deadline);
        if (found)
            vf_orders_take(q, ref);
        list[key].there = false;
    }
    ok(wrong == 0, "20000 random operations on the queue agree with a plain list");
    vf_orders_destroy(q);
}

int main(void)
{
    plan(4 * 5 + 4 * 2 + 2 * (1 + 2) + 2 + 2 + 6);
    make_test_base();
    vf_log_init("test", VF_LOG_WARN);
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
    test_reads(false, false);
    test_reads(true, false);
    test_reads(false, true);
    test_reads(true, true);
    for (int i = 0; i < 4; i++)
        test_scattered(i & 1, i & 2);
    for (int i = 0; i < 2; i++) {
        test_two_files(i == 1);
        test_drop_behind(i == 1);
    }
    test_throttle();
    test_missing_file();
    test_orders();
    test_refused();
    free_test_bank(&bank);
    remove_test_base();
    return 0;
}
