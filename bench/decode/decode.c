/* Decode and prefill of one model in this process, each decoded token behind a probe of the
 * machine's read ceiling, so that a share is a ratio of neighbours in time. The time of a token is
 * told by operation and by what the process did: compute, barriers, hops, stalls.
 */
#include "bench/decode/decode.h"
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/clock.h"
#include "common/base/progress.h"
#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

/* ---- one sample --------------------------------------------------------------------------- */

static void add_ops(const struct loaded *l, const uint64_t *before, double ns[VF_OP_KIND_COUNT])
{
    const uint64_t *now = vf_executor_op_ns(l->executor);
    for (uint32_t i = 0; i < l->program.op_count; i++)
        ns[l->program.ops[i].kind] += (double)(now[i] - before[i]);
}

static void snapshot(const struct loaded *l, uint64_t *ops)
{
    memcpy(ops, vf_executor_op_ns(l->executor), l->program.op_count * sizeof *ops);
}

/* The prompt in chunks, as the coordinator sends it. */
static enum vf_code prefill(struct decode_run *run, double *ms, struct vf_err *err)
{
    struct loaded *l = &run->model;
    enum vf_code code = VF_OK;
    *ms = 0;
    loaded_rewind(l);
    snapshot(l, run->ops);
    for (uint32_t at = 0; code == VF_OK && at < run->o->prompt; at += run->o->chunk) {
        double part;
        uint32_t left = run->o->prompt - at;
        code =
            loaded_step(l, left < run->o->chunk ? left : run->o->chunk, false, false, &part, err);
        *ms += part;
    }
    add_ops(l, run->ops, run->prefill_ns);
    return code;
}

/* What the executor counted from `begin` on. */
static void add_stats(struct decode_run *run, const struct vf_executor_stats *begin)
{
    struct vf_executor_stats end;
    vf_executor_stats(run->model.executor, &end);
    run->process.compute_ns += end.compute_ns - begin->compute_ns;
    run->process.barrier_ns += end.barrier_ns - begin->barrier_ns;
    run->process.hop_ns += end.hop_ns - begin->hop_ns;
    run->process.stall_ns += end.stall_ns - begin->stall_ns;
    run->process.weight_bytes += end.weight_bytes - begin->weight_bytes;
}

static enum vf_code warm_up(struct decode_run *run, struct vf_err *err)
{
    double ignored;
    return loaded_step(&run->model, 1, true, true, &ignored, err);
}

/* Probes and token in turn. */
static enum vf_code decode(struct decode_run *run, struct decode_sample *out, struct vf_err *err)
{
    enum vf_code code = warm_up(run, err);
    struct vf_executor_stats begin;
    snapshot(&run->model, run->ops);
    vf_executor_stats(run->model.executor, &begin);
    for (uint32_t t = 0; code == VF_OK && t < run->o->tokens; t++) {
        for (int way = 0; way < VF_READ_WAYS; way++)
            run->probe_gb[way][t] = rig_read_pass(&run->probe, (enum vf_read_way)way);
        code = loaded_step(&run->model, 1, true, true, &run->token_ms[t], err);
        run->decode_wall_ns += run->token_ms[t] * 1e6;
    }
    add_stats(run, &begin);
    add_ops(&run->model, run->ops, run->decode_ns);
    run->decoded += run->o->tokens;
    out->token_ms = bench_median(run->token_ms, run->o->tokens);
    for (int way = 0; way < VF_READ_WAYS; way++)
        out->read[way] = bench_median(run->probe_gb[way], run->o->tokens);
    return code;
}

static enum vf_code decode_disturbed(struct decode_run *run, double *ms, struct vf_err *err)
{
    foreign_run(&run->foreign, 1);
    enum vf_code code = warm_up(run, err);
    for (uint32_t t = 0; code == VF_OK && t < run->o->tokens; t++)
        code = loaded_step(&run->model, 1, true, true, &run->token_ms[t], err);
    *ms = bench_median(run->token_ms, run->o->tokens);
    foreign_run(&run->foreign, 0);
    return code;
}

