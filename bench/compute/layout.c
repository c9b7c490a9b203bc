/* Tiled against row-major weights, one activation column: L1 data-read misses in a simulated cache
 * and wall clock, at the shapes of the 8.34 G parameter model.
 *
 * Row-major comes in two walks. Row by row is the usual baseline: each row goes over the whole
 * activation, which doesn't stay in the L1 beside the weights that stream through it. Four rows at
 * a time is what a good row-major kernel does about it. With f32 activations the vector takes 128
 * KiB (dense-down) or 32 KiB; int8 ones are a quarter of it, so there is less to lose.
 */
#include "bench/compute/layout.h"
#include "bench/bench.h"
#include "bench/command.h"

#include "bench/compute/rowmajor.h"
#include "common/base/progress.h"
#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-3 /* of the largest output: the walks add up in different orders */

const char *const layout_walk_words[] = {"tiled", "row", "rows", NULL};
const char *const layout_walk_names[] = {"tiled", "row by row", "4 rows at a time"};
static const char *const shape_names[] = {"8b-dense-down", "8b-attention", "8b-gate-up"};

struct layout_options {
    uint32_t threads, rows;
    bool no_misses, no_clock;
    double seconds;
};

enum vf_code layout_kernels(const struct vf_kernels **avx2, struct vf_err *err)
{
#ifdef __x86_64__
    return vf_kernels_get(VF_KERNEL_AVX2, avx2, err);
#else
    (void)avx2;
    return vf_err_set(err, VF_ERR_UNSUPPORTED, "layout: its row-major kernels need AVX2");
#endif
}

void layout_multiply(enum layout_walk walk, bool q8, const struct vf_kernels *avx2,
                     const struct layout_weights *w, const struct vf_acts *acts, uint32_t row_begin,
                     uint32_t row_end, float *y)
{
    struct vf_matrix m = {w->tiles, w->rows, w->cols, VF_QUANT_Q4};
    if (walk == LAYOUT_TILED)
        (q8 ? avx2->matmul_q8 : avx2->matmul_f32)[VF_QUANT_Q4](
            &m, acts, row_begin / VF_RECORD_ROWS, row_end / VF_RECORD_ROWS, y, w->rows);
#ifdef __x86_64__
    else
        (q8 ? rowmajor_q8 : rowmajor_f32)(w->groups, acts, row_begin, row_end,
                                          walk == LAYOUT_ROWS ? 4 : 1, y);
#endif
}

/* ---- misses ------------------------------------------------------------------------------- */

static const struct bench_column miss_columns[] = {
    {"shape", "shape", BENCH_TEXT},
    {"activations", "acts", BENCH_TEXT},
    {"walk", "walk", BENCH_TEXT},
    {"rows_run", NULL, BENCH_INT},
    {"l1_read_misses", "L1 read misses", BENCH_INT},
    {"per_weight_line", "per line of weights", BENCH_2},
    {"over_tiled", "over tiled", BENCH_2},
};

static enum vf_code count_walks(const struct layout_options *o, const struct rig_named_shape *shape,
                                bool q8, struct bench_report *r, struct bench_panel *panel,
                                struct vf_err *err)
{
    uint32_t rows = o->rows < shape->rows ? o->rows : shape->rows;
    double lines = (double)vf_matrix_bytes(VF_QUANT_Q4, shape->rows, shape->cols) / 64.0, tiled = 0;
    for (int walk = 0; walk < LAYOUT_WALKS; walk++) {
        double misses;
        char category[64];
        enum vf_code code =
            layout_count_misses(shape, (enum layout_walk)walk, q8, rows, &misses, err);
        if (code != VF_OK)
            return code;
        misses *= (double)shape->rows / rows;
        tiled = walk == LAYOUT_TILED ? misses : tiled;
        bench_report_row(r,
                         (struct bench_cell[]){BENCH_STR(shape->name), BENCH_STR(q8 ? "q8" : "f32"),
                                               BENCH_STR(layout_walk_names[walk]), BENCH_NUM(rows),
                                               BENCH_NUM(misses), BENCH_NUM(misses / lines),
                                               BENCH_NUM(misses / tiled)});
        snprintf(category, sizeof category, "%s, %s", shape->name, q8 ? "q8" : "f32");
        bench_panel_point(panel, layout_walk_names[walk], category, misses / lines, NAN, NAN);
    }
    return VF_OK;
}

