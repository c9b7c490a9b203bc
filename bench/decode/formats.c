/* One model as .cflow and as .vflow, decoded token by token in turn: does the order in which the
 * tiles lie in the file show?
 */
#include "bench/decode/arms.h"
#include "bench/report/report.h"

#include "common/base/cli.h"
#include "common/base/util.h"

static const struct bench_column columns[] = {
    {"file", "file", BENCH_TEXT},
    {"format", "format", BENCH_TEXT},
    {"ms_per_token", "ms a token", BENCH_3},
    {"ms_p10", "p10", BENCH_3},
    {"ms_p90", "p90", BENCH_3},
    {"over_first", "over the first", BENCH_3},
    {"over_first_p10", "p10", BENCH_3},
    {"over_first_p90", "p90", BENCH_3},
};

static const char *format_of(const struct arms *arms, int i)
{
    return vf_model_file_format(arms->models[i].file) == VF_FORMAT_CFLOW ? "cflow" : "vflow";
}

static void report(const struct arms *arms, const char *const *paths, struct bench_report *r,
                   uint32_t threads)
{
    bench_report_fact(r, "threads", threads);
    bench_report_fact(r, "tokens", (double)arms->tokens);
    bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_BARS,
                                                          .title = "Decode time by file format",
                                                          .values = "milliseconds a token",
                                                          .categories = "format",
                                                          .spread = "p10 to p90 of the tokens"});
    for (int i = 0; i < arms->count; i++) {
        struct bench_stat ms = arms_ms(arms, i), over = arms_ratio(arms, 0, i);
        bench_report_row(r, (struct bench_cell[]){
                                BENCH_STR(paths[i]), BENCH_STR(format_of(arms, i)),
                                BENCH_NUM(ms.median), BENCH_NUM(ms.low), BENCH_NUM(ms.high),
                                BENCH_NUM(over.median), BENCH_NUM(over.low), BENCH_NUM(over.high)});
        bench_panel_point(panel, "median", format_of(arms, i), ms.median, ms.low, ms.high);
    }
}

/* One of each format, of the same geometry. */
static enum vf_code check(const struct arms *arms, const char *const *paths, struct vf_err *err)
{
    const struct vf_config *a = vf_model_file_config(arms->models[0].file);
    const struct vf_config *b = vf_model_file_config(arms->models[1].file);
    if (vf_config_param_count(a) != vf_config_param_count(b))
        return vf_err_set(err, VF_ERR_USAGE, "%s and %s have %llu and %llu parameters: two models",
                          paths[0], paths[1], (unsigned long long)vf_config_param_count(a),
                          (unsigned long long)vf_config_param_count(b));
    if (vf_model_file_format(arms->models[0].file) == vf_model_file_format(arms->models[1].file))
        return vf_err_set(err, VF_ERR_USAGE, "%s and %s are both .%s", paths[0], paths[1],
                          format_of(arms, 0));
    return VF_OK;
}

int bench_formats(int argc, char **argv)
{
    int64_t threads = 1, tokens = 40;
    struct bench_output output = {0};
    struct loaded_params params = {0};
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
         .help = "decoded with each file (40)"},
        {.name = "huge",
         .type = VF_OPT_FLAG,
         .value = &params.huge,
         .help = "copy the weights into huge pages first (--weights huge)"},
        BENCH_OUTPUT_OPTS(output),
    };
    const struct vf_cli cli = {.program = "vflow-bench formats",
                               .usage = "MODEL.cflow MODEL.vflow [options]",
                               .summary = "Decodes with one model in both formats, token by token "
                                          "in turn, and compares.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts),
                               .positional_min = 2,
                               .positional_max = 2};
    struct vf_err err = {0};
    struct arms arms = {0};
    const char *paths[2];
    enum vf_code code = vf_cli_parse(&cli, argc, argv, paths, NULL, &err);
    if (code == VF_OK) {
        struct bench_report *r = bench_report_begin("formats");
        params.threads = (uint32_t)threads;
        code = arms_open(&arms, paths, 2, (size_t)tokens, &params, &err);
        if (code == VF_OK)
            code = check(&arms, paths, &err);
        if (code == VF_OK)
            code = arms_decode(&arms, "formats", &err);
        if (code == VF_OK)
            report(&arms, paths, r, params.threads);
        arms_close(&arms);
        code = bench_report_end(r, &output, code, &err);
    }
    return code == VF_OK ? 0 : vf_cli_fail(cli.program, &err);
}
