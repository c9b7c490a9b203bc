/* One engine of the overlap measurement: real worker processes behind a scheduler in this process.
 */
#include "bench/experts/overlap.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "common/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#define POLL_MS     1000
#define SCORE_CHUNK 8u
#define CACHED_DEPTH                                                                               \
    8u /* given, so that no probe of the drive is made for an engine without reads */

const char *const overlap_arm_names[OVERLAP_ARMS] = {"compute alone", "sync", "staged"};

/* ---- a request ---------------------------------------------------------------------------- */

static void on_token(void *ctx, uint64_t id, uint32_t token, const char *text, size_t n)
{
    (void)id, (void)text, (void)n;
    struct overlap_arm *arm = ctx;
    if (token != VF_TOKEN_NONE)
        arm->text[OVERLAP_PROMPT + arm->said++] = token;
}

static void on_rows(void *ctx, uint64_t id, uint32_t first, uint32_t count, const float *rows)
{
    (void)id;
    struct overlap_arm *arm = ctx;
    VF_ASSERT(first == arm->row_count);
    memcpy(arm->rows + (size_t)first * arm->vocab, rows, (size_t)count * arm->vocab * sizeof *rows);
    arm->row_count += count;
}

static void on_done(void *ctx, uint64_t id, enum vf_finish finish,
                    const struct vf_request_stats *stats)
{
    (void)id, (void)finish, (void)stats;
    ((struct overlap_arm *)ctx)->ended = true;
}

static void on_failed(void *ctx, uint64_t id, const struct vf_err *err)
{
    (void)id;
    struct overlap_arm *arm = ctx;
    arm->ended = true;
    arm->code = err->code;
    arm->err = *err;
}

static enum vf_code submit(struct overlap_arm *arm, const struct vf_request *request,
                           struct vf_err *err)
{
    static const struct vf_request_events events = {on_token, on_rows, on_done, on_failed};
    uint64_t id;
    arm->ended = false;
    return vf_scheduler_submit(arm->scheduler, request, &events, arm, &id, err);
}

static enum vf_code poll_arm(struct overlap_arm *arm, struct vf_err *err)
{
    enum vf_code code = vf_scheduler_poll(arm->scheduler, POLL_MS, NULL, err);
    if (code == VF_OK && arm->code) {
        *err = arm->err;
        code = arm->code;
    }
    return code;
}

/* Until the request is over and forgotten. */
static enum vf_code finish_request(struct overlap_arm *arm, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    while (code == VF_OK && !arm->ended)
        code = poll_arm(arm, err);
    return code;
}

/* Waits for experts and bytes read since the last look. */
static enum vf_code read_totals(struct overlap_arm *arm, double *stall_ms, uint64_t *bytes,
                                struct vf_err *err)
{
    struct vf_engine_totals t;
    enum vf_code code = vf_engine_read_totals(vf_scheduler_engine(arm->scheduler), true, &t, err);
    if (code != VF_OK)
        return code;
    *stall_ms = (double)(t.stats.stall_ns - arm->stall_ns) * 1e-6;
    *bytes = t.expert_bytes_read - arm->read_bytes;
    arm->stall_ns = t.stats.stall_ns;
    arm->read_bytes = t.expert_bytes_read;
    return VF_OK;
}

enum vf_code overlap_arm_begin(struct overlap_arm *arm, uint32_t tokens, struct vf_err *err)
{
    double stall_ms;
    uint64_t bytes;
    for (uint32_t i = 0; i < OVERLAP_PROMPT; i++)
        arm->text[i] = (i + 1) % arm->vocab;
    arm->said = 0;
    struct vf_request request = {.kind = VF_REQUEST_GENERATE,
                                 .tokens = arm->text,
                                 .token_count = OVERLAP_PROMPT,
                                 .max_tokens = tokens + OVERLAP_WARM_UP,
                                 .sampling = {.temperature = 1, .top_p = 1, .seed = 1},
                                 .ignore_eos = true};
    enum vf_code code = read_totals(arm, &stall_ms, &bytes, err);
    return code ? code : submit(arm, &request, err);
}

