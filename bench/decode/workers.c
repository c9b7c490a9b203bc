/* Decode over stage workers and threads, through the coordinator and its real worker processes.
 *
 * Every arm is a running engine with its own workers; the same request decodes in all of them,
 * token by token in turn, while the others sleep. What a token takes beyond the workers' compute is
 * sampling, sockets and hops.
 */
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/clock.h"
#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/kernels/kernels.h"
#include "coordinator/scheduler.h"

#include <stdlib.h>
#include <string.h>

#define ARMS_LIMIT 8
#define WARM_UP    3u
#define POLL_MS    1000

struct workers_options {
    const char *model;
    const char *workers_text, *threads_text; /* lists; threads NULL: where there are CPUs */
    uint32_t *workers, *threads;
    size_t worker_count, thread_count;
    uint32_t tokens;
    bool huge;
    int tier;
};

struct arm {
    uint32_t workers, threads;
    struct vf_scheduler *scheduler;
    double *ms; /* [tokens] */
    uint32_t received;
    uint32_t last; /* token */
    bool ended;
    enum vf_code code;
    struct vf_err err;
    struct vf_engine_totals begin, end;
};

/* ---- a request ---------------------------------------------------------------------------- */

static void on_token(void *ctx, uint64_t id, uint32_t token, const char *text, size_t n)
{
    (void)id, (void)text, (void)n;
    struct arm *arm = ctx;
    if (token == VF_TOKEN_NONE)
        return;
    arm->received++;
    arm->last = token;
}

static void on_rows(void *ctx, uint64_t id, uint32_t first, uint32_t count, const float *rows)
{
    (void)ctx, (void)id, (void)first, (void)count, (void)rows;
}

static void on_done(void *ctx, uint64_t id, enum vf_finish finish,
                    const struct vf_request_stats *stats)
{
    (void)id, (void)finish, (void)stats;
    struct arm *arm = ctx;
    arm->ended = true;
}

static void on_failed(void *ctx, uint64_t id, const struct vf_err *err)
{
    (void)id;
    struct arm *arm = ctx;
    arm->ended = true;
    arm->code = err->code;
    arm->err = *err;
}

static enum vf_code start_arm(struct arm *arm, const struct workers_options *o, struct vf_err *err)
{
    static const struct vf_request_events events = {on_token, on_rows, on_done, on_failed};
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct vf_engine_params params = {.cancel_fd = -1};
    Vflow__RunSettings *settings = &params.settings;
    vf_run_settings_init(settings);
    settings->model = (char *)o->model;
    settings->kernel = (Vflow__Kernel)o->tier;
    settings->speculate = VFLOW__SPECULATE__SPECULATE_OFF;
    settings->weights = o->huge ? VFLOW__WEIGHTS__WEIGHTS_HUGE : VFLOW__WEIGHTS__WEIGHTS_MMAP;
    settings->experts = VFLOW__EXPERTS__EXPERTS_RESIDENT;
    settings->threads = arm->threads;
    settings->stage_workers = arm->workers;
    settings->ctx = o->tokens + WARM_UP + 16;
    settings->prefill_chunk = 16;
    struct vf_request request = {.kind = VF_REQUEST_GENERATE,
                                 .tokens = prompt,
                                 .token_count = VF_ARRAY_LEN(prompt),
                                 .max_tokens = o->tokens + WARM_UP,
                                 .ignore_eos = true};
    struct vf_engine *engine;
    uint64_t id;
    arm->ms = calloc(o->tokens, sizeof *arm->ms);
    if (!arm->ms)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->tokens);
    enum vf_code code = vf_engine_create(&params, &engine, err);
    if (code == VF_OK && (code = vf_scheduler_create(engine, &arm->scheduler, err)) != VF_OK)
        vf_engine_destroy(engine);
    return code ? code : vf_scheduler_submit(arm->scheduler, &request, &events, arm, &id, err);
}

/* Until the next token is here; nothing of the arm is in flight afterwards. */
static enum vf_code next_token(struct arm *arm, double *ms, struct vf_err *err)
{
    uint32_t before = arm->received;
    uint64_t began = vf_now_ns();
    enum vf_code code = VF_OK;
    while (code == VF_OK && arm->received == before && !arm->ended)
        code = vf_scheduler_poll(arm->scheduler, POLL_MS, NULL, err);
    *ms = (double)(vf_now_ns() - began) / 1e6;
    if (code == VF_OK && arm->code) {
        *err = arm->err;
        code = arm->code;
    }
    if (code == VF_OK && arm->received == before)
        code = vf_err_set(err, VF_ERR_INTERNAL, "a request ended before its last token");
    return code;
}

