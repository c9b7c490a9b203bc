/* What a drive delivers over read sizes and depths, and what the engine's own probe makes of it.
 * The cells take turns, round after round, since neighbours move a drive's speed within seconds. */
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/clock.h"
#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "common/machine/drive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PROBES       5
#define PROBE_NS     VF_MS(300)
#define SIZES_MAX    8
#define SIZE_DEFAULT (1u << 20) /* of the probe's records in a file that isn't a model */

static const uint32_t depths[] = {1, 2, 4, 8, 16, 32, 64};
#define DEPTHS VF_ARRAY_LEN(depths)

struct drive_options {
    const char *path;
    uint32_t rounds, cell_ms;
    bool buffered;
};

struct source {
    struct vf_drive *drive;
    uint64_t bytes, record_bytes;
    bool is_model;
};

struct grid {
    uint64_t sizes[SIZES_MAX];
    size_t size_count;
    double *rates, *latencies; /* [sizes][DEPTHS][rounds]; NaN: too large to be in flight */
    uint32_t rounds;
};

/* A model's expert bank; of any other file all of it. */
static enum vf_code open_source(const struct drive_options *o, struct source *s, struct vf_err *err)
{
    struct vf_model_file *file;
    struct vf_expert_bank bank;
    struct vf_err not_a_model;
    struct stat st;
    uint64_t offset = 0;
    if (stat(o->path, &st) != 0)
        return vf_err_errno(err, VF_ERR_NOT_FOUND, errno, "%s", o->path);
    *s = (struct source){.bytes = (uint64_t)st.st_size, .record_bytes = SIZE_DEFAULT};
    if (vf_model_file_open(o->path, &file, &not_a_model) == VF_OK) {
        enum vf_code code = vf_expert_bank_from_model(file, &bank, err);
        if (code == VF_OK) {
            vf_expert_bank_range(&bank, 0, &offset, &s->bytes);
            s->record_bytes = bank.record_bytes;
            s->is_model = true;
        }
        vf_model_file_close(file);
        if (code != VF_OK)
            return code;
    }
    return vf_drive_open(o->path, offset, s->bytes, o->buffered, &s->drive, err);
}

/* Powers of two from 64 KiB, and a model's own record. */
static void choose_sizes(const struct source *s, struct grid *g)
{
    uint64_t most = s->bytes / 4 / 4096 * 4096;
    for (uint64_t size = 64u << 10; size <= 8u << 20; size *= size < 1u << 20 ? 4 : 2) {
        uint64_t record = s->is_model ? s->record_bytes : 0;
        if (record > size / 2 && record < size && record <= most)
            g->sizes[g->size_count++] = record;
        if (size <= most)
            g->sizes[g->size_count++] = size;
    }
}

static double *at(const struct grid *g, double *values, size_t size, size_t depth)
{
    return values + (size * DEPTHS + depth) * g->rounds;
}

static enum vf_code measure_cell(const struct drive_options *o, struct source *s, struct grid *g,
                                 size_t i, uint32_t round, struct vf_err *err)
{
    size_t size = i / DEPTHS, depth = i % DEPTHS;
    struct vf_drive_cell cell = {.read_bytes = g->sizes[size], .depth = depths[depth]};
    at(g, g->rates, size, depth)[round] = at(g, g->latencies, size, depth)[round] = NAN;
    if (cell.read_bytes * cell.depth > VF_DRIVE_BUFFER_MAX)
        return VF_OK;
    enum vf_code code = vf_drive_measure(s->drive, VF_MS(o->cell_ms), &cell, err);
    if (code == VF_OK) {
        at(g, g->rates, size, depth)[round] = cell.bytes_per_s * 1e-9;
        at(g, g->latencies, size, depth)[round] = cell.latency_ms;
    }
    return code;
}

static const char *size_name(uint64_t bytes, char name[32])
{
    if (bytes >= 1u << 20)
        snprintf(name, 32, "%.4g MiB", (double)bytes / (1 << 20));
    else
        snprintf(name, 32, "%.4g KiB", (double)bytes / (1 << 10));
    return name;
}

