/* Options of the plan command, and where its output goes. */
#include "coordinator/plan/plan.h"

#include "common/base/cli.h"
#include "common/base/out_file.h"
#include "common/base/util.h"
#include "coordinator/options.h"
#include "coordinator/plan/plan_model.h"
#include "coordinator/plan/plan_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "vflow-coordinator plan"

struct arguments {
    struct vf_run_options run;
    const char *config, *svg;
    double bandwidth;
    uint64_t drive_speed;
    int quant; /* -1: not given */
    bool model, json, ops, table;
};

static enum vf_code parse_arguments(int argc, char **argv, struct arguments *a, struct vf_err *err)
{
    static const char *const quants[] = {"q4", "q8", "f16", "f32", NULL};
    const struct vf_opt own[] = {
        {"config", 0, VF_OPT_STRING, &a->config, "FILE", "a config.json; no weights are needed", 0,
         0, NULL},
        {"table", 0, VF_OPT_FLAG, &a->table, NULL,
         "table 4.1 of the pipeline-native report beside ours; no model", 0, 0, NULL},
        {"quant", 0, VF_OPT_CHOICE, &a->quant, NULL, "of the weights, with --config (default q4)",
         0, 0, quants},
        {"bandwidth", 0, VF_OPT_FLOAT, &a->bandwidth, "GB/s",
         "memory bandwidth to expect (default: measured here with --threads, or on every CPU)",
         1e-3, 1e6, NULL},
        {"drive-speed", 0, VF_OPT_SIZE, &a->drive_speed, "SIZE",
         "bytes a second to expect of the drive (default: --io-throttle, or a probe as in a run)",
         1, 1e15, NULL},
        {"ops", 0, VF_OPT_FLAG, &a->ops, NULL,
         "also list the operations and what crosses workers (--json always does)", 0, 0, NULL},
        {"json", 0, VF_OPT_FLAG, &a->json, NULL, "print JSON", 0, 0, NULL},
        {"svg", 0, VF_OPT_STRING, &a->svg, "FILE", "also draw the timeline of a token", 0, 0, NULL},
    };
    struct vf_opt opts[VF_RUN_OPTIONS_MAX + VF_ARRAY_LEN(own)];
    size_t n = vf_run_options_table(&a->run, opts);
    memcpy(opts + n, own, sizeof own);
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "(--model FILE | --config FILE | --table) [options]",
        .summary = "Prints the memory, the placement and the expected time of a token of the run "
                   "that generate would\nstart with the same options, then the bytes that each "
                   "part reads and the critical path.",
        .opts = opts,
        .opt_count = n + VF_ARRAY_LEN(own),
    };
    a->model = vf_cli_find(&cli, argc, argv, "model", NULL);
    return vf_run_options_parse(&a->run, &cli, argc, argv, err);
}

/* A model that only a settings file or the environment names gives way to the command line. */
static void choose_model(struct arguments *a)
{
    if ((a->config || a->table) && !a->model)
        a->run.settings.model = NULL;
    a->model = a->run.settings.model != NULL;
}

static enum vf_code check_arguments(const struct arguments *a, struct vf_err *err)
{
    if (a->table && (a->model || a->config || a->svg))
        return vf_err_set(err, VF_ERR_USAGE,
                          "--table goes with --json only, not with --model, --config or --svg");
    if (a->table)
        return VF_OK;
    if (!a->model == !a->config)
        return vf_err_set(err, VF_ERR_USAGE,
                          "found %s, allowed: exactly one of --model and --config",
                          a->model ? "both --model and --config" : "neither --model nor --config");
    if (a->config && !*a->config)
        return vf_err_set(err, VF_ERR_USAGE, "--config is empty: which file?");
    if (a->model && a->quant >= 0)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--quant is for --config only: a model file has its own");
    if (a->config && a->run.settings.expert_bank)
        return vf_err_set(err, VF_ERR_USAGE, "--expert-bank is for --model only");
    return vf_run_options_check(&a->run, a->model, err);
}

static struct vf_plan_options make_options(const struct arguments *a)
{
    static const enum vf_quant quants[] = {VF_QUANT_Q4, VF_QUANT_Q8, VF_QUANT_F16, VF_QUANT_F32};
    return (struct vf_plan_options){
        .config = a->config,
        .quant = quants[a->quant < 0 ? 0 : a->quant],
        .bandwidth_gb_s = a->bandwidth,
        .drive_speed = a->drive_speed,
        .memory = true,
        .settings = a->run.settings,
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
    if ((fclose(f) != 0 || bad) && !code)
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
    bool refused = plan->memory_refused.code != VF_OK;
    if (a->svg && !refused && (code = write_svg(plan, a->svg, err)) != VF_OK)
        return code;
    if (!a->json && !refused)
        vf_plan_print_text(plan, a->ops, stdout);
    else if (a->json && (code = vf_plan_print_json(plan, stdout, err)) != VF_OK)
        return code;
    code = vf_flush_stdout(err);
    if (!code && refused) /* it ends as the run would */
        *err = plan->memory_refused;
    return code ? code : plan->memory_refused.code;
}

static enum vf_code run(const struct arguments *a, struct vf_err *err)
{
    if (a->table) {
        enum vf_code code = vf_plan_print_table(a->json, stdout, err);
        return code ? code : vf_flush_stdout(err);
    }
    struct vf_plan_options options = make_options(a);
    struct vf_plan plan;
    enum vf_code code = vf_plan_build(&options, &plan, err);
    if (code)
        return code;
    code = write_outputs(&plan, a, err);
    vf_plan_deinit(&plan);
    return code;
}

int vf_plan_main(int argc, char **argv)
{
    struct vf_err err = {0};
    struct arguments a = {.quant = -1};
    vf_run_options_init(&a.run, 1, false);
    enum vf_code code = parse_arguments(argc, argv, &a, &err);
    if (!code) {
        choose_model(&a);
        code = check_arguments(&a, &err);
    }
    if (!code)
        code = run(&a, &err);
    vf_run_options_deinit(&a.run);
    return code ? vf_cli_fail(PROGRAM, &err) : 0;
}
