/* What a second flow costs in decode: two models of one geometry, one with an auxiliary flow, step
 * by step in turn, so that whatever else the machine does meets both.
 */
#include "bench/loaded.h"

#include "common/cli.h"
#include "common/log.h"
#include "common/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arm {
    struct loaded model;
    double *ms;
};

static void report(struct arm arms[2], uint32_t threads, size_t n, bool json)
{
    double median[2], low[2], high[2];
    for (int i = 0; i < 2; i++) {
        median[i] = bench_median(arms[i].ms, n);
        low[i] = bench_quantile(arms[i].ms, n, 0.1);
        high[i] = bench_quantile(arms[i].ms, n, 0.9);
    }
    uint32_t flows = vf_model_file_config(arms[1].model.file)->flow_count;
    if (json) {
        printf("{\"threads\":%u,\"tokens\":%zu,\"flows\":[1,%u],\"ms_per_token\":[%.4f,%.4f],"
               "\"ratio\":%.4f,\"ratio_p10\":%.4f}\n",
               threads, n, flows, median[0], median[1], median[1] / median[0], low[1] / low[0]);
        return;
    }
    printf("flows  ms a token (median)   p10      p90      over one flow\n");
    for (int i = 0; i < 2; i++)
        printf("%5u  %19.3f  %7.3f  %7.3f  %13.3f\n",
               vf_model_file_config(arms[i].model.file)->flow_count, median[i], low[i], high[i],
               median[i] / median[0]);
}

static enum vf_code measure(const char *const paths[2], uint32_t threads, size_t n, bool json,
                            struct vf_err *err)
{
    struct arm arms[2] = {0};
    const size_t warm_up = 3;
    enum vf_code code = VF_OK;
    for (int i = 0; code == VF_OK && i < 2; i++) {
        struct loaded_params params = {
            .path = paths[i], .threads = threads, .context = (uint32_t)(n + warm_up), .chunk = 1};
        code = loaded_open(&arms[i].model, &params, err);
        arms[i].ms = calloc(n, sizeof *arms[i].ms);
        if (code == VF_OK && !arms[i].ms)
            code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu samples", n);
    }
    for (size_t t = 0; code == VF_OK && t < n + warm_up; t++) {
        for (int i = 0; code == VF_OK && i < 2; i++) {
            int arm = (int)((t + (size_t)i) % 2); /* both orders */
            double ms;
            code = loaded_step(&arms[arm].model, 1, true, true, &ms, err);
            if (t >= warm_up)
                arms[arm].ms[t - warm_up] = ms;
        }
        vf_progress("flows", t + 1, n + warm_up);
    }
    if (code == VF_OK)
        report(arms, threads, n, json);
    for (int i = 0; i < 2; i++) {
        loaded_close(&arms[i].model);
        free(arms[i].ms);
    }
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
