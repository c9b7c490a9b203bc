/* Records in pieces, without sockets: the test puts orders in and turns the crank. Nothing here
 * depends on time: a load goes on only when the test gives it a turn.
 */
#include "common/machine/drive.h"
#include "loads_rig.h"

enum { LAYERS = 2, EXPERTS = 6, PIECES = 8, RECORD = PIECES * 4096, SLOTS = 6 };

static struct test_bank bank;
static bool no_uring;
static uint64_t piece_bytes = 4096;

static struct rig open_rig(uint32_t slots, uint32_t io_workers, uint32_t depth)
{
    struct vf_loads_params p = {.depth = depth, .piece_bytes = piece_bytes, .no_uring = no_uring};
    return make_rig(&bank, slots, io_workers, p);
}

/* The slot of layer 0's expert; a free view when it has none. */
static struct vf_cache_slot_view view(struct rig *r, uint32_t expert, uint32_t *slot)
{
    struct vf_cache_slot_view v;
    for (uint32_t i = 0; i < vf_expert_cache_geometry(r->c)->slot_count; i++) {
        MUST(vf_expert_cache_view(r->c, i, &v, &must_err));
        if (v.state != VF_SLOT_FREE && v.ref.layer == 0 && v.ref.expert == expert) {
            if (slot)
                *slot = i;
            return v;
        }
    }
    return (struct vf_cache_slot_view){.state = VF_SLOT_FREE};
}

static int state(struct rig *r, uint32_t expert)
{
    return (int)view(r, expert, NULL).state;
}

static bool turn_until_ready(struct rig *r, uint32_t expert)
{
    for (int i = 0; i < 4000 && state(r, expert) != VF_SLOT_READY; i++)
        wait_turn(r);
    return state(r, expert) == VF_SLOT_READY;
}

static bool is_right(struct rig *r, uint32_t expert)
{
    uint32_t slot;
    return view(r, expert, &slot).state == VF_SLOT_READY &&
           record_is(vf_expert_cache_slot_data(r->c, slot), 0, expert, RECORD);
}

