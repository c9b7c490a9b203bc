/* What the tests of loads share: a cache and the loads of one I/O worker, without sockets. The test
 * puts orders in and turns the crank; a load goes on only when it gets a turn. */
#ifndef VF_TESTS_IO_LOADS_RIG_H
#define VF_TESTS_IO_LOADS_RIG_H

#include "doors.h"
#include "io_worker/loads.h"

#include <poll.h>

struct rig {
    const struct test_bank *bank;
    struct vf_run_dir *rd;
    struct vf_expert_cache *c;
    struct vf_loads *l;
};

/* params has what isn't of the rig: depth, piece_bytes, no_uring. */
static inline struct rig make_rig(const struct test_bank *bank, uint32_t slots, uint32_t io_workers,
                                  struct vf_loads_params params)
{
    struct rig r = {.bank = bank};
    struct vf_cache_geometry g = test_geometry(bank, slots, io_workers);
    MUST(vf_run_dir_create(&r.rd, &must_err));
    MUST(vf_expert_cache_create(r.rd, &g, &r.c, &must_err));
    open_doors(r.c);
    params.cache = r.c;
    params.loader = loader_of(r.c, 0);
    params.bank = &bank->bank;
    MUST(vf_loads_create(&params, &r.l, &must_err));
    return r;
}

static inline void close_rig(struct rig *r)
{
    vf_loads_destroy(r->l);
    close_doors();
    vf_expert_cache_close(r->c);
    vf_run_dir_remove(r->rd);
    vf_run_dir_close(r->rd);
}

enum class { DEMAND, SCHEDULED, GUESS };

static inline void order_of(struct rig *r, struct vf_expert_ref ref, uint64_t deadline,
                            enum class class)
{
    struct vf_cache_order o = {
        .ref = ref, .deadline = deadline, .demand = class == DEMAND, .speculative = class == GUESS};
    enum vf_cache_found found;
    MUST(vf_cache_reader_order(reader_of(r->c, 0), &o.ref, 1, deadline, class == GUESS, &found,
                               &must_err));
    vf_loads_order(r->l, &o);
}

/* Of layer 0. */
static inline void order(struct rig *r, uint32_t expert, uint64_t deadline, enum class class)
{
    order_of(r, (struct vf_expert_ref){0, expert}, deadline, class);
}

static inline void turn(struct rig *r)
{
    MUST(vf_loads_turn(r->l, &must_err));
}

static inline void wait_turn(struct rig *r)
{
    struct pollfd p = {.fd = vf_loads_fd(r->l), .events = POLLIN};
    poll(&p, 1, 5);
    turn(r);
}

#endif
