/* Decode and prefill of one model in this process, each sample between two probes of the machine's
 * read ceiling, so that a share is a ratio of neighbours in time. --ops names where the time goes.
 */
#include "bench/loaded.h"

#include "common/bandwidth.h"
#include "common/cli.h"
#include "common/log.h"
#include "common/util.h"

#include <stdio.h>
#include <stdlib.h>

struct decode_options {
    uint32_t threads, tokens, samples, prompt;
    int tier;
    bool json, ops, huge;
};

struct decode_result {
    double *token_ms, *ceiling, *share, *prefill_ms; /* [samples] */
    double bytes_per_token;
};

/* One sample: a probe, the prompt, then tokens; medians over its tokens. */
static enum vf_code sample(struct loaded *l, const struct decode_options *o, uint32_t s,
                           struct decode_result *r, struct vf_err *err)
{
    double before, after, ms;
    double *token_ms = calloc(o->tokens, sizeof *token_ms);
    if (!token_ms)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->tokens);
    loaded_rewind(l);
    enum vf_code code = loaded_step(l, o->prompt, false, false, &r->prefill_ms[s], err);
    if (code == VF_OK)
        code = vf_bandwidth_measure(o->threads, &before, err);
    if (code == VF_OK)
        code = loaded_step(l, 1, true, true, &ms, err); /* caches warm again */
    struct vf_executor_stats begin, end;
    vf_executor_stats(l->executor, &begin);
    for (uint32_t t = 0; code == VF_OK && t < o->tokens; t++)
        code = loaded_step(l, 1, true, true, &token_ms[t], err);
    vf_executor_stats(l->executor, &end);
    if (code == VF_OK)
        code = vf_bandwidth_measure(o->threads, &after, err);
    if (code == VF_OK) {
        r->bytes_per_token = (double)(end.weight_bytes - begin.weight_bytes) / o->tokens;
        r->token_ms[s] = bench_median(token_ms, o->tokens);
        r->ceiling[s] = (before + after) / 2.0;
        r->share[s] = r->bytes_per_token / (r->token_ms[s] * 1e6) / r->ceiling[s];
    }
    free(token_ms);
    return code;
}

static void report_ops(const struct loaded *l, uint64_t steps)
{
    uint64_t by_kind[VF_OP_KIND_COUNT] = {0}, all = 0;
    const uint64_t *ns = vf_executor_op_ns(l->executor);
    for (uint32_t i = 0; i < l->program.op_count; i++) {
        by_kind[l->program.ops[i].kind] += ns[i];
        all += ns[i];
    }
    printf("operation   us a step   share\n");
    for (int k = 0; k < VF_OP_KIND_COUNT; k++)
        if (by_kind[k])
            printf("%-10s %10.1f  %5.1f%%\n", vf_op_kind_name((enum vf_op_kind)k),
                   (double)by_kind[k] / 1e3 / (double)steps,
                   100.0 * (double)by_kind[k] / (double)all);
}

static void report(const struct loaded *l, const struct decode_options *o, struct decode_result *r)
{
    double ms = bench_median(r->token_ms, o->samples);
    double ceiling = bench_median(r->ceiling, o->samples);
    double share = bench_median(r->share, o->samples);
    double prefill = bench_median(r->prefill_ms, o->samples);
    if (o->json) {
        printf("{\"kernel\":\"%s\",\"threads\":%u,\"samples\":%u,\"decode_tokens_per_s\":%.3f,"
               "\"ms_per_token\":%.4f,\"bytes_per_token\":%.0f,\"gb_per_s\":%.3f,"
               "\"ceiling_gb_per_s\":%.3f,\"share_of_ceiling\":%.4f,\"prompt_tokens\":%u,"
               "\"prefill_tokens_per_s\":%.3f}\n",
               l->kernels->name, o->threads, o->samples, 1e3 / ms, ms, r->bytes_per_token,
               r->bytes_per_token / ms / 1e6, ceiling, share, o->prompt, 1e3 * o->prompt / prefill);
        return;
    }
    printf("kernel     %s, %u thread%s, median of %u\n", l->kernels->name, o->threads,
           o->threads == 1 ? "" : "s", o->samples);
    printf("decode     %.2f tokens/s, %.3f ms a token, %.0f MB of weights a token\n", 1e3 / ms, ms,
           r->bytes_per_token / 1e6);
    printf("memory     %.2f GB/s, %.1f%% of the read ceiling measured beside it (%.2f GB/s)\n",
           r->bytes_per_token / ms / 1e6, 100.0 * share, ceiling);
    printf("prefill    %.2f tokens/s, a prompt of %u tokens in one step\n",
           1e3 * o->prompt / prefill, o->prompt);
}

