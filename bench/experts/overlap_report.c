/* The tables and the drawing of the overlap measurement. */
#include "bench/experts/overlap.h"

#include "common/base/util.h"

static const struct bench_column time_columns[] = {
    {"threads", "threads", BENCH_INT},
    {"drive_gb_per_s", "drive GB/s", BENCH_3},
    {"sync_ms", "sync ms", BENCH_1},
    {"sync_ms_p10", "p10", BENCH_1},
    {"sync_ms_p90", "p90", BENCH_1},
    {"sync_stall_ms", "stall", BENCH_1},
    {"staged_ms", "staged ms", BENCH_1},
    {"staged_ms_p10", "p10", BENCH_1},
    {"staged_ms_p90", "p90", BENCH_1},
    {"staged_stall_ms", "stall", BENCH_1},
    {"hidden", "hidden", BENCH_PERCENT},
    {"win", "net win", BENCH_2},
    {"win_p10", "p10", BENCH_2},
    {"win_p90", "p90", BENCH_2},
    {"sync_read_bytes", NULL, BENCH_INT},
    {"staged_read_bytes", NULL, BENCH_INT},
    {"cached_read_bytes", NULL, BENCH_INT},
};

static void add_times(struct bench_report *r, const struct overlap_cell *c)
{
    const struct bench_stat *sync = &c->ms[OVERLAP_SYNC], *staged = &c->ms[OVERLAP_STAGED];
    bench_report_row(r,
                     (struct bench_cell[]){
                         BENCH_NUM(c->threads), BENCH_NUM(c->drive * 1e-9), BENCH_NUM(sync->median),
                         BENCH_NUM(sync->low), BENCH_NUM(sync->high),
                         BENCH_NUM(c->stall_ms[OVERLAP_SYNC].median), BENCH_NUM(staged->median),
                         BENCH_NUM(staged->low), BENCH_NUM(staged->high),
                         BENCH_NUM(c->stall_ms[OVERLAP_STAGED].median), BENCH_NUM(c->hidden.median),
                         BENCH_NUM(c->win.median), BENCH_NUM(c->win.low), BENCH_NUM(c->win.high),
                         BENCH_NUM(floor(c->read_bytes[OVERLAP_SYNC])),
                         BENCH_NUM(floor(c->read_bytes[OVERLAP_STAGED])),
                         BENCH_NUM(floor(c->read_bytes[OVERLAP_CACHED]))});
}

static const struct bench_column model_columns[] = {
    {"threads", "threads", BENCH_INT},
    {"drive_gb_per_s", "drive GB/s", BENCH_3},
    {"compute_ms", "C ms", BENCH_1},
    {"compute_ms_p10", "p10", BENCH_1},
    {"compute_ms_p90", "p90", BENCH_1},
    {"reads_ms", "IO ms", BENCH_1},
    {"latency_ms", NULL, BENCH_3},
    {"cached_stall_ms", NULL, BENCH_3},
    {"reads_floor_ms", "IO_eff ms", BENCH_1},
    {"win", "net win", BENCH_2},
    {"model", "model", BENCH_2},
    {"off_model", "off", BENCH_PERCENT},
    {"off_model_p10", "p10", BENCH_PERCENT},
    {"off_model_p90", "p90", BENCH_PERCENT},
    {"interference", "interference", BENCH_PERCENT},
    {"interference_p10", "p10", BENCH_PERCENT},
    {"interference_p90", "p90", BENCH_PERCENT},
    {"model_taxed", "model with it", BENCH_2},
    {"off_model_taxed", "off", BENCH_PERCENT},
};

