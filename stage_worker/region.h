/* A parallel region: a list of jobs, each a run of items, worked off by all threads of a pool.
 *
 * The items of all jobs lie in one row. Each thread starts with its own contiguous share of about
 * equal cost, so that it streams through memory, and takes runs off its front: long ones first,
 * single items at the end. A thread that is done takes over half of what the busiest one has left,
 * so a slow core, or one that another process holds, costs no more than the run it is working on.
 * Which thread runs an item never changes a result. Regions are built and run by one thread.
 */
#ifndef VF_STAGE_WORKER_REGION_H
#define VF_STAGE_WORKER_REGION_H

#include "stage_worker/pool.h"

#include "common/base/err.h"

#include <stdbool.h>

struct region_job;
/* Runs the job's items [begin, end). */
typedef void region_run_fn(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread);

struct region_job {
    region_run_fn *run;
    void *ctx;
    const void *what; /* for run, like ctx: valid until the region has run */
    uint32_t index;   /* for run */
    uint32_t item_count;
    uint32_t align;     /* runs begin and end at multiples of it while there's plenty; 0: 1 */
    uint32_t batch;     /* items that are best run together while there are so many; 0: 1 */
    uint64_t item_cost; /* bytes an item moves, or as many as would take as long */
    uint32_t first;     /* set by region_add: its first item in the row of all */
};

struct region {
    struct vf_pool *pool;
    struct region_job *jobs; /* [capacity] */
    uint32_t count, capacity, item_count;
    uint64_t cost;
    struct region_share *shares; /* [threads] */
    uint64_t barrier_ns;         /* the caller waited for other threads, since init */
};

/* jobs [capacity], the most of one region: the caller's, until deinit. */
enum vf_code region_init(struct region *r, struct vf_pool *pool, struct region_job *jobs,
                         uint32_t capacity, struct vf_err *err);
void region_deinit(struct region *r);

void region_add(struct region *r, struct region_job job);
/* Runs what was added since the last run; small regions on the caller alone. */
void region_run(struct region *r);
/* Forgets what was added. */
void region_drop(struct region *r);
/* Whether work of this cost is worth waking another thread for. */
bool region_worth_sharing(const struct region *r, uint64_t cost);

#endif
