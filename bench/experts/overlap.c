/* A delayed model's expert reads, waited for where they are chosen (sync) against where they are
 * due (staged), over threads and over speeds of the drive: the pipeline-native report's experiment
 * (its section 5.14).
 *
 * A cell's three engines say the same text token by token in turn. The drive is throttled to a
 * speed that makes a token's reads last as long beside its compute as --reads asks, so that both
 * sides of the crossover are seen on any machine whose drive is fast enough. That all engines say
 * the same tokens and score them with the same bits is checked; a difference is an error.
 */
#include "bench/experts/overlap.h"
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/clock.h"
#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "common/kernels/kernels.h"
#include "common/machine/bandwidth.h"
#include "common/model/placement.h"
#include "common/model/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THROTTLE_MIN (1u << 20)
/* Of a layer's reads on a throttled drive, beside their bytes; a guess for the first cell. */
#define LATENCY_MS 0.2
/* Of the reads' time: less than this, and a cell would be about latency. */
#define BYTES_SHARE_MIN 0.1
/* Layers whose experts are held beside those of the delay window: one computes, one is read. */
#define CACHE_SPARE 2u

/* ---- the model ------------------------------------------------------------------------------ */

/* Which part of the weights is read before the first order, and which from the last experts on;
 * only their shares count, so any one precision will do. */
static enum vf_code weigh_edges(const struct vf_program *p, const struct vf_config *c,
                                struct overlap_model *m, struct vf_err *err)
{
    uint32_t *order = calloc(p->op_count, sizeof *order);
    uint32_t *slot = calloc(p->op_count, sizeof *slot);
    double all = 0;
    if (!order || !slot) {
        free(order);
        free(slot);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u operations", p->op_count);
    }
    vf_stages_order(p, VF_EXPERTS_LATE, order, slot);
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct vf_op *op = &p->ops[order[i]];
        double bytes = (double)vf_op_weight_bytes(c, op, VF_QUANT_Q4);
        if (op->kind == VF_OP_EXPERTS) {
            m->read_layers++;
            m->back = 0;
        }
        all += bytes;
        m->back += bytes;
        m->front += op->kind == VF_OP_FETCH && m->front == 0 ? all : 0;
    }
    m->front /= all;
    m->back /= all;
    free(order);
    free(slot);
    return VF_OK;
}

static enum vf_code look_at_file(const struct vf_model_file *file, struct overlap_model *m,
                                 struct vf_err *err)
{
    const struct vf_config *c = vf_model_file_config(file);
    struct vf_expert_bank bank;
    struct vf_program program = {0};
    enum vf_code code = vf_expert_bank_from_model(file, &bank, err);
    if (code == VF_OK && c->expert_delay == 0)
        code = vf_err_set(err, VF_ERR_USAGE,
                          "the model's experts are due in the layer that chooses them "
                          "(expert_delay 0): there is nothing to read behind");
    if (code == VF_OK)
        code = vf_program_compile(c, &program, err);
    if (code != VF_OK)
        return code;
    m->vocab = c->vocab_size;
    code = weigh_edges(&program, c, m, err);
    m->record_bytes = bank.record_bytes;
    m->read_bytes = (uint64_t)m->read_layers * vf_experts_per_token(c) * bank.record_bytes;
    m->all_bytes = (uint64_t)bank.layer_count * bank.expert_count * bank.record_bytes;
    m->cache_bytes =
        (uint64_t)(c->expert_delay + CACHE_SPARE) * vf_experts_per_token(c) * bank.record_bytes;
    vf_program_deinit(&program);
    return code;
}

static enum vf_code look_at_model(const char *path, struct overlap_model *m, struct vf_err *err)
{
    struct vf_model_file *file;
    *m = (struct overlap_model){0};
    enum vf_code code = vf_model_file_open(path, &file, err);
    if (code == VF_OK) {
        code = look_at_file(file, m, err);
        vf_model_file_close(file);
    }
    return code && code != VF_ERR_CORRUPT ? vf_err_prepend(err, "%s: ", path) : code;
}

