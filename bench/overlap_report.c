/* What a cell says, and its table and drawing.
 *
 * IO_eff, the time that the reads alone demand of a staged token: all its bytes at the drive's own
 * speed, the latency of one layer's reads (the others' hide behind the queue), and the compute at
 * both ends of a token beside which nothing can be read. Nothing of it is taken from staged.
 */
#include "bench/overlap.h"

#include "common/util.h"

struct overlap_figures overlap_figures_of(const struct overlap_cell *cell,
                                          const struct overlap_model *m)
{
    struct overlap_figures f;
    double bytes_ms = 1e3 * cell->read_bytes[OVERLAP_SYNC] / cell->drive;
    double staged_compute = cell->ms[OVERLAP_STAGED].median - cell->stall_ms[OVERLAP_STAGED];
    f.compute = cell->ms[OVERLAP_CACHED].median;
    f.reads = cell->stall_ms[OVERLAP_SYNC];
    double latency = fmax(f.reads - bytes_ms, 0) / m->read_layers;
    f.reads_floor = bytes_ms + latency + (m->front + m->back) * f.compute;
    f.interference = staged_compute - f.compute;
    f.hidden = 1 - cell->stall_ms[OVERLAP_STAGED] / f.reads;
    f.model = (f.compute + f.reads) / fmax(f.compute, f.reads_floor);
    f.model_taxed =
        (f.compute + f.reads) / fmax(f.compute + fmax(f.interference, 0), f.reads_floor);
    f.off = cell->win.median / f.model - 1;
    f.off_taxed = cell->win.median / f.model_taxed - 1;
    return f;
}

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

static void add_times(struct bench_report *r, const struct overlap_cell *c,
                      const struct overlap_figures *f)
{
    const struct bench_stat *sync = &c->ms[OVERLAP_SYNC], *staged = &c->ms[OVERLAP_STAGED];
    bench_report_row(r, (struct bench_cell[]){
                            BENCH_NUM(c->threads), BENCH_NUM(c->drive * 1e-9),
                            BENCH_NUM(sync->median), BENCH_NUM(sync->low), BENCH_NUM(sync->high),
                            BENCH_NUM(c->stall_ms[OVERLAP_SYNC]), BENCH_NUM(staged->median),
                            BENCH_NUM(staged->low), BENCH_NUM(staged->high),
                            BENCH_NUM(c->stall_ms[OVERLAP_STAGED]), BENCH_NUM(f->hidden),
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
    {"reads_floor_ms", "IO_eff ms", BENCH_1},
    {"win", "net win", BENCH_2},
    {"model", "model", BENCH_2},
    {"off_model", "off", BENCH_PERCENT},
    {"interference_ms", "interference ms", BENCH_1},
    {"interference", "of C", BENCH_PERCENT},
    {"model_taxed", "model with it", BENCH_2},
    {"off_model_taxed", "off", BENCH_PERCENT},
};

static void add_model(struct bench_report *r, const struct overlap_cell *c,
                      const struct overlap_figures *f)
{
    const struct bench_stat *cached = &c->ms[OVERLAP_CACHED];
    bench_report_row(r, (struct bench_cell[]){
                            BENCH_NUM(c->threads), BENCH_NUM(c->drive * 1e-9),
                            BENCH_NUM(f->compute), BENCH_NUM(cached->low), BENCH_NUM(cached->high),
                            BENCH_NUM(f->reads), BENCH_NUM(f->reads_floor),
                            BENCH_NUM(c->win.median), BENCH_NUM(f->model), BENCH_NUM(f->off),
                            BENCH_NUM(f->interference), BENCH_NUM(f->interference / f->compute),
                            BENCH_NUM(f->model_taxed), BENCH_NUM(f->off_taxed)});
}

static void draw(struct bench_panel *times, struct bench_panel *wins, const struct overlap_cell *c,
                 const struct overlap_figures *f)
{
    const struct bench_stat *sync = &c->ms[OVERLAP_SYNC], *staged = &c->ms[OVERLAP_STAGED];
    char name[64];
    snprintf(name, sizeof name, "%u thread%s, %.2f GB/s", c->threads, c->threads == 1 ? "" : "s",
             c->drive * 1e-9);
    bench_panel_point(times, "sync", name, sync->median, sync->low, sync->high);
    bench_panel_point(times, "C + IO", name, f->compute + f->reads, f->compute + f->reads,
                      f->compute + f->reads);
    double floor_ms = fmax(f->compute, f->reads_floor);
    bench_panel_point(times, "staged", name, staged->median, staged->low, staged->high);
    bench_panel_point(times, "max(C, IO_eff)", name, floor_ms, floor_ms, floor_ms);
    bench_panel_point(wins, "measured", name, c->win.median, c->win.low, c->win.high);
    bench_panel_point(wins, "model", name, f->model, f->model, f->model);
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
        chart, BENCH_BARS,
        "A token, waiting for experts where they are chosen (sync) or due (staged)", "ms", false);
    struct bench_panel *wins = bench_panel_add(
        chart, BENCH_BARS, "Sync over staged, beside (C + IO) / max(C, IO_eff)", "times", false);
    bench_report_table(r, "rows", NULL, time_columns, VF_ARRAY_LEN(time_columns));
    for (size_t i = 0; i < count; i++) {
        struct overlap_figures f = overlap_figures_of(&cells[i], m);
        add_times(r, &cells[i], &f);
        draw(times, wins, &cells[i], &f);
    }
    bench_report_table(r, "model", "beside (C + IO) / max(C, IO_eff)", model_columns,
                       VF_ARRAY_LEN(model_columns));
    for (size_t i = 0; i < count; i++) {
        struct overlap_figures f = overlap_figures_of(&cells[i], m);
        add_model(r, &cells[i], &f);
    }
}
