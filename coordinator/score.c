/* The score command: how likely a text is, and on request every log-probability of it. */
#include "common/base/cli.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/npy.h"
#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/tokenizer/tokenizer.h"
#include "coordinator/commands.h"
#include "coordinator/options.h"
#include "coordinator/output.h"
#include "coordinator/scheduler.h"
#include "coordinator/signals.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "vflow-coordinator score"
#define POLL_MS 1000

struct options {
    struct vf_run_options run;
    const char *tokens, *file, *logits;
    int64_t stride;
    bool no_bos, json;
    char *text; /* of file */
    size_t text_bytes;
};

struct scoring {
    uint32_t *ids; /* the text */
    size_t count;
    uint32_t vocab_size;
    struct vf_windows windows;
    double *logp;       /* [count - 1]: log P(ids[t + 1] | ids[0..t]) */
    struct vf_npy *npy; /* NULL: not wanted */
    bool ended;
    enum vf_code code;
    struct vf_err err;
};

static enum vf_code parse(struct options *o, int argc, char **argv, struct vf_err *err)
{
    *o = (struct options){0};
    vf_run_options_init(&o->run, 1, true);
    const struct vf_opt own[] = {
        {"tokens", 0, VF_OPT_STRING, &o->tokens, "1,2,3", "the text as token ids", 0, 0, NULL},
        {"file", 'f', VF_OPT_STRING, &o->file, "TEXT",
         "a file with the text (UTF-8), or - for standard input", 0, 0, NULL},
        {"no-bos", 0, VF_OPT_FLAG, &o->no_bos, NULL,
         "put no beginning-of-sequence token before the text", 0, 0, NULL},
        {"logits", 0, VF_OPT_STRING, &o->logits, "OUT.npy",
         "write every log-probability: float32 [tokens, vocabulary]", 0, 0, NULL},
        {"stride", 0, VF_OPT_INT, &o->stride, "N",
         "a text longer than the context is scored in windows that begin N tokens apart (default: "
         "half the context)",
         1, VF_CONTEXT_MAX, NULL},
        {"json", 0, VF_OPT_FLAG, &o->json, NULL, "one JSON object instead of lines", 0, 0, NULL},
    };
    struct vf_opt opts[VF_RUN_OPTIONS_MAX + sizeof own / sizeof own[0]];
    size_t n = vf_run_options_table(&o->run, opts);
    memcpy(opts + n, own, sizeof own);
    n += sizeof own / sizeof own[0];
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "--model FILE (--tokens 1,2,3 | --file TEXT) [options]",
        .summary =
            "Prints a text's tokens, mean negative log-likelihood and perplexity: as Hugging "
            "Face's guide\ncounts it, exp of the mean over all tokens but the first; in a "
            "text longer than the context\neach token counts once, seen with at least the "
            "window less the stride before it.",
        .opts = opts,
        .opt_count = n,
    };
    enum vf_code code = vf_run_options_parse(&o->run, &cli, argc, argv, err);
    if (!code)
        code = vf_run_options_check(&o->run, true, err);
    if (!code && !o->tokens == !o->file)
        code = vf_err_set(err, VF_ERR_USAGE, "give the text as either --tokens 1,2,3 or --file");
    if (!code && o->file)
        code = vf_read_text(o->file, VF_TOKENIZER_TEXT_BYTES_MAX, &o->text, &o->text_bytes, err);
    return code;
}

/* ---- events -------------------------------------------------------------------------------- */

static void fail(struct scoring *s, const struct vf_err *err)
{
    if (s->code)
        return;
    s->code = err->code;
    s->err = *err;
}

static void on_token(void *ctx, uint64_t id, uint32_t token, const char *text, size_t n)
{
    (void)ctx, (void)id, (void)token, (void)text, (void)n;
}

static void on_rows(void *ctx, uint64_t id, uint32_t first, uint32_t count, const float *rows)
{
    (void)id;
    struct scoring *s = ctx;
    struct vf_err err;
    for (uint32_t i = 0; i < count && first + i + 1 < s->count; i++) {
        uint32_t next = s->ids[first + i + 1];
        float logp = rows[(size_t)i * s->vocab_size + next];
        s->logp[first + i] = logp;
        if (isnan(logp)) {
            vf_err_set(&err, VF_ERR_INTERNAL,
                       "the log-probability of token %u at position %u isn't a number", next,
                       first + i + 1);
            fail(s, &err);
        }
    }
    if (s->npy && !s->code && vf_npy_append(s->npy, rows, count, &err) != VF_OK)
        fail(s, &err);
    vf_progress("scoring", VF_PROGRESS_TOKENS, first + count, s->count);
}

static void on_done(void *ctx, uint64_t id, enum vf_finish finish,
                    const struct vf_request_stats *stats)
{
    (void)id, (void)finish, (void)stats;
    ((struct scoring *)ctx)->ended = true;
}

static void on_failed(void *ctx, uint64_t id, const struct vf_err *err)
{
    (void)id;
    struct scoring *s = ctx;
    s->ended = true;
    fail(s, err);
}

static const struct vf_request_events events = {on_token, on_rows, on_done, on_failed};

/* ---- the run ------------------------------------------------------------------------------- */

static enum vf_code encode(const struct options *o, const struct vf_scheduler *sched,
                           struct scoring *s, struct vf_err *err)
{
    const struct vf_tokenizer *t = vf_scheduler_tokenizer(sched);
    const struct vf_err *fault = vf_scheduler_tokenizer_fault(sched);
    if (fault) {
        *err = *fault;
        return vf_err_prepend(err, "--file: ");
    }
    if (!t)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--file: this model has no tokenizer, give the text as --tokens 1,2,3");
    bool left_out;
    enum vf_code code = vf_tokenizer_encode_prompt(t, o->text, o->text_bytes, !o->no_bos, &s->ids,
                                                   &s->count, &left_out, err);
    if (!code && left_out)
        vf_warn("%s: it begins with the beginning-of-sequence token itself, no second one is put "
                "before it",
                o->file);
    return code ? vf_err_prepend(err, "%s: ", o->file) : VF_OK;
}

