/* vflow-client generate: text appears on stdout as it arrives; with --json one object at the end.
 */
#include "client/commands.h"
#include "client/session.h"
#include "common/base/json.h"
#include "common/base/util.h"
#include "common/run/generate_options.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "vflow-client generate"

struct options {
    struct vf_session_options session;
    struct vf_generate_options request;
};

/* What has arrived. For --json the text is kept, else it is printed at once. */
struct output {
    bool json;
    bool has_text; /* the model has a tokenizer; else ids are the result */
    char *text;
    size_t text_bytes;
    FILE *text_stream; /* into text */
    uint32_t *ids;
    size_t id_count, id_capacity;
};

static enum vf_code parse_options(int argc, char **argv, struct options *o, struct vf_err *err)
{
    vf_session_options_init(&o->session);
    vf_generate_options_init(&o->request);
    struct vf_opt opts[VF_SESSION_OPTION_COUNT + VF_GENERATE_OPTION_COUNT];
    size_t n = vf_session_options_table(&o->session, opts);
    n += vf_generate_options_table(&o->request, opts + n);
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "-c ENDPOINT (-p TEXT | --prompt-file FILE | --tokens 1,2,3) [options]",
        .summary = "Continues a text on a vflow server.",
        .opts = opts,
        .opt_count = n,
    };
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, err);
    return code ? code : vf_generate_options_read(&o->request, err);
}

/* ---- the request ----------------------------------------------------------------------------- */

static ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
}

static enum vf_code send_request(struct vf_session *s, const struct vf_generate_options *o,
                                 uint64_t *id, struct vf_err *err)
{
    Vflow__Sampling sampling = VFLOW__SAMPLING__INIT;
    sampling.temperature = o->temperature;
    sampling.top_k = (uint32_t)o->top_k;
    sampling.top_p = o->top_p > 0 ? o->top_p : DBL_MIN; /* a message's 0 is "off" */
    sampling.min_p = o->min_p;
    sampling.seed = (uint64_t)o->seed;
    ProtobufCBinaryData stop[VF_OPT_LIST_MAX];
    for (int i = 0; i < o->stop.count; i++)
        stop[i] = bytes_of(o->stop.items[i]);
    Vflow__GenerateRequest request = VFLOW__GENERATE_REQUEST__INIT;
    request.max_tokens = (uint32_t)o->max_tokens;
    request.sampling = &sampling;
    request.stop = stop;
    request.n_stop = (size_t)o->stop.count;
    request.ignore_eos = o->ignore_eos;
    request.no_bos = o->no_bos;
    Vflow__TokenList list = VFLOW__TOKEN_LIST__INIT;
    if (o->text) {
        request.prompt_case = VFLOW__GENERATE_REQUEST__PROMPT_TEXT;
        request.text = (ProtobufCBinaryData){o->text_bytes, (uint8_t *)o->text};
        return vf_client_generate(s->client, &request, id, err);
    }
    enum vf_code code = vf_cli_parse_ids(o->tokens, UINT32_MAX, &list.ids, &list.n_ids, err);
    request.prompt_case = VFLOW__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &list;
    if (!code)
        code = vf_client_generate(s->client, &request, id, err);
    free(list.ids);
    return code;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static enum vf_code keep_ids(struct output *out, const Vflow__Tokens *tokens, struct vf_err *err)
{
    if (tokens->n_ids > out->id_capacity - out->id_count) {
        size_t capacity = 2 * out->id_capacity + tokens->n_ids;
        uint32_t *grown = realloc(out->ids, capacity * sizeof *grown);
        if (!grown)
            return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu token ids", capacity);
        out->ids = grown;
        out->id_capacity = capacity;
    }
    if (tokens->n_ids)
        memcpy(out->ids + out->id_count, tokens->ids, tokens->n_ids * sizeof *out->ids);
    out->id_count += tokens->n_ids;
    return VF_OK;
}

static enum vf_code print(const void *data, size_t n, struct vf_err *err)
{
    if (n == 0) /* data may be NULL then, which fwrite doesn't take */
        return VF_OK;
    if (fwrite(data, 1, n, stdout) != n || fflush(stdout) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't write to stdout");
    return VF_OK;
}

static enum vf_code print_ids(const struct output *out, size_t first, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = first; i < out->id_count && !code; i++) {
        char word[16];
        int n = snprintf(word, sizeof word, "%s%u", i ? " " : "", out->ids[i]);
        code = print(word, (size_t)n, err);
    }
    return code;
}

static enum vf_code take_tokens(struct output *out, const Vflow__Tokens *tokens, struct vf_err *err)
{
    size_t first = out->id_count;
    enum vf_code code = keep_ids(out, tokens, err);
    if (code)
        return code;
    if (!out->json)
        return out->has_text ? print(tokens->text.data, tokens->text.len, err)
                             : print_ids(out, first, err);
    if (tokens->text.len &&
        fwrite(tokens->text.data, 1, tokens->text.len, out->text_stream) != tokens->text.len)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the text");
    return VF_OK;
}

static json_t *rate(double tokens, double seconds)
{
    return seconds > 0 ? json_real(tokens / seconds) : json_null();
}

static json_t *stats_json(const Vflow__GenerateDone *done)
{
    bool eos = strcmp(done->reason, "eos") == 0;          /* took a step and isn't counted */
    double steps = (double)done->generated_tokens - !eos; /* after the first token */
    return json_pack("{s:I, s:I, s:f, s:f, s:o, s:o}", "prompt_tokens",
                     (json_int_t)done->prompt_tokens, "generated_tokens",
                     (json_int_t)done->generated_tokens, "prefill_seconds", done->prefill_seconds,
                     "decode_seconds", done->decode_seconds, "prefill_tokens_per_second",
                     rate(done->prompt_tokens, done->prefill_seconds), "decode_tokens_per_second",
                     rate(steps, done->decode_seconds));
}

/* The keys are those of vflow-coordinator generate, and the request's id. */
static enum vf_code print_json(struct output *out, uint64_t id, const Vflow__GenerateDone *done,
                               struct vf_err *err)
{
    fflush(out->text_stream);
    json_t *ids = json_array();
    for (size_t i = 0; i < out->id_count; i++)
        json_array_append_new(ids, json_integer(out->ids[i]));
    json_t *text = out->has_text ? json_stringn(out->text, out->text_bytes) : json_null();
    char id_text[24]; /* a string: JSON numbers end at 2^53 */
    snprintf(id_text, sizeof id_text, "%llu", (unsigned long long)id);
    json_t *root = json_pack("{s:s, s:o, s:o, s:s, s:o}", "request_id", id_text, "text", text,
                             "tokens", ids, "reason", done->reason, "stats", stats_json(done));
    char *dump = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!dump)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "the server's answer isn't UTF-8 text and finite numbers");
    enum vf_code code = print(dump, strlen(dump), err);
    free(dump);
    return code ? code : print("\n", 1, err);
}

