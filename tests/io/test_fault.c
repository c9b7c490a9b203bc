/* What goes wrong on the way from the drive: read errors, short reads, broken records, dead I/O
 * workers. Readers get the right bytes or one sentence, never a hang.
 */
#include "doors.h"

enum { LAYERS = 3, EXPERTS = 4, RECORD = 4 * 4096, SLOTS = 5 };

static struct test_bank bank;
static void *zmq;

struct run {
    struct vf_run_dir *rd;
    struct vf_expert_cache *c;
    pid_t io;
    struct vf_expert_source *s;
};

static struct io_options options; /* engine of the I/O workers to start */

static void start_worker(struct run *r, const char *fault)
{
    struct io_options o = options;
    o.fault = fault;
    r->io = start_io(r->rd, &bank, o);
}

static struct run start_run(const char *fault, uint64_t timeout_ns)
{
    struct run r;
    struct vf_cache_geometry g = test_geometry(&bank, SLOTS, 1);
    MUST(vf_run_dir_create(&r.rd, &must_err));
    MUST(vf_expert_cache_create(r.rd, &g, &r.c, &must_err));
    start_worker(&r, fault);
    r.s = open_source(zmq, r.rd, &bank, 0, timeout_ns);
    return r;
}

static void end_run(struct run *r)
{
    r->s->ops->destroy(r->s);
    end_child(r->io);
    vf_expert_cache_close(r->c);
    vf_run_dir_remove(r->rd);
    vf_run_dir_close(r->rd);
}

/* One expert: its bytes are right, or an error. */
static enum vf_code get(struct run *r, uint32_t layer, uint32_t expert, uint64_t deadline,
                        struct vf_err *err)
{
    struct vf_expert_ref ref = {layer, expert};
    const uint8_t *data;
    enum vf_code code = r->s->ops->acquire(r->s, &ref, 1, deadline, &data, NULL, err);
    if (code != VF_OK)
        return data ? vf_err_set(err, VF_ERR_INTERNAL, "pinned in spite of: %s", err->text) : code;
    if (!data || !record_is(data, layer, expert, RECORD))
        code = vf_err_set(err, VF_ERR_INTERNAL, "wrong bytes");
    r->s->ops->release(r->s, &ref, 1, &data);
    return code;
}

/* All experts, twice, through too few slots; counts the failures. */
static int get_all(struct run *r, struct vf_err *first)
{
    int failures = 0;
    uint64_t deadline = 1;
    for (int round = 0; round < 2; round++)
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++) {
                struct vf_err err;
                enum vf_code code = get(r, l, e, deadline++, &err);
                if (code != VF_OK && failures++ == 0)
                    *first = err;
                if (code != VF_OK && code != VF_ERR_IO && code != VF_ERR_CORRUPT)
                    return 1000;
            }
    return failures;
}

/* The n-th read fails, for n = 1, 2, 3 ... until no read is the n-th. */
static void test_every_read_once(const char *what)
{
    int failures = 0, n = 1, clean = 0;
    uint64_t errors = 0;
    for (; n < 200 && !clean; n++) {
        char fault[64];
        struct vf_err err;
        snprintf(fault, sizeof fault, "io.read:%d=%s", n, what);
        struct run r = start_run(fault, VF_S(20));
        failures += get_all(&r, &err);
        struct vf_cache_io_stats s = vf_expert_cache_io_state(r.c, 0).stats;
        errors += s.read_errors;
        clean = (uint64_t)n > s.reads;
        end_run(&r);
    }
    ok(clean && failures == 0 && errors == 0, "one %s at any of %d reads goes unnoticed", what,
       n - 2);
}

static void test_read_error(void)
{
    struct vf_err err = {0};
    char offset[32];
    /* The second record fails in both attempts, and once more when asked for again. */
    struct run r = start_run("io.read:2=EIO,io.read:3=EIO", VF_S(20));
    ok(get(&r, 0, 0, 1, &err) == VF_OK, "the first record is fine");
    enum vf_code code = get(&r, 1, 2, 2, &err);
    snprintf(offset, sizeof offset, "%" PRIu64, bank.extents[1 * EXPERTS + 2].offset);
    ok(code == VF_ERR_IO && err.sys_errno == EIO, "a read that fails twice is an I/O error");
    ok(strstr(err.text, "layer 1, expert 2") && strstr(err.text, bank.path) &&
           strstr(err.text, offset) && strstr(err.text, "Input/output error"),
       "which names layer, expert, file and offset: %s", err.text);
    ok(get(&r, 2, 1, 3, &err) == VF_OK, "others aren't touched");
    ok(get(&r, 1, 2, 2, &err) == VF_OK, "the same expert may be asked for again, same deadline");
    end_run(&r);

    r = start_run("io.read:1+=EIO", VF_S(20));
    struct vf_expert_ref refs[3] = {{0, 0}, {0, 1}, {0, 2}};
    const uint8_t *got[3];
    r.s->ops->fetch(r.s, refs, 3, 1, VF_FETCH_SCHEDULED);
    code = r.s->ops->acquire(r.s, refs, 3, 1, got, NULL, &err);
    ok(code == VF_ERR_IO && !got[0] && !got[1] && !got[2], "a dead drive is an I/O error: %s",
       err.text);
    ok(get_all(&r, &err) == 2 * LAYERS * EXPERTS, "every time, and never a hang");
    end_run(&r);
}

