/* Hit rates of cache policies over a routing trace, recorded or synthetic: what the engine does,
 * between what is usual (LRU, LFU with decay) and what can't be beaten (Belady's optimum).
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/experts/replay_sim.h"
#include "bench/experts/synthetic_routing.h"

#include "common/base/progress.h"
#include "common/base/util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARES_MAX 16

struct replay_options {
    const char *trace, *synthetic, *cache, *write;
    uint32_t tokens, experts;
    int64_t seed;
    double warmup;
    double shares[SHARES_MAX]; /* of all experts, above 0 to 1 */
    uint32_t share_count;
};

static const struct {
    const char *key, *name;
    struct replay_setup setup;
} arms[] = {
    {"lru", "LRU", {.policy = REPLAY_LRU}},
    {"lfu_16", "LFU 16", {.policy = REPLAY_LFU, .half_life = 16}},
    {"lfu_64", "LFU 64", {.policy = REPLAY_LFU, .half_life = 64}},
    {"lfu_256", "LFU 256", {.policy = REPLAY_LFU, .half_life = 256}},
    {"vflow", "vflow", {.policy = REPLAY_VFLOW}},
    {"belady", "Belady", {.policy = REPLAY_BELADY}},
};
enum { ARM_LRU, ARM_LFU_16, ARM_LFU_64, ARM_LFU_256, ARM_VFLOW, ARM_BELADY, ARM_COUNT };
_Static_assert(VF_ARRAY_LEN(arms) == ARM_COUNT, "one entry for each arm");

/* ---- options ------------------------------------------------------------------------------- */

static enum vf_code parse_shares(struct replay_options *o, struct vf_err *err)
{
    const char *at = o->cache;
    for (;;) {
        char *end;
        errno = 0;
        double v = strtod(at, &end);
        if (end == at || errno || !(v > 0) || v > 100 || (*end != ',' && *end != 0) ||
            o->share_count == SHARES_MAX)
            return vf_err_set(err, VF_ERR_USAGE,
                              "--cache: found '%s', allowed are 1 to %d percentages of the "
                              "experts, above 0 to 100, with commas between",
                              o->cache, SHARES_MAX);
        o->shares[o->share_count++] = v / 100;
        if (*end == 0)
            return VF_OK;
        at = end + 1;
    }
}

static enum vf_code check_source(const struct replay_options *o, struct vf_err *err)
{
    if (!o->trace == !o->synthetic)
        return vf_err_set(err, VF_ERR_USAGE, "either a TRACE or --synthetic NAME");
    if (o->write && !o->synthetic)
        return vf_err_set(err, VF_ERR_USAGE, "--write keeps a synthetic trace; there is none");
    if (!o->synthetic || synthetic_routing_find(o->synthetic))
        return VF_OK;
    char names[128] = "";
    for (const struct synthetic_routing *s = synthetic_routings; s->name; s++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", s->name);
    }
    return vf_err_set(err, VF_ERR_USAGE, "--synthetic: found '%s', allowed: %s", o->synthetic,
                      names);
}

/* ---- the trace ----------------------------------------------------------------------------- */

static enum vf_code get_trace(const struct replay_options *o, struct vf_routing_trace *t,
                              uint32_t *experts, struct vf_err *err)
{
    enum vf_code code;
    if (o->synthetic) {
        const struct synthetic_routing *s = synthetic_routing_find(o->synthetic);
        code = synthetic_routing_make(s, o->tokens, (uint64_t)o->seed, t, err);
        *experts = s->experts;
        if (!code && o->write)
            code = vf_routing_trace_write(t, o->write, err);
        return code;
    }
    code = vf_routing_trace_read(o->trace, t, err);
    *experts = o->experts ? o->experts : t->expert_max + 1;
    if (!code && *experts <= t->expert_max)
        code = vf_err_set(err, VF_ERR_USAGE, "--experts %u: the trace names expert %u", *experts,
                          t->expert_max);
    if (!code && t->token_count < 2)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: %u token; a replay needs 2", o->trace,
                          t->token_count);
    return code;
}

/* ---- the report ---------------------------------------------------------------------------- */