static void report_grid(struct bench_report *r, struct grid *g)
{
    static const struct bench_column columns[] = {
        {"read_bytes", NULL, BENCH_INT},      {"size", "read", BENCH_TEXT},
        {"depth", "depth", BENCH_INT},        {"gb_per_s", "GB/s", BENCH_2},
        {"gb_per_s_min", "min", BENCH_2},     {"gb_per_s_max", "max", BENCH_2},
        {"latency_ms", "latency ms", BENCH_2}};
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_LINES,
                                                          .title = "Random reads, by their size",
                                                          .values = "GB/s",
                                                          .categories = "queue depth",
                                                          .spread = "least to most of the rounds"});
    bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    for (size_t s = 0; s < g->size_count; s++)
        for (size_t d = 0; d < DEPTHS; d++) {
            double *rates = at(g, g->rates, s, d);
            char size[32], depth[16];
            if (isnan(rates[0]))
                continue;
            struct bench_stat rate = bench_stat_of(rates, g->rounds);
            double latency = bench_median(at(g, g->latencies, s, d), g->rounds);
            size_name(g->sizes[s], size);
            snprintf(depth, sizeof depth, "%u", depths[d]);
            bench_report_row(r, (struct bench_cell[]){BENCH_NUM(g->sizes[s]), BENCH_STR(size),
                                                      BENCH_NUM(depths[d]), BENCH_NUM(rate.median),
                                                      BENCH_NUM(rate.low), BENCH_NUM(rate.high),
                                                      BENCH_NUM(latency)});
            bench_panel_point(panel, size, depth, rate.median, rate.low, rate.high);
        }
}

/* What a run would choose, several times: how steady the choice is. */
static enum vf_code report_probes(struct bench_report *r, struct source *s, struct vf_err *err)
{
    static const struct bench_column columns[] = {
        {"read_bytes", NULL, BENCH_INT},       {"size", "read", BENCH_TEXT},
        {"depth", "depth", BENCH_INT},         {"gb_per_s", "GB/s", BENCH_2},
        {"latency_ms", "latency ms", BENCH_2}, {"probe_ms", "took ms", BENCH_INT}};
    bench_report_table(r, "probes", "what a run's own probe chooses, five times", columns,
                       VF_ARRAY_LEN(columns));
    for (int i = 0; i < PROBES; i++) {
        struct vf_drive_choice c;
        char size[32];
        uint64_t began_ns = vf_now_ns();
        enum vf_code code = vf_drive_probe(s->drive, s->record_bytes, PROBE_NS, &c, err);
        if (code != VF_OK)
            return code;
        bench_report_row(
            r, (struct bench_cell[]){BENCH_NUM(c.read_bytes),
                                     BENCH_STR(size_name(c.read_bytes, size)), BENCH_NUM(c.depth),
                                     BENCH_NUM(c.bytes_per_s * 1e-9), BENCH_NUM(c.latency_ms),
                                     BENCH_NUM(floor((double)(vf_now_ns() - began_ns) * 1e-6))});
    }
    return VF_OK;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct drive_options *o = options;
    struct source s = {0};
    struct grid g = {.rounds = o->rounds};
    enum vf_code code = open_source(o, &s, err);
    if (code != VF_OK)
        return code;
    choose_sizes(&s, &g);
    size_t cells = g.size_count * DEPTHS;
    g.rates = calloc(cells * o->rounds + 1, sizeof *g.rates);
    g.latencies = calloc(cells * o->rounds + 1, sizeof *g.latencies);
    if (!g.rates || !g.latencies)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    for (uint32_t round = 0; round < o->rounds; round++)
        for (size_t i = 0; i < cells && code == VF_OK; i++) {
            size_t turn = round % 2 ? cells - 1 - i : i; /* both orders */
            code = measure_cell(o, &s, &g, turn, round, err);
            vf_progress("drive", VF_PROGRESS_ITEMS, round * cells + i + 1, o->rounds * cells);
        }
    if (code == VF_OK) {
        bench_report_fact_text(r, "io", vf_drive_is_direct(s.drive) ? "direct" : "buffered");
        bench_report_fact(r, "range_bytes", (double)s.bytes);
        bench_report_fact(r, "record_bytes", (double)s.record_bytes);
        report_grid(r, &g);
        code = report_probes(r, &s, err);
    }
    free(g.rates);
    free(g.latencies);
    vf_drive_close(s.drive);
    return code;
}

static const struct drive_options defaults = {.rounds = 3, .cell_ms = 150};
static const struct bench_option options[] = {
    BENCH_OPTION(struct drive_options, rounds, .name = "rounds", .type = VF_OPT_INT, .metavar = "N",
                 .min = 1, .max = 1000, .help = "samples of each cell, medians count (3)"),
    BENCH_OPTION(struct drive_options, cell_ms, .name = "cell-ms", .type = VF_OPT_INT,
                 .metavar = "N", .min = 1, .max = 60000, .help = "time of one sample (150)"),
    BENCH_OPTION(struct drive_options, buffered, .name = "buffered", .type = VF_OPT_FLAG,
                 .help = "through the page cache, dropped behind each read"),
};
const struct bench_command bench_drive = {
    .name = "drive",
    .what = "how fast a drive reads, over read sizes and queue depths",
    .usage = "MODEL|FILE",
    .summary = "Random reads of a file (of a model: its expert bank) over sizes and depths.",
    .words_min = 1,
    .words_max = 1,
    .words = offsetof(struct drive_options, path),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
