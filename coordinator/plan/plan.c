/* Options of the plan command, and where its output goes. */
#include "coordinator/plan/plan.h"

#include "common/base/cli.h"
#include "common/base/out_file.h"
#include "common/base/util.h"
#include "common/experts/cache.h"
#include "common/machine/bandwidth.h"
#include "coordinator/plan/plan_model.h"
#include "coordinator/plan/plan_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM         "vflow-coordinator plan"
#define SIZE_OPTION_MAX 9.2e18
#define CHUNK_DEFAULT   256 /* as in coordinator/options.c */

struct arguments {
    const char *model, *config, *svg;
    int64_t stage_workers, io_workers, threads;
    double bandwidth;
    int64_t ctx, batch, chunk, depth;
    uint64_t memory, expert_cache;
    const char *expert_bank;
    int quant, placement; /* quant -1: not given */
    int kv, weights, experts, overlap;
    bool json, table;
};

static const char *const kv_words[] = {"f16", "f32", NULL};
static const char *const weights_words[] = {"mmap", "huge", NULL};
static const char *const experts_words[] = {"auto", "resident", "stream", NULL};
static const char *const overlap_words[] = {"staged", "sync", NULL};

static enum vf_code parse_arguments(int argc, char **argv, struct arguments *a, struct vf_err *err)
{
    static const char *const quants[] = {"q4", "q8", "f16", "f32", NULL};
    static const char *const placements[] = {"pipeline", NULL};
    const struct vf_opt opts[] = {
        {.name = "model",
         .type = VF_OPT_STRING,
         .value = &a->model,
         .metavar = "FILE",
         .help = "a .vflow or .cflow file"},
        {.name = "config",
         .type = VF_OPT_STRING,
         .value = &a->config,
         .metavar = "FILE",
         .help = "a config.json; no weights are needed"},
        {.name = "table",
         .type = VF_OPT_FLAG,
         .value = &a->table,
         .help = "table 4.1 of the pipeline-native report beside ours; no model"},
        {.name = "stage-workers",
         .type = VF_OPT_INT,
         .value = &a->stage_workers,
         .metavar = "N",
         .help = "processes that compute (default 1)",
         .min = 1,
         .max = VF_STAGE_WORKERS_MAX},
        {.name = "io-workers",
         .type = VF_OPT_INT,
         .value = &a->io_workers,
         .metavar = "N",
         .help = "processes that read experts (default 1 when there are experts)",
         .min = 1,
         .max = VF_CACHE_IO_WORKERS_MAX},
        {.name = "placement",
         .type = VF_OPT_CHOICE,
         .value = &a->placement,
         .help = "how operations are shared out",
         .choices = placements},
        {.name = "quant",
         .type = VF_OPT_CHOICE,
         .value = &a->quant,
         .help = "of the weights, with --config (default q4)",
         .choices = quants},
        {.name = "bandwidth",
         .type = VF_OPT_FLOAT,
         .value = &a->bandwidth,
         .metavar = "GB/s",
         .help = "memory bandwidth to expect (default: measured here)",
         .min = 1e-3,
         .max = 1e6},
        {.name = "threads",
         .type = VF_OPT_INT,
         .value = &a->threads,
         .metavar = "N",
         .help = "threads of a stage worker, and those that measure the bandwidth (default: every "
                 "CPU)",
         .min = 1,
         .max = VF_BANDWIDTH_THREADS_MAX},
        {.name = "memory",
         .type = VF_OPT_SIZE,
         .value = &a->memory,
         .metavar = "SIZE",
         .help = "what a run may take (default: what is available)",
         .min = 1,
         .max = SIZE_OPTION_MAX},
        {.name = "experts",
         .type = VF_OPT_CHOICE,
         .value = &a->experts,
         .help = "of that run",
         .choices = experts_words},
        {.name = "expert-cache",
         .type = VF_OPT_SIZE,
         .value = &a->expert_cache,
         .metavar = "SIZE",
         .help = "of that run (default: what --memory leaves)",
         .min = 1,
         .max = SIZE_OPTION_MAX},
        {.name = "expert-bank",
         .type = VF_OPT_STRING,
         .value = &a->expert_bank,
         .metavar = "DIR,DIR",
         .help = "of that run (default: the model file)"},
        {.name = "weights",
         .type = VF_OPT_CHOICE,
         .value = &a->weights,
         .help = "of that run",
         .choices = weights_words},
        {.name = "kv",
         .type = VF_OPT_CHOICE,
         .value = &a->kv,
         .help = "of that run",
         .choices = kv_words},
        {.name = "overlap",
         .type = VF_OPT_CHOICE,
         .value = &a->overlap,
         .help = "of that run",
         .choices = overlap_words},
        {.name = "ctx",
         .type = VF_OPT_INT,
         .value = &a->ctx,
         .metavar = "N",
         .help = "of that run (default: the model's, at most 4096)",
         .min = 1,
         .max = VF_CONTEXT_MAX},
        {.name = "batch",
         .type = VF_OPT_INT,
         .value = &a->batch,
         .metavar = "N",
         .help = "of that run (default 1)",
         .min = 1,
         .max = 1024},
        {.name = "prefill-chunk",
         .type = VF_OPT_INT,
         .value = &a->chunk,
         .metavar = "N",
         .help = "of that run (default 256)",
         .min = 1,
         .max = 4096},
        {.name = "io-depth",
         .type = VF_OPT_INT,
         .value = &a->depth,
         .metavar = "N",
         .help = "of that run (default: what a probe of the drive would find)",
         .min = 1,
         .max = 256},
        {.name = "json", .type = VF_OPT_FLAG, .value = &a->json, .help = "print JSON"},
        {.name = "svg",
         .type = VF_OPT_STRING,
         .value = &a->svg,
         .metavar = "FILE",
         .help = "also draw the timeline of a token"},
    };
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "(--model FILE | --config FILE | --table) [options]",
        .summary = "Prints a model's layer program, who runs it, the bytes each step reads and "
                   "the expected time of a token.",
        .opts = opts,
        .opt_count = VF_ARRAY_LEN(opts),
    };
    int positionals = 0;
    return vf_cli_parse(&cli, argc, argv, NULL, &positionals, err);
}

