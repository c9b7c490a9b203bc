/* Each thread's share is a range of items in one atomic word, from whose front its owner takes runs
 * and from whose back others take over halves. An item leaves a share once and never comes back to
 * it, so a word can't look the same again after it changed. The words only hand out items; data
 * passes from thread to thread through the pool's gate.
 */
#include "stage_worker/region.h"

#include "common/base/util.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Below this much memory traffic a region costs less than another thread's attention. */
#define SHARED_COST_MIN (48u << 10)
/* Of one run: some 20 us, so that a thread which loses its core holds up little. */
#define RUN_COST_MAX (96u << 10)
/* A run is at most this part of what its share still has, so that the last ones are short. */
#define RUN_DIVISOR 4u

struct region_share {
    _Alignas(64) _Atomic uint64_t range; /* begin in the high half, end in the low one */
};

struct range {
    uint32_t begin, end;
};

static struct range unpack(uint64_t word)
{
    return (struct range){(uint32_t)(word >> 32), (uint32_t)word};
}

static uint64_t pack(uint32_t begin, uint32_t end)
{
    return (uint64_t)begin << 32 | end;
}

enum vf_code region_init(struct region *r, struct vf_pool *pool, struct region_job *jobs,
                         uint32_t capacity, struct vf_err *err)
{
    uint32_t threads = vf_pool_threads(pool);
    *r = (struct region){.pool = pool, .jobs = jobs, .capacity = capacity};
    r->shares = aligned_alloc(64, threads * sizeof *r->shares);
    if (!r->shares)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a region of %u threads", threads);
    return VF_OK;
}

void region_deinit(struct region *r)
{
    free(r->shares);
}

void region_add(struct region *r, struct region_job job)
{
    VF_ASSERT(r->count < r->capacity);
    if (job.item_count == 0)
        return;
    job.first = r->item_count;
    job.align = job.align ? job.align : 1;
    r->item_count += job.item_count;
    r->cost += job.item_count * job.item_cost;
    r->jobs[r->count++] = job;
}

bool region_worth_sharing(const struct region *r, uint64_t cost)
{
    return cost >= SHARED_COST_MIN && vf_pool_threads(r->pool) > 1;
}

/* The job that an item of the row belongs to. */
static const struct region_job *job_of(const struct region *r, uint32_t item)
{
    uint32_t lo = 0, hi = r->count;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (r->jobs[mid].first <= item)
            lo = mid;
        else
            hi = mid;
    }
    return &r->jobs[lo];
}

/* The item at or behind `item` where a run of its job may begin; the job's end is one. */
static uint32_t align_up(const struct region_job *job, uint32_t item)
{
    uint64_t in_job = vf_round_up(item - job->first, job->align);
    return job->first + (uint32_t)vf_min_u64(in_job, job->item_count);
}

/* ---- sharing out ------------------------------------------------------------------------------
 */

static void share_out(struct region *r)
{
    uint32_t threads = vf_pool_threads(r->pool), begin = 0, j = 0;
    uint64_t passed = 0; /* cost of the jobs before j */
    for (uint32_t t = 0; t < threads; t++) {
        uint64_t goal = r->cost / threads * (t + 1);
        while (j + 1 < r->count && passed + r->jobs[j].item_count * r->jobs[j].item_cost <= goal) {
            passed += r->jobs[j].item_count * r->jobs[j].item_cost;
            j++;
        }
        const struct region_job *job = &r->jobs[j];
        uint64_t inside = goal > passed ? (goal - passed) / vf_max_u64(job->item_cost, 1) : 0;
        uint32_t end = job->first + (uint32_t)vf_min_u64(inside, job->item_count);
        /* Small jobs aren't aligned: that would leave threads without a share. */
        if (job->item_count >= 2 * job->align * threads)
            end = align_up(job, end);
        end = t + 1 == threads ? r->item_count : end < begin ? begin : end;
        atomic_store_explicit(&r->shares[t].range, pack(begin, end), memory_order_relaxed);
        begin = end;
    }
}

/* How far a run from the front of a share goes; never beyond its job. */
static uint32_t run_end(const struct region_job *job, struct range share)
{
    uint32_t left = share.end - share.begin;
    uint64_t most = RUN_COST_MAX / vf_max_u64(job->item_cost, 1);
    uint64_t n = vf_max_u64(vf_min_u64(left / RUN_DIVISOR, most), 1);
    n = vf_max_u64(n, vf_min_u64(left, job->batch));
    uint32_t end = share.begin + (uint32_t)n;
    if (left >= 2 * job->align)
        end = align_up(job, end);
    uint32_t job_end = job->first + job->item_count;
    end = end < job_end ? end : job_end;
    return end < share.end ? end : share.end;
}

/* Takes a run off the thread's own share; false when it is empty. */
static bool take_own(struct region *r, uint32_t thread, const struct region_job **job,
                     struct range *run)
{
    _Atomic uint64_t *word = &r->shares[thread].range;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    for (;;) {
        struct range share = unpack(seen);
        if (share.begin == share.end)
            return false;
        *job = job_of(r, share.begin);
        *run = (struct range){share.begin, run_end(*job, share)};
        if (atomic_compare_exchange_weak_explicit(word, &seen, pack(run->end, share.end),
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
    }
}

/* Moves half of the largest share into the thread's own, which is empty; false when all are. */
static bool take_over(struct region *r, uint32_t thread)
{
    for (;;) {
        uint32_t threads = vf_pool_threads(r->pool), most = 0, victim = 0;
        uint64_t seen = 0;
        for (uint32_t t = 0; t < threads; t++) {
            uint64_t word = atomic_load_explicit(&r->shares[t].range, memory_order_relaxed);
            struct range share = unpack(word);
            if (share.end - share.begin > most) {
                most = share.end - share.begin;
                victim = t;
                seen = word;
            }
        }
        if (most == 0)
            return false;
        struct range share = unpack(seen);
        uint32_t middle = share.begin + most / 2;
        const struct region_job *job = job_of(r, middle);
        if (most >= 4 * job->align)
            middle = align_up(job, middle);
        if (!atomic_compare_exchange_strong_explicit(&r->shares[victim].range, &seen,
                                                     pack(share.begin, middle),
                                                     memory_order_relaxed, memory_order_relaxed))
            continue;
        atomic_store_explicit(&r->shares[thread].range, pack(middle, share.end),
                              memory_order_relaxed);
        return true;
    }
}

/* ---- running ----------------------------------------------------------------------------------
 */

static void work(void *ctx, uint32_t thread)
{
    struct region *r = ctx;
    const struct region_job *job;
    struct range run;
    do {
        while (take_own(r, thread, &job, &run))
            job->run(job, run.begin - job->first, run.end - job->first, thread);
    } while (take_over(r, thread));
}

void region_run(struct region *r)
{
    if (region_worth_sharing(r, r->cost)) {
        share_out(r);
        r->barrier_ns += vf_pool_run(r->pool, work, r);
    } else {
        for (uint32_t j = 0; j < r->count; j++)
            r->jobs[j].run(&r->jobs[j], 0, r->jobs[j].item_count, 0);
    }
    region_drop(r);
}

void region_drop(struct region *r)
{
    r->count = r->item_count = 0;
    r->cost = 0;
}
