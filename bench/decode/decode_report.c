#include "bench/decode/decode.h"

#include "common/base/util.h"

#include <stdlib.h>

static const struct bench_column figure_columns[] = {
    {"figure", "figure", BENCH_TEXT}, {"unit", "unit", BENCH_TEXT}, {"median", "median", BENCH_3},
    {"min", "min", BENCH_3},          {"max", "max", BENCH_3},
};
static const struct bench_column op_columns[] = {
    {"operation", "operation", BENCH_TEXT},    {"decode_us", "decode us a token", BENCH_1},
    {"decode_share", "share", BENCH_PERCENT},  {"prefill_us", "prefill us a token", BENCH_1},
    {"prefill_share", "share", BENCH_PERCENT},
};
static const struct bench_column process_columns[] = {
    {"part", "of a decoded token", BENCH_TEXT},
    {"us", "us", BENCH_1},
    {"share", "share", BENCH_PERCENT},
};

/* What is worth saying of one sample. */
typedef double figure_fn(const struct decode_run *run, const struct decode_sample *s);

static double bytes_per_token(const struct decode_run *run)
{
    return (double)run->process.weight_bytes / (double)run->decoded;
}

static double tokens_per_s(const struct decode_run *run, const struct decode_sample *s)
{
    (void)run;
    return 1e3 / s->token_ms;
}

static double ms_per_token(const struct decode_run *run, const struct decode_sample *s)
{
    (void)run;
    return s->token_ms;
}

static double gb_per_s(const struct decode_run *run, const struct decode_sample *s)
{
    return bytes_per_token(run) / (s->token_ms * 1e6);
}

static double in_order(const struct decode_run *run, const struct decode_sample *s)
{
    (void)run;
    return s->read[VF_READ_IN_ORDER];
}

static double share_of_in_order(const struct decode_run *run, const struct decode_sample *s)
{
    return gb_per_s(run, s) / in_order(run, s);
}

/* The faster way. */
static double ceiling(const struct decode_run *run, const struct decode_sample *s)
{
    (void)run;
    return fmax(s->read[VF_READ_IN_ORDER], s->read[VF_READ_SIDE_BY_SIDE]);
}

static double share(const struct decode_run *run, const struct decode_sample *s)
{
    return gb_per_s(run, s) / ceiling(run, s);
}

static double prefill_per_s(const struct decode_run *run, const struct decode_sample *s)
{
    return 1e3 * run->o->prompt / s->prefill_ms;
}

static double foreign_ratio(const struct decode_run *run, const struct decode_sample *s)
{
    (void)run;
    return s->foreign_ms / s->token_ms;
}

static struct bench_stat add_figure(const struct decode_run *run, struct bench_report *r,
                                    const char *name, const char *unit, figure_fn *figure,
                                    double *scratch)
{
    for (uint32_t s = 0; s < run->o->samples; s++)
        scratch[s] = figure(run, &run->samples[s]);
    struct bench_stat stat = bench_stat_of(scratch, run->o->samples);
    bench_report_row(r,
                     (struct bench_cell[]){BENCH_STR(name), BENCH_STR(unit), BENCH_NUM(stat.median),
                                           BENCH_NUM(stat.low), BENCH_NUM(stat.high)});
    return stat;
}

static void add_figures(const struct decode_run *run, struct bench_report *r, double *scratch)
{
    const struct decode_options *o = run->o;
    bench_report_table(r, "figures", NULL, figure_columns, VF_ARRAY_LEN(figure_columns));
    double per_s = add_figure(run, r, "decode", "tokens/s", tokens_per_s, scratch).median;
    double ms = add_figure(run, r, "a token", "ms", ms_per_token, scratch).median;
    double gb = add_figure(run, r, "weights read", "GB/s", gb_per_s, scratch).median;
    double plain = add_figure(run, r, "read in order", "GB/s", in_order, scratch).median;
    double beside = add_figure(run, r, "share of it", "of 1", share_of_in_order, scratch).median;
    double roof = add_figure(run, r, "read ceiling", "GB/s", ceiling, scratch).median;
    double part = add_figure(run, r, "share of it", "of 1", share, scratch).median;
    double prefill = add_figure(run, r, "prefill", "tokens/s", prefill_per_s, scratch).median;
    if (o->foreign) {
        double slower =
            add_figure(run, r, "with a foreign process", "x the time", foreign_ratio, scratch)
                .median;
        bench_report_fact(r, "foreign_slowdown", slower);
    }
    bench_report_fact_text(r, "model", run->o->path);
    bench_report_fact_text(r, "kernel", run->model.kernels->name);
    bench_report_fact(r, "threads", o->threads);
    bench_report_fact(r, "samples", o->samples);
    bench_report_fact(r, "decode_tokens_per_s", per_s);
    bench_report_fact(r, "ms_per_token", ms);
    bench_report_fact(r, "bytes_per_token", bytes_per_token(run));
    bench_report_fact(r, "gb_per_s", gb);
    bench_report_fact(r, "read_in_order_gb_per_s", plain);
    bench_report_fact(r, "share_of_read_in_order", beside);
    bench_report_fact(r, "ceiling_gb_per_s", roof);
    bench_report_fact(r, "share_of_ceiling", part);
    bench_report_fact(r, "prompt_tokens", o->prompt);
    bench_report_fact(r, "prefill_tokens_per_s", prefill);
    bench_report_line(r, "%s: kernel %s, %u thread%s, %.1f MB of weights a token, %u samples",
                      run->o->path, run->model.kernels->name, o->threads,
                      o->threads == 1 ? "" : "s", bytes_per_token(run) / 1e6, o->samples);
}