static enum vf_code check_arguments(const struct arguments *a, struct vf_err *err)
{
    if (a->table && (a->model || a->config || a->svg))
        return vf_err_set(err, VF_ERR_USAGE,
                          "--table goes with --json only, not with --model, --config or --svg");
    if (!a->table && !a->model == !a->config)
        return vf_err_set(err, VF_ERR_USAGE,
                          "found %s, allowed: exactly one of --model and --config",
                          a->model ? "both --model and --config" : "neither --model nor --config");
    const char *file = a->model ? a->model : a->config;
    if (file && !*file)
        return vf_err_set(err, VF_ERR_USAGE, "--%s is empty: which file?",
                          a->model ? "model" : "config");
    if (a->model && a->quant >= 0)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--quant is for --config only: a model file has its own");
    if (a->config && a->expert_bank)
        return vf_err_set(err, VF_ERR_USAGE, "--expert-bank is for --model only");
    return VF_OK;
}

static struct vf_plan_options make_options(const struct arguments *a)
{
    static const enum vf_quant quants[] = {VF_QUANT_Q4, VF_QUANT_Q8, VF_QUANT_F16, VF_QUANT_F32};
    return (struct vf_plan_options){
        .model = a->model,
        .config = a->config,
        .quant = quants[a->quant < 0 ? 0 : a->quant],
        .stage_workers = (uint32_t)a->stage_workers,
        .io_workers = (uint32_t)a->io_workers,
        .threads = (uint32_t)a->threads,
        .bandwidth_gb_s = a->bandwidth,
        .run =
            {
                .kv = kv_words[a->kv],
                .weights = weights_words[a->weights],
                .overlap = overlap_words[a->overlap],
                .experts = (enum vf_experts_mode)a->experts,
                .expert_cache_bytes = a->expert_cache,
                .expert_bank = a->expert_bank,
                .memory_bytes = a->memory,
                .threads = (uint32_t)a->threads,
                .io_workers = (uint32_t)a->io_workers,
                .context = (uint32_t)a->ctx,
                .sequences = (uint32_t)a->batch,
                .prefill_chunk = (uint32_t)a->chunk,
                .queue_depth = (uint32_t)a->depth,
            },
    };
}

static enum vf_code draw(const struct vf_plan *plan, int fd, const char *path, struct vf_err *err)
{
    int copy = dup(fd);
    FILE *f = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (!f) {
        int saved = errno;
        if (copy >= 0)
            close(copy);
        return vf_err_errno(err, VF_ERR_IO, saved, "%s", path);
    }
    enum vf_code code = vf_plan_draw_svg(plan, f, err);
    bool bad = ferror(f);
    if ((fclose(f) != 0 || bad) && code == VF_OK)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s", path);
    return code;
}

static enum vf_code write_svg(const struct vf_plan *plan, const char *path, struct vf_err *err)
{
    struct vf_out_file *file;
    enum vf_code code = vf_out_file_create(path, &file, err);
    if (!code)
        code = draw(plan, vf_out_file_fd(file), path, err);
    if (!code)
        return vf_out_file_commit(file, err);
    vf_out_file_abandon(file);
    return code;
}

static enum vf_code write_outputs(const struct vf_plan *plan, const struct arguments *a,
                                  struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (a->svg && (code = write_svg(plan, a->svg, err)) != VF_OK)
        return code;
    if (!a->json)
        vf_plan_print_text(plan, stdout);
    else if ((code = vf_plan_print_json(plan, stdout, err)) != VF_OK)
        return code;
    return vf_flush_stdout(err);
}

int vf_plan_main(int argc, char **argv)
{
    struct vf_err err = {0};
    struct arguments a = {.stage_workers = 1, .quant = -1, .batch = 1, .chunk = CHUNK_DEFAULT};
    struct vf_plan plan;
    if (parse_arguments(argc, argv, &a, &err) != VF_OK || check_arguments(&a, &err) != VF_OK)
        return vf_cli_fail(PROGRAM, &err);
    if (a.table)
        return vf_plan_print_table(a.json, stdout, &err) || vf_flush_stdout(&err)
                   ? vf_cli_fail(PROGRAM, &err)
                   : 0;
    struct vf_plan_options options = make_options(&a);
    if (vf_plan_build(&options, &plan, &err) != VF_OK)
        return vf_cli_fail(PROGRAM, &err);
    enum vf_code code = write_outputs(&plan, &a, &err);
    vf_plan_deinit(&plan);
    return code == VF_OK ? 0 : vf_cli_fail(PROGRAM, &err);
}