/* ---- one cell ----------------------------------------------------------------------------- */

static enum vf_code compare_tokens(const struct overlap_arm *arms, struct vf_err *err)
{
    for (int i = 1; i < OVERLAP_ARMS; i++) {
        uint32_t at = OVERLAP_PROMPT + arms[0].said - 1;
        if (arms[i].said != arms[0].said || arms[i].text[at] != arms[0].text[at])
            return vf_err_set(err, VF_ERR_INTERNAL, "token %u is %u with %s and %u with %s",
                              arms[0].said, arms[0].text[at], overlap_arm_names[0],
                              arms[i].text[at], overlap_arm_names[i]);
    }
    return VF_OK;
}

static enum vf_code compare_scores(struct overlap_arm *arms, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int i = 0; i < OVERLAP_ARMS && code == VF_OK; i++)
        code = overlap_arm_score(&arms[i], err);
    for (int i = 1; i < OVERLAP_ARMS && code == VF_OK; i++)
        if (arms[i].row_count != OVERLAP_PROMPT + arms[i].said ||
            arms[i].row_count != arms[0].row_count ||
            memcmp(arms[i].rows, arms[0].rows,
                   (size_t)arms[0].row_count * arms[0].vocab * sizeof *arms[0].rows) != 0)
            code = vf_err_set(err, VF_ERR_INTERNAL,
                              "log-probabilities of %u positions differ between %s and %s",
                              arms[i].row_count, overlap_arm_names[0], overlap_arm_names[i]);
    return code;
}

/* A whole text with the arms taking turns; the order rotates. read_bytes: sums. */
static enum vf_code say_text(struct overlap_arm *arms, uint32_t tokens, double *read_bytes,
                             struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int i = 0; i < OVERLAP_ARMS && code == VF_OK; i++)
        code = overlap_arm_begin(&arms[i], tokens, err);
    for (uint32_t t = 0; t < tokens + OVERLAP_WARM_UP && code == VF_OK; t++) {
        for (uint32_t i = 0; i < OVERLAP_ARMS && code == VF_OK; i++) {
            struct overlap_arm *arm = &arms[(t + i) % OVERLAP_ARMS];
            double ms, stall_ms;
            uint64_t bytes;
            code = overlap_arm_next(arm, &ms, &stall_ms, &bytes, err);
            if (code == VF_OK && t >= OVERLAP_WARM_UP) {
                arm->ms[t - OVERLAP_WARM_UP] = ms;
                arm->stall_ms[t - OVERLAP_WARM_UP] = stall_ms;
                read_bytes[arm->kind] += (double)bytes;
            }
        }
        if (code == VF_OK)
            code = compare_tokens(arms, err);
    }
    return code ? code : compare_scores(arms, err);
}

/* The speed at which a token's reads take `asked` times its compute, when a layer's reads take
 * latency_ms beside the time of their bytes. */
static enum vf_code choose_throttle(const struct overlap_model *m, double compute_ms,
                                    double latency_ms, double asked, uint64_t *throttle,
                                    struct vf_err *err)
{
    double reads_ms = compute_ms * asked, bytes_ms = reads_ms - m->read_layers * latency_ms;
    *throttle = 0;
    if (asked == 0)
        return VF_OK;
    if (bytes_ms <= BYTES_SHARE_MIN * reads_ms)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--reads: %g of %.3f ms of compute a token is too short for %u layers' "
                          "reads, whose latency alone is %.3f ms; try more",
                          asked, compute_ms, m->read_layers, m->read_layers * latency_ms);
    *throttle = (uint64_t)fmax(1e3 * (double)m->read_bytes / bytes_ms, THROTTLE_MIN);
    return VF_OK;
}