static enum vf_code read_totals(struct arm *arms, int count, bool end, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int i = 0; code == VF_OK && i < count; i++)
        code = vf_engine_read_totals(vf_scheduler_engine(arms[i].scheduler), true,
                                     end ? &arms[i].end : &arms[i].begin, err);
    return code;
}

static enum vf_code decode(struct arm *arms, int count, uint32_t tokens, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t t = 0; code == VF_OK && t < tokens + WARM_UP; t++) {
        if (t == WARM_UP)
            code = read_totals(arms, count, false, err);
        for (int i = 0; code == VF_OK && i < count; i++) {
            struct arm *arm = &arms[(t + (uint32_t)i) % (uint32_t)count];
            double ms;
            code = next_token(arm, &ms, err);
            if (t >= WARM_UP)
                arm->ms[t - WARM_UP] = ms;
        }
        for (int i = 1; code == VF_OK && i < count; i++)
            if (arms[i].last != arms[0].last)
                code = vf_err_set(err, VF_ERR_INTERNAL,
                                  "token %u is %u with %u workers and %u with %u", t, arms[0].last,
                                  arms[0].workers, arms[i].last, arms[i].workers);
        vf_progress("workers", VF_PROGRESS_ITEMS, t + 1, tokens + WARM_UP);
    }
    return code ? code : read_totals(arms, count, true, err);
}

/* ---- the result --------------------------------------------------------------------------- */

static const struct bench_column columns[] = {
    {"stage_workers", "workers", BENCH_INT},
    {"threads", "threads each", BENCH_INT},
    {"tokens_per_s", "tokens/s", BENCH_2},
    {"ms_per_token", "ms a token", BENCH_3},
    {"ms_p10", "p10", BENCH_3},
    {"ms_p90", "p90", BENCH_3},
    {"compute_us", "compute us", BENCH_1},
    {"stall_us", "stall us", BENCH_1},
    {"rest_us", "rest us", BENCH_1},
    {"over_one_worker", "over one worker", BENCH_3},
    {"over_one_worker_p10", "p10", BENCH_3},
    {"over_one_worker_p90", "p90", BENCH_3},
    {"speedup", "over 1 thread", BENCH_3},
};

/* The arm that another one is measured against: fewest workers with as many threads, or fewest of
 * both. */
static const struct arm *base_of(const struct arm *arms, int count, const struct arm *of)
{
    const struct arm *base = of ? of : &arms[0];
    for (int i = 0; i < count; i++)
        if (of ? arms[i].threads == of->threads && arms[i].workers < base->workers
               : arms[i].workers * arms[i].threads < base->workers * base->threads)
            base = &arms[i];
    return base;
}

static void quantiles(double *scratch, const double *a, const double *over, uint32_t n,
                      double out[3])
{
    for (uint32_t i = 0; i < n; i++)
        scratch[i] = over ? a[i] / over[i] : a[i];
    out[0] = bench_median(scratch, n);
    out[1] = bench_quantile(scratch, n, 0.1);
    out[2] = bench_quantile(scratch, n, 0.9);
}

