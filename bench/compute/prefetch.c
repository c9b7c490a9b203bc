/* Explicit software prefetch on and off: the AVX2 kernels as they are and the same source compiled
 * without its prefetches, on weights in huge pages and in small ones, where the hardware's own
 * prefetchers stop at every page.
 */
#include "bench/compute/prefetch.h"
#include "bench/bench.h"
#include "bench/command.h"

#include "bench/compute/rig.h"
#include "common/base/util.h"
#include "common/kernels/kernels_tiers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct prefetch_options {
    uint32_t threads;
    double seconds;
};

static const struct bench_column columns[] = {
    {"weights", "weights", BENCH_TEXT},       {"pages", "pages", BENCH_TEXT},
    {"shape", "shape", BENCH_TEXT},           {"columns", "columns", BENCH_INT},
    {"gb_per_s_on", "GB/s with", BENCH_2},    {"gb_per_s_off", "without", BENCH_2},
    {"read_gb_per_s", "plain read", BENCH_2}, {"speedup", "with is faster by", BENCH_3},
    {"speedup_min", "min", BENCH_3},          {"speedup_max", "max", BENCH_3},
};

struct run {
    const struct prefetch_options *o;
    struct rig rig;
    struct vf_kernels tables[2]; /* on, off */
    struct rig_arm arms[3];      /* on, off, read */
    struct bench_report *report;
    struct bench_panel *panels[VF_QUANT_COUNT];
};

static void measure_shape(struct run *run, const struct rig_named_shape *shape, enum vf_quant quant,
                          const char *pages, uint32_t n_col)
{
    struct rig_slots slots =
        rig_slots(shape->rows, shape->cols, quant, run->rig.bytes, run->o->threads);
    struct rig_read read = {&run->rig, &slots, 0};
    struct rig_product products[2];
    for (int a = 0; a < 2; a++) {
        products[a] = (struct rig_product){&run->rig, &slots, run->tables[a].matmul_q8[quant],
                                           rig_acts(&run->rig, shape->cols, n_col)};
        run->arms[a].run = rig_run_product;
        run->arms[a].ctx = &products[a];
    }
    run->arms[2].run = rig_run_read;
    run->arms[2].ctx = &read;
    uint32_t passes = rig_take_turns(run->arms, 3, slots.slot_count, run->o->seconds);
    double gb = (double)slots.slot_bytes * 1e-9;
    struct bench_stat speedup = rig_speedup(&run->arms[0], &run->arms[1], passes);
    bench_report_row(run->report,
                     (struct bench_cell[]){BENCH_STR(vf_quant_name(quant)), BENCH_STR(pages),
                                           BENCH_STR(shape->name), BENCH_NUM(n_col),
                                           BENCH_NUM(rig_rate(&run->arms[0], passes, gb).median),
                                           BENCH_NUM(rig_rate(&run->arms[1], passes, gb).median),
                                           BENCH_NUM(rig_rate(&run->arms[2], passes, gb).median),
                                           BENCH_NUM(speedup.median), BENCH_NUM(speedup.low),
                                           BENCH_NUM(speedup.high)});
    char series[64];
    snprintf(series, sizeof series, "%s pages, %u column%s", pages, n_col, n_col == 1 ? "" : "s");
    bench_panel_point(run->panels[quant], series, shape->name, speedup.median, speedup.low,
                      speedup.high);
}

static enum vf_code measure_pages(struct run *run, bool huge, struct vf_err *err)
{
    static const char *const shapes[] = {"8b-attention", "3b-gate-up", "olmoe-gate-up"};
    static const enum vf_quant quants[] = {VF_QUANT_Q4, VF_QUANT_Q8};
    enum vf_code code = rig_open(&run->rig, run->o->threads, RIG_BYTES, err);
    if (code == VF_OK && !huge)
        madvise(run->rig.weights, run->rig.bytes, MADV_NOHUGEPAGE);
    for (size_t q = 0; code == VF_OK && q < VF_ARRAY_LEN(quants); q++) {
        rig_fill(&run->rig, quants[q]);
        for (size_t s = 0; code == VF_OK && s < VF_ARRAY_LEN(shapes); s++) {
            const struct rig_named_shape *shape;
            code = rig_shape_find(shapes[s], &shape, err);
            for (uint32_t n_col = 1; code == VF_OK && n_col <= 4; n_col *= 4)
                measure_shape(run, shape, quants[q], huge ? "huge" : "small", n_col);
        }
    }
    rig_close(&run->rig);
    return code;
}

static enum vf_code get_tables(struct vf_kernels tables[2], struct vf_err *err)
{
    const struct vf_kernels *k;
    enum vf_code code = vf_kernels_get(VF_KERNEL_AVX2, &k, err);
    if (code != VF_OK)
        return code;
    tables[0] = tables[1] = *k;
    if (!bench_kernels_without_prefetch(&tables[1]))
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "prefetch: this build has no AVX2 kernels");
    return VF_OK;
}

static void add_panel(struct run *run, enum vf_quant quant, const char *title)
{
    run->panels[quant] = bench_panel_add(
        bench_report_chart(run->report),
        &(struct bench_panel_look){.kind = BENCH_BARS,
                                   .title = title,
                                   .values = "time without software prefetch / with it",
                                   .categories = "shape",
                                   .spread = "least to most of the passes",
                                   .rule = 1,
                                   .rule_label = "the same"});
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    run->o = options;
    run->report = r;
    bench_report_fact_text(run->report, "kernel", "avx2");
    bench_report_fact(r, "threads", run->o->threads);
    bench_report_table(run->report, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    add_panel(run, VF_QUANT_Q4, "q4 weights");
    add_panel(run, VF_QUANT_Q8, "q8 weights");
    enum vf_code code = get_tables(run->tables, err);
    for (int huge = 1; code == VF_OK && huge >= 0; huge--)
        code = measure_pages(run, huge, err);
    free(run);
    return code;
}

static const struct prefetch_options defaults = {.threads = 1, .seconds = 0.8};
static const struct bench_option options[] = {
    BENCH_THREADS(struct prefetch_options, 64, "compute threads (1)"),
    BENCH_SECONDS(struct prefetch_options, "of each figure (0.8)"),
};
const struct bench_command bench_prefetch = {
    .name = "prefetch",
    .what = "software prefetch on and off",
    .summary = "The AVX2 kernels with and without their software prefetch.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
