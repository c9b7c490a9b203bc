/* Records that lie next to each other: which of them one read brings, and what becomes of each when
 * it doesn't. The test puts orders in and turns the crank, as test_loads.c does.
 */
#include "loads_rig.h"

enum { LAYERS = 2, EXPERTS = 12, RECORD = 2 * 4096, SLOTS = 12, PIECE = 8 * RECORD };

static bool no_uring;

static struct rig open_rig(const struct test_bank *bank, uint32_t slots, uint32_t depth,
                           uint64_t piece_bytes)
{
    struct vf_loads_params p = {.depth = depth, .piece_bytes = piece_bytes, .no_uring = no_uring};
    return make_rig(bank, slots, 1, p);
}

/* Experts [begin, end), the last one first. */
static void order_range(struct rig *r, uint32_t begin, uint32_t end, uint64_t deadline,
                        enum class class)
{
    for (uint32_t e = end; e > begin; e--)
        order(r, e - 1, deadline, class);
}

static struct vf_cache_slot_view view(struct rig *r, uint32_t slot)
{
    struct vf_cache_slot_view v;
    MUST(vf_expert_cache_view(r->c, slot, &v, &must_err));
    return v;
}

/* Of layer 0's expert. */
static int state(struct rig *r, uint32_t expert)
{
    for (uint32_t i = 0; i < vf_expert_cache_geometry(r->c)->slot_count; i++) {
        struct vf_cache_slot_view v = view(r, i);
        if (v.state != VF_SLOT_FREE && v.ref.layer == 0 && v.ref.expert == expert)
            return (int)v.state;
    }
    return VF_SLOT_FREE;
}

static bool turn_until_ready(struct rig *r, uint32_t expert)
{
    for (int i = 0; i < 4000 && state(r, expert) != VF_SLOT_READY; i++)
        wait_turn(r);
    return state(r, expert) == VF_SLOT_READY;
}

static uint32_t count_loading(struct rig *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < vf_expert_cache_geometry(r->c)->slot_count; i++)
        n += view(r, i).state == VF_SLOT_LOADING;
    return n;
}

/* Until nothing that has a slot is under way. */
static void settle(struct rig *r)
{
    turn(r);
    for (int i = 0; i < 4000 && count_loading(r) > 0; i++)
        wait_turn(r);
}

/* Ready slots whose bytes are those of their records in the file; a wrong one counts against all.
 */
static int count_right(struct rig *r)
{
    int n = 0;
    uint8_t want[RECORD];
    for (uint32_t i = 0; i < vf_expert_cache_geometry(r->c)->slot_count; i++) {
        struct vf_cache_slot_view v = view(r, i);
        if (v.state != VF_SLOT_READY)
            continue;
        struct vf_expert_extent x = test_extent(r->bank, v.ref.layer, v.ref.expert);
        int fd = open(r->bank->bank.files[x.file], O_RDONLY);
        if (fd < 0 || pread(fd, want, RECORD, (off_t)x.offset) != RECORD)
            DIE("read back");
        close(fd);
        const uint8_t *data = vf_expert_cache_slot_data(r->c, i);
        if (memcmp(data, want, RECORD) != 0 || !record_is(data, v.ref.layer, v.ref.expert, RECORD))
            return -1;
        n++;
    }
    return n;
}

static uint64_t count_joined(const struct rig *r)
{
    return vf_expert_cache_io_state(r->c, 0).stats.joined;
}

static void reach(struct rig *r, uint64_t deadline)
{
    struct vf_expert_ref other = {1, 0};
    enum vf_cache_found found;
    const uint8_t *data;
    struct vf_cache_failure failure;
    MUST(vf_cache_reader_pin(reader_of(r->c, 0), &other, 1, deadline, &found, &data, NULL, &failure,
                             &must_err));
    if (found == VF_CACHE_READY)
        MUST(vf_cache_reader_unpin(reader_of(r->c, 0), &data, 1, &must_err));
}

/* The first use, which ends the protection of the slot. */
static void use(struct rig *r, uint32_t expert)
{
    struct vf_expert_ref ref = {0, expert};
    enum vf_cache_found found;
    const uint8_t *data;
    struct vf_cache_failure failure;
    MUST(vf_cache_reader_pin(reader_of(r->c, 0), &ref, 1, 1, &found, &data, NULL, &failure,
                             &must_err));
    MUST(vf_cache_reader_unpin(reader_of(r->c, 0), &data, 1, &must_err));
}

/* ---- what is joined -------------------------------------------------------------------------- */

/* Orders experts [begin, end) alike, and tells whether all are right with so many joined. */
static bool joins(const struct test_bank *bank, uint32_t begin, uint32_t end, uint64_t piece_bytes,
                  uint64_t joined)
{
    struct rig r = open_rig(bank, SLOTS, 2, piece_bytes);
    order_range(&r, begin, end, 1, SCHEDULED);
    settle(&r);
    bool fine = count_right(&r) == (int)(end - begin) && count_joined(&r) == joined;
    if (!fine)
        printf("# %d right, %" PRIu64 " joined\n", count_right(&r), count_joined(&r));
    close_rig(&r);
    return fine;
}