static const struct bench_column columns[] = {
    {"cache", "cache", BENCH_PERCENT},
    {"slots", "slots", BENCH_INT},
    {"lru", "LRU", BENCH_4},
    {"lfu_16", "LFU 16", BENCH_4},
    {"lfu_64", "LFU 64", BENCH_4},
    {"lfu_256", "LFU 256", BENCH_4},
    {"vflow", "vflow", BENCH_4},
    {"belady", "Belady", BENCH_4},
    {"gap_closed", "LRU gap closed", BENCH_PERCENT},
    {"gap_closed_best", "best gap closed", BENCH_PERCENT},
};

static double best_usual(const double *rates)
{
    return fmax(fmax(rates[ARM_LRU], rates[ARM_LFU_16]),
                fmax(rates[ARM_LFU_64], rates[ARM_LFU_256]));
}

/* NAN when there is no gap. */
static double gap_closed(const double *rates, double from)
{
    double gap = rates[ARM_BELADY] - from;
    return gap > 0 ? (rates[ARM_VFLOW] - from) / gap : NAN;
}

static void add_row(struct bench_report *r, struct bench_panel *panel, double share, uint32_t slots,
                    const double *rates)
{
    char category[16];
    snprintf(category, sizeof category, "%g%%", 100 * share);
    for (int a = 0; a < ARM_COUNT; a++)
        bench_panel_point(panel, arms[a].name, category, rates[a], rates[a], rates[a]);
    bench_report_row(
        r, (struct bench_cell[]){BENCH_NUM(share), BENCH_NUM(slots), BENCH_NUM(rates[ARM_LRU]),
                                 BENCH_NUM(rates[ARM_LFU_16]), BENCH_NUM(rates[ARM_LFU_64]),
                                 BENCH_NUM(rates[ARM_LFU_256]), BENCH_NUM(rates[ARM_VFLOW]),
                                 BENCH_NUM(rates[ARM_BELADY]),
                                 BENCH_NUM(gap_closed(rates, rates[ARM_LRU])),
                                 BENCH_NUM(gap_closed(rates, best_usual(rates)))});
}

static enum vf_code describe(struct bench_report *r, const struct replay_options *o,
                             const struct vf_routing_trace *t, uint32_t experts, uint32_t warmup,
                             struct vf_err *err)
{
    struct replay_statistics s;
    enum vf_code code = replay_describe(t, experts, &s, err);
    if (code)
        return code;
    double uniform = (double)t->top_k / experts;
    bench_report_fact_text(r, "trace", o->synthetic ? o->synthetic : o->trace);
    bench_report_fact(r, "tokens", t->token_count);
    bench_report_fact(r, "warmup_tokens", warmup);
    bench_report_fact(r, "layers", t->layer_count);
    bench_report_fact(r, "experts", experts);
    bench_report_fact(r, "top_k", t->top_k);
    bench_report_fact(r, "overlap", s.overlap);
    bench_report_fact(r, "overlap_first_layer", s.overlap_first);
    bench_report_fact(r, "entropy_bits", s.entropy);
    bench_report_line(r, "%s: %u tokens (the first %u not counted), %u layers, %u of %u experts",
                      o->synthetic ? o->synthetic : o->trace, t->token_count, warmup,
                      t->layer_count, t->top_k, experts);
    bench_report_line(r,
                      "consecutive tokens share %.3f of their experts (layer 0 %.3f, chance %.3f); "
                      "entropy of use %.2f of %.2f bits",
                      s.overlap, s.overlap_first, uniform, s.entropy, log2(experts));
    return VF_OK;
}

static enum vf_code replay_share(const struct vf_routing_trace *t, uint32_t slots, uint32_t warmup,
                                 uint32_t experts, double *rates, struct vf_err *err)
{
    for (int a = 0; a < ARM_COUNT; a++) {
        struct replay_setup setup = arms[a].setup;
        struct replay_result result = {0};
        setup.slots = slots;
        setup.warmup = warmup;
        setup.experts = experts;
        enum vf_code code = replay_run(t, &setup, &result, err);
        if (code)
            return code;
        rates[a] = (double)result.hits / (double)result.wanted;
    }
    return VF_OK;
}

