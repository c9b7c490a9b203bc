/* The generate command: one request, its text on stdout as it comes. */
#include "common/base/cli.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/progress.h"
#include "common/run/generate_options.h"
#include "common/tokenizer/tokenizer.h"
#include "coordinator/commands.h"
#include "coordinator/options.h"
#include "coordinator/output.h"
#include "coordinator/run_report.h"
#include "coordinator/scheduler.h"
#include "coordinator/signals.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "vflow-coordinator generate"
#define POLL_MS 1000

struct options {
    struct vf_run_options run;
    struct vf_generate_options request;
    bool stats;
};

/* What the request's events collect. */
struct generation {
    const struct options *options;
    int signal_fd;
    size_t prompt; /* tokens */
    uint32_t *ids; /* [id_count] */
    size_t id_count, id_capacity;
    char *text; /* kept for --json */
    size_t text_bytes, text_capacity;
    bool has_text; /* the model has a tokenizer */
    bool ended;
    enum vf_finish finish;
    struct vf_request_stats stats;
    enum vf_code code; /* of the first failure */
    struct vf_err err;
};

/* ---- options ------------------------------------------------------------------------------- */

static enum vf_code parse(struct options *o, int argc, char **argv, struct vf_err *err)
{
    *o = (struct options){0};
    vf_run_options_init(&o->run, 1, true);
    vf_generate_options_init(&o->request);
    const struct vf_opt stats = {"stats",   0,    VF_OPT_FLAG,
                                 &o->stats, NULL, "speed and expert statistics on stderr",
                                 0,         0,    NULL};
    struct vf_opt opts[VF_RUN_OPTIONS_MAX + VF_GENERATE_OPTION_COUNT + 1];
    size_t n = vf_run_options_table(&o->run, opts);
    n += vf_generate_options_table(&o->request, opts + n);
    opts[n++] = stats;
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "-m FILE (-p TEXT | --prompt-file FILE | --tokens 1,2,3) [options]",
        .summary = "Continues a prompt. The continuation alone goes to stdout as it comes, with a "
                   "newline\nat the end; a model without tokenizer prints token ids.",
        .opts = opts,
        .opt_count = n,
    };
    enum vf_code code = vf_run_options_parse(&o->run, &cli, argc, argv, err);
    if (!code)
        code = vf_run_options_check(&o->run, true, err);
    return code ? code : vf_generate_options_read(&o->request, err);
}

/* ---- events -------------------------------------------------------------------------------- */

static void fail(struct generation *g, const struct vf_err *err)
{
    if (g->code)
        return;
    g->code = err->code;
    g->err = *err;
}

/* Room for n more elements of a growing array. */
static void *grow(struct generation *g, void *data, size_t count, size_t *capacity, size_t n,
                  size_t element_bytes)
{
    if (*capacity - count >= n)
        return data;
    size_t wanted = (count + n) * 2 + 64;
    void *larger = realloc(data, wanted * element_bytes);
    if (!larger) {
        struct vf_err err;
        vf_err_set(&err, VF_ERR_NO_MEMORY, "no memory for the generated text");
        fail(g, &err);
        return data;
    }
    *capacity = wanted;
    return larger;
}

static void keep(struct generation *g, uint32_t token, const char *text, size_t n)
{
    if (token != VF_TOKEN_NONE) {
        g->ids = grow(g, g->ids, g->id_count, &g->id_capacity, 1, sizeof *g->ids);
        if (!g->code)
            g->ids[g->id_count++] = token;
    }
    if (n) {
        g->text = grow(g, g->text, g->text_bytes, &g->text_capacity, n, 1);
        if (!g->code)
            memcpy(g->text + g->text_bytes, text, n);
        g->text_bytes += g->code ? 0 : n;
    }
}

static void write_out(struct generation *g, const void *data, size_t n)
{
    struct vf_err err;
    if (!g->code && vf_output_write(data, n, g->signal_fd, &err) != VF_OK)
        fail(g, &err);
}

