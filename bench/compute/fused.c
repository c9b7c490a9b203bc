/* Projections of one activation in one parallel region against one region each: gate, up and the
 * activation function behind them, and query, key and value.
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/compute/rig.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

#define MATRICES_MAX 3

struct fused_options {
    uint32_t threads;
    int tier;
    double seconds; /* of a figure */
};

/* Matrices over the same input; `gated`: the first two are gate and up. */
static const struct projection {
    const char *name;
    uint32_t cols, rows[MATRICES_MAX], count;
    bool gated;
} projections[] = {
    {"8b gate+up", 8192, {32768, 32768}, 2, true},
    {"8b q+k+v", 8192, {8192, 8192, 8192}, 3, false},
    {"3b gate+up", 3072, {8192, 8192}, 2, true},
    {"3b q+k+v", 3072, {3072, 1024, 1024}, 3, false},
    {"olmoe gate+up", 2048, {1024, 1024}, 2, true},
    {"olmoe q+k+v", 2048, {2048, 2048, 2048}, 3, false},
};

static const struct bench_column columns[] = {
    {"projection", "projection", BENCH_TEXT},
    {"columns", "columns", BENCH_INT},
    {"separate_us", "separate us", BENCH_1},
    {"fused_us", "fused us", BENCH_1},
    {"speedup", "fused is faster by", BENCH_3},
    {"speedup_min", "min", BENCH_3},
    {"speedup_max", "max", BENCH_3},
};

struct run {
    const struct rig *rig;
    const struct vf_kernels *kernels;
    const struct projection *p;
    struct vf_acts acts;
    uint64_t set_bytes; /* of the projection's matrices */
    bool fused;
    /* The turn at hand. */
    uint64_t offset; /* of the set */
    uint32_t first, blocks_per_item;
};

/* Row blocks of an item: as many for every thread, whole tiles where there are enough. */
static uint32_t blocks_per_item(const struct run *run, uint32_t rows)
{
    uint32_t items = 4 * vf_pool_threads(run->rig->pool);
    uint32_t blocks = (vf_row_blocks(rows) + items - 1) / items, tile = VF_TILE_ROWS / 16;
    return blocks > tile ? (blocks + tile - 1) / tile * tile : blocks;
}

static uint64_t matrix_offset(const struct run *run, uint32_t m)
{
    uint64_t offset = run->offset;
    for (uint32_t i = 0; i < m; i++)
        offset += vf_matrix_bytes(VF_QUANT_Q4, run->p->rows[i], run->p->cols);
    return offset;
}

static float *output(const struct run *run, uint32_t m)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < m; i++)
        at += (uint64_t)run->p->rows[i] * run->acts.n_col;
    return run->rig->y + at;
}

static void multiply(const struct run *run, uint32_t m, uint32_t begin, uint32_t end)
{
    struct vf_matrix matrix = {run->rig->weights + matrix_offset(run, m), run->p->rows[m],
                               run->p->cols, VF_QUANT_Q4};
    uint32_t last = vf_row_blocks(matrix.rows);
    run->kernels->matmul_q8[VF_QUANT_Q4](&matrix, &run->acts, begin, end < last ? end : last,
                                         output(run, m), matrix.rows);
}

static void activate(const struct run *run, uint32_t row, uint32_t row_end)
{
    uint32_t rows = run->p->rows[0];
    row_end = row_end < rows ? row_end : rows;
    for (uint32_t c = 0; c < run->acts.n_col; c++) {
        float *gate = output(run, 0) + (size_t)c * rows + row;
        float *up = output(run, 1) + (size_t)c * rows + row;
        run->kernels->act_mul(VF_ACT_SILU, gate, up, row_end - row, gate);
    }
}

static void separate_item(void *ctx, uint32_t item)
{
    struct run *run = ctx;
    multiply(run, run->first, item * run->blocks_per_item, (item + 1) * run->blocks_per_item);
}

static void activate_item(void *ctx, uint32_t item)
{
    struct run *run = ctx;
    uint32_t rows = run->blocks_per_item * VF_RECORD_ROWS;
    activate(run, item * rows, (item + 1) * rows);
}

/* Gate and up of the same rows and the activation behind them, or one matrix after the other. */
static void fused_item(void *ctx, uint32_t item)
{
    struct run *run = ctx;
    if (run->p->gated) {
        uint32_t begin = item * run->blocks_per_item, end = begin + run->blocks_per_item;
        multiply(run, 0, begin, end);
        multiply(run, 1, begin, end);
        activate(run, begin * VF_RECORD_ROWS, end * VF_RECORD_ROWS);
        return;
    }
    for (uint32_t m = 0; m < run->p->count; m++) {
        uint32_t per_item = blocks_per_item(run, run->p->rows[m]);
        uint32_t items = (uint32_t)vf_div_up(vf_row_blocks(run->p->rows[m]), per_item);
        if (item < items) {
            multiply(run, m, item * per_item, (item + 1) * per_item);
            return;
        }
        item -= items;
    }
}