enum vf_code overlap_arm_next(struct overlap_arm *arm, double *ms, double *stall_ms,
                              uint64_t *read_bytes, struct vf_err *err)
{
    uint32_t before = arm->said;
    uint64_t began = vf_now_ns();
    enum vf_code code = VF_OK;
    while (code == VF_OK && arm->said == before && !arm->ended)
        code = poll_arm(arm, err);
    *ms = (double)(vf_now_ns() - began) * 1e-6;
    if (code == VF_OK && arm->said == before)
        code = vf_err_set(err, VF_ERR_INTERNAL, "a request ended before its last token");
    return code ? code : read_totals(arm, stall_ms, read_bytes, err);
}

enum vf_code overlap_arm_score(struct overlap_arm *arm, struct vf_err *err)
{
    struct vf_request request = {
        .kind = VF_REQUEST_SCORE, .tokens = arm->text, .token_count = OVERLAP_PROMPT + arm->said};
    enum vf_code code = finish_request(arm, err);
    free(arm->rows);
    arm->row_count = 0;
    arm->rows = calloc(request.token_count * arm->vocab, sizeof *arm->rows);
    if (code == VF_OK && !arm->rows)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the scores of %zu tokens",
                          request.token_count);
    if (code == VF_OK)
        code = submit(arm, &request, err);
    return code ? code : finish_request(arm, err);
}

/* ---- life --------------------------------------------------------------------------------- */

static enum vf_code allocate(struct overlap_arm *arm, uint32_t tokens, struct vf_err *err)
{
    arm->text = calloc(OVERLAP_PROMPT + OVERLAP_WARM_UP + tokens, sizeof *arm->text);
    arm->ms = calloc(tokens, sizeof *arm->ms);
    arm->stall_ms = calloc(tokens, sizeof *arm->stall_ms);
    return arm->text && arm->ms && arm->stall_ms
               ? VF_OK
               : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", tokens);
}

enum vf_code overlap_arm_open(struct overlap_arm *arm, enum overlap_arm_kind kind,
                              const struct overlap_options *o, const struct overlap_model *m,
                              uint32_t threads, uint64_t throttle, struct vf_err *err)
{
    bool cached = kind == OVERLAP_CACHED;
    struct vf_engine_params params = {.scores = true, .cancel_fd = -1};
    Vflow__RunSettings *settings = &params.settings;
    vf_run_settings_init(settings);
    settings->model = (char *)o->model;
    settings->kernel = (Vflow__Kernel)o->tier;
    if (kind == OVERLAP_SYNC)
        settings->overlap = VFLOW__OVERLAP__OVERLAP_SYNC;
    settings->speculate = VFLOW__SPECULATE__SPECULATE_OFF;
    settings->experts = VFLOW__EXPERTS__EXPERTS_STREAM;
    settings->expert_cache = cached ? m->all_bytes : o->cache_bytes;
    settings->io_depth = cached ? CACHED_DEPTH : 0;
    settings->io_throttle = throttle;
    settings->threads = threads;
    settings->stage_workers = 1;
    settings->ctx = OVERLAP_PROMPT + OVERLAP_WARM_UP + o->tokens + 1;
    settings->prefill_chunk = SCORE_CHUNK;
    struct vf_engine *engine;
    *arm = (struct overlap_arm){.kind = kind, .vocab = m->vocab};
    enum vf_code code = allocate(arm, o->tokens, err);
    if (code == VF_OK)
        code = vf_engine_create(&params, &engine, err);
    if (code == VF_OK && (code = vf_scheduler_create(engine, &arm->scheduler, err)) != VF_OK)
        vf_engine_destroy(engine);
    return code ? vf_err_prepend(err, "%s: ", overlap_arm_names[kind]) : VF_OK;
}

void overlap_arm_close(struct overlap_arm *arm)
{
    vf_scheduler_destroy(arm->scheduler);
    free(arm->text);
    free(arm->ms);
    free(arm->stall_ms);
    free(arm->rows);
    *arm = (struct overlap_arm){.kind = arm->kind};
}