static enum vf_code count_misses(const struct layout_options *o, struct bench_report *r,
                                 struct vf_err *err)
{
    enum vf_code code = VF_OK;
    bench_report_fact_text(r, "l1_simulated", LAYOUT_L1);
    bench_report_table(r, "misses",
                       "L1 data-read misses of one product (cachegrind, 32 KiB, 8 ways)",
                       miss_columns, VF_ARRAY_LEN(miss_columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r),
        &(struct bench_panel_look){.kind = BENCH_BARS,
                                   .title = "L1 data-read misses, counted by cachegrind",
                                   .values = "misses per cache line of weights",
                                   .categories = "shape, activations",
                                   .rule = 1,
                                   .rule_label = "every weight read once"});
    for (size_t s = 0; code == VF_OK && s < VF_ARRAY_LEN(shape_names); s++) {
        const struct rig_named_shape *shape;
        code = rig_shape_find(shape_names[s], &shape, err);
        for (int q8 = 0; code == VF_OK && q8 < 2; q8++)
            code = count_walks(o, shape, q8, r, panel, err);
        vf_progress("misses", VF_PROGRESS_ITEMS, s + 1, VF_ARRAY_LEN(shape_names));
    }
    return code;
}

/* ---- wall clock --------------------------------------------------------------------------- */

static const struct bench_column clock_columns[] = {
    {"shape", "shape", BENCH_TEXT},
    {"activations", "acts", BENCH_TEXT},
    {"walk", "walk", BENCH_TEXT},
    {"gb_per_s", "GB/s", BENCH_2},
    {"gb_per_s_min", "min", BENCH_2},
    {"gb_per_s_max", "max", BENCH_2},
    {"tiled_speedup", "tiled is faster by", BENCH_3},
    {"tiled_speedup_min", "min", BENCH_3},
    {"tiled_speedup_max", "max", BENCH_3},
};

struct run {
    const struct layout_options *o;
    const struct vf_kernels *avx2;
    struct rig rig;  /* its weights are the tiles */
    uint8_t *groups; /* the same weights row by row, as many bytes */
    struct rig_arm arms[LAYOUT_WALKS];
};

struct walk_arm {
    const struct run *run;
    const struct rig_slots *slots;
    enum layout_walk walk;
    bool q8;
    uint32_t slot;
    struct vf_acts acts;
};

static void walk_part(void *ctx, uint32_t item)
{
    const struct walk_arm *arm = ctx;
    struct rig_part at = rig_part_at(arm->slots, arm->slot, item);
    struct layout_weights w = {arm->run->rig.weights + at.offset, arm->run->groups + at.offset,
                               arm->slots->rows, arm->slots->cols};
    layout_multiply(arm->walk, arm->q8, arm->run->avx2, &w, &arm->acts,
                    at.rb_begin * VF_RECORD_ROWS, at.rb_end * VF_RECORD_ROWS, arm->run->rig.y);
}

static void run_walk(void *ctx, uint32_t slot)
{
    struct walk_arm *arm = ctx;
    arm->slot = slot;
    rig_run_items(&arm->run->rig, walk_part, arm, arm->slots->part_count);
}

/* Random groups with scales of 2^-6 to 2^-5. */
static void fill_groups(uint8_t *groups, uint64_t bytes)
{
    uint64_t state = 0x2545f4914f6cdd1du, group = vf_group_bytes(VF_QUANT_Q4);
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t mixed = state ^ state >> 29;
        memcpy(groups + at, &mixed, sizeof mixed);
    }
    for (uint64_t at = 0; at + group <= bytes; at += group)
        groups[at + 1] = 0x24 | (groups[at + 1] & 3);
}

/* The same numbers as tiles: every matrix of a shape that fits. */
static void pack_tiles(struct run *run, const struct rig_slots *s)
{
    for (uint64_t at = 0; at + s->matrix_bytes <= run->rig.bytes; at += s->matrix_bytes)
        vf_tile_pack_groups(VF_QUANT_Q4, s->rows, s->cols, run->groups + at,
                            s->matrix_bytes / s->rows, run->rig.weights + at);
}

/* The walks must agree before their times are worth anything. */
static enum vf_code compare_walks(struct run *run, struct walk_arm *arms, struct vf_err *err)
{
    const uint32_t rows = VF_TILE_ROWS;
    float first[VF_TILE_ROWS], largest = 0;
    for (int w = 0; w < LAYOUT_WALKS; w++) {
        memset(run->rig.y, 0, rows * sizeof *run->rig.y);
        arms[w].slot = 0;
        walk_part(&arms[w], 0);
        for (uint32_t i = 0; i < rows; i++) {
            float y = run->rig.y[i];
            if (w == 0) {
                first[i] = y;
                largest = fmaxf(largest, fabsf(y));
            } else if (!(fabsf(y - first[i]) <= (float)TOLERANCE * largest)) {
                return vf_err_set(err, VF_ERR_INTERNAL,
                                  "layout: row %u is %g tiled and %g %s: not the same product", i,
                                  (double)first[i], (double)y, layout_walk_names[w]);
            }
        }
    }
    return VF_OK;
}