static uint32_t items_of(struct run *run, uint32_t m)
{
    run->blocks_per_item = blocks_per_item(run, run->p->rows[m]);
    return (uint32_t)vf_div_up(vf_row_blocks(run->p->rows[m]), run->blocks_per_item);
}

static void run_set(void *ctx, uint32_t slot)
{
    struct run *run = ctx;
    const struct projection *p = run->p;
    run->offset = slot * run->set_bytes;
    if (run->fused) {
        uint32_t items = items_of(run, 0);
        for (uint32_t m = 1; !p->gated && m < p->count; m++)
            items += items_of(run, m);
        items_of(run, 0);
        rig_run_items(run->rig, fused_item, run, items);
        return;
    }
    for (run->first = 0; run->first < p->count; run->first++)
        rig_run_items(run->rig, separate_item, run, items_of(run, run->first));
    if (p->gated)
        rig_run_items(run->rig, activate_item, run, items_of(run, 0));
}

static void measure_projection(const struct rig *rig, const struct vf_kernels *k,
                               const struct fused_options *o, const struct projection *p,
                               uint32_t n_col, struct rig_arm arms[2], struct bench_report *r,
                               struct bench_panel *panel)
{
    struct run run = {rig, k, p, rig_acts(rig, p->cols, n_col), 0, false, 0, 0, 0};
    for (uint32_t m = 0; m < p->count; m++)
        run.set_bytes += vf_matrix_bytes(VF_QUANT_Q4, p->rows[m], p->cols);
    struct run fused = run;
    fused.fused = true;
    arms[0].run = arms[1].run = run_set;
    arms[0].ctx = &run;
    arms[1].ctx = &fused;
    uint32_t passes = rig_take_turns(arms, 2, (uint32_t)(rig->bytes / run.set_bytes), o->seconds);
    struct bench_stat speedup = rig_speedup(&arms[1], &arms[0], passes);
    double us[2];
    for (int a = 0; a < 2; a++)
        us[a] = 1e6 * bench_stat_of(arms[a].seconds, passes).median;
    bench_report_row(r,
                     (struct bench_cell[]){BENCH_STR(p->name), BENCH_NUM(n_col), BENCH_NUM(us[0]),
                                           BENCH_NUM(us[1]), BENCH_NUM(speedup.median),
                                           BENCH_NUM(speedup.low), BENCH_NUM(speedup.high)});
    bench_panel_point(panel, n_col == 1 ? "1 column" : "4 columns", p->name, speedup.median,
                      speedup.low, speedup.high);
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct fused_options *o = options;
    static const uint32_t column_counts[] = {1, 4};
    const struct vf_kernels *k;
    struct rig rig = {0};
    struct rig_arm *arms = calloc(2, sizeof *arms);
    /* Gate and up of the largest pair. */
    uint64_t bytes = 2 * vf_matrix_bytes(VF_QUANT_Q4, RIG_ROWS_MAX, 8192);
    enum vf_code code = arms ? vf_kernels_get((enum vf_kernel_tier)o->tier, &k, err)
                             : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    if (code == VF_OK)
        code = rig_open(&rig, o->threads, bytes, err);
    if (code == VF_OK) {
        rig_fill(&rig, VF_QUANT_Q4);
        bench_report_fact_text(r, "kernel", k->name);
        bench_report_fact(r, "threads", o->threads);
        bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
        struct bench_panel *panel = bench_panel_add(
            bench_report_chart(r),
            &(struct bench_panel_look){.kind = BENCH_BARS,
                                       .title = "Time of separate regions over one fused region",
                                       .values = "separate / fused",
                                       .categories = "projection",
                                       .spread = "least to most of the passes",
                                       .rule = 1,
                                       .rule_label = "the same"});
        for (size_t p = 0; p < VF_ARRAY_LEN(projections); p++)
            for (size_t c = 0; c < VF_ARRAY_LEN(column_counts); c++)
                measure_projection(&rig, k, o, &projections[p], column_counts[c], arms, r, panel);
    }
    rig_close(&rig);
    free(arms);
    return code;
}

static const struct fused_options defaults = {.threads = 1, .seconds = 0.6};
static const struct bench_option options[] = {
    BENCH_THREADS(struct fused_options, 64, "compute threads (1)"),
    BENCH_KERNEL(struct fused_options),
    BENCH_SECONDS(struct fused_options, "of each figure (0.6)"),
};
const struct bench_command bench_fused = {
    .name = "fused",
    .what = "projections in one parallel region against one each",
    .summary = "Gate and up, and query, key and value: one parallel region against one each.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