static enum vf_code replay_all(struct bench_report *r, const struct replay_options *o,
                               const struct vf_routing_trace *t, uint32_t experts,
                               struct vf_err *err)
{
    uint32_t warmup = (uint32_t)(o->warmup / 100 * t->token_count);
    enum vf_code code = describe(r, o, t, experts, warmup, err);
    bench_report_table(r, "policies", "share of wanted experts that were in the cache", columns,
                       VF_ARRAY_LEN(columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r),
        &(struct bench_panel_look){.kind = BENCH_LINES,
                                   .title = "Hit rate by size of the cache",
                                   .values = "wanted experts that were in the cache",
                                   .categories = "cache, of all experts",
                                   .percent = true});
    double closed = 0;
    for (uint32_t i = 0; i < o->share_count && !code; i++) {
        double rates[ARM_COUNT];
        uint64_t all = (uint64_t)t->layer_count * experts;
        uint32_t slots = (uint32_t)vf_max_u64(1, (uint64_t)(o->shares[i] * (double)all + 0.5));
        code = replay_share(t, slots, warmup, experts, rates, err);
        if (code)
            break;
        add_row(r, panel, o->shares[i], slots, rates);
        closed += gap_closed(rates, rates[ARM_LRU]) / o->share_count;
        vf_progress("replay", VF_PROGRESS_ITEMS, i + 1, o->share_count);
    }
    bench_report_fact(r, "gap_closed_mean", closed);
    return code;
}

static enum vf_code replay(void *options, struct bench_report *r, struct vf_err *err)
{
    struct replay_options *o = options;
    struct vf_routing_trace trace = {0};
    uint32_t experts = 0;
    enum vf_code code = parse_shares(o, err);
    if (!code)
        code = check_source(o, err);
    if (!code)
        code = get_trace(o, &trace, &experts, err);
    if (!code)
        code = replay_all(r, o, &trace, experts, err);
    vf_routing_trace_deinit(&trace);
    return code;
}

static const struct replay_options defaults = {
    .cache = "12.5,25,50", .tokens = 2000, .seed = 1, .warmup = 25};
static const struct bench_option options[] = {
    BENCH_OPTION(
        struct replay_options, synthetic, .name = "synthetic", .type = VF_OPT_STRING,
        .metavar = "NAME",
        .help = "a made-up trace instead: olmoe, qwen3, olmoe-fitted, qwen3-fitted, flat, sticky"),
    BENCH_TOKENS(struct replay_options, 2, 1000000, "of a synthetic trace (2000)"),
    BENCH_WIDE_OPTION(struct replay_options, seed, .name = "seed", .type = VF_OPT_INT,
                      .metavar = "N", .min = 0, .max = 1e15, .help = "of a synthetic trace (1)"),
    BENCH_OPTION(struct replay_options, write, .name = "write", .type = VF_OPT_STRING,
                 .metavar = "FILE", .help = "keep the synthetic trace"),
    BENCH_OPTION(struct replay_options, experts, .name = "experts", .type = VF_OPT_INT,
                 .metavar = "N", .min = 1, .max = 65535,
                 .help = "in each layer of a recorded trace (as many as it names)"),
    BENCH_OPTION(struct replay_options, cache, .name = "cache", .type = VF_OPT_STRING,
                 .metavar = "P,P...",
                 .help = "sizes of the cache in percent of all experts (12.5,25,50)"),
    BENCH_OPTION(struct replay_options, warmup, .name = "warmup", .type = VF_OPT_FLOAT,
                 .metavar = "P", .min = 0, .max = 90,
                 .help = "percent of the tokens, at the start, that aren't counted (25)"),
};
const struct bench_command bench_replay = {
    .name = "replay",
    .what = "hit rates of expert cache policies over a routing trace",
    .usage = "TRACE | --synthetic NAME",
    .summary = "Hit rates of expert cache policies over a routing trace: LRU, LFU with half-lives "
               "of 16, 64 and 256 tokens, vflow's, and Belady's optimum.",
    .words_max = 1,
    .words = offsetof(struct replay_options, trace),
    BENCH_OPTIONS(options, defaults),
    .run = replay};
