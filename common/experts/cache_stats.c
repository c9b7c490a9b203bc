/* Totals of the expert cache, for whoever asks: read without the mutex, so that a question never
 * waits for the answer of a stopped process. Numbers of the same moment may be of slightly
 * different ones.
 */
#include "common/base/util.h"
#include "common/experts/cache_internal.h"

#include <math.h>

#define LOAD(field)     atomic_load_explicit(&(field), memory_order_relaxed)
#define BINS_PER_DOUBLE 4    /* so a bin's middle is within a tenth of what is in it */
#define FIRST_BIN_NS    1000 /* bin 0 is everything below; 2^24 times it is 17 s */

uint32_t cache_latency_bin(uint64_t latency_ns)
{
    if (latency_ns < FIRST_BIN_NS)
        return 0;
    double bin = 1 + BINS_PER_DOUBLE * log2((double)latency_ns / FIRST_BIN_NS);
    return bin < VF_CACHE_LATENCY_BINS - 1 ? (uint32_t)bin : VF_CACHE_LATENCY_BINS - 1;
}

static double bin_middle_ms(uint32_t bin)
{
    return FIRST_BIN_NS / 1e6 * exp2(((double)bin - 0.5) / BINS_PER_DOUBLE);
}

static double quantile_ms(const uint64_t *bins, uint64_t count, double q)
{
    double rank = q * (double)count, below = 0;
    for (uint32_t b = 0; b < VF_CACHE_LATENCY_BINS; b++) {
        below += (double)bins[b];
        if (count > 0 && below >= rank && bins[b] > 0)
            return bin_middle_ms(b);
    }
    return 0;
}

static void add_reads(const struct vf_expert_cache *c, struct vf_cache_totals *t)
{
    uint64_t bins[VF_CACHE_LATENCY_BINS] = {0}, count = 0, sum = 0, max = 0;
    for (uint32_t i = 0; i < c->g.io_worker_count; i++) {
        const struct cache_io *io = &c->h->io_workers[i];
        t->reads += LOAD(io->reads);
        t->bytes += LOAD(io->bytes);
        t->evictions += LOAD(io->evictions);
        t->joined += LOAD(io->joined);
        uint64_t busy_ns = LOAD(io->busy_ns);
        if (busy_ns)
            t->bytes_per_s += (double)LOAD(io->bytes) / ((double)busy_ns * 1e-9);
        sum += LOAD(io->latency_ns_sum);
        max = vf_max_u64(max, LOAD(io->latency_ns_max));
        for (uint32_t b = 0; b < VF_CACHE_LATENCY_BINS; b++) {
            bins[b] += LOAD(io->latencies[b]);
            count += LOAD(io->latencies[b]);
        }
    }
    t->latency_ms_max = (double)max / 1e6;
    t->latency_ms_mean = t->reads ? (double)sum / (double)t->reads / 1e6 : 0;
    t->latency_ms_median = quantile_ms(bins, count, 0.5);
    t->latency_ms_p95 = quantile_ms(bins, count, 0.95);
}

struct vf_cache_totals vf_expert_cache_totals(const struct vf_expert_cache *c)
{
    struct vf_cache_totals t = {.prefetched_used = LOAD(c->h->prefetched_used),
                                .prefetched_wasted = LOAD(c->h->prefetched_wasted),
                                .guessed_used = LOAD(c->h->guessed_used),
                                .guessed_wasted = LOAD(c->h->guessed_wasted)};
    for (uint32_t p = 0; p < VF_CACHE_PROCESSES_MAX; p++)
        t.read_ns += LOAD(c->h->processes[p].read_ns);
    add_reads(c, &t);
    return t;
}

struct vf_cache_process_stats vf_expert_cache_process_stats(const struct vf_expert_cache *c,
                                                            uint32_t process)
{
    VF_ASSERT(process < VF_CACHE_PROCESSES_MAX);
    const struct cache_process *p = &c->h->processes[process];
    return (struct vf_cache_process_stats){LOAD(p->bytes_read), LOAD(p->read_ns)};
}

struct vf_cache_io_state vf_expert_cache_io_state(const struct vf_expert_cache *c,
                                                  uint32_t io_worker)
{
    VF_ASSERT(io_worker < c->g.io_worker_count);
    const struct cache_io *io = &c->h->io_workers[io_worker];
    uint64_t pid = atomic_load_explicit(&io->pid, memory_order_acquire);
    return (struct vf_cache_io_state){
        .pid = pid <= INT32_MAX ? (pid_t)pid : 0,
        .start_time = LOAD(io->start_time),
        .heartbeat_ns = LOAD(io->heartbeat_ns),
        .stats =
            {
                .reads = LOAD(io->reads),
                .bytes = LOAD(io->bytes),
                .read_errors = LOAD(io->read_errors),
                .latency_ns_sum = LOAD(io->latency_ns_sum),
                .latency_ns_max = LOAD(io->latency_ns_max),
                .merged = LOAD(io->merged),
                .stale = LOAD(io->stale),
                .evictions = LOAD(io->evictions),
                .busy_ns = LOAD(io->busy_ns),
                .joined = LOAD(io->joined),
            },
    };
}
