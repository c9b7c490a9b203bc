/* The pool: the caller always takes part, the others when they come in time, none before the call
 * or after it, over many calls with pauses in between in which they fall asleep. */
#include "stage_worker/pool.h"
#include "tap.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

struct call {
    _Atomic bool open;
    _Atomic uint32_t inside[8]; /* by thread: entries at this moment */
    _Atomic uint32_t entries[8];
    _Atomic bool bad;
    uint32_t threads;
    _Atomic uint32_t left; /* work anybody may do */
};

static void take_part(void *ctx, uint32_t thread)
{
    struct call *c = ctx;
    if (thread >= c->threads || !atomic_load(&c->open) ||
        atomic_fetch_add(&c->inside[thread], 1) != 0)
        atomic_store(&c->bad, true);
    atomic_fetch_add(&c->entries[thread], 1);
    for (uint32_t left = atomic_load(&c->left); left > 0;)
        if (atomic_compare_exchange_weak(&c->left, &left, left - 1))
            left = atomic_load(&c->left);
    atomic_fetch_sub(&c->inside[thread], 1);
}

static bool run_calls(uint32_t threads, uint32_t calls, unsigned seed)
{
    struct vf_pool *pool;
    struct vf_err err;
    if (vf_pool_create(threads, &pool, &err) != VF_OK)
        return false;
    bool good = vf_pool_threads(pool) == threads;
    for (uint32_t g = 0; g < calls; g++) {
        struct call c = {.threads = threads, .left = (uint32_t)rand_r(&seed) % 300};
        atomic_store(&c.open, true);
        vf_pool_run(pool, take_part, &c);
        atomic_store(&c.open, false);
        good &= atomic_load(&c.left) == 0 && atomic_load(&c.entries[0]) == 1;
        if (g % 64 == 0)
            usleep(200); /* long enough for the threads to fall asleep */
        good &= !atomic_load(&c.bad);
    }
    vf_pool_destroy(pool);
    return good;
}

static void wait_for_all(void *ctx, uint32_t thread)
{
    struct call *c = ctx;
    atomic_fetch_add(&c->entries[thread], 1);
    for (uint32_t t = 0; t < c->threads;)
        if (atomic_load(&c->entries[t]))
            t++;
        else
            usleep(10);
}

/* Every thread comes, however deep it slept, if the call lasts long enough. */
static bool all_come(uint32_t threads)
{
    struct vf_pool *pool;
    struct vf_err err;
    if (vf_pool_create(threads, &pool, &err) != VF_OK)
        return false;
    for (uint32_t g = 0; g < 50; g++) {
        struct call c = {.threads = threads};
        vf_pool_run(pool, wait_for_all, &c);
        usleep(g % 2 ? 500 : 0);
    }
    vf_pool_destroy(pool);
    return true;
}

int main(void)
{
    plan(6);
    for (uint32_t threads = 1; threads <= 4; threads++)
        ok(run_calls(threads, 2000, 7 + threads), "calls of %u threads begin and end whole",
           threads);
    ok(all_come(4), "sleeping threads come");
    struct vf_err err;
    struct vf_pool *pool;
    ok(vf_pool_create(0, &pool, &err) == VF_ERR_INTERNAL, "a pool of no threads is refused");
    return 0;
}