static void add_ops(const struct decode_run *run, struct bench_report *r, bool print)
{
    static struct bench_column hidden[VF_ARRAY_LEN(op_columns)];
    double decode = 0, prefill = 0, prompts = (double)run->o->prompt * run->o->samples;
    for (int k = 0; k < VF_OP_KIND_COUNT; k++) {
        decode += run->decode_ns[k];
        prefill += run->prefill_ns[k];
    }
    for (size_t c = 0; c < VF_ARRAY_LEN(op_columns); c++)
        hidden[c] = (struct bench_column){op_columns[c].key, NULL, op_columns[c].format};
    bench_report_table(r, "operations", NULL, print ? op_columns : hidden,
                       VF_ARRAY_LEN(op_columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_BARS,
                                                          .title = "Share of the time by operation",
                                                          .values = "share of the time",
                                                          .categories = "operation",
                                                          .percent = true});
    for (int k = 0; k < VF_OP_KIND_COUNT; k++) {
        const char *name = vf_op_kind_name((enum vf_op_kind)k);
        if (run->decode_ns[k] <= 0 && run->prefill_ns[k] <= 0)
            continue;
        bench_report_row(
            r, (struct bench_cell[]){BENCH_STR(name),
                                     BENCH_NUM(run->decode_ns[k] / 1e3 / (double)run->decoded),
                                     BENCH_NUM(run->decode_ns[k] / decode),
                                     BENCH_NUM(run->prefill_ns[k] / 1e3 / prompts),
                                     BENCH_NUM(run->prefill_ns[k] / prefill)});
        bench_panel_point(panel, "decode", name, run->decode_ns[k] / decode, NAN, NAN);
        bench_panel_point(panel, "prefill", name, run->prefill_ns[k] / prefill, NAN, NAN);
    }
}

static void draw_share(const struct decode_run *run, struct bench_report *r)
{
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r),
        &(struct bench_panel_look){.kind = BENCH_LINES,
                                   .title = "Weights read a second and the read ceiling beside it",
                                   .values = "GB/s",
                                   .categories = "sample"});
    for (uint32_t s = 0; s < run->o->samples; s++) {
        char name[16];
        snprintf(name, sizeof name, "%u", s + 1);
        bench_panel_point(panel, "decode", name, gb_per_s(run, &run->samples[s]), NAN, NAN);
        bench_panel_point(panel, "read in order", name, in_order(run, &run->samples[s]), NAN, NAN);
        bench_panel_point(panel, "read ceiling", name, ceiling(run, &run->samples[s]), NAN, NAN);
    }
}

/* Where the process's time went; what no counter claims is the rest. */
static void add_process(const struct decode_run *run, struct bench_report *r, bool print)
{
    static struct bench_column hidden[VF_ARRAY_LEN(process_columns)];
    const struct vf_executor_stats *p = &run->process;
    const struct {
        const char *name;
        double ns;
    } parts[] = {
        {"compute", (double)p->compute_ns},
        {"barrier: the other threads", (double)p->barrier_ns},
        {"hop: another worker's values", (double)p->hop_ns},
        {"stall: experts from the drive", (double)p->stall_ns},
    };
    double rest = run->decode_wall_ns;
    for (size_t c = 0; c < VF_ARRAY_LEN(process_columns); c++)
        hidden[c] = (struct bench_column){process_columns[c].key, NULL, process_columns[c].format};
    bench_report_table(r, "process", NULL, print ? process_columns : hidden,
                       VF_ARRAY_LEN(process_columns));
    for (size_t i = 0; i < VF_ARRAY_LEN(parts); i++) {
        rest -= parts[i].ns;
        bench_report_row(r,
                         (struct bench_cell[]){BENCH_STR(parts[i].name),
                                               BENCH_NUM(parts[i].ns / 1e3 / (double)run->decoded),
                                               BENCH_NUM(parts[i].ns / run->decode_wall_ns)});
    }
    bench_report_row(r, (struct bench_cell[]){BENCH_STR("rest"),
                                              BENCH_NUM(rest / 1e3 / (double)run->decoded),
                                              BENCH_NUM(rest / run->decode_wall_ns)});
}

void decode_report(const struct decode_run *run, struct bench_report *report)
{
    double *scratch = calloc(run->o->samples, sizeof *scratch);
    if (!scratch)
        return;
    add_figures(run, report, scratch);
    draw_share(run, report);
    add_ops(run, report, run->o->ops);
    add_process(run, report, run->o->ops);
    free(scratch);
}