static void report(struct bench_report *r, const struct arm *arms, int count, uint32_t tokens,
                   double *scratch)
{
    bench_report_fact(r, "tokens", tokens);
    bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r),
        &(struct bench_panel_look){.kind = BENCH_BARS,
                                   .title = "Decode by stage workers and threads of each",
                                   .values = "milliseconds a token",
                                   .categories = "workers x threads",
                                   .spread = "p10 to p90 of the tokens"});
    const struct arm *first = base_of(arms, count, NULL);
    for (int i = 0; i < count; i++) {
        const struct arm *arm = &arms[i];
        double ms[3], over[3], speedup[3];
        double compute =
            (double)(arm->end.stats.compute_ns - arm->begin.stats.compute_ns) / 1e3 / tokens;
        double stall = (double)(arm->end.stats.stall_ns - arm->begin.stats.stall_ns) / 1e3 / tokens;
        char name[64];
        quantiles(scratch, arm->ms, NULL, tokens, ms);
        quantiles(scratch, arm->ms, base_of(arms, count, arm)->ms, tokens, over);
        quantiles(scratch, first->ms, arm->ms, tokens, speedup);
        double sum = 0;
        for (uint32_t t = 0; t < tokens; t++)
            sum += arm->ms[t];
        bench_report_row(r, (struct bench_cell[]){
                                BENCH_NUM(arm->workers), BENCH_NUM(arm->threads),
                                BENCH_NUM(1e3 / ms[0]), BENCH_NUM(ms[0]), BENCH_NUM(ms[1]),
                                BENCH_NUM(ms[2]), BENCH_NUM(compute), BENCH_NUM(stall),
                                BENCH_NUM(1e3 * sum / tokens - compute - stall), BENCH_NUM(over[0]),
                                BENCH_NUM(over[1]), BENCH_NUM(over[2]), BENCH_NUM(speedup[0])});
        snprintf(name, sizeof name, "%u x %u thread%s", arm->workers, arm->threads,
                 arm->threads == 1 ? "" : "s");
        bench_panel_point(panel, "median", name, ms[0], ms[1], ms[2]);
    }
}

static enum vf_code measure_all(const struct workers_options *o, struct bench_report *r,
                                struct vf_err *err)
{
    struct arm arms[ARMS_LIMIT] = {0};
    int count = 0;
    double *scratch = calloc(o->tokens, sizeof *scratch);
    enum vf_code code =
        scratch ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->tokens);
    for (size_t t = 0; t < o->thread_count; t++)
        for (size_t w = 0; code == VF_OK && w < o->worker_count; w++) {
            struct arm *arm = &arms[count++];
            arm->workers = o->workers[w];
            arm->threads = o->threads[t];
            code = start_arm(arm, o, err);
            if (code != VF_OK)
                vf_err_prepend(err, "%u workers of %u threads: ", arm->workers, arm->threads);
        }
    if (code == VF_OK)
        code = decode(arms, count, o->tokens, err);
    if (code == VF_OK)
        report(r, arms, count, o->tokens, scratch);
    for (int i = 0; i < count; i++) {
        vf_scheduler_destroy(arms[i].scheduler);
        free(arms[i].ms);
    }
    free(scratch);
    return code;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    struct workers_options *o = options;
    char counts[64];
    bench_thread_counts(4, counts, sizeof counts);
    enum vf_code code =
        bench_parse_counts("--workers", o->workers_text, 64, &o->workers, &o->worker_count, err);
    if (code == VF_OK)
        code = bench_parse_counts("--threads", o->threads_text ? o->threads_text : counts, 1024,
                                  &o->threads, &o->thread_count, err);
    if (code == VF_OK && o->worker_count * o->thread_count > ARMS_LIMIT)
        code = vf_err_set(err, VF_ERR_USAGE, "%zu combinations found, at most %d are allowed",
                          o->worker_count * o->thread_count, ARMS_LIMIT);
    if (code == VF_OK)
        code = measure_all(o, r, err);
    free(o->workers);
    free(o->threads);
    return code;
}

static const struct workers_options defaults = {.workers_text = "1,2", .tokens = 40};
static const struct bench_option options[] = {
    BENCH_OPTION(struct workers_options, workers_text, .name = "workers", .type = VF_OPT_STRING,
                 .metavar = "1,2", .help = "stage workers, one after the other (1,2)"),
    BENCH_OPTION(struct workers_options, threads_text, .name = "threads", .type = VF_OPT_STRING,
                 .metavar = "1,2",
                 .help = "threads of each worker (1, 2 and 4 where there are CPUs)"),
    BENCH_TOKENS(struct workers_options, 5, 100000, "decoded with each combination (40)"),
    BENCH_KERNEL(struct workers_options),
    BENCH_OPTION(struct workers_options, huge, .name = "huge", .type = VF_OPT_FLAG,
                 .help = "weights in huge pages of each worker (--weights huge)"),
};
const struct bench_command bench_workers = {
    .name = "workers",
    .what = "decode over stage workers and threads, real processes",
    .usage = "MODEL",
    .summary =
        "Decode over stage workers and threads, through the coordinator and real worker processes.",
    .words_min = 1,
    .words_max = 1,
    .words = offsetof(struct workers_options, model),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