/* The process comes to a deadline: it looks for an expert there. */
static void reach(struct rig *r, uint64_t deadline)
{
    struct vf_expert_ref other = {1, 0};
    enum vf_cache_found found;
    const uint8_t *data;
    struct vf_cache_failure failure;
    MUST(vf_cache_reader_pin(reader_of(r->c, 0), &other, 1, deadline, &found, &data, NULL, &failure,
                             &must_err));
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_pieces(uint32_t depth)
{
    struct rig r = open_rig(SLOTS, 1, depth);
    int right = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        order(&r, e, 1 + e, SCHEDULED);
    turn(&r);
    for (uint32_t e = 0; e < EXPERTS; e++)
        right += turn_until_ready(&r, e) && is_right(&r, e);
    ok(right == EXPERTS, "%s, %u pieces at a time: %d of %d records right", vf_loads_engine(r.l),
       depth, right, EXPERTS);
    close_rig(&r);
}

/* One piece in flight: what comes next is decided at every piece. */
static void test_urgency(void)
{
    struct rig r = open_rig(SLOTS, 1, 1);
    order(&r, 0, 5, SCHEDULED);
    turn(&r);
    order(&r, 1, 9, DEMAND);
    bool ready = turn_until_ready(&r, 1);
    ok(ready && is_right(&r, 1) && state(&r, 0) == VF_SLOT_LOADING,
       "a demand goes before the rest of a prefetch that had begun");
    order(&r, 2, 3, SCHEDULED);
    ready = turn_until_ready(&r, 2);
    ok(ready && state(&r, 0) == VF_SLOT_LOADING, "and so does an earlier deadline");
    order(&r, 3, 4, SCHEDULED);
    turn(&r);
    order(&r, 0, 5, DEMAND);
    ready = turn_until_ready(&r, 0);
    ok(ready && is_right(&r, 0) && state(&r, 3) != VF_SLOT_READY,
       "a prefetch that is wanted meanwhile becomes a demand");
    ok(turn_until_ready(&r, 3) && is_right(&r, 3), "what had to wait isn't forgotten");
    close_rig(&r);
}

/* Turns until the front has landed; tells how many events there were until then, -1 if the record
 * was there first. The record must come right afterwards. */
static int events_until_front(struct rig *r, uint32_t expert, uint64_t front_bytes)
{
    uint32_t slot, before = vf_cache_reader_event_count(reader_of(r->c, 0));
    struct vf_cache_slot_view v = view(r, expert, &slot);
    for (int i = 0; i < 4000 && !v.front_landed && v.state != VF_SLOT_READY; i++) {
        wait_turn(r);
        v = view(r, expert, &slot);
    }
    int events = (int)(vf_cache_reader_event_count(reader_of(r->c, 0)) - before);
    bool right = v.state == VF_SLOT_LOADING && v.front_landed &&
                 record_is(vf_expert_cache_slot_data(r->c, slot), 0, expert, front_bytes);
    bool ready = turn_until_ready(r, expert) && is_right(r, expert);
    return right && ready && !view(r, expert, NULL).front_landed ? events : -1;
}

/* One piece in flight: the front is there some turns before the rest. */
static void test_fronts(void)
{
    bank.bank.front_bytes = 5 * 4096 - 64;
    struct rig r = open_rig(SLOTS, 1, 1);
    order(&r, 0, 1, DEMAND);
    ok(events_until_front(&r, 0, 5 * 4096) == 1, "a front that somebody waits for is an event");
    order(&r, 1, 2, SCHEDULED);
    ok(events_until_front(&r, 1, 5 * 4096) == 0, "another one is marked without");
    close_rig(&r);
    piece_bytes = 4 * 4096; /* two in the record, were it not for the front: three, two of it */
    r = open_rig(SLOTS, 1, 1);
    order(&r, 2, 3, DEMAND);
    ok(events_until_front(&r, 2, 6 * 4096) == 1, "pieces are cut so that one ends with the front");
    close_rig(&r);
    piece_bytes = RECORD;
    r = open_rig(SLOTS, 1, 1);
    order(&r, 3, 4, DEMAND);
    ok(events_until_front(&r, 3, 0) == -1 && is_right(&r, 3), "a record of one piece has no front");
    close_rig(&r);
    piece_bytes = 4096;
    bank.bank.front_bytes = RECORD - 64;
    r = open_rig(SLOTS, 1, 1);
    order(&r, 4, 5, DEMAND);
    ok(events_until_front(&r, 4, 0) == -1 && is_right(&r, 4), "nor one whose front is all of it");
    close_rig(&r);
    bank.bank.front_bytes = 0;
}

/* A guess under way, then other work, then the guess comes true: whether it is there first. */
static bool true_guess_is_first(void)
{
    struct rig r = open_rig(SLOTS, 1, 4);
    order(&r, 2, 6, GUESS);
    turn(&r);
    order(&r, 4, 8, SCHEDULED);
    turn(&r);
    order(&r, 2, 6, DEMAND);
    bool first = turn_until_ready(&r, 2) && state(&r, 4) != VF_SLOT_READY;
    turn_until_ready(&r, 4);
    close_rig(&r);
    return first;
}

static void test_guesses(void)
{
    struct rig r = open_rig(SLOTS, 1, 4);
    order(&r, 0, 5, GUESS);
    order(&r, 1, 5, SCHEDULED);
    turn(&r);
    ok(state(&r, 1) == VF_SLOT_LOADING && state(&r, 0) == VF_SLOT_FREE,
       "a guess doesn't begin beside other work");
    bool ready = turn_until_ready(&r, 0);
    ok(ready && is_right(&r, 0) && is_right(&r, 1) && view(&r, 0, NULL).is_speculative,
       "an idle drive reads it");

    order(&r, 2, 6, GUESS);
    turn(&r);
    ok(state(&r, 2) == VF_SLOT_LOADING, "a guess under way");
    order(&r, 3, 7, SCHEDULED);
    ready = turn_until_ready(&r, 3);
    ok(ready && state(&r, 2) == VF_SLOT_LOADING, "stops when work comes");
    order(&r, 4, 8, SCHEDULED);
    turn(&r);
    order(&r, 2, 6, DEMAND);
    ready = turn_until_ready(&r, 2);
    bool first = state(&r, 4) != VF_SLOT_READY;
    for (int i = 0; i < 5 && !first; i++) /* on a busy machine a turn may see all pieces land */
        first = true_guess_is_first();
    ok(ready && is_right(&r, 2) && !view(&r, 2, NULL).is_speculative && first,
       "and goes first when it comes true");
    turn_until_ready(&r, 4);

    order(&r, 5, 9, GUESS);
    turn(&r);
    bool began = state(&r, 5) == VF_SLOT_LOADING;
    reach(&r, 9);
    for (int i = 0; i < 200 && state(&r, 5) == VF_SLOT_LOADING; i++)
        wait_turn(&r);
    ok(began && state(&r, 5) == VF_SLOT_FREE, "a guess is given up when its time has come");
    order(&r, 5, 8, GUESS);
    for (int i = 0; i < 20; i++)
        wait_turn(&r);
    ok(state(&r, 5) == VF_SLOT_FREE, "and not begun after it");
    order(&r, 5, 12, SCHEDULED);
    ok(turn_until_ready(&r, 5) && is_right(&r, 5), "an order that knows reads it all the same");
    close_rig(&r);
}

static void test_guesses_and_slots(void)
{
    struct rig r = open_rig(2, 1, 4);
    order(&r, 0, 5, SCHEDULED);
    order(&r, 1, 6, SCHEDULED);
    bool both = turn_until_ready(&r, 0) && turn_until_ready(&r, 1);
    order(&r, 2, 4, GUESS); /* sooner, and yet */
    for (int i = 0; i < 20; i++)
        wait_turn(&r);
    ok(both && state(&r, 0) == VF_SLOT_READY && state(&r, 1) == VF_SLOT_READY &&
           state(&r, 2) == VF_SLOT_FREE,
       "a guess takes no protected slot");
    reach(&r, 7);
    order(&r, 3, 9, GUESS);
    ok(turn_until_ready(&r, 3), "but one whose deadline has passed");
    order(&r, 4, 10, SCHEDULED);
    order(&r, 5, 10, SCHEDULED);
    both = turn_until_ready(&r, 4) && turn_until_ready(&r, 5);
    ok(both && state(&r, 3) == VF_SLOT_FREE,
       "a guess's own slot is protected from nobody who knows");
    close_rig(&r);
}

/* One slot: a guess that has it must not keep an order waiting, which would keep the guess waiting.
 */
static void test_guess_in_the_way(void)
{
    struct rig r = open_rig(1, 1, 2);
    order(&r, 0, 5, GUESS);
    turn(&r);
    bool began = state(&r, 0) == VF_SLOT_LOADING;
    order(&r, 1, 3, DEMAND);
    bool ready = turn_until_ready(&r, 1);
    ok(began && ready && is_right(&r, 1),
       "a guess under way gives its slot to an order without one");
    close_rig(&r);
}

static void test_shared_drive(void)
{
    struct rig r = open_rig(SLOTS, 2, 4);
    vf_cache_loader_set_busy(loader_of(r.c, 1), true);
    order(&r, 0, 5, GUESS); /* experts with even keys are worker 0's */
    for (int i = 0; i < 20; i++)
        wait_turn(&r);
    ok(state(&r, 0) == VF_SLOT_FREE && vf_loads_wait_ms(r.l) == 1,
       "a guess waits for the other worker of the drive, too");
    vf_cache_loader_set_busy(loader_of(r.c, 1), false);
    ok(turn_until_ready(&r, 0) && is_right(&r, 0), "and is read when that one is idle");
    ok(!vf_cache_loader_others_busy(loader_of(r.c, 1)), "a worker with guesses alone isn't busy");
    order(&r, 2, 6, SCHEDULED);
    turn(&r);
    ok(vf_cache_loader_others_busy(loader_of(r.c, 1)), "one with an order is");
    close_rig(&r);
}

static int count_states(struct rig *r, int wanted)
{
    int n = 0;
    struct vf_cache_slot_view v;
    for (uint32_t i = 0; i < vf_expert_cache_geometry(r->c)->slot_count; i++) {
        MUST(vf_expert_cache_view(r->c, i, &v, &must_err));
        n += (int)v.state == wanted && v.pin_count == 0;
    }
    return n;
}

/* The n-th read of a record of pieces fails for good, for every n. */
static void test_failures(void)
{
    int wrong = 0;
    for (int n = 1; n <= PIECES; n++) {
        char fault[64];
        struct rig r = open_rig(2, 1, 3);
        snprintf(fault, sizeof fault, "io.read:%d+=EIO", n);
        MUST(vf_fault_set(fault, &must_err));
        order(&r, 0, 1, SCHEDULED);
        for (int i = 0; i < 60; i++)
            wait_turn(&r);
        wrong += count_states(&r, VF_SLOT_FREE) != 2;
        MUST(vf_fault_set(NULL, &must_err));
        order(&r, 0, 2, SCHEDULED);
        order(&r, 1, 2, SCHEDULED);
        wrong += !turn_until_ready(&r, 0) || !turn_until_ready(&r, 1) || !is_right(&r, 0);
        wrong += count_states(&r, VF_SLOT_READY) != 2;
        close_rig(&r);
    }
    ok(wrong == 0, "whichever piece fails for good, the slot is free again and serves others");
    for (int n = 1; n <= PIECES; n++) {
        char fault[64];
        struct rig r = open_rig(2, 1, 3);
        snprintf(fault, sizeof fault, "io.read:%d=%s", n, n % 2 ? "EIO" : "short");
        MUST(vf_fault_set(fault, &must_err));
        order(&r, 0, 1, SCHEDULED);
        wrong += !turn_until_ready(&r, 0) || !is_right(&r, 0);
        MUST(vf_fault_set(NULL, &must_err));
        close_rig(&r);
    }
    ok(wrong == 0, "whichever piece fails once, the record is right");
}

static void test_probe(void)
{
    struct vf_drive *d;
    struct vf_drive_choice c = {0};
    struct vf_err err = {0};
    uint64_t offset, bytes;
    vf_expert_bank_range(&bank.bank, 0, &offset, &bytes);
    MUST(vf_drive_open(bank.path, offset, bytes, false, &d, &must_err));
    uint64_t began_ns = vf_now_ns();
    enum vf_code code = vf_drive_probe(d, RECORD, VF_MS(60), &c, &err);
    ok(code == VF_OK && c.depth >= 2 && c.depth <= VF_DRIVE_DEPTH_MAX && c.read_bytes >= RECORD &&
           c.bytes_per_s > 0 && c.latency_ms > 0,
       "a probe of %.0f ms: %.2f GB/s in reads of %" PRIu64 " bytes, %u at a time %s",
       (double)(vf_now_ns() - began_ns) * 1e-6, c.bytes_per_s * 1e-9, c.read_bytes, c.depth,
       err.text);
    struct vf_drive_cell late = {.read_bytes = 4096, .depth = 4};
    code = vf_drive_measure(d, 1, &late, &err);
    ok(code == VF_OK && late.reads >= 4 && late.bytes_per_s > 0,
       "a time that is over when the readers get their turn measures a read of each: %" PRIu64
       " reads %s",
       late.reads, err.text);
    vf_drive_close(d);
    ok(vf_drive_open(bank.path, 0, bank.bank.file_bytes + 4096, false, &d, &err) == VF_ERR_USAGE,
       "a range beyond the file is refused: %s", err.text);
    ok(vf_drive_open("/nonexistent/bank", 0, 4096, false, &d, &err) == VF_ERR_NOT_FOUND,
       "and a file that isn't there: %s", err.text);
}

int main(void)
{
    plan(2 * (3 + 4 + 5 + 8 + 3 + 1 + 4 + 2) + 4);
    make_test_base();
    make_test_bank(&bank, LAYERS, EXPERTS, RECORD);
    for (int i = 0; i < 2; i++) {
        no_uring = i == 1;
        test_pieces(1);
        test_pieces(3);
        test_pieces(32);
        test_urgency();
        test_fronts();
        test_guesses();
        test_guesses_and_slots();
        test_guess_in_the_way();
        test_shared_drive();
        test_failures();
    }
    test_probe();
    free_test_bank(&bank);
    remove_test_base();
    return 0;
}
