/* What a second flow costs in decode: two models of one geometry, one with an auxiliary flow, step
 * by step in turn, so that whatever else the machine does meets both.
 */
#include "bench/decode/arms.h"
#include "bench/report/report.h"

#include "common/base/cli.h"
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

int bench_flows(int argc, char **argv)
{
    int64_t threads = 1, tokens = 40;
    struct bench_output output = {0};
    struct loaded_params params = {0};
    int tier = 0;
    const struct vf_opt opts[] = {
        {.name = "threads",
         .type = VF_OPT_INT,
         .value = &threads,
         .metavar = "N",
         .min = 1,
         .max = 1024,
         .help = "compute threads (1)"},
        {.name = "tokens",
         .type = VF_OPT_INT,
         .value = &tokens,
         .metavar = "N",
         .min = 5,
         .max = 100000,
         .help = "decoded with each model (40)"},
        {.name = "kernel",
         .type = VF_OPT_CHOICE,
         .value = &tier,
         .choices = vf_kernel_tier_words,
         .help = "instruction set (auto)"},
        {.name = "huge",
         .type = VF_OPT_FLAG,
         .value = &params.huge,
         .help = "copy the weights into huge pages first (--weights huge)"},
        BENCH_OUTPUT_OPTS(output),
    };
    const struct vf_cli cli = {.program = "vflow-bench flows",
                               .usage = "ONE.vflow MANY.vflow [options]",
                               .summary = "Decodes with a model of one flow and one of several, "
                                          "token by token in turn, and compares.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts),
                               .positional_min = 2,
                               .positional_max = 2};
    struct vf_err err = {0};
    struct arms arms = {0};
    const char *paths[2];
    enum vf_code code = vf_cli_parse(&cli, argc, argv, paths, NULL, &err);
    if (code == VF_OK) {
        struct bench_report *r = bench_report_begin("flows");
        params.threads = (uint32_t)threads;
        params.tier = (enum vf_kernel_tier)tier;
        code = arms_open(&arms, paths, 2, (size_t)tokens, &params, &err);
        if (code == VF_OK)
            code = arms_decode(&arms, "flows", &err);
        if (code == VF_OK)
            report(&arms, r, params.threads);
        arms_close(&arms);
        code = bench_report_end(r, &output, code, &err);
    }
    return code == VF_OK ? 0 : vf_cli_fail(cli.program, &err);
}