/* Prefill, then decode; with a foreign process in turn before or behind. */
static enum vf_code sample(struct decode_run *run, uint32_t s, struct vf_err *err)
{
    struct decode_sample *out = &run->samples[s];
    bool foreign = run->o->foreign;
    enum vf_code code = prefill(run, &out->prefill_ms, err);
    if (code == VF_OK && foreign && s % 2)
        code = decode_disturbed(run, &out->foreign_ms, err);
    if (code == VF_OK)
        code = decode(run, out, err);
    if (code == VF_OK && foreign && s % 2 == 0)
        code = decode_disturbed(run, &out->foreign_ms, err);
    return code;
}

/* ---- the run ------------------------------------------------------------------------------ */

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct decode_options *o = options;
    uint32_t tokens = (o->tokens + 1) * (o->foreign ? 2 : 1);
    struct loaded_params params = {.path = o->path,
                                   .threads = o->threads,
                                   .context = o->prompt + tokens,
                                   .chunk = o->chunk < o->prompt ? o->chunk : o->prompt,
                                   .tier = (enum vf_kernel_tier)o->tier,
                                   .huge = o->huge};
    struct decode_run run = {.o = o};
    enum vf_code code = o->foreign ? foreign_start(&run.foreign, err) : VF_OK;
    if (code == VF_OK)
        code = loaded_open(&run.model, &params, err);
    if (code == VF_OK)
        code = read_probe_open(&run.probe, o->threads, err);
    run.samples = calloc(o->samples, sizeof *run.samples);
    run.token_ms = calloc(o->tokens, sizeof *run.token_ms);
    bool memory = run.samples && run.token_ms;
    for (int way = 0; way < VF_READ_WAYS; way++) {
        run.probe_gb[way] = calloc(o->tokens, sizeof *run.probe_gb[way]);
        memory = memory && run.probe_gb[way];
    }
    run.ops = calloc(run.model.program.op_count + 1, sizeof *run.ops);
    if (code == VF_OK && (!memory || !run.ops))
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->samples);
    for (uint32_t s = 0; code == VF_OK && s < o->samples; s++) {
        code = sample(&run, s, err);
        vf_progress("decode", VF_PROGRESS_ITEMS, s + 1, o->samples);
    }
    if (code == VF_OK)
        decode_report(&run, r);
    loaded_close(&run.model);
    rig_close(&run.probe);
    foreign_end(&run.foreign);
    free(run.samples);
    free(run.token_ms);
    for (int way = 0; way < VF_READ_WAYS; way++)
        free(run.probe_gb[way]);
    free(run.ops);
    return code;
}

static const struct decode_options defaults = {
    .threads = 1, .tokens = 16, .samples = 5, .prompt = 128, .chunk = 256};
static const struct bench_option options[] = {
    BENCH_THREADS(struct decode_options, 256, "compute threads (1)"),
    BENCH_TOKENS(struct decode_options, 1, 100000, "decoded in each sample (16)"),
    BENCH_OPTION(struct decode_options, prompt, .name = "prompt", .type = VF_OPT_INT,
                 .metavar = "N", .min = 1, .max = 100000,
                 .help = "tokens prefilled before them (128)"),
    BENCH_OPTION(struct decode_options, chunk, .name = "chunk", .type = VF_OPT_INT, .metavar = "N",
                 .min = 1, .max = 4096, .help = "of them in one step (256)"),
    BENCH_SAMPLES(struct decode_options, 1, 10000, "of decode and prefill (5)"),
    BENCH_KERNEL(struct decode_options),
    BENCH_HUGE(struct decode_options),
    BENCH_OPTION(struct decode_options, foreign, .name = "foreign", .type = VF_OPT_FLAG,
                 .help = "also decode while a process of somebody else's keeps one CPU busy"),
    BENCH_OPTION(struct decode_options, ops, .name = "ops", .type = VF_OPT_FLAG,
                 .help = "also print the time by operation and by what the process did"),
};
const struct bench_command bench_decode = {
    .name = "decode",
    .what = "decode and prefill of a model, as a share of the read ceiling",
    .usage = "MODEL",
    .summary =
        "Decode and prefill of a model in this process, as a share of the memory's read ceiling.",
    .words_min = 1,
    .words_max = 1,
    .words = offsetof(struct decode_options, path),
    BENCH_OPTIONS(options, defaults),
    .run = measure};