static void test_joined(const struct test_bank *dense)
{
    ok(joins(dense, 0, 8, PIECE, 7), "eight neighbours come with one read, whatever their order");
    ok(joins(dense, 3, 4, PIECE, 0), "one has nobody to join");
    ok(joins(dense, 0, EXPERTS, PIECE, EXPERTS - 2), "no read is larger than the drive wants");
    ok(joins(dense, 0, 8, 5 * RECORD / 2 / 4096 * 4096, 4), "in whole records");
    ok(joins(dense, 0, 8, RECORD, 0) && joins(dense, 0, 8, RECORD / 2, 0),
       "records as large as that, or larger, aren't joined");

    struct test_bank other;
    make_dense_bank(&other, LAYERS, EXPERTS, RECORD, 1, 4);
    ok(joins(&other, 2, 6, PIECE, 2), "nor across a gap");
    free_dense_bank(&other);
    make_dense_bank(&other, LAYERS, EXPERTS, RECORD, 2, 0);
    ok(joins(&other, 4, 6, PIECE, 0), "nor across stripes");
    ok(joins(&other, 4, 10, PIECE, 4), "but within each stripe");
    free_dense_bank(&other);
    make_test_bank(&other, LAYERS, EXPERTS, RECORD);
    ok(joins(&other, 0, 8, PIECE, 0), "nor where experts that follow don't lie so");
    free_test_bank(&other);
}

static void test_urgency(const struct test_bank *dense)
{
    struct rig r = open_rig(dense, SLOTS, 2, PIECE);
    order(&r, 0, 5, SCHEDULED);
    order(&r, 1, 6, SCHEDULED);
    order(&r, 2, 6, DEMAND);
    order(&r, 3, 6, GUESS);
    settle(&r);
    settle(&r);
    ok(turn_until_ready(&r, 3) && count_right(&r) == 4 && count_joined(&r) == 0,
       "neighbours of other deadlines or classes aren't joined");
    order_of(&r, (struct vf_expert_ref){0, EXPERTS - 1}, 7, SCHEDULED);
    order_of(&r, (struct vf_expert_ref){1, 0}, 7, SCHEDULED);
    settle(&r);
    ok(count_right(&r) == 6 && count_joined(&r) == 0, "nor those of two layers");
    close_rig(&r);

    r = open_rig(dense, SLOTS, 1, 3 * RECORD);
    order_range(&r, 0, 6, 5, SCHEDULED);
    turn(&r);
    order(&r, 9, 9, DEMAND);
    bool ready = turn_until_ready(&r, 9);
    ok(ready && state(&r, 0) == VF_SLOT_READY && state(&r, 3) != VF_SLOT_READY &&
           state(&r, 5) != VF_SLOT_READY,
       "a demand goes after the read in flight, before the next");
    settle(&r);
    ok(count_right(&r) == 7 && count_joined(&r) == 4, "what had to wait is joined in its turn");
    close_rig(&r);

    r = open_rig(dense, SLOTS, 4, PIECE);
    order_range(&r, 0, 4, 5, GUESS);
    settle(&r);
    ok(count_right(&r) == 4 && count_joined(&r) == 3, "guesses are joined, too");
    order_range(&r, 4, 8, 6, GUESS);
    turn(&r);
    order(&r, 6, 6, DEMAND);
    order(&r, 10, 7, SCHEDULED);
    settle(&r);
    ok(count_right(&r) == 9, "and may come true one by one");
    close_rig(&r);
}

static void test_slots(const struct test_bank *dense)
{
    struct rig r = open_rig(dense, 3, 2, PIECE);
    order_range(&r, 0, 5, 1, SCHEDULED);
    settle(&r);
    ok(count_right(&r) == 3 && state(&r, 2) == VF_SLOT_READY && count_joined(&r) == 2,
       "a read joins as many as there are slots");
    use(&r, 0);
    use(&r, 1);
    bool both = turn_until_ready(&r, 3) && turn_until_ready(&r, 4);
    ok(both && count_right(&r) == 3, "and the others wait for theirs");
    close_rig(&r);
}

/* ---- what fails ------------------------------------------------------------------------------ */

/* Five neighbours at one read a time under a fault: which of them are ready in the end, as bits;
 * all bits when one is wrong. */
static unsigned ready_after(const struct test_bank *bank, const char *fault)
{
    struct rig r = open_rig(bank, SLOTS, 1, PIECE);
    unsigned ready = 0;
    MUST(vf_fault_set(fault, &must_err));
    order_range(&r, 0, 5, 1, SCHEDULED);
    settle(&r);
    MUST(vf_fault_set(NULL, &must_err));
    for (uint32_t e = 0; e < 5; e++)
        ready |= (state(&r, e) == VF_SLOT_READY) << e;
    if (count_right(&r) < 0 || count_loading(&r) > 0)
        ready = ~0u;
    /* Whatever failed, its slot serves again. */
    order_range(&r, 0, EXPERTS, 2, SCHEDULED);
    if (bank->bank.file_count == 1 && fault) {
        settle(&r);
        if (count_right(&r) != EXPERTS)
            ready = ~0u;
    }
    close_rig(&r);
    return ready;
}

