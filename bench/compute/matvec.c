/* Each kernel and shape as a share of the plain read beside it, with one column (decode) and more
 * (batches, flows, prefill), where the multiply-adds a second say more.
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/compute/rig.h"

#include "common/base/progress.h"
#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t column_counts[] = {1, 2, 4, 32};

struct matvec_options {
    uint32_t threads;
    int tier, quant; /* quant: index of quant_words */
    int activations; /* index of activation_words */
    const char *shape;
    double seconds; /* of a figure */
};

static const char *const quant_words[] = {"f32", "f16", "q8", "q4", "all", NULL};
#define QUANT_ALL VF_QUANT_COUNT
static const char *const tier_words[] = {"auto", "scalar", "avx2", "avx512", "vnni", "all", NULL};
static const char *const activation_words[] = {"q8", "f32", NULL};
#define ACTIVATIONS_F32 1
#define TIER_ALL        VF_KERNEL_TIER_COUNT

static const struct bench_column columns[] = {
    {"kernel", "kernel", BENCH_TEXT},
    {"weights", "weights", BENCH_TEXT},
    {"activations", "acts", BENCH_TEXT},
    {"shape", "shape", BENCH_TEXT},
    {"rows", "rows", BENCH_INT},
    {"cols", "cols", BENCH_INT},
    {"columns", "columns", BENCH_INT},
    {"gb_per_s", "GB/s", BENCH_2},
    {"read_gb_per_s", "read GB/s", BENCH_2},
    {"share", "share", BENCH_PERCENT},
    {"share_min", "min", BENCH_PERCENT},
    {"share_max", "max", BENCH_PERCENT},
    {"gmac_per_s", "GMAC/s", BENCH_1},
};

struct run {
    const struct matvec_options *o;
    struct rig rig;
    struct bench_report *report;
    struct bench_panel *share, *speed;
    struct rig_arm arms[2]; /* read, product */
};

static void measure_figure(struct run *run, const struct vf_kernels *k, enum vf_quant quant,
                           const struct rig_named_shape *shape, uint32_t n_col)
{
    bool q8 =
        run->o->activations != ACTIVATIONS_F32 && (quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8);
    struct rig_slots slots =
        rig_slots(shape->rows, shape->cols, quant, run->rig.bytes, run->o->threads);
    struct rig_read read = {&run->rig, &slots, 0};
    struct rig_product product = {&run->rig, &slots,
                                  q8 ? k->matmul_q8[quant] : k->matmul_f32[quant],
                                  rig_acts(&run->rig, shape->cols, n_col)};
    run->arms[0].run = rig_run_read;
    run->arms[0].ctx = &read;
    run->arms[1].run = rig_run_product;
    run->arms[1].ctx = &product;
    uint32_t passes = rig_take_turns(run->arms, 2, slots.slot_count, run->o->seconds);
    double gb = (double)slots.slot_bytes * 1e-9;
    double gmac = (double)slots.per_slot * VF_TILE_ROWS * shape->cols * n_col * 1e-9;
    struct bench_stat share = rig_speedup(&run->arms[1], &run->arms[0], passes);
    double speed = rig_rate(&run->arms[1], passes, gmac).median;
    bench_report_row(
        run->report,
        (struct bench_cell[]){
            BENCH_STR(k->name), BENCH_STR(vf_quant_name(quant)), BENCH_STR(q8 ? "q8" : "f32"),
            BENCH_STR(shape->name), BENCH_NUM(shape->rows), BENCH_NUM(shape->cols),
            BENCH_NUM(n_col), BENCH_NUM(rig_rate(&run->arms[1], passes, gb).median),
            BENCH_NUM(rig_rate(&run->arms[0], passes, gb).median), BENCH_NUM(share.median),
            BENCH_NUM(share.low), BENCH_NUM(share.high), BENCH_NUM(speed)});
    char series[64], many[64];
    snprintf(series, sizeof series, "%s %s", k->name, vf_quant_name(quant));
    snprintf(many, sizeof many, "%s %s, %u columns", k->name, vf_quant_name(quant), n_col);
    if (n_col == 1)
        bench_panel_point(run->share, series, shape->name, share.median, share.low, share.high);
    if (n_col > 4)
        bench_panel_point(run->speed, many, shape->name, speed, NAN, NAN);
}

static bool wanted(const char *filter, const struct rig_named_shape *shape)
{
    return !filter || strcmp(filter, shape->name) == 0;
}

