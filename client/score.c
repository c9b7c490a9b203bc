/* vflow-client score: how likely a text is, and on request the log-probabilities of every position.
 * Rows arrive in parts and go to the file one part at a time.
 */
#include "client/commands.h"
#include "client/session.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/npy.h"
#include "common/base/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM  "vflow-client score"
#define TEXT_MAX ((size_t)1 << 20) /* a server takes no longer text */

struct score_options {
    struct vf_session_options session;
    const char *tokens, *file, *logits;
    int64_t stride;
    bool no_bos, json;
};

struct text {
    char *bytes;
    size_t count;
};

static enum vf_code parse_options(int argc, char **argv, struct score_options *o,
                                  struct vf_err *err)
{
    vf_session_options_init(&o->session);
    struct vf_opt opts[VF_SESSION_OPTION_COUNT + 6];
    size_t n = vf_session_options_table(&o->session, opts);
    const struct vf_opt own[] = {
        {"tokens", 0, VF_OPT_STRING, &o->tokens, "1,2,3", "the text as token ids", 0, 0, NULL},
        {"file", 'f', VF_OPT_STRING, &o->file, "TEXT",
         "a file with the text (UTF-8), or - for standard input", 0, 0, NULL},
        {"no-bos", 0, VF_OPT_FLAG, &o->no_bos, NULL,
         "put no beginning-of-sequence token before the text", 0, 0, NULL},
        {"logits", 0, VF_OPT_STRING, &o->logits, "OUT.npy",
         "write log P(next | tokens so far), float32 [tokens, vocabulary]", 0, 0, NULL},
        {"stride", 0, VF_OPT_INT, &o->stride, "N",
         "a text longer than the server's context is scored in windows that begin N tokens apart "
         "(default: half the context)",
         1, 1 << 24, NULL},
        {"json", 0, VF_OPT_FLAG, &o->json, NULL, "print one JSON object", 0, 0, NULL},
    };
    memcpy(opts + n, own, sizeof own);
    const struct vf_cli cli = {PROGRAM,
                               "--connect ENDPOINT (--tokens 1,2,3 | --file TEXT) [options]",
                               "Says how likely a text is to a vflow server's model.",
                               opts,
                               n + VF_ARRAY_LEN(own),
                               0,
                               0};
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, err);
    if (!code && !o->tokens == !o->file)
        code = vf_err_set(err, VF_ERR_USAGE, "give either --tokens 1,2,3 or --file TEXT");
    return code;
}

/* The server would refuse it too, but can't know the file. */
static enum vf_code read_text(const char *path, struct text *text, struct vf_err *err)
{
    enum vf_code code = vf_read_text(path, TEXT_MAX, &text->bytes, &text->count, err);
    if (code)
        return code;
    size_t valid = vf_utf8_valid_bytes(text->bytes, text->count);
    if (valid == text->count)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: the text is not UTF-8: found the byte 0x%02x at offset %zu", path,
                      (unsigned char)text->bytes[valid], valid);
}