static enum vf_code measure_cell(const struct overlap_options *o, const struct overlap_model *m,
                                 struct overlap_arm *arms, double compute_ms, double latency_ms,
                                 double *scratch, struct overlap_cell *cell, struct vf_err *err)
{
    uint64_t throttle;
    enum vf_code code = choose_throttle(m, compute_ms, latency_ms, cell->asked, &throttle, err);
    for (int kind = OVERLAP_SYNC; kind < OVERLAP_ARMS && code == VF_OK; kind++)
        code = overlap_arm_open(&arms[kind], (enum overlap_arm_kind)kind, o, m, cell->threads,
                                throttle, err);
    if (code == VF_OK) {
        const struct vf_engine *e = vf_scheduler_engine(arms[OVERLAP_STAGED].scheduler);
        cell->drive = throttle ? (double)throttle : vf_engine_info(e)->drive_bytes_per_s;
        code = say_text(arms, o->tokens, cell->read_bytes, err);
    }
    if (code == VF_OK)
        overlap_summarise(arms, m, o->tokens, scratch, cell);
    for (int kind = OVERLAP_SYNC; kind < OVERLAP_ARMS; kind++)
        overlap_arm_close(&arms[kind]);
    return code;
}

/* ---- all cells ---------------------------------------------------------------------------- */

/* Says the text once, which brings every expert that it needs into the cache, and again. */
static enum vf_code warm_up(struct overlap_arm *cached, uint32_t tokens, double *scratch,
                            double *compute_ms, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int pass = 0; pass < 2; pass++) {
        if (code == VF_OK)
            code = overlap_arm_begin(cached, tokens, err);
        for (uint32_t t = 0; t < tokens + OVERLAP_WARM_UP && code == VF_OK; t++) {
            double ms, stall_ms;
            uint64_t bytes;
            code = overlap_arm_next(cached, &ms, &stall_ms, &bytes, err);
            if (t >= OVERLAP_WARM_UP)
                scratch[t - OVERLAP_WARM_UP] = ms;
        }
        if (code == VF_OK) /* the first pass doesn't score: its misses are over by then */
            code = overlap_arm_score(cached, err);
    }
    *compute_ms = bench_median(scratch, tokens);
    return code;
}

static enum vf_code measure_threads(const struct overlap_options *o, const struct overlap_model *m,
                                    double *scratch, struct overlap_cell *cells, size_t *done,
                                    struct vf_err *err)
{
    struct overlap_arm arms[OVERLAP_ARMS] = {0};
    double compute_ms = 0, latency_ms = LATENCY_MS;
    enum vf_code code =
        overlap_arm_open(&arms[OVERLAP_CACHED], OVERLAP_CACHED, o, m, cells[0].threads, 0, err);
    if (code == VF_OK)
        code = warm_up(&arms[OVERLAP_CACHED], o->tokens, scratch, &compute_ms, err);
    for (size_t i = 0; i < o->read_count && code == VF_OK; i++) {
        code = measure_cell(o, m, arms, compute_ms, latency_ms, scratch, &cells[i], err);
        if (code == VF_OK && cells[i].asked > 0)
            latency_ms = cells[i].latency_ms;
        vf_progress("overlap", VF_PROGRESS_ITEMS, ++*done, o->thread_count * o->read_count);
    }
    overlap_arm_close(&arms[OVERLAP_CACHED]);
    return code ? vf_err_prepend(err, "%u threads: ", cells[0].threads) : VF_OK;
}

