/* Records the routing of a model's own greedy decoding, token by token. */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/decode/loaded.h"
#include "bench/experts/recording_source.h"

#include "common/base/progress.h"
#include "common/base/util.h"

#include <stdio.h>
#include <stdlib.h>

struct record_options {
    const char *path, *out, *start;
    uint32_t threads, tokens;
    int tier;
};

static enum vf_code run_token(struct loaded *l, uint32_t token, struct vf_err *err)
{
    l->columns[0] = (struct vf_column){.token = token, .position = l->position++, .want_row = true};
    struct vf_step step = {++l->steps, l->columns, 1};
    uint32_t rows;
    bool peer_failed;
    return vf_executor_run(l->executor, &step, UINT64_MAX, l->rows, &rows, &peer_failed, err);
}

static uint32_t likeliest(const float *row, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

static enum vf_code decode(struct loaded *l, const struct record_options *o, const uint32_t *start,
                           size_t start_count, struct vf_err *err)
{
    uint32_t vocab = vf_model_file_config(l->file)->vocab_size;
    enum vf_code code = VF_OK;
    for (uint32_t t = 0; t < o->tokens && code == VF_OK; t++) {
        code = run_token(l, t < start_count ? start[t] : likeliest(l->rows, vocab), err);
        vf_progress("record", VF_PROGRESS_TOKENS, t + 1, o->tokens);
    }
    return code;
}

static enum vf_code write_trace(const struct vf_routing_recorder *recorder, const char *path,
                                struct vf_err *err)
{
    struct vf_routing_trace trace;
    enum vf_code code = vf_routing_recorder_finish(recorder, &trace, err);
    if (code == VF_OK)
        code = vf_routing_trace_write(&trace, path, err);
    if (code == VF_OK)
        printf("%s: %u tokens, %u layers, %u experts of each\n", path, trace.token_count,
               trace.layer_count, trace.top_k);
    vf_routing_trace_deinit(&trace);
    return code;
}

static enum vf_code record(const struct record_options *o, const struct vf_config *config,
                           struct vf_err *err)
{
    struct loaded l = {0};
    struct vf_routing_recorder *recorder = NULL;
    uint32_t *start = NULL;
    size_t start_count = 0;
    enum vf_code code =
        vf_cli_parse_ids(o->start, config->vocab_size - 1, &start, &start_count, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "--start: ");
    code = vf_routing_recorder_create(config->layer_count, config->expert_top_k, &recorder, err);
    struct loaded_params params = {.path = o->path,
                                   .threads = o->threads,
                                   .context = o->tokens,
                                   .chunk = 1,
                                   .tier = (enum vf_kernel_tier)o->tier,
                                   .recorder = recorder};
    if (code == VF_OK)
        code = loaded_open(&l, &params, err);
    if (code == VF_OK)
        code = decode(&l, o, start, start_count, err);
    if (code == VF_OK)
        code = write_trace(recorder, o->out, err);
    loaded_close(&l);
    vf_routing_recorder_destroy(recorder);
    free(start);
    return code;
}

/* The recorder must be made before the model is loaded, from what the model is. */
static enum vf_code open_and_record(void *options, struct bench_report *r, struct vf_err *err)
{
    (void)r;
    const struct record_options *o = options;
    struct vf_model_file *file;
    enum vf_code code = vf_model_file_open(o->path, &file, err);
    if (code != VF_OK)
        return code;
    const struct vf_config *config = vf_model_file_config(file);
    if (config->expert_count == 0)
        code = vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: a model without experts routes nothing",
                          o->path);
    else
        code = record(o, config, err);
    vf_model_file_close(file);
    return code;
}

static const struct record_options defaults = {
    .out = "routing.npy", .start = "1", .threads = 1, .tokens = 1000};
static const struct bench_option options[] = {
    BENCH_OPTION(struct record_options, out, .name = "out", .short_name = 'o',
                 .type = VF_OPT_STRING, .metavar = "FILE", .help = "the trace (routing.npy)"),
    BENCH_OPTION(struct record_options, start, .name = "start", .type = VF_OPT_STRING,
                 .metavar = "IDS", .help = "token ids to begin with, e.g. 1,15,7 (1)"),
    BENCH_TOKENS(struct record_options, 2, 10000000,
                 "in the trace, those to begin with included (1000)"),
    BENCH_THREADS(struct record_options, 256, "compute threads (1)"),
    BENCH_KERNEL(struct record_options),
};
const struct bench_command bench_record = {
    .name = "record",
    .what = "write down the routing of a model's own decoding",
    .usage = "MODEL",
    .summary =
        "Decodes greedily and records which experts every token used, for vflow-bench replay.",
    .words_min = 1,
    .words_max = 1,
    .words = offsetof(struct record_options, path),
    BENCH_OPTIONS(options, defaults),
    .plain = true,
    .run = open_and_record};