static enum vf_code time_walks(struct run *run, const struct rig_slots *slots, const char *shape,
                               bool q8, struct bench_report *r, struct bench_panel *panel,
                               struct vf_err *err)
{
    struct walk_arm arms[LAYOUT_WALKS];
    for (int w = 0; w < LAYOUT_WALKS; w++) {
        arms[w] = (struct walk_arm){run, slots, (enum layout_walk)w,
                                    q8,  0,     rig_acts(&run->rig, slots->cols, 1)};
        run->arms[w].run = run_walk;
        run->arms[w].ctx = &arms[w];
    }
    enum vf_code code = compare_walks(run, arms, err);
    if (code != VF_OK)
        return code;
    uint32_t passes = rig_take_turns(run->arms, LAYOUT_WALKS, slots->slot_count, run->o->seconds);
    for (int w = 0; w < LAYOUT_WALKS; w++) {
        char category[64];
        struct bench_stat rate = rig_rate(&run->arms[w], passes, (double)slots->slot_bytes * 1e-9);
        struct bench_stat faster = rig_speedup(&run->arms[0], &run->arms[w], passes);
        bench_report_row(r, (struct bench_cell[]){BENCH_STR(shape), BENCH_STR(q8 ? "q8" : "f32"),
                                                  BENCH_STR(layout_walk_names[w]),
                                                  BENCH_NUM(rate.median), BENCH_NUM(rate.low),
                                                  BENCH_NUM(rate.high), BENCH_NUM(faster.median),
                                                  BENCH_NUM(faster.low), BENCH_NUM(faster.high)});
        snprintf(category, sizeof category, "%s, %s", shape, q8 ? "q8" : "f32");
        bench_panel_point(panel, layout_walk_names[w], category, rate.median, rate.low, rate.high);
    }
    return VF_OK;
}

static enum vf_code time_shapes(struct run *run, struct bench_report *r, struct vf_err *err)
{
    enum vf_code code = rig_open(&run->rig, run->o->threads, RIG_BYTES, err);
    if (code != VF_OK)
        return code;
    run->groups = rig_memory(run->rig.bytes);
    if (!run->groups)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the row-major weights");
    fill_groups(run->groups, run->rig.bytes);
    bench_report_table(r, "wall_clock", "Wall clock, the walks in turn", clock_columns,
                       VF_ARRAY_LEN(clock_columns));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_BARS,
                                                          .title = "Wall clock",
                                                          .values = "GB/s of weights multiplied",
                                                          .categories = "shape, activations",
                                                          .spread = "least to most of the passes"});
    for (size_t s = 0; code == VF_OK && s < VF_ARRAY_LEN(shape_names); s++) {
        const struct rig_named_shape *shape;
        code = rig_shape_find(shape_names[s], &shape, err);
        if (code != VF_OK)
            break;
        struct rig_slots slots =
            rig_slots(shape->rows, shape->cols, VF_QUANT_Q4, run->rig.bytes, run->o->threads);
        pack_tiles(run, &slots);
        for (int q8 = 0; code == VF_OK && q8 < 2; q8++)
            code = time_walks(run, &slots, shape->name, q8, r, panel, err);
        vf_progress("wall clock", VF_PROGRESS_ITEMS, s + 1, VF_ARRAY_LEN(shape_names));
    }
    return code;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct layout_options *o = options;
    if (o->rows % VF_TILE_ROWS)
        return vf_err_set(err, VF_ERR_USAGE, "--rows: %u found, allowed are multiples of %u",
                          o->rows, VF_TILE_ROWS);
    if (o->no_misses && o->no_clock)
        return vf_err_set(err, VF_ERR_USAGE, "--no-misses and --no-clock leave nothing to do");
    struct run *run = calloc(1, sizeof *run);
    enum vf_code code = run ? layout_kernels(&run->avx2, err)
                            : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    bench_report_fact_text(r, "kernel", "avx2");
    bench_report_fact(r, "threads", o->threads);
    if (code == VF_OK && !o->no_misses)
        code = count_misses(o, r, err);
    if (code == VF_OK && !o->no_clock) {
        run->o = o;
        code = time_shapes(run, r, err);
        rig_memory_free(run->groups, run->rig.bytes);
        rig_close(&run->rig);
    }
    free(run);
    return code;
}

static const struct layout_options defaults = {.threads = 1, .rows = 512, .seconds = 2};
static const struct bench_option options[] = {
    BENCH_THREADS(struct layout_options, 64, "of the wall clock (1)"),
    BENCH_SECONDS(struct layout_options,
                  "of wall clock for each shape and activation precision (2)"),
    BENCH_OPTION(struct layout_options, rows, .name = "rows", .type = VF_OPT_INT, .metavar = "N",
                 .min = VF_TILE_ROWS, .max = RIG_ROWS_MAX,
                 .help = "of a matrix run under cachegrind, the count is scaled to all (512)"),
    BENCH_OPTION(struct layout_options, no_misses, .name = "no-misses", .type = VF_OPT_FLAG,
                 .help = "wall clock alone, without valgrind"),
    BENCH_OPTION(struct layout_options, no_clock, .name = "no-clock", .type = VF_OPT_FLAG,
                 .help = "misses alone"),
};
const struct bench_command bench_layout = {
    .name = "layout",
    .what = "tiled against row-major weights: L1 misses and wall clock",
    .summary = "Tiled against row-major weights: simulated L1 misses and wall clock.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
