/* The pool runs every item exactly once, for any thread count, over many generations. */
#include "stage_worker/pool.h"
#include "tap.h"

#include <stdatomic.h>
#include <string.h>

#define ITEMS_MAX 300

struct job {
    _Atomic uint32_t runs[ITEMS_MAX];
    _Atomic uint32_t thread_mask;
    uint32_t threads;
    _Atomic uint32_t bad_thread;
};

static void count(void *ctx, uint32_t item, uint32_t thread)
{
    struct job *j = ctx;
    atomic_fetch_add(&j->runs[item], 1);
    if (thread >= j->threads)
        atomic_store(&j->bad_thread, 1);
}

static int run_generations(uint32_t threads, uint32_t generations, unsigned seed)
{
    struct vf_pool *pool;
    struct vf_err err;
    if (vf_pool_create(threads, &pool, &err) != VF_OK)
        return 0;
    int good = vf_pool_threads(pool) == threads;
    for (uint32_t g = 0; g < generations; g++) {
        struct job job = {.threads = threads};
        uint32_t items = (uint32_t)rand_r(&seed) % (ITEMS_MAX + 1);
        vf_pool_run(pool, count, &job, items);
        for (uint32_t i = 0; i < ITEMS_MAX; i++)
            good &= atomic_load(&job.runs[i]) == (i < items);
        good &= !atomic_load(&job.bad_thread);
        if (g % 64 == 0)
            usleep(200); /* long enough for the workers to fall asleep */
    }
    vf_pool_destroy(pool);
    return good;
}

int main(void)
{
    plan(5);
    for (uint32_t threads = 1; threads <= 4; threads++)
        ok(run_generations(threads, 2000, 7 + threads), "%u threads run every item once", threads);
    struct vf_err err;
    struct vf_pool *pool;
    ok(vf_pool_create(0, &pool, &err) == VF_ERR_INTERNAL, "a pool of no threads is refused");
    return 0;
}