static void test_checksum(void)
{
    struct vf_err err = {0};
    struct run r = start_run("io.checksum:1=corrupt", VF_S(20));
    enum vf_code code = get(&r, 2, 3, 1, &err);
    ok(code == VF_ERR_CORRUPT && strstr(err.text, "layer 2, expert 3") &&
           strstr(err.text, bank.path),
       "a wrong checksum: %s", err.text);
    ok(get(&r, 2, 3, 2, &err) == VF_OK, "asked again it is right");
    end_run(&r);

    /* One flipped bit in the file itself. */
    int fd = open(bank.path, O_RDWR);
    uint8_t byte;
    off_t at = (off_t)bank.extents[EXPERTS].offset + RECORD - 1;
    if (fd < 0 || pread(fd, &byte, 1, at) != 1)
        DIE("read back");
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, at) != 1 || fsync(fd) != 0)
        DIE("flip");
    r = start_run(NULL, VF_S(20));
    ok(get_all(&r, &err) == 2 && err.code == VF_ERR_CORRUPT &&
           strstr(err.text, "layer 1, expert 0"),
       "a flipped bit on disk concerns its expert alone: %s", err.text);
    end_run(&r);
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, at) != 1 || fsync(fd) != 0)
        DIE("flip back");
    close(fd);
}

static void test_short_file(void)
{
    struct vf_err err = {0};
    uint32_t last = 0;
    for (uint32_t i = 1; i < LAYERS * EXPERTS; i++)
        if (bank.extents[i].offset > bank.extents[last].offset)
            last = i;
    if (truncate(bank.path, (off_t)bank.extents[last].offset + 4096) != 0)
        DIE("truncate");
    struct run r = start_run(NULL, VF_S(20));
    enum vf_code code = get(&r, last / EXPERTS, last % EXPERTS, 1, &err);
    ok(code == VF_ERR_IO && strstr(err.text, "ended"), "a file cut short: %s", err.text);
    end_run(&r);
    free_test_bank(&bank);
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
}

/* ---- dead and missing I/O workers ------------------------------------------------------------ */

static void test_dead_worker(void)
{
    struct vf_err err = {0};
    struct run r = start_run(NULL, VF_S(20));
    ok(get(&r, 0, 0, 1, &err) == VF_OK, "a worker that lives delivers");
    end_child(r.io);
    ok(get(&r, 0, 0, 2, &err) == VF_OK, "what is in the cache needs no worker");
    uint64_t start = vf_now_ns();
    enum vf_code code = get(&r, 2, 0, 3, &err);
    double seconds = (double)(vf_now_ns() - start) / 1e9;
    ok(code == VF_ERR_PEER_LOST && strstr(err.text, "layer 2, expert 0: I/O worker 0"),
       "what isn't names the dead: %s", err.text);
    ok(seconds < 5, "soon: after %.2f s", seconds);
    start_worker(&r, NULL);
    for (int i = 0; i < 100 && (code = get(&r, 2, 0, 4, &err)) == VF_ERR_PEER_LOST; i++)
        usleep(50000);
    ok(code == VF_OK, "a worker that takes its place delivers again");
    end_run(&r);

    /* Killed in the middle of a read: the fault strikes between reading and announcing. */
    r = start_run("io.checksum:3=kill", VF_S(20));
    int failures = 0;
    for (uint32_t e = 0; e < EXPERTS && failures == 0; e++)
        failures += (code = get(&r, 0, e, 1 + e, &err)) != VF_OK;
    ok(failures == 1 && code == VF_ERR_PEER_LOST, "killed with a record in its hands: %s",
       err.text);
    wait_status(r.io);
    start_worker(&r, NULL);
    for (int i = 0; i < 100 && (code = get(&r, 0, 2, 9, &err)) == VF_ERR_PEER_LOST; i++)
        usleep(50000);
    ok(code == VF_OK && get_all(&r, &err) == 0, "its successor serves everything");
    end_run(&r);
}