static void on_token(void *ctx, uint64_t id, uint32_t token, const char *text, size_t n)
{
    (void)id;
    struct generation *g = ctx;
    if (g->code)
        return;
    keep(g, token, text, n);
    if (g->options->request.json)
        return;
    if (g->has_text) {
        write_out(g, text, n);
    } else if (token != VF_TOKEN_NONE) {
        char word[16];
        int len = snprintf(word, sizeof word, "%s%" PRIu32, g->id_count > 1 ? " " : "", token);
        write_out(g, word, (size_t)len);
    }
}

static void on_rows(void *ctx, uint64_t id, uint32_t first, uint32_t count, const float *rows)
{
    (void)ctx, (void)id, (void)first, (void)count, (void)rows;
}

static void on_done(void *ctx, uint64_t id, enum vf_finish finish,
                    const struct vf_request_stats *stats)
{
    (void)id;
    struct generation *g = ctx;
    g->ended = true;
    g->finish = finish;
    g->stats = *stats;
}

static void on_failed(void *ctx, uint64_t id, const struct vf_err *err)
{
    (void)id;
    struct generation *g = ctx;
    g->ended = true;
    fail(g, err);
}

static const struct vf_request_events events = {on_token, on_rows, on_done, on_failed};

/* ---- the JSON object ------------------------------------------------------------------------ */

static void print_json(struct generation *g, const struct vf_engine_info *info,
                       const struct vf_run_report *r)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < g->id_count; i++)
        json_array_append_new(ids, json_integer(g->ids[i]));
    json_t *text = g->has_text ? json_stringn(g->text ? g->text : "", g->text_bytes) : json_null();
    json_t *root = json_pack("{s:o, s:o, s:s, s:o}", "text", text, "tokens", ids, "reason",
                             vf_finish_word(g->finish), "stats", vf_run_report_json(r, info));
    char *out = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    if (out) {
        write_out(g, out, strlen(out));
        write_out(g, "\n", 1);
    } else {
        struct vf_err err;
        vf_err_set(&err, VF_ERR_NO_MEMORY, "no memory for the JSON output");
        fail(g, &err);
    }
    free(out);
    json_decref(root);
}

/* ---- the run ------------------------------------------------------------------------------- */

static enum vf_code read_prompt(const struct vf_generate_options *o, const struct vf_scheduler *s,
                                uint32_t **ids, size_t *count, struct vf_err *err)
{
    if (o->tokens) {
        enum vf_code code = vf_cli_parse_ids(o->tokens, VF_VOCAB_MAX - 1, ids, count, err);
        return code ? vf_err_prepend(err, "--tokens: ") : VF_OK;
    }
    const struct vf_err *fault = vf_scheduler_tokenizer_fault(s);
    if (fault) {
        *err = *fault;
        return vf_err_prepend(err, "%s: ", o->text_name);
    }
    if (!vf_scheduler_tokenizer(s))
        return vf_err_set(err, VF_ERR_USAGE,
                          "%s: this model has no tokenizer, give the prompt as --tokens 1,2,3",
                          o->text_name);
    bool left_out;
    enum vf_code code = vf_tokenizer_encode_prompt(
        vf_scheduler_tokenizer(s), o->text, o->text_bytes, !o->no_bos, ids, count, &left_out, err);
    if (!code && left_out)
        vf_warn("%s: it begins with the beginning-of-sequence token itself, no second one is put "
                "before it",
                o->text_name);
    if (code == VF_ERR_CORRUPT && o->prompt) /* an argument, not a file */
        err->code = VF_ERR_USAGE;
    return code ? vf_err_prepend(err, "%s: ", o->text_name) : VF_OK;
}

static enum vf_code submit(const struct vf_generate_options *o, struct vf_scheduler *s,
                           struct generation *g, struct vf_err *err)
{
    uint32_t *ids = NULL;
    size_t count;
    enum vf_code code = read_prompt(o, s, &ids, &count, err);
    if (code)
        return code;
    struct vf_request request = {
        .kind = VF_REQUEST_GENERATE,
        .tokens = ids,
        .token_count = count,
        .max_tokens = (uint32_t)o->max_tokens,
        .sampling = {.temperature = o->temperature,
                     .top_k = (uint32_t)o->top_k,
                     .top_p = o->top_p,
                     .min_p = o->min_p,
                     .seed = (uint64_t)o->seed},
        .stop_count = o->stop.count,
        .ignore_eos = o->ignore_eos,
    };
    for (int i = 0; i < o->stop.count; i++)
        request.stop[i] = o->stop.items[i];
    uint64_t id;
    g->prompt = count;
    code = vf_scheduler_submit(s, &request, &events, g, &id, err);
    free(ids);
    return code;
}

