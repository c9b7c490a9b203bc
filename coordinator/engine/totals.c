/* Counters on their way from the workers and the expert cache to the totals. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/run/counters.h"
#include "coordinator/engine/internal.h"

void engine_totals_init(struct vf_engine_totals *t)
{
    *t = (struct vf_engine_totals){.stats = VFLOW__STEP_STATS__INIT,
                                   .speculation = VFLOW__SPECULATION_STATS__INIT,
                                   .reads = VFLOW__EXPERT_READS__INIT};
}

static void add_stats(struct vf_engine_totals *sum, const Vflow__StepStats *stats,
                      const Vflow__SpeculationStats *speculation)
{
    vf_counters_add(&sum->stats.base, &stats->base);
    if (!speculation)
        return;
    vf_counters_add(&sum->speculation.base, &speculation->base);
    sum->speculates = true;
}

void engine_take_stats(struct worker *w, const Vflow__StepStats *stats)
{
    if (!stats)
        return;
    engine_totals_init(&w->totals); /* each report has the whole since its start */
    add_stats(&w->totals, stats, stats->speculation);
}

static void count_reads(struct vf_engine *e, struct vf_engine_totals *out)
{
    if (!e->cache)
        return;
    struct vf_cache_totals s = vf_expert_cache_totals(e->cache);
    out->reads.prefetched_used = s.prefetched_used;
    out->reads.prefetched_wasted = s.prefetched_wasted;
    out->reads.read_ns = s.read_ns;
    out->reads.latency_ms_mean = s.latency_ms_mean;
    out->reads.latency_ms_median = s.latency_ms_median;
    out->reads.latency_ms_p95 = s.latency_ms_p95;
    out->reads.latency_ms_max = s.latency_ms_max;
    out->reads.joined = s.joined;
    out->expert_reads = s.reads;
    out->expert_bytes_read = s.bytes;
    out->expert_evictions = s.evictions;
    out->read_bytes_per_s = s.bytes_per_s;
    out->guesses_used = s.guessed_used;
    out->guesses_wasted = s.guessed_wasted;
    out->guess_bytes_wasted = s.guessed_wasted * vf_expert_cache_geometry(e->cache)->record_bytes;
}

/* Has every stage worker report before deadline_ns; of one that doesn't the old numbers count. */
static enum vf_code refresh(struct vf_engine *e, uint64_t deadline_ns, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < e->info.stage_workers && !code; i++) {
        struct worker *w = &e->workers[i];
        bool ignored;
        if (!e->broken)
            engine_ask_worker(e, w);
        while (!code && w->asks_open && vf_now_ns() < deadline_ns)
            code = engine_turn(e, deadline_ns, NULL, &ignored, err);
        if (!code && w->asks_open)
            vf_warn("%s (pid %d) didn't report within %u s: its share of the statistics is old",
                    w->name, (int)w->pid, (unsigned)(TOTALS_NS / VF_S(1)));
    }
    return code;
}

enum vf_code vf_engine_read_totals(struct vf_engine *e, bool fresh, struct vf_engine_totals *out,
                                   struct vf_err *err)
{
    engine_totals_init(out);
    enum vf_code code = fresh ? refresh(e, vf_now_ns() + TOTALS_NS, err) : VF_OK;
    for (uint32_t i = 0; i < e->info.stage_workers; i++) {
        const struct vf_engine_totals *t = &e->workers[i].totals;
        add_stats(out, &t->stats, t->speculates ? &t->speculation : NULL);
    }
    count_reads(e, out);
    return code;
}