static enum vf_code measure(const char *path, const struct decode_options *o, struct vf_err *err)
{
    struct loaded l;
    struct loaded_params params = {.path = path,
                                   .threads = o->threads,
                                   .context = o->prompt + o->tokens + 8,
                                   .chunk = o->prompt,
                                   .tier = (enum vf_kernel_tier)o->tier,
                                   .huge = o->huge};
    struct decode_result r = {
        calloc(o->samples, sizeof(double)), calloc(o->samples, sizeof(double)),
        calloc(o->samples, sizeof(double)), calloc(o->samples, sizeof(double)), 0};
    enum vf_code code = loaded_open(&l, &params, err);
    if (code == VF_OK && (!r.token_ms || !r.ceiling || !r.share || !r.prefill_ms))
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->samples);
    for (uint32_t s = 0; code == VF_OK && s < o->samples; s++) {
        code = sample(&l, o, s, &r, err);
        vf_progress("decode", s + 1, o->samples);
    }
    if (code == VF_OK)
        report(&l, o, &r);
    if (code == VF_OK && o->ops)
        report_ops(&l, l.steps);
    loaded_close(&l);
    free(r.token_ms);
    free(r.ceiling);
    free(r.share);
    free(r.prefill_ms);
    return code;
}

int bench_decode(int argc, char **argv)
{
    int64_t threads = 1, tokens = 16, samples = 5, prompt = 32;
    struct decode_options o = {0};
    const struct vf_opt opts[] = {
        {.name = "threads",
         .type = VF_OPT_INT,
         .value = &threads,
         .metavar = "N",
         .min = 1,
         .max = 256,
         .help = "compute threads (1)"},
        {.name = "tokens",
         .type = VF_OPT_INT,
         .value = &tokens,
         .metavar = "N",
         .min = 1,
         .max = 100000,
         .help = "decoded in each sample (16)"},
        {.name = "prompt",
         .type = VF_OPT_INT,
         .value = &prompt,
         .metavar = "N",
         .min = 1,
         .max = 100000,
         .help = "tokens prefilled before them (32)"},
        {.name = "samples",
         .type = VF_OPT_INT,
         .value = &samples,
         .metavar = "N",
         .min = 1,
         .max = 10000,
         .help = "each beside a probe of the read ceiling (5)"},
        {.name = "kernel",
         .type = VF_OPT_CHOICE,
         .value = &o.tier,
         .choices = vf_kernel_tier_words,
         .help = "instruction set (auto)"},
        {.name = "huge",
         .type = VF_OPT_FLAG,
         .value = &o.huge,
         .help = "copy the weights into huge pages first (--weights huge)"},
        {.name = "ops", .type = VF_OPT_FLAG, .value = &o.ops, .help = "time by kind of operation"},
        {.name = "json", .type = VF_OPT_FLAG, .value = &o.json, .help = "print one JSON object"},
    };
    const struct vf_cli cli = {.program = "vflow-bench decode",
                               .usage = "MODEL [options]",
                               .summary = "Decode and prefill of a model in this process, as a "
                                          "share of the memory's read ceiling.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts),
                               .positional_min = 1,
                               .positional_max = 1};
    struct vf_err err = {0};
    const char *path;
    enum vf_code code = vf_cli_parse(&cli, argc, argv, &path, NULL, &err);
    o.threads = (uint32_t)threads;
    o.tokens = (uint32_t)tokens;
    o.samples = (uint32_t)samples;
    o.prompt = (uint32_t)prompt;
    if (code == VF_OK)
        code = measure(path, &o, &err);
    return code == VF_OK ? 0 : vf_cli_fail(cli.program, &err);
}