static enum vf_code measure_all(struct overlap_options *o, struct bench_report *r,
                                struct vf_err *err)
{
    struct overlap_model m;
    struct overlap_cell cells[OVERLAP_CELLS_MAX] = {0};
    double *scratch = calloc(o->tokens, sizeof *scratch);
    size_t done = 0;
    enum vf_code code =
        scratch ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->tokens);
    if (code == VF_OK)
        code = look_at_model(o->model, &m, err);
    if (code == VF_OK && !o->cache_bytes)
        o->cache_bytes = m.cache_bytes;
    for (size_t t = 0; t < o->thread_count && code == VF_OK; t++) {
        for (size_t i = 0; i < o->read_count; i++)
            cells[t * o->read_count + i] =
                (struct overlap_cell){.threads = o->threads[t], .asked = o->reads[i]};
        code = measure_threads(o, &m, scratch, &cells[t * o->read_count], &done, err);
    }
    if (code == VF_OK)
        overlap_report(r, o, &m, cells, done);
    free(scratch);
    return code;
}

/* ---- options ------------------------------------------------------------------------------ */

static bool parse_reads_item(const char **at, double *out)
{
    char *end;
    size_t drive = strlen("drive");
    if (strncmp(*at, "drive", drive) == 0) {
        *out = 0;
        *at += drive;
        return true;
    }
    *out = strtod(*at, &end);
    bool good = end != *at && *out >= 0.01 && *out <= 100;
    *at = end;
    return good;
}

static enum vf_code parse_reads(struct overlap_options *o, struct vf_err *err)
{
    const char *text = o->reads_text, *at = text;
    for (bool more = true; more; at += more) {
        if (o->read_count == OVERLAP_READS_MAX ||
            !parse_reads_item(&at, &o->reads[o->read_count++]) || (*at && *at != ','))
            return vf_err_set(err, VF_ERR_USAGE,
                              "--reads: '%s' found, allowed are at most %u of 0.01 to 100 and "
                              "'drive', with commas between",
                              text, OVERLAP_READS_MAX);
        more = *at == ',';
    }
    return VF_OK;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    struct overlap_options *o = options;
    char counts[64];
    bench_thread_counts(32, counts, sizeof counts);
    enum vf_code code = bench_parse_counts("--threads", o->threads_text ? o->threads_text : counts,
                                           1024, &o->threads, &o->thread_count, err);
    if (code == VF_OK)
        code = parse_reads(o, err);
    if (code == VF_OK && o->thread_count * o->read_count > OVERLAP_CELLS_MAX)
        code = vf_err_set(err, VF_ERR_USAGE, "%zu combinations found, at most %u are allowed",
                          o->thread_count * o->read_count, OVERLAP_CELLS_MAX);
    if (code == VF_OK)
        code = measure_all(o, r, err);
    free(o->threads);
    return code;
}

static const struct overlap_options defaults = {.reads_text = "0.5,1,2", .tokens = 20};
static const struct bench_option options[] = {
    BENCH_OPTION(struct overlap_options, threads_text, .name = "threads", .type = VF_OPT_STRING,
                 .metavar = "1,2",
                 .help =
                     "of the stage worker, one after the other (1, 2, 4 ... where there are CPUs)"),
    BENCH_OPTION(struct overlap_options, reads_text, .name = "reads", .type = VF_OPT_STRING,
                 .metavar = "R,R",
                 .help = "how long a token's reads last, over its compute: the drive is throttled "
                         "to that; 'drive' is the drive as it is (0.5,1,2)"),
    BENCH_TOKENS(struct overlap_options, 5, 100000, "decoded in each cell (20)"),
    BENCH_OPTION(struct overlap_options, cache_bytes, .name = "expert-cache", .type = VF_OPT_SIZE,
                 .metavar = "SIZE", .min = 1, .max = 1e15,
                 .help = "of both arms (what the delay window holds: next to no hits)"),
    BENCH_KERNEL(struct overlap_options),
};
const struct bench_command bench_overlap = {
    .name = "overlap",
    .what = "expert reads waited for where chosen against where due",
    .usage = "MODEL",
    .summary = "A delayed model whose experts are read from the drive: waiting for them where they "
               "are chosen (sync) against where they are due (staged), real processes.",
    .words_min = 1,
    .words_max = 1,
    .words = offsetof(struct overlap_options, model),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