static void test_missing_worker(void)
{
    struct vf_err err = {0};
    struct run r = {0};
    struct vf_cache_geometry g = test_geometry(&bank, SLOTS, 1);
    MUST(vf_run_dir_create(&r.rd, &must_err));
    MUST(vf_expert_cache_create(r.rd, &g, &r.c, &must_err));
    r.s = open_source(zmq, r.rd, &bank, 0, VF_MS(300));
    uint64_t start = vf_now_ns();
    enum vf_code code = get(&r, 0, 1, 1, &err);
    double seconds = (double)(vf_now_ns() - start) / 1e9;
    ok(code == VF_ERR_TIMEOUT && seconds < 5, "nobody there is a timeout after %.2f s: %s", seconds,
       err.text);
    start_worker(&r, NULL);
    for (int i = 0; i < 50 && (code = get(&r, 0, 1, 1, &err)) == VF_ERR_TIMEOUT; i++)
        continue;
    ok(code == VF_OK, "until somebody comes");
    end_run(&r);
}

/* ---- fronts, the test being the I/O worker ----------------------------------------------------
 */

static struct vf_expert_ref front_ref = {0, 1};

/* Begins a load and lets its front land; the bytes are those of another expert with wrong. */
static uint32_t load_front(struct run *r, bool wrong)
{
    struct vf_cache_order order = {.ref = front_ref, .deadline = 1, .demand = true};
    enum vf_cache_found found;
    enum vf_cache_begin result;
    uint32_t slot;
    MUST(vf_cache_reader_order(reader_of(r->c, 0), &front_ref, 1, 1, false, &found, &must_err));
    MUST(vf_cache_loader_begin(loader_of(r->c, 0), &order, &result, &slot, &must_err));
    if (result != VF_CACHE_BEGUN)
        DIE("no slot: %d", (int)result);
    fill_record(0, wrong ? 2 : 1, (uint64_t *)(void *)vf_expert_cache_slot_data(r->c, slot),
                RECORD);
    MUST(vf_cache_loader_mark_front(loader_of(r->c, 0), slot, &must_err));
    return slot;
}

static void test_abandoned_fronts(void)
{
    struct vf_err err = {0};
    struct run r = {0};
    struct vf_cache_geometry g = test_geometry(&bank, SLOTS, 1);
    struct vf_expert_front front = {0};
    struct vf_expert_stats stats;
    const uint8_t *got;
    MUST(vf_run_dir_create(&r.rd, &must_err));
    MUST(vf_expert_cache_create(r.rd, &g, &r.c, &must_err));
    open_doors(r.c);
    r.s = open_source(zmq, r.rd, &bank, 0, VF_MS(100));

    load_front(&r, true);
    enum vf_code code = r.s->ops->acquire(r.s, &front_ref, 1, 1, &got, &front, &err);
    uint64_t first = front.load;
    ok(code == VF_OK && !got && front.data && record_is(front.data, 0, 2, RECORD) && first != 0,
       "a front is enough to go on");
    code = r.s->ops->acquire(r.s, &front_ref, 1, 1, &got, &front, &err);
    ok(code == VF_ERR_TIMEOUT && !front.data && front.load == first, "it is told once: %s",
       err.text);
    MUST(vf_expert_cache_release_loader(r.c, 0, &must_err));
    uint32_t slot = load_front(&r, false);
    code = r.s->ops->acquire(r.s, &front_ref, 1, 1, &got, &front, &err);
    uint64_t second = front.load;
    ok(code == VF_OK && !got && front.data && second != first,
       "the front of another load is told as well");
    MUST(vf_cache_loader_finish(loader_of(r.c, 0), slot, NULL, &must_err));
    code = r.s->ops->acquire(r.s, &front_ref, 1, 1, &got, &front, &err);
    r.s->ops->stats(r.s, &stats);
    ok(code == VF_OK && got && !front.data && front.load == second && stats.early == 1,
       "the record of that load confirms it");
    r.s->ops->release(r.s, &front_ref, 1, &got);

    front_ref.expert = 3;
    front = (struct vf_expert_front){0};
    load_front(&r, true);
    code = r.s->ops->acquire(r.s, &front_ref, 1, 2, &got, &front, &err);
    ok(code == VF_OK && !got && front.load != 0, "a front");
    MUST(vf_expert_cache_release_loader(r.c, 0, &must_err));
    slot = load_front(&r, false);
    MUST(vf_cache_loader_finish(loader_of(r.c, 0), slot, NULL, &must_err));
    code = r.s->ops->acquire(r.s, &front_ref, 1, 2, &got, &front, &err);
    r.s->ops->stats(r.s, &stats);
    ok(code == VF_OK && got && front.load == 0 && stats.early == 1,
       "and a record from another load, which says so");
    r.s->ops->release(r.s, &front_ref, 1, &got);

    r.s->ops->destroy(r.s);
    close_doors();
    vf_expert_cache_close(r.c);
    vf_run_dir_remove(r.rd);
    vf_run_dir_close(r.rd);
}