static enum vf_code receive(struct vf_session *s, uint64_t id, struct output *out,
                            struct vf_err *err)
{
    for (;;) {
        struct vf_client_event event;
        enum vf_code code = vf_session_next(s, id, &event, err);
        if (code)
            return code;
        if (event.kind == VF_CLIENT_DONE && out->json)
            return print_json(out, id, event.message->generate_done, err);
        if (event.kind == VF_CLIENT_DONE) {
            const Vflow__GenerateDone *done = event.message->generate_done;
            if (s->verbosity)
                fprintf(stderr, "%s: %s after %u tokens\n", PROGRAM, done->reason,
                        done->generated_tokens);
            return print("\n", 1, err);
        }
        if (event.kind == VF_CLIENT_ACCEPTED)
            out->has_text = event.message->accepted->has_text;
        if (event.kind == VF_CLIENT_TOKENS)
            code = take_tokens(out, event.message->tokens, err);
        if (code) {
            vf_session_abandon(s, id);
            return code;
        }
    }
}

int vf_client_generate_main(int argc, char **argv)
{
    struct options o = {0};
    struct vf_session session = {.program = PROGRAM, .signal_fd = -1};
    struct output out = {0};
    struct vf_err err = {0};
    uint64_t id = 0;
    enum vf_code code = parse_options(argc, argv, &o, &err);
    if (!code)
        code = vf_session_open(&session, PROGRAM, &o.session, &err);
    if (!code)
        code = send_request(&session, &o.request, &id, &err);
    if (!code && session.verbosity)
        fprintf(stderr, "%s: request %llu\n", PROGRAM, (unsigned long long)id);
    out.json = o.request.json;
    if (!code && !(out.text_stream = open_memstream(&out.text, &out.text_bytes)))
        code = vf_err_set(&err, VF_ERR_NO_MEMORY, "no memory for the text");
    if (!code)
        code = receive(&session, id, &out, &err);
    if (out.text_stream)
        fclose(out.text_stream);
    free(out.text);
    free(out.ids);
    vf_generate_options_deinit(&o.request);
    vf_session_close(&session);
    return vf_session_exit(&session, &err);
}