static void show_prefill(const struct vf_scheduler *s, size_t prompt)
{
    struct vf_scheduler_totals totals;
    vf_scheduler_totals(s, &totals);
    vf_progress("prefill", VF_PROGRESS_TOKENS, totals.tokens_prefilled, prompt);
}

/* Polls until the request has ended; takes the totals of the prefill on the way. */
static enum vf_code run(struct vf_scheduler *s, struct generation *g, bool measure,
                        struct vf_engine_totals *prefilled, struct vf_err *err)
{
    bool first = true;
    enum vf_code code = VF_OK;
    vf_progress("prefill", VF_PROGRESS_TOKENS, 0, g->prompt);
    while (!code && !g->ended && !g->code) {
        code = vf_scheduler_poll(s, POLL_MS, NULL, err);
        if (code || !first)
            continue;
        first = g->id_count == 0 && !g->ended;
        if (first)
            show_prefill(s, g->prompt);
        if (!first && measure)
            code = vf_engine_read_totals(vf_scheduler_engine(s), true, prefilled, err);
    }
    if (g->code) {
        *err = g->err;
        code = g->code;
    }
    return code;
}

static enum vf_code report(struct vf_scheduler *s, struct generation *g,
                           const struct vf_engine_totals *prefilled, struct vf_err *err)
{
    struct vf_engine_totals end;
    enum vf_code code = vf_engine_read_totals(vf_scheduler_engine(s), true, &end, err);
    if (code)
        return code;
    const struct vf_engine_info *info = vf_engine_info(vf_scheduler_engine(s));
    struct vf_run_report r;
    vf_run_report_make(&g->stats, g->finish, prefilled, &end, &r);
    if (g->options->request.json)
        print_json(g, info, &r);
    if (g->options->stats)
        vf_run_report_print(&r, info);
    return VF_OK;
}

static enum vf_code generate(const struct options *o, int signal_fd, struct vf_err *err)
{
    struct vf_engine_params params = vf_run_options_engine(&o->run, false, signal_fd);
    struct vf_engine *engine;
    struct vf_scheduler *s;
    enum vf_code code = vf_engine_create(&params, &engine, err);
    if (!code)
        code = vf_scheduler_create(engine, &s, err);
    if (code)
        return code;
    struct generation g = {
        .options = o, .signal_fd = signal_fd, .has_text = vf_scheduler_tokenizer(s) != NULL};
    struct vf_engine_totals prefilled = {0};
    bool measure = o->request.json || o->stats;
    code = submit(&o->request, s, &g, err);
    if (!code)
        code = run(s, &g, measure, &prefilled, err);
    if (!code && !o->request.json)
        write_out(&g, "\n", 1);
    if (!code && !g.code && measure)
        code = report(s, &g, &prefilled, err);
    if (!code && g.code) {
        *err = g.err;
        code = g.code;
    }
    free(g.ids);
    free(g.text);
    vf_scheduler_destroy(s);
    return code;
}

int vf_generate_main(int argc, char **argv)
{
    struct options o;
    struct vf_err err = {0};
    int signal_fd = -1;
    enum vf_code code = parse(&o, argc, argv, &err);
    if (!code)
        code = vf_signals_open(&signal_fd, &err);
    if (!code)
        code = generate(&o, signal_fd, &err);
    vf_generate_options_deinit(&o.request);
    vf_run_options_deinit(&o.run);
    if (code && signal_fd < 0)
        return vf_cli_fail(PROGRAM, &err);
    if (code == VF_ERR_IO && err.sys_errno == EPIPE)
        return 1; /* the reader has seen enough */
    int status = code ? vf_signals_exit(signal_fd, PROGRAM, &err) : 0;
    close(signal_fd);
    return status;
}