static enum vf_code measure_tier(struct run *run, enum vf_kernel_tier tier, struct vf_err *err)
{
    const struct vf_kernels *k;
    enum vf_code code = vf_kernels_get(tier, &k, err);
    if (code == VF_ERR_UNSUPPORTED && run->o->tier == TIER_ALL)
        return VF_OK; /* all that this CPU has */
    if (code != VF_OK)
        return code;
    for (int quant = VF_QUANT_COUNT - 1; quant >= 0; quant--) {
        if (run->o->quant != QUANT_ALL && run->o->quant != quant)
            continue;
        rig_fill(&run->rig, (enum vf_quant)quant);
        for (const struct rig_named_shape *s = rig_shapes; s->name; s++) {
            for (size_t c = 0; wanted(run->o->shape, s) && c < VF_ARRAY_LEN(column_counts); c++)
                measure_figure(run, k, (enum vf_quant)quant, s, column_counts[c]);
            vf_progress(k->name, VF_PROGRESS_ITEMS, (uint64_t)(s - rig_shapes) + 1, 10);
        }
    }
    return VF_OK;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct matvec_options *o = options;
    struct run *run = calloc(1, sizeof *run);
    const struct rig_named_shape *shape;
    if (!run)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    run->o = o;
    run->report = r;
    enum vf_code code = o->shape ? rig_shape_find(o->shape, &shape, err) : VF_OK;
    /* f32 matrices of the largest shape take 1 GiB: one has to fit. */
    uint64_t largest = 0;
    for (const struct rig_named_shape *s = rig_shapes; s->name; s++)
        if (wanted(o->shape, s))
            largest =
                vf_max_u64(largest, vf_matrix_bytes(o->quant == QUANT_ALL ? VF_QUANT_F32
                                                                          : (enum vf_quant)o->quant,
                                                    s->rows, s->cols));
    if (code == VF_OK)
        code = rig_open(&run->rig, o->threads, vf_max_u64(largest, RIG_BYTES), err);
    bench_report_fact(run->report, "threads", o->threads);
    bench_report_table(run->report, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    struct bench_chart *chart = bench_report_chart(run->report);
    run->share = bench_panel_add(
        chart, &(struct bench_panel_look){.kind = BENCH_BARS,
                                          .title = "One column",
                                          .values = "bytes a second over the plain read beside it",
                                          .categories = "shape",
                                          .spread = "least to most of the passes",
                                          .percent = true,
                                          .rule = 1,
                                          .rule_label = "the plain read"});
    run->speed =
        bench_panel_add(chart, &(struct bench_panel_look){.kind = BENCH_BARS,
                                                          .title = "Many columns",
                                                          .values = "10^9 multiply-adds a second",
                                                          .categories = "shape"});
    int first = o->tier == TIER_ALL ? VF_KERNEL_SCALAR : o->tier;
    int last = o->tier == TIER_ALL ? VF_KERNEL_AVX512_VNNI : o->tier;
    for (int tier = first; code == VF_OK && tier <= last; tier++)
        code = measure_tier(run, (enum vf_kernel_tier)tier, err);
    rig_close(&run->rig);
    free(run);
    return code;
}

static const struct matvec_options defaults = {.threads = 1, .quant = VF_QUANT_Q4, .seconds = 0.4};
static const struct bench_option options[] = {
    BENCH_THREADS(struct matvec_options, 64, "compute threads (1)"),
    BENCH_OPTION(struct matvec_options, tier, .name = "kernel", .type = VF_OPT_CHOICE,
                 .choices = tier_words, .help = "instruction set, or all that this CPU has (auto)"),
    BENCH_OPTION(struct matvec_options, quant, .name = "quant", .type = VF_OPT_CHOICE,
                 .choices = quant_words, .help = "of the weights (q4)"),
    BENCH_OPTION(struct matvec_options, activations, .name = "activations", .type = VF_OPT_CHOICE,
                 .choices = activation_words, .help = "with q4 and q8 weights (q8)"),
    BENCH_OPTION(struct matvec_options, shape, .name = "shape", .type = VF_OPT_STRING,
                 .metavar = "NAME", .help = "one shape alone (all)"),
    BENCH_SECONDS(struct matvec_options, "of each figure (0.4)"),
};
const struct bench_command bench_matvec = {
    .name = "matvec",
    .what = "each matrix kernel and shape, as a share of a plain read",
    .summary = "Matrix kernels at the shapes of real models, as a share of a plain read of the "
               "same weights.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
