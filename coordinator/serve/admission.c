#include "coordinator/serve/admission.h"

#include "common/base/util.h"
#include "common/run/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- input: a text or token ids -------------------------------------------------------------- */

static enum vf_code take_text(const struct vf_admission *a, ProtobufCBinaryData text, bool add_bos,
                              struct vf_admitted *out, struct vf_err *err)
{
    if (a->tokenizer_fault)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "text: %s; send token ids instead",
                          a->tokenizer_fault->text);
    if (!a->tokenizer)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "text: the model has no tokenizer, send token ids instead");
    if (text.len > VF_ADMISSION_TEXT_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "text: %zu bytes, at most %u are allowed", text.len,
                          VF_ADMISSION_TEXT_MAX);
    if (!vf_utf8_valid((const char *)text.data, text.len))
        return vf_err_set(err, VF_ERR_CORRUPT, "text: isn't valid UTF-8");
    enum vf_code code =
        vf_tokenizer_encode_prompt(a->tokenizer, (const char *)text.data, text.len, add_bos,
                                   &out->tokens, &out->request.token_count, NULL, err);
    if (code)
        vf_err_prepend(err, "text: ");
    return code;
}

static enum vf_code take_ids(const Vflow__TokenList *list, struct vf_admitted *out,
                             struct vf_err *err)
{
    if (list->n_ids == 0)
        return VF_OK; /* check_tokens says it */
    out->tokens = malloc(list->n_ids * sizeof *out->tokens);
    if (!out->tokens)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "tokens: no memory for %zu ids", list->n_ids);
    memcpy(out->tokens, list->ids, list->n_ids * sizeof *out->tokens);
    out->request.token_count = list->n_ids;
    return VF_OK;
}

static enum vf_code check_tokens(const struct vf_admission *a, struct vf_admitted *out,
                                 struct vf_err *err)
{
    out->request.tokens = out->tokens;
    if (out->request.token_count == 0)
        return vf_err_set(err, VF_ERR_USAGE, "no tokens: at least one is needed");
    for (size_t i = 0; i < out->request.token_count; i++)
        if (out->tokens[i] >= a->vocab_size)
            return vf_err_set(err, VF_ERR_USAGE,
                              "token %zu is %u, the model's vocabulary ends at %u", i,
                              out->tokens[i], a->vocab_size - 1);
    return VF_OK;
}

/* ---- sampling and stops ---------------------------------------------------------------------- */

static enum vf_code take_sampling(const Vflow__Sampling *m, struct vf_sampling *out,
                                  struct vf_err *err)
{
    static const Vflow__Sampling greedy = VFLOW__SAMPLING__INIT;
    if (!m)
        m = &greedy;
    *out = (struct vf_sampling){.temperature = m->temperature,
                                .top_k = m->top_k,
                                .top_p = m->top_p != 0 ? m->top_p : 1,
                                .min_p = m->min_p,
                                .seed = m->seed};
    enum vf_code code = vf_sampling_check(out, err);
    if (code)
        vf_err_prepend(err, "sampling: ");
    return code;
}

static enum vf_code take_stop(ProtobufCBinaryData stop, struct vf_admitted *out, struct vf_err *err)
{
    int i = out->request.stop_count;
    if (stop.len == 0 || stop.len > VF_ADMISSION_STOP_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "stop[%d]: %zu bytes, from 1 to %u allowed", i,
                          stop.len, VF_ADMISSION_STOP_MAX);
    if (!vf_utf8_valid((const char *)stop.data, stop.len) || memchr(stop.data, 0, stop.len))
        return vf_err_set(err, VF_ERR_CORRUPT, "stop[%d]: isn't valid UTF-8 without NUL", i);
    char *copy = malloc(stop.len + 1);
    if (!copy)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "stop[%d]: no memory for %zu bytes", i, stop.len);
    memcpy(copy, stop.data, stop.len);
    copy[stop.len] = 0;
    out->stops[i] = copy;
    out->request.stop[i] = copy;
    out->request.stop_count++;
    return VF_OK;
}

static enum vf_code take_stops(const struct vf_admission *a, const Vflow__GenerateRequest *m,
                               struct vf_admitted *out, struct vf_err *err)
{
    if (m->n_stop > VF_STOP_STRINGS_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "stop: %zu texts, at most %d are allowed", m->n_stop,
                          VF_STOP_STRINGS_MAX);
    if (m->n_stop && !a->tokenizer)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "stop: the model has no tokenizer");
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < m->n_stop && !code; i++)
        code = take_stop(m->stop[i], out, err);
    return code;
}

/* ---- requests -------------------------------------------------------------------------------- */

enum vf_code vf_admit_generate(const struct vf_admission *a, const Vflow__GenerateRequest *m,
                               struct vf_admitted *out, struct vf_err *err)
{
    memset(out, 0, sizeof *out);
    out->request.kind = VF_REQUEST_GENERATE;
    out->request.max_tokens = m->max_tokens;
    out->request.ignore_eos = m->ignore_eos;
    enum vf_code code = take_sampling(m->sampling, &out->request.sampling, err);
    if (!code)
        code = take_stops(a, m, out, err);
    if (!code && m->prompt_case == VFLOW__GENERATE_REQUEST__PROMPT_TEXT)
        code = take_text(a, m->text, !m->no_bos, out, err);
    else if (!code && m->prompt_case == VFLOW__GENERATE_REQUEST__PROMPT_TOKENS)
        code = take_ids(m->tokens, out, err);
    if (!code)
        code = check_tokens(a, out, err);
    if (code)
        vf_admitted_deinit(out);
    return code;
}

enum vf_code vf_admit_score(const struct vf_admission *a, const Vflow__ScoreRequest *m,
                            struct vf_admitted *out, struct vf_err *err)
{
    memset(out, 0, sizeof *out);
    out->request.kind = VF_REQUEST_SCORE;
    out->request.stride = m->stride;
    enum vf_code code = VF_OK;
    uint64_t row_bytes = (uint64_t)a->vocab_size * sizeof(float);
    if (m->rows && row_bytes > VF_WIRE_MESSAGE_MAX - 4096)
        code = vf_err_set(err, VF_ERR_LIMIT, "rows: one has %llu bytes, a message at most %u",
                          (unsigned long long)row_bytes, VF_WIRE_MESSAGE_MAX);
    if (!code && m->input_case == VFLOW__SCORE_REQUEST__INPUT_TEXT)
        code = take_text(a, m->text, !m->no_bos, out, err);
    else if (!code && m->input_case == VFLOW__SCORE_REQUEST__INPUT_TOKENS)
        code = take_ids(m->tokens, out, err);
    if (!code)
        code = check_tokens(a, out, err);
    if (code)
        vf_admitted_deinit(out);
    return code;
}

void vf_admitted_deinit(struct vf_admitted *admitted)
{
    free(admitted->tokens);
    for (int i = 0; i < VF_STOP_STRINGS_MAX; i++)
        free(admitted->stops[i]);
    memset(admitted, 0, sizeof *admitted);
}
