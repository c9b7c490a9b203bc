/* One model as .cflow and as .vflow, decoded token by token in turn: does the order in which the
 * tiles lie in the file show?
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/decode/arms.h"

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

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct arms_options *o = options;
    struct loaded_params params = {
        .threads = o->threads, .tier = (enum vf_kernel_tier)o->tier, .huge = o->huge};
    struct arms arms = {0};
    enum vf_code code = arms_open(&arms, o->paths, 2, o->tokens, &params, err);
    if (code == VF_OK)
        code = check(&arms, o->paths, err);
    if (code == VF_OK)
        code = arms_decode(&arms, "formats", err);
    if (code == VF_OK)
        report(&arms, o->paths, r, o->threads);
    arms_close(&arms);
    return code;
}

static const struct arms_options defaults = {.threads = 1, .tokens = 40};
static const struct bench_option options[] = {
    BENCH_THREADS(struct arms_options, 1024, "compute threads (1)"),
    BENCH_TOKENS(struct arms_options, 5, 100000, "decoded with each file (40)"),
    BENCH_HUGE(struct arms_options),
};
const struct bench_command bench_formats = {
    .name = "formats",
    .what = ".cflow against .vflow of the same model",
    .usage = "MODEL.cflow MODEL.vflow",
    .summary = "Decodes with one model in both formats, token by token in turn, and compares.",
    .words_min = 2,
    .words_max = 2,
    .words = offsetof(struct arms_options, paths),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