/* Messages that no stage worker sends. */
static void test_bad_messages(void)
{
    struct vf_err err = {0};
    struct run r = start_run(NULL, VF_S(20));
    ok(get(&r, 0, 0, 1, &err) == VF_OK, "a worker that serves");
    void *push;
    char endpoint[VF_RUN_ENDPOINT_MAX];
    struct vf_wire_options o = {.type = VF_WIRE_PUSH};
    vf_run_dir_io_endpoint(r.rd, 0, endpoint);
    MUST(vf_wire_open(zmq, &o, &push, &must_err));
    MUST(vf_wire_connect(push, endpoint, &must_err));
    Vflow__FetchOrder bad[3] = {VFLOW__FETCH_ORDER__INIT, VFLOW__FETCH_ORDER__INIT,
                                VFLOW__FETCH_ORDER__INIT};
    Vflow__FetchOrder *list[3] = {&bad[0], &bad[1], &bad[2]};
    bad[0].layer = LAYERS;
    bad[1].expert = EXPERTS;
    bad[2].layer = bad[2].expert = UINT32_MAX;
    Vflow__Fetch fetch = VFLOW__FETCH__INIT;
    fetch.orders = list;
    fetch.n_orders = 3;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.version = VF_WIRE_VERSION;
    m.epoch = TEST_EPOCH;
    m.body_case = VFLOW__ENVELOPE__BODY_FETCH;
    m.fetch = &fetch;
    MUST(vf_wire_send(push, NULL, &m, &must_err));
    fetch.process = VF_CACHE_PROCESSES_MAX;
    MUST(vf_wire_send(push, NULL, &m, &must_err));
    fetch.process = 0;
    bad[0] = bad[1] = bad[2] = (Vflow__FetchOrder)VFLOW__FETCH_ORDER__INIT;
    m.epoch = TEST_EPOCH - 1;
    MUST(vf_wire_send(push, NULL, &m, &must_err));
    m.epoch = TEST_EPOCH;
    m.version = 99;
    MUST(vf_wire_send(push, NULL, &m, &must_err));
    zmq_send(push, "nonsense", 8, 0);
    zmq_send(push, "two frames", 10, ZMQ_SNDMORE);
    zmq_send(push, "", 0, 0);
    ok(get_all(&r, &err) == 0, "nonsense in its socket does no harm");
    vf_wire_close(push);
    end_run(&r);
}

/* Too small for the fixed buffers, and for the ring itself. */
static void test_small_memlock(void)
{
    static const uint64_t limits[] = {64 << 10, 0};
    for (int i = 0; i < 2; i++) {
        struct vf_err err = {0};
        options.limit_memlock = true;
        options.memlock = limits[i];
        struct run r = start_run(NULL, VF_S(20));
        ok(get_all(&r, &err) == 0, "a RLIMIT_MEMLOCK of %u changes nothing", (unsigned)limits[i]);
        end_run(&r);
    }
}

static void test_fault_syntax(void)
{
    static const char *const bad[] = {"io.read",         "io.read:=EIO",  "io.read:0=EIO",
                                      "io.read:1=EWHAT", "io.read:x=EIO", ":1=EIO",
                                      "io.read:1=EIO,"};
    struct vf_err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ok(vf_fault_set(bad[i], &err) == VF_ERR_USAGE, "refused: %s", err.text);
    MUST(vf_fault_set("a:2=EIO,b:1+=short", &must_err));
    bool right = vf_fault("a") == 0 && vf_fault("a") == EIO && vf_fault("a") == 0 &&
                 vf_fault("b") == VF_FAULT_SHORT && vf_fault("b") == VF_FAULT_SHORT &&
                 vf_fault("c") == 0;
    ok(right, "the n-th passing, and the n-th and all later ones");
    MUST(vf_fault_set(NULL, &must_err));
}

int main(void)
{
    plan(8 + 2 * (2 + 7 + 3 + 1) + 7 + 2 + 6 + 2 + 2);
    make_test_base();
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
    zmq = vf_wire_context_create(NULL);
    test_fault_syntax();
    for (int engine = 0; engine < 2; engine++) {
        options.no_uring = engine == 1;
        options.buffered = engine == 1;
        options.depth = 2;
        test_every_read_once("EIO");
        test_every_read_once("short");
        test_read_error();
        test_checksum();
        test_short_file();
    }
    options = (struct io_options){.depth = 4};
    test_dead_worker();
    test_missing_worker();
    test_abandoned_fronts();
    test_bad_messages();
    test_small_memlock();
    vf_wire_context_destroy(zmq);
    free_test_bank(&bank);
    remove_test_base();
    return 0;
}
