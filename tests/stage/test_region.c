/* A region runs each item of each of its jobs exactly once, whatever the threads, the mix of jobs
 * and the cost of single items, in runs that stay inside a job. */
#include "common/base/util.h"
#include "stage_worker/region.h"
#include "tap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOBS_MAX  40u
#define ITEMS_MAX 700u

struct log {
    uint32_t threads;
    _Atomic bool bad;
    _Atomic uint32_t by_thread[8];
    _Atomic uint32_t run_count;
    _Atomic uint8_t runs[JOBS_MAX][ITEMS_MAX];
    uint32_t spin[JOBS_MAX][ITEMS_MAX]; /* how long an item takes */
    uint32_t stuck; /* this thread's first run lasts until all other items are done; 0: none */
    _Atomic bool was_stuck;
    uint32_t item_count;
};

static struct region_job space[JOBS_MAX];

static void burn(uint32_t spin)
{
    for (volatile uint32_t i = 0; i < spin; i++)
        ;
}

static void log_run(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct log *log = job->ctx;
    if (thread >= log->threads || begin >= end || end > job->item_count ||
        job->what != &log->runs[job->index])
        atomic_store(&log->bad, true);
    if (log->stuck && thread == log->stuck && !atomic_exchange(&log->was_stuck, true))
        while (atomic_load(&log->by_thread[0]) + (end - begin) < log->item_count)
            usleep(100);
    for (uint32_t i = begin; i < end; i++) {
        atomic_fetch_add(&log->runs[job->index][i], 1);
        burn(log->spin[job->index][i]);
    }
    atomic_fetch_add(&log->by_thread[thread], end - begin);
    atomic_fetch_add(&log->run_count, 1);
}

static bool all_once(const struct log *log, const uint32_t *counts, uint32_t jobs)
{
    bool good = !atomic_load(&log->bad);
    for (uint32_t j = 0; j < JOBS_MAX; j++)
        for (uint32_t i = 0; i < ITEMS_MAX; i++)
            good &= atomic_load(&log->runs[j][i]) == (j < jobs && i < counts[j]);
    return good;
}

static void add(struct region *r, struct log *log, uint32_t j, uint32_t items, uint32_t align,
                uint32_t batch, uint64_t cost)
{
    region_add(r, (struct region_job){.run = log_run,
                                      .ctx = log,
                                      .what = &log->runs[j],
                                      .index = j,
                                      .item_count = items,
                                      .align = align,
                                      .batch = batch,
                                      .item_cost = cost});
}

/* Regions of several kinds of jobs, with items of random length and costs that don't tell it. */
static bool random_regions(uint32_t threads, uint32_t regions, unsigned seed)
{
    struct vf_pool *pool;
    struct vf_err err;
    struct region r;
    struct log *log = malloc(sizeof *log);
    bool good = log && vf_pool_create(threads, &pool, &err) == VF_OK &&
                region_init(&r, pool, space, JOBS_MAX, &err) == VF_OK;
    for (uint32_t g = 0; good && g < regions; g++) {
        uint32_t jobs = (uint32_t)rand_r(&seed) % (JOBS_MAX + 1), counts[JOBS_MAX] = {0};
        memset(log, 0, sizeof *log);
        log->threads = threads;
        for (uint32_t j = 0; j < jobs; j++) {
            counts[j] = (uint32_t)rand_r(&seed) % (g % 3 ? 20 : ITEMS_MAX + 1);
            for (uint32_t i = 0; i < counts[j]; i++)
                log->spin[j][i] = rand_r(&seed) % 50 ? 0 : (uint32_t)rand_r(&seed) % 2000;
            add(&r, log, j, counts[j], 1u << rand_r(&seed) % 4, (uint32_t)rand_r(&seed) % 20,
                (uint64_t)rand_r(&seed) % 300000 >> rand_r(&seed) % 18);
        }
        region_run(&r);
        good &= all_once(log, counts, jobs) && r.count == 0;
    }
    region_deinit(&r);
    vf_pool_destroy(pool);
    free(log);
    return good;
}

/* One thread loses its core in its first run: the other does all the rest meanwhile. If it didn't,
 * this would never end. */
static void stuck_thread(void)
{
    struct vf_pool *pool;
    struct vf_err err;
    struct region r;
    struct log *log = calloc(1, sizeof *log);
    uint32_t counts[] = {ITEMS_MAX};
    vf_pool_create(2, &pool, &err);
    region_init(&r, pool, space, 1, &err);
    log->threads = 2;
    log->stuck = 1;
    log->item_count = ITEMS_MAX;
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        log->spin[0][i] = 20000;
    add(&r, log, 0, ITEMS_MAX, 4, 0, 32 << 10);
    region_run(&r);
    ok(all_once(log, counts, 1), "a thread that is stuck holds up its run alone");
    ok(atomic_load(&log->by_thread[0]) > ITEMS_MAX / 2, "the other did %u of %u items",
       atomic_load(&log->by_thread[0]), ITEMS_MAX);
    region_deinit(&r);
    vf_pool_destroy(pool);
    free(log);
}

/* Items of a batch run together, however costly they are: a share is too small for short runs. */
static void batches(void)
{
    struct vf_pool *pool;
    struct vf_err err;
    struct region r;
    struct log *log = calloc(1, sizeof *log);
    uint32_t counts[] = {96};
    vf_pool_create(2, &pool, &err);
    region_init(&r, pool, space, 1, &err);
    log->threads = 2;
    add(&r, log, 0, counts[0], 4, 16, 1 << 20);
    region_run(&r);
    /* Three each; a thread that takes over may cut batches apart. */
    ok(all_once(log, counts, 1) && atomic_load(&log->run_count) <= 16,
       "96 items in batches of 16 took %u runs", atomic_load(&log->run_count));
    region_deinit(&r);
    vf_pool_destroy(pool);
    free(log);
}

static void small_and_dropped(void)
{
    struct vf_pool *pool;
    struct vf_err err;
    struct region r;
    struct log *log = calloc(1, sizeof *log);
    uint32_t counts[] = {5, 0, 3};
    log->threads = 4;
    vf_pool_create(4, &pool, &err);
    region_init(&r, pool, space, 4, &err);
    add(&r, log, 0, 7, 1, 0, 1000);
    region_drop(&r);
    for (uint32_t j = 0; j < 3; j++)
        add(&r, log, j, counts[j], 1, 0, 100);
    region_run(&r);
    ok(all_once(log, counts, 3) && atomic_load(&log->by_thread[0]) == 8,
       "a small region runs on the caller; what was dropped doesn't run");
    region_run(&r);
    ok(all_once(log, counts, 3), "an empty region is nothing");
    region_deinit(&r);
    vf_pool_destroy(pool);
    free(log);
}

int main(void)
{
    plan(9);
    for (uint32_t threads = 1; threads <= 4; threads++)
        ok(random_regions(threads, 300, 40 + threads), "%u threads run every item once", threads);
    stuck_thread();
    batches();
    small_and_dropped();
    return 0;
}