static enum vf_code read_text(const struct options *o, const struct vf_scheduler *sched,
                              struct scoring *s, struct vf_err *err)
{
    enum vf_code code;
    if (o->file) {
        code = encode(o, sched, s, err);
    } else {
        code = vf_cli_parse_ids(o->tokens, VF_VOCAB_MAX - 1, &s->ids, &s->count, err);
        if (code)
            vf_err_prepend(err, "--tokens: ");
    }
    if (code)
        return code;
    s->logp = calloc(s->count + 1, sizeof *s->logp);
    return s->logp ? VF_OK
                   : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu tokens", s->count);
}

static enum vf_code run(struct vf_scheduler *sched, struct scoring *s, uint32_t stride,
                        struct vf_err *err)
{
    struct vf_request request = {
        .kind = VF_REQUEST_SCORE, .tokens = s->ids, .token_count = s->count, .stride = stride};
    s->windows = vf_scheduler_windows(sched, s->count, stride);
    uint64_t id;
    enum vf_code code = vf_scheduler_submit(sched, &request, &events, s, &id, err);
    while (!code && !s->ended && !s->code)
        code = vf_scheduler_poll(sched, POLL_MS, NULL, err);
    if (s->code) {
        *err = s->err;
        code = s->code;
    }
    return code;
}

static double mean_nll(const struct scoring *s)
{
    double sum = 0;
    for (size_t t = 0; t + 1 < s->count; t++)
        sum -= s->logp[t];
    return s->count > 1 ? sum / (double)(s->count - 1) : NAN;
}

static char *make_json(const struct scoring *s, double nll, double seconds)
{
    json_t *logp = json_array();
    for (size_t t = 0; t + 1 < s->count; t++)
        json_array_append_new(logp, isfinite(s->logp[t]) ? json_real(s->logp[t]) : json_null());
    json_t *root = json_pack("{s:I, s:I, s:o, s:o, s:o, s:f, s:o}", "tokens", (json_int_t)s->count,
                             "windows", (json_int_t)s->windows.count, "stride",
                             s->windows.count > 1 ? json_integer(s->windows.stride) : json_null(),
                             "mean_nll", isfinite(nll) ? json_real(nll) : json_null(), "perplexity",
                             isfinite(exp(nll)) ? json_real(exp(nll)) : json_null(), "seconds",
                             seconds, "token_logp", logp);
    char *out = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    return out;
}

static enum vf_code print_result(const struct options *o, const struct scoring *s, double seconds,
                                 int signal_fd, struct vf_err *err)
{
    double nll = mean_nll(s);
    char lines[160], *json = NULL;
    snprintf(lines, sizeof lines, "tokens      %zu\nmean nll    %.6f\nperplexity  %.4f\n", s->count,
             nll, exp(nll));
    if (s->count < 2)
        snprintf(lines, sizeof lines, "tokens      %zu\nmean nll    -\nperplexity  -\n", s->count);
    if (o->json && !(json = make_json(s, nll, seconds)))
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the JSON output");
    const char *text = json ? json : lines;
    enum vf_code code = vf_output_write(text, strlen(text), signal_fd, err);
    if (!code && json)
        code = vf_output_write("\n", 1, signal_fd, err);
    free(json);
    return code;
}

static enum vf_code score(const struct options *o, int signal_fd, struct vf_err *err)
{
    struct vf_engine_params params = vf_run_options_engine(&o->run, true, signal_fd);
    struct vf_engine *engine;
    struct vf_scheduler *sched;
    enum vf_code code = vf_engine_create(&params, &engine, err);
    if (!code)
        code = vf_scheduler_create(engine, &sched, err);
    if (code)
        return code;
    struct scoring s = {0};
    s.vocab_size = vf_model_file_config(vf_engine_model(engine))->vocab_size;
    code = read_text(o, sched, &s, err);
    if (!code && o->logits)
        code = vf_npy_create(o->logits, s.count, s.vocab_size, &s.npy, err);
    uint64_t began = vf_now_ns();
    if (!code)
        code = run(sched, &s, (uint32_t)o->stride, err);
    double seconds = (double)(vf_now_ns() - began) * 1e-9;
    if (!code && s.npy)
        code = vf_npy_commit(s.npy, err);
    if (!code && s.windows.count > 1)
        fprintf(stderr, "%s: %llu windows of %u tokens, %u apart (--stride)\n", PROGRAM,
                (unsigned long long)s.windows.count, s.windows.window, s.windows.stride);
    if (!code)
        code = print_result(o, &s, seconds, signal_fd, err);
    vf_npy_destroy(s.npy);
    free(s.logp);
    free(s.ids);
    vf_scheduler_destroy(sched);
    return code;
}

int vf_score_main(int argc, char **argv)
{
    struct options o;
    struct vf_err err = {0};
    int signal_fd = -1;
    enum vf_code code = parse(&o, argc, argv, &err);
    if (!code)
        code = vf_signals_open(&signal_fd, &err);
    if (!code)
        code = score(&o, signal_fd, &err);
    free(o.text);
    vf_run_options_deinit(&o.run);
    if (code && signal_fd < 0)
        return vf_cli_fail(PROGRAM, &err);
    if (code == VF_ERR_IO && err.sys_errno == EPIPE)
        return 1; /* the reader has seen enough */
    int status = code ? vf_signals_exit(signal_fd, PROGRAM, &err) : 0;
    close(signal_fd);
    return status;
}
