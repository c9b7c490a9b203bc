/* What a second flow costs in decode: two models of one geometry, one with an auxiliary flow, step
 * by step in turn, so that whatever else the machine does meets both.
 */
#include "bench/bench.h"

#include "common/cli.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/util.h"
#include "stage_worker/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arm {
    struct vf_model_file *file;
    struct vf_program program;
    struct vf_placement placement;
    struct vf_expert_source *experts;
    struct vf_executor *executor;
    float *rows;
    uint64_t step;
    double *ms;
};

static void arm_close(struct arm *a)
{
    vf_executor_destroy(a->executor);
    if (a->experts)
        a->experts->ops->destroy(a->experts);
    vf_placement_deinit(&a->placement);
    vf_program_deinit(&a->program);
    vf_model_file_close(a->file);
    free(a->rows);
    free(a->ms);
}

static enum vf_code arm_open(struct arm *a, const char *path, uint32_t threads, uint32_t context,
                             size_t samples, struct vf_err *err)
{
    const struct vf_kernels *kernels;
    enum vf_code code = vf_model_file_open(path, &a->file, err);
    if (code != VF_OK)
        return code;
    const struct vf_config *config = vf_model_file_config(a->file);
    code = vf_program_compile(config, &a->program, err);
    if (code == VF_OK)
        code = vf_placement_pipeline(config, &a->program, 1, &a->placement, err);
    if (code == VF_OK)
        code = vf_kernels_get(VF_KERNEL_AUTO, &kernels, err);
    if (code == VF_OK && config->expert_count > 0)
        code = vf_expert_source_resident(a->file, &a->experts, err);
    if (code != VF_OK)
        return code;
    struct vf_executor_params params = {.file = a->file,
                                        .program = &a->program,
                                        .placement = &a->placement,
                                        .kernels = kernels,
                                        .q8 = true,
                                        .kv_f16 = true,
                                        .context = context,
                                        .sequences = 1,
                                        .columns_max = config->flow_count,
                                        .rows_max = 1,
                                        .threads = threads,
                                        .experts = a->experts};
    a->rows = malloc((size_t)config->vocab_size * sizeof *a->rows);
    a->ms = calloc(samples, sizeof *a->ms);
    if (!a->rows || !a->ms)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u logits", config->vocab_size);
    code = vf_executor_create(&params, &a->executor, err);
    if (code == VF_OK)
        code = vf_executor_verify(a->executor, err); /* also brings the weights into memory */
    return code;
}

static enum vf_code arm_decode(struct arm *a, double *ms, struct vf_err *err)
{
    const struct vf_config *config = vf_model_file_config(a->file);
    struct vf_column columns[VF_FLOWS_MAX];
    for (uint32_t j = 0; j < config->flow_count; j++)
        columns[j] = (struct vf_column){.token = (uint32_t)(a->step * 7919u) % config->vocab_size,
                                        .position = (uint32_t)a->step,
                                        .flow = j,
                                        .want_row = j == 0};
    struct vf_step step = {++a->step, columns, config->flow_count};
    uint32_t rows;
    bool peer_failed;
    uint64_t began = vf_now_ns();
    enum vf_code code =
        vf_executor_run(a->executor, &step, UINT64_MAX, a->rows, &rows, &peer_failed, err);
    *ms = (double)(vf_now_ns() - began) / 1e6;
    return code;
}

static void report(struct arm arms[2], uint32_t threads, size_t n, bool json)
{
    double median[2], low[2], high[2];
    for (int i = 0; i < 2; i++) {
        median[i] = bench_median(arms[i].ms, n);
        low[i] = bench_quantile(arms[i].ms, n, 0.1);
        high[i] = bench_quantile(arms[i].ms, n, 0.9);
    }
    uint32_t flows = vf_model_file_config(arms[1].file)->flow_count;
    if (json) {
        printf("{\"threads\":%u,\"tokens\":%zu,\"flows\":[1,%u],\"ms_per_token\":[%.4f,%.4f],"
               "\"ratio\":%.4f,\"ratio_p10\":%.4f}\n",
               threads, n, flows, median[0], median[1], median[1] / median[0], low[1] / low[0]);
        return;
    }
    printf("flows  ms a token (median)   p10      p90      over one flow\n");
    for (int i = 0; i < 2; i++)
        printf("%5u  %19.3f  %7.3f  %7.3f  %13.3f\n",
               vf_model_file_config(arms[i].file)->flow_count, median[i], low[i], high[i],
               median[i] / median[0]);
}

static enum vf_code measure(const char *const paths[2], uint32_t threads, size_t n, bool json,
                            struct vf_err *err)
{
    struct arm arms[2] = {0};
    const size_t warm_up = 3;
    enum vf_code code = VF_OK;
    for (int i = 0; code == VF_OK && i < 2; i++)
        code = arm_open(&arms[i], paths[i], threads, (uint32_t)(n + warm_up), n, err);
    for (size_t t = 0; code == VF_OK && t < n + warm_up; t++) {
        for (int i = 0; code == VF_OK && i < 2; i++) {
            int arm = (int)((t + (size_t)i) % 2); /* both orders */
            double ms;
            code = arm_decode(&arms[arm], &ms, err);
            if (t >= warm_up)
                arms[arm].ms[t - warm_up] = ms;
        }
        vf_progress("flows", t + 1, n + warm_up);
    }
    if (code == VF_OK)
        report(arms, threads, n, json);
    arm_close(&arms[0]);
    arm_close(&arms[1]);
    return code;
}

int bench_flows(int argc, char **argv)
{
    int64_t threads = 1, tokens = 40;
    bool json = false;
    const struct vf_opt opts[] = {
        {.name = "threads",
         .type = VF_OPT_INT,
         .value = &threads,
         .metavar = "N",
         .min = 1,
         .max = 1024,
         .help = "compute threads (1)"},
        {.name = "tokens",
         .type = VF_OPT_INT,
         .value = &tokens,
         .metavar = "N",
         .min = 5,
         .max = 100000,
         .help = "decoded with each model (40)"},
        {.name = "json", .type = VF_OPT_FLAG, .value = &json, .help = "print one JSON object"},
    };
    const struct vf_cli cli = {.program = "vflow-bench flows",
                               .usage = "ONE.vflow MANY.vflow [options]",
                               .summary = "Decodes with a model of one flow and one of several, "
                                          "token by token in turn, and compares.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts),
                               .positional_min = 2,
                               .positional_max = 2};
    struct vf_err err = {0};
    const char *paths[2];
    enum vf_code code = vf_cli_parse(&cli, argc, argv, paths, NULL, &err);
    if (code == VF_OK)
        code = measure(paths, (uint32_t)threads, (size_t)tokens, json, &err);
    return code == VF_OK ? 0 : vf_cli_fail(cli.program, &err);
}