static enum vf_code send_request(struct vf_session *s, const struct score_options *o,
                                 const struct text *text, uint64_t *id, struct vf_err *err)
{
    Vflow__ScoreRequest request = VFLOW__SCORE_REQUEST__INIT;
    Vflow__TokenList list = VFLOW__TOKEN_LIST__INIT;
    enum vf_code code = VF_OK;
    if (o->tokens)
        code = vf_cli_parse_ids(o->tokens, UINT32_MAX, &list.ids, &list.n_ids, err);
    request.rows = o->logits != NULL;
    request.stride = (uint32_t)o->stride;
    request.no_bos = o->no_bos;
    request.input_case =
        o->tokens ? VFLOW__SCORE_REQUEST__INPUT_TOKENS : VFLOW__SCORE_REQUEST__INPUT_TEXT;
    if (o->tokens)
        request.tokens = &list;
    else
        request.text = (ProtobufCBinaryData){text->count, (uint8_t *)text->bytes};
    if (!code)
        code = vf_client_score(s->client, &request, id, err);
    free(list.ids);
    return code;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct rows_file {
    const char *path; /* NULL: no rows wanted */
    struct vf_npy *npy;
    uint32_t token_count, vocab_size, next;
};

static enum vf_code take_rows(struct rows_file *f, const Vflow__ScoreResult *part,
                              struct vf_err *err)
{
    if (!f->path || part->row_count == 0)
        return VF_OK;
    enum vf_code code = VF_OK;
    if (!f->npy) {
        f->vocab_size = part->vocab_size;
        code = vf_npy_create(f->path, f->token_count, part->vocab_size, &f->npy, err);
    }
    if (!code && (part->first_position != f->next || part->vocab_size != f->vocab_size))
        code = vf_err_set(err, VF_ERR_PROTOCOL,
                          "rows of position %u with %u entries came, expected %u with %u",
                          part->first_position, part->vocab_size, f->next, f->vocab_size);
    if (!code)
        code = vf_npy_append(f->npy, part->rows.data, part->row_count, err);
    f->next += part->row_count;
    return code;
}

static enum vf_code finish_rows(struct rows_file *f, struct vf_err *err)
{
    if (!f->path)
        return VF_OK;
    if (!f->npy)
        return vf_err_set(err, VF_ERR_PROTOCOL, "the server sent no rows");
    if (f->next != f->token_count)
        return vf_err_set(err, VF_ERR_PROTOCOL, "the server sent rows for %u of %u positions",
                          f->next, f->token_count);
    return vf_npy_commit(f->npy, err);
}

/* ---- the result ------------------------------------------------------------------------------ */

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* The keys are those of vflow-coordinator score. */
static enum vf_code print_json(const Vflow__ScoreResult *r, double seconds, struct vf_err *err)
{
    double nll = r->token_count > 1 ? r->mean_nll : NAN;
    json_t *logp = json_array();
    for (size_t i = 0; i < r->n_token_logp; i++)
        json_array_append_new(logp, real_or_null(r->token_logp[i]));
    json_t *root = json_pack("{s:I, s:I, s:o, s:o, s:o, s:f, s:o}", "tokens",
                             (json_int_t)r->token_count, "windows", (json_int_t)r->windows,
                             "stride", r->windows > 1 ? json_integer(r->stride) : json_null(),
                             "mean_nll", real_or_null(nll), "perplexity", real_or_null(exp(nll)),
                             "seconds", seconds, "token_logp", logp);
    char *dump = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!dump)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the JSON output");
    puts(dump);
    free(dump);
    return VF_OK;
}

static enum vf_code print_result(const Vflow__ScoreResult *r, bool json, double seconds,
                                 struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (json)
        code = print_json(r, seconds, err);
    else if (r->token_count < 2)
        printf("tokens      %u\nmean nll    -\nperplexity  -\n", r->token_count);
    else
        printf("tokens      %u\nmean nll    %.6f\nperplexity  %.4f\n", r->token_count, r->mean_nll,
               exp(r->mean_nll));
    return code ? code : vf_flush_stdout(err);
}

static enum vf_code receive(struct vf_session *s, uint64_t id, struct rows_file *rows, bool json,
                            struct vf_err *err)
{
    uint64_t began = vf_now_ns();
    for (;;) {
        struct vf_client_event event;
        enum vf_code code = vf_session_next(s, id, &event, err);
        if (code)
            return code;
        if (event.kind == VF_CLIENT_ACCEPTED)
            rows->token_count = event.message->accepted->prompt_tokens;
        if (event.kind == VF_CLIENT_ROWS || event.kind == VF_CLIENT_SCORED)
            code = take_rows(rows, event.message->score_result, err);
        if (code) {
            vf_session_abandon(s, id);
            return code;
        }
        if (event.kind == VF_CLIENT_SCORED) {
            code = finish_rows(rows, err);
            double seconds = (double)(vf_now_ns() - began) * 1e-9;
            return code ? code : print_result(event.message->score_result, json, seconds, err);
        }
    }
}

int vf_client_score_main(int argc, char **argv)
{
    struct score_options o = {0};
    struct vf_session session = {.program = PROGRAM, .signal_fd = -1};
    struct vf_err err = {0};
    uint64_t id = 0;
    enum vf_code code = parse_options(argc, argv, &o, &err);
    struct rows_file rows = {.path = o.logits};
    struct text text = {0};
    if (!code && o.file)
        code = read_text(o.file, &text, &err);
    if (!code)
        code = vf_session_open(&session, PROGRAM, &o.session, &err);
    if (!code)
        code = send_request(&session, &o, &text, &id, &err);
    if (!code)
        receive(&session, id, &rows, o.json, &err);
    vf_npy_destroy(rows.npy);
    free(text.bytes);
    vf_session_close(&session);
    return vf_session_exit(&session, &err);
}