static void test_faults(const struct test_bank *dense)
{
    int wrong = 0;
    for (int n = 1; n <= 6; n++) {
        char fault[64];
        const char *whats[] = {"EIO", "short", "EINTR"};
        for (int k = 0; k < 3; k++) {
            snprintf(fault, sizeof fault, "io.read:%d=%s", n, whats[k]);
            wrong += ready_after(dense, fault) != 31;
        }
    }
    ok(wrong == 0, "whichever read fails once, all records are right");
    ok(ready_after(dense, "io.read:1+=EIO") == 0, "when all fail, none is there");
    ok(ready_after(dense, "io.read:1=EIO,io.read:2=EIO") == 30,
       "a read that fails is repeated record by record: the one that fails again is given up");
    ok(ready_after(dense, "io.read:1=EIO,io.read:4=EIO") == 27, "that one alone");
    ok(ready_after(dense, "io.read:1=EIO,io.read:7+=EIO") == 31, "each is read once more");
    ok(ready_after(dense, "io.read:1=short,io.read:5+=EIO") == 31,
       "after a short read, only those that it didn't bring whole");
    ok(ready_after(dense, "io.read:1=short,io.read:2=EIO") == 31, "and they may fail once more");
    ok(ready_after(dense, "io.read:1=short,io.read:2=EIO,io.read:3=EIO") == 27, "but not twice");
    ok(ready_after(dense, "io.read:1=EINTR,io.read:3+=EIO") == 31,
       "a read that was interrupted is repeated as it was");
    ok(ready_after(dense, "io.checksum:2=corrupt") == 29,
       "a wrong checksum is the matter of its record");
}

static void test_cut_file(void)
{
    struct test_bank cut;
    make_dense_bank(&cut, LAYERS, EXPERTS, RECORD, 1, 0);
    if (truncate(cut.bank.files[0], (off_t)cut.extents[3].offset + 4096) != 0)
        DIE("truncate");
    ok(ready_after(&cut, NULL) == 7, "of a file that ends among them, the whole ones are there");
    free_dense_bank(&cut);
}

/* ---- anything -------------------------------------------------------------------------------- */

/* Random orders under random faults: whatever is ready is what the file has. */
static void test_random(const struct test_bank *bank, uint32_t depth, uint64_t seed)
{
    enum { ROUNDS = 60 };
    struct rig r = open_rig(bank, SLOTS, depth, PIECE);
    int wrong = 0, seen = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        char fault[96];
        snprintf(fault, sizeof fault, "io.read:%u=EIO,io.read:%u=short,io.checksum:%u=corrupt",
                 1 + random_below(&seed, 6), 1 + random_below(&seed, 6),
                 1 + random_below(&seed, 30));
        MUST(vf_fault_set(round % 3 ? NULL : fault, &must_err));
        uint32_t runs = 1 + random_below(&seed, 5);
        for (uint32_t i = 0; i < runs; i++) {
            uint32_t layer = random_below(&seed, LAYERS), e = random_below(&seed, EXPERTS);
            uint32_t end = (uint32_t)vf_min_u64(EXPERTS, e + 1 + random_below(&seed, 6));
            uint64_t deadline = 2 * round + random_below(&seed, 2);
            enum class class = (enum class)random_below(&seed, 3);
            for (; e < end; e++)
                order_of(&r, (struct vf_expert_ref){layer, e}, deadline, class);
            if (random_below(&seed, 4) == 0)
                wait_turn(&r);
        }
        settle(&r);
        int right = count_right(&r);
        wrong += right < 0 || count_loading(&r) > 0;
        seen += right;
        reach(&r, 2 * round + 2);
    }
    MUST(vf_fault_set(NULL, &must_err));
    ok(wrong == 0 && seen > ROUNDS && count_joined(&r) > ROUNDS / 2,
       "%s, %u at a time, %u file%s: random orders, %d records seen, %" PRIu64 " joined",
       vf_loads_engine(r.l), depth, bank->bank.file_count, bank->bank.file_count > 1 ? "s" : "",
       seen, count_joined(&r));
    close_rig(&r);
}

int main(void)
{
    struct test_bank dense, striped;
    plan(2 * (9 + 6 + 2 + 10 + 1 + 4));
    make_test_base();
    make_dense_bank(&dense, LAYERS, EXPERTS, RECORD, 1, 0);
    make_dense_bank(&striped, LAYERS, EXPERTS, RECORD, 2, 0);
    for (int i = 0; i < 2; i++) {
        no_uring = i == 1;
        test_joined(&dense);
        test_urgency(&dense);
        test_slots(&dense);
        test_faults(&dense);
        test_cut_file();
        test_random(&dense, 1, 1);
        test_random(&dense, 3, 2);
        test_random(&striped, 2, 3);
        test_random(&striped, 4, 4);
    }
    free_dense_bank(&dense);
    free_dense_bank(&striped);
    remove_test_base();
    return 0;
}