static void add_model(struct bench_report *r, const struct overlap_cell *c)
{
    const struct bench_stat *compute = &c->ms[OVERLAP_CACHED], *tax = &c->interference;
    bench_report_row(r, (struct bench_cell[]){
                            BENCH_NUM(c->threads), BENCH_NUM(c->drive * 1e-9),
                            BENCH_NUM(compute->median), BENCH_NUM(compute->low),
                            BENCH_NUM(compute->high), BENCH_NUM(c->stall_ms[OVERLAP_SYNC].median),
                            BENCH_NUM(c->latency_ms), BENCH_NUM(c->stall_ms[OVERLAP_CACHED].median),
                            BENCH_NUM(c->floor_ms), BENCH_NUM(c->win.median),
                            BENCH_NUM(c->model.median), BENCH_NUM(c->off.median),
                            BENCH_NUM(c->off.low), BENCH_NUM(c->off.high), BENCH_NUM(tax->median),
                            BENCH_NUM(tax->low), BENCH_NUM(tax->high), BENCH_NUM(c->model_taxed),
                            BENCH_NUM(c->off_taxed)});
}

static void draw(struct bench_panel *times, struct bench_panel *wins, const struct overlap_cell *c)
{
    const struct bench_stat *sync = &c->ms[OVERLAP_SYNC], *staged = &c->ms[OVERLAP_STAGED];
    double compute = c->ms[OVERLAP_CACHED].median;
    double sum_ms = compute + c->stall_ms[OVERLAP_SYNC].median;
    double most_ms = fmax(compute, c->floor_ms);
    char name[64];
    snprintf(name, sizeof name, "%u thread%s, %.2f GB/s", c->threads, c->threads == 1 ? "" : "s",
             c->drive * 1e-9);
    bench_panel_point(times, "sync", name, sync->median, sync->low, sync->high);
    bench_panel_point(times, "C + IO", name, sum_ms, sum_ms, sum_ms);
    bench_panel_point(times, "staged", name, staged->median, staged->low, staged->high);
    bench_panel_point(times, "max(C, IO_eff)", name, most_ms, most_ms, most_ms);
    bench_panel_point(wins, "measured", name, c->win.median, c->win.low, c->win.high);
    bench_panel_point(wins, "model", name, c->model.median, c->model.low, c->model.high);
}

void overlap_report(struct bench_report *r, const struct overlap_options *o,
                    const struct overlap_model *m, const struct overlap_cell *cells, size_t count)
{
    struct bench_chart *chart = bench_report_chart(r);
    bench_report_fact_text(r, "file", o->model);
    bench_report_fact(r, "tokens", o->tokens);
    bench_report_fact(r, "layers_with_experts", m->read_layers);
    bench_report_fact(r, "expert_bytes", (double)m->record_bytes);
    bench_report_fact(r, "read_bytes_per_token", (double)m->read_bytes);
    bench_report_fact(r, "expert_cache_bytes", (double)o->cache_bytes);
    bench_report_fact_text(r, "outputs", "identical");
    bench_report_line(r,
                      "%.1f MB of experts a token from %u layers, a cache of %.1f MB; tokens and "
                      "log-probabilities identical in all arms",
                      (double)m->read_bytes * 1e-6, m->read_layers, (double)o->cache_bytes * 1e-6);
    struct bench_panel *times = bench_panel_add(
        chart,
        &(struct bench_panel_look){
            .kind = BENCH_BARS,
            .title = "A token, waiting for experts where they are chosen (sync) or due (staged)",
            .values = "milliseconds a token",
            .categories = "threads, drive",
            .spread = "p10 to p90 of the tokens"});
    struct bench_panel *wins = bench_panel_add(
        chart, &(struct bench_panel_look){
                   .kind = BENCH_BARS,
                   .title = "Sync over staged, beside the model (C + IO) / max(C, IO_eff)",
                   .values = "time with sync / time with staged",
                   .categories = "threads, drive",
                   .spread = "p10 to p90 of the tokens",
                   .rule = 1,
                   .rule_label = "the same"});
    bench_report_table(r, "rows", NULL, time_columns, VF_ARRAY_LEN(time_columns));
    for (size_t i = 0; i < count; i++) {
        add_times(r, &cells[i]);
        draw(times, wins, &cells[i]);
    }
    bench_report_table(r, "model", "beside (C + IO) / max(C, IO_eff)", model_columns,
                       VF_ARRAY_LEN(model_columns));
    for (size_t i = 0; i < count; i++)
        add_model(r, &cells[i]);
}
