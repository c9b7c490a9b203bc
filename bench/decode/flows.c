/* What a second flow costs in decode: two models of one geometry, one with an auxiliary flow, step
 * by step in turn, so that whatever else the machine does meets both.
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/decode/arms.h"

#include "common/base/json.h"
#include "common/base/util.h"

static const struct bench_column columns[] = {
    {"flows", "flows", BENCH_INT},
    {"ms_per_token", "ms a token", BENCH_3},
    {"ms_p10", "p10", BENCH_3},
    {"ms_p90", "p90", BENCH_3},
    {"over_one", "over one flow", BENCH_3},
    {"over_one_p10", "p10", BENCH_3},
    {"over_one_p90", "p90", BENCH_3},
};

static void report(const struct arms *arms, struct bench_report *r, uint32_t threads)
{
    struct bench_stat ms[2] = {arms_ms(arms, 0), arms_ms(arms, 1)};
    bench_report_fact(r, "threads", threads);
    bench_report_fact(r, "tokens", (double)arms->tokens);
    bench_report_fact(r, "ratio", ms[1].median / ms[0].median);
    bench_report_fact(r, "ratio_p10", ms[1].low / ms[0].low);
    bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_BARS,
                                                          .title = "Decode time by number of flows",
                                                          .values = "milliseconds a token",
                                                          .categories = "flows",
                                                          .spread = "p10 to p90 of the tokens"});
    for (int i = 0; i < 2; i++) {
        uint32_t flows = vf_model_file_config(arms->models[i].file)->flow_count;
        struct bench_stat over = arms_ratio(arms, 0, i);
        char name[32];
        snprintf(name, sizeof name, "%u flow%s", flows, flows == 1 ? "" : "s");
        bench_report_row(r, (struct bench_cell[]){BENCH_NUM(flows), BENCH_NUM(ms[i].median),
                                                  BENCH_NUM(ms[i].low), BENCH_NUM(ms[i].high),
                                                  BENCH_NUM(ms[i].median / ms[0].median),
                                                  BENCH_NUM(over.low), BENCH_NUM(over.high)});
        bench_panel_point(panel, "median", name, ms[i].median, ms[i].low, ms[i].high);
    }
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct arms_options *o = options;
    struct loaded_params params = {
        .threads = o->threads, .tier = (enum vf_kernel_tier)o->tier, .huge = o->huge};
    struct arms arms = {0};
    enum vf_code code = arms_open(&arms, o->paths, 2, o->tokens, &params, err);
    if (code == VF_OK)
        code = arms_decode(&arms, "flows", err);
    if (code == VF_OK)
        report(&arms, r, o->threads);
    arms_close(&arms);
    return code;
}

static const struct arms_options defaults = {.threads = 1, .tokens = 40};
static const struct bench_option options[] = {
    BENCH_THREADS(struct arms_options, 1024, "compute threads (1)"),
    BENCH_TOKENS(struct arms_options, 5, 100000, "decoded with each model (40)"),
    BENCH_KERNEL(struct arms_options),
    BENCH_HUGE(struct arms_options),
};
const struct bench_command bench_flows = {
    .name = "flows",
    .what = "decode time with auxiliary flows over decode time with one flow",
    .usage = "ONE.vflow MANY.vflow",
    .summary = "Decodes with a model of one flow and one of several, token by token in turn, and "
               "compares.",
    .words_min = 2,
    .words_max = 2,
    .words = offsetof(struct arms_options, paths),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
