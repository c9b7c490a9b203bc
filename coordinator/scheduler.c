/* Requests become sequences (KV cache slots), sequences become columns of steps.
 *
 * A sequence is a list of tokens of which the first `sent` have left in steps; the rest are waiting
 * to be computed: a prompt in chunks, afterwards the one token just sampled. A step takes the
 * waiting token of every sequence that decodes, then fills up with prompts, oldest request first.
 * Prompts don't wait for results, so their chunks keep several stage workers busy.
 *
 * A step that fails with several sequences in it fails for nobody yet: each of them goes back to
 * where the step began and tries again alone, so that only the one that can't be computed fails.
 * Results of steps sent before that are recognised by the sequence's generation and dropped.
 */
#include "coordinator/scheduler.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/tokenizer/tokenizer.h"
#include "coordinator/engine/engine.h"
#include "coordinator/request.h"
#include "coordinator/sampler/sampler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_MAX 1024 /* requests waiting for a slot; clients are told VF_ERR_BUSY beyond */

struct part { /* one sequence's share of a step */
    uint32_t slot;
    uint64_t id; /* of the request */
    uint32_t generation;
    uint32_t first, count; /* columns of the request */
    uint32_t rows;
};

struct sent_step {
    uint64_t step_id;
    struct part *parts; /* [sequences], in ascending order of slots */
    uint32_t part_count;
};

struct vf_scheduler {
    struct vf_engine *engine;
    const struct vf_engine_info *info;
    const struct vf_config *config;
    struct vf_tokenizer *tokenizer;
    struct vf_err tokenizer_fault; /* why there is none although the model has one */
    struct vf_sampler *sampler;

    struct request **slots; /* [sequences] */
    struct request *queue_head, *queue_tail;
    uint32_t active, queued;
    uint64_t next_id;
    uint32_t next_slot; /* decode starts here when rows are scarce */

    struct sent_step *steps; /* ring [depth], oldest first */
    uint32_t step_begin, step_count;
    struct vf_step_column *columns;
    uint32_t columns_max; /* of flow 0 */
    uint32_t *take;       /* [sequences], see struct composition */

    bool broken;
    struct vf_err err; /* why */

    struct vf_scheduler_totals totals;
};

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code load_tokenizer(struct vf_scheduler *s, struct vf_err *err)
{
    const struct vf_model_file *file = vf_engine_model(s->engine);
    size_t bytes;
    const char *json = vf_model_file_tokenizer(file, &bytes);
    if (!json)
        return VF_OK;
    enum vf_code code = vf_tokenizer_create(json, bytes, vf_model_file_path(file), &s->tokenizer,
                                            &s->tokenizer_fault);
    if (!code || code == VF_ERR_NO_MEMORY) {
        if (code)
            *err = s->tokenizer_fault;
        return code;
    }
    vf_err_prepend(&s->tokenizer_fault, "embedded tokenizer: ");
    vf_warn("%s; the run takes token ids only", s->tokenizer_fault.text);
    return VF_OK;
}

static enum vf_code allocate(struct vf_scheduler *s, struct vf_err *err)
{
    uint32_t n = s->info->sequences;
    s->columns_max = (uint32_t)vf_max_u64(s->info->chunk, n);
    s->slots = calloc(n, sizeof(struct request *));
    s->steps = calloc(s->info->depth, sizeof *s->steps);
    s->columns = calloc((size_t)s->columns_max * s->config->flow_count, sizeof *s->columns);
    s->take = calloc(n, sizeof *s->take);
    bool ok = s->slots && s->steps && s->columns && s->take;
    for (uint32_t i = 0; ok && i < s->info->depth; i++)
        ok = (s->steps[i].parts = calloc(n, sizeof(struct part))) != NULL;
    return ok ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u sequences", n);
}

enum vf_code vf_scheduler_create(struct vf_engine *engine, struct vf_scheduler **out,
                                 struct vf_err *err)
{
    *out = NULL;
    struct vf_scheduler *s = calloc(1, sizeof *s);
    if (!s) {
        vf_engine_destroy(engine);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the scheduler");
    }
    s->engine = engine;
    s->info = vf_engine_info(engine);
    s->config = vf_model_file_config(vf_engine_model(engine));
    s->next_id = 1;
    enum vf_code code = allocate(s, err);
    if (!code)
        code = vf_sampler_create(s->config->vocab_size, &s->sampler, err);
    if (!code)
        code = load_tokenizer(s, err);
    if (code) {
        vf_scheduler_destroy(s);
        return code;
    }
    *out = s;
    return VF_OK;
}

void vf_scheduler_destroy(struct vf_scheduler *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->slots && i < s->info->sequences; i++)
        request_destroy(s->slots[i]);
    while (s->queue_head) {
        struct request *next = s->queue_head->next;
        request_destroy(s->queue_head);
        s->queue_head = next;
    }
    for (uint32_t i = 0; s->steps && i < s->info->depth; i++)
        free(s->steps[i].parts);
    free(s->steps);
    free(s->slots);
    free(s->columns);
    free(s->take);
    vf_sampler_destroy(s->sampler);
    vf_tokenizer_destroy(s->tokenizer);
    vf_engine_destroy(s->engine);
    free(s);
}

struct vf_engine *vf_scheduler_engine(const struct vf_scheduler *s)
{
    return s->engine;
}

const struct vf_tokenizer *vf_scheduler_tokenizer(const struct vf_scheduler *s)
{
    return s->tokenizer;
}

const struct vf_err *vf_scheduler_tokenizer_fault(const struct vf_scheduler *s)
{
    return s->tokenizer_fault.code ? &s->tokenizer_fault : NULL;
}

uint32_t vf_scheduler_active(const struct vf_scheduler *s)
{
    return s->active;
}

uint32_t vf_scheduler_queued(const struct vf_scheduler *s)
{
    return s->queued;
}

void vf_scheduler_totals(const struct vf_scheduler *s, struct vf_scheduler_totals *out)
{
    *out = s->totals;
}

struct vf_windows vf_scheduler_windows(const struct vf_scheduler *s, size_t tokens, uint32_t stride)
{
    return request_windows(s->info->context, tokens, stride);
}

/* ---- submit and cancel --------------------------------------------------------------------- */

enum vf_code vf_scheduler_submit(struct vf_scheduler *s, const struct vf_request *request,
                                 const struct vf_request_events *events, void *ctx, uint64_t *id,
                                 struct vf_err *err)
{
    if (s->broken) {
        *err = s->err;
        return err->code;
    }
    if (s->queued >= QUEUE_MAX)
        return vf_err_set(err, VF_ERR_BUSY, "%u requests are waiting, more aren't taken",
                          s->queued);
    const struct request_limits limits = {s->info->context, s->config->vocab_size, s->tokenizer};
    struct request *r = NULL;
    enum vf_code code = request_create(&limits, request, events, ctx, &r, err);
    if (code)
        return code;
    *id = r->id = s->next_id++;
    if (s->queue_tail)
        s->queue_tail->next = r;
    else
        s->queue_head = r;
    s->queue_tail = r;
    s->queued++;
    return VF_OK;
}

static struct request *find_request(const struct vf_scheduler *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->info->sequences; i++)
        if (s->slots[i] && s->slots[i]->id == id)
            return s->slots[i];
    struct request *r = s->queue_head;
    while (r && r->id != id)
        r = r->next;
    return r;
}

bool vf_scheduler_cancel(struct vf_scheduler *s, uint64_t id)
{
    struct request *r = find_request(s, id);
    if (!r || r->ended || r->cancelled)
        return false;
    r->cancelled = true; /* the next poll tells its owner */
    return true;
}

/* ---- the end of a request ------------------------------------------------------------------ */

static double seconds_between(uint64_t begin_ns, uint64_t end_ns)
{
    return begin_ns && end_ns > begin_ns ? (double)(end_ns - begin_ns) * 1e-9 : 0;
}

/* Ended requests keep their slot until the poll's own loops are through. */
static void end_done(struct vf_scheduler *s, struct request *r, enum vf_finish finish)
{
    uint64_t prefilled_ns = r->first_ns ? r->first_ns : r->last_ns;
    struct vf_request_stats stats = {
        .prompt_tokens = r->prompt,
        .generated_tokens = r->count - r->prompt,
        .prefill_seconds = seconds_between(r->began_ns, prefilled_ns),
        .decode_seconds = seconds_between(r->first_ns, r->last_ns),
    };
    r->ended = true;
    s->totals.requests_done++;
    vf_debug("request %" PRIu64 " is done: %u prompt, %u generated tokens", r->id, r->prompt,
             stats.generated_tokens);
    r->events.done(r->ctx, r->id, finish, &stats);
}

static void end_failed(struct vf_scheduler *s, struct request *r, const struct vf_err *err)
{
    r->ended = true;
    s->totals.requests_done++;
    vf_debug("request %" PRIu64 " failed: %s", r->id, err->text);
    r->events.failed(r->ctx, r->id, err);
}

/* The engine is broken: from here on nothing is taken either. */
static void fail_all(struct vf_scheduler *s, const struct vf_err *err)
{
    if (s->broken)
        return;
    s->broken = true;
    s->err = *err;
    for (uint32_t i = 0; i < s->info->sequences; i++)
        if (s->slots[i] && !s->slots[i]->ended)
            end_failed(s, s->slots[i], err);
    for (struct request *r = s->queue_head; r; r = r->next)
        if (!r->ended)
            end_failed(s, r, err);
}

/* Tells owners of cancelled requests. */
static void end_cancelled(struct vf_scheduler *s)
{
    for (uint32_t i = 0; i < s->info->sequences; i++)
        if (s->slots[i] && s->slots[i]->cancelled && !s->slots[i]->ended)
            end_done(s, s->slots[i], VF_FINISH_CANCELLED);
    for (struct request *r = s->queue_head; r; r = r->next)
        if (r->cancelled && !r->ended)
            end_done(s, r, VF_FINISH_CANCELLED);
}

static void remove_ended(struct vf_scheduler *s)
{
    for (uint32_t i = 0; i < s->info->sequences; i++)
        if (s->slots[i] && s->slots[i]->ended) {
            request_destroy(s->slots[i]);
            s->slots[i] = NULL;
            s->active--;
        }
    struct request *last = NULL;
    for (struct request **at = &s->queue_head; *at;) {
        struct request *r = *at;
        if (r->ended) {
            *at = r->next;
            request_destroy(r);
            s->queued--;
        } else {
            last = r;
            at = &r->next;
        }
    }
    s->queue_tail = last;
}

static void admit(struct vf_scheduler *s)
{
    for (uint32_t i = 0; i < s->info->sequences && s->queue_head; i++) {
        if (s->slots[i])
            continue;
        struct request *r = s->queue_head;
        s->queue_head = r->next;
        if (!s->queue_head)
            s->queue_tail = NULL;
        r->next = NULL;
        s->queued--;
        s->slots[i] = r;
        s->active++;
    }
}

/* ---- composing a step ---------------------------------------------------------------------- */

struct composition {
    uint32_t *take; /* [sequences]: positions taken of each slot */
    uint32_t columns_left, prompt_left, rows_left;
};

static void take_request_decodes(struct vf_scheduler *s, struct composition *c)
{
    uint32_t n = s->info->sequences, last = s->next_slot;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (s->next_slot + k) % n;
        if (!request_waiting(s->slots[i]) || !request_decodes(s->slots[i]) || !c->rows_left ||
            !c->columns_left)
            continue;
        c->take[i] = 1;
        c->rows_left--;
        c->columns_left--;
        last = (i + 1) % n;
    }
    s->next_slot = last;
}

static void take_prompt(struct vf_scheduler *s, struct composition *c, uint32_t slot)
{
    struct request *r = s->slots[slot];
    uint32_t columns = c->prompt_left < c->columns_left ? c->prompt_left : c->columns_left;
    uint32_t n = request_share(r, columns, c->rows_left);
    c->take[slot] = n;
    c->columns_left -= n;
    c->prompt_left -= n;
    c->rows_left -= request_rows(r, r->sent, n);
}

/* The oldest request whose prompt has positions left and none taken. */
static int oldest_prompt(const struct vf_scheduler *s, const struct composition *c, uint64_t after)
{
    int best = -1;
    for (uint32_t i = 0; i < s->info->sequences; i++) {
        const struct request *r = s->slots[i];
        if (!request_waiting(r) || request_decodes(r) || c->take[i] || r->id <= after)
            continue;
        if (best < 0 || r->id < s->slots[best]->id)
            best = (int)i;
    }
    return best;
}

static int first_alone(const struct vf_scheduler *s)
{
    for (uint32_t i = 0; i < s->info->sequences; i++)
        if (s->slots[i] && s->slots[i]->alone && request_waiting(s->slots[i]))
            return (int)i;
    return -1;
}

static void compose(struct vf_scheduler *s, struct composition *c)
{
    int alone = first_alone(s);
    if (alone >= 0 && request_decodes(s->slots[alone])) {
        c->take[alone] = c->rows_left > 0;
        return;
    }
    if (alone >= 0) {
        take_prompt(s, c, (uint32_t)alone);
        return;
    }
    take_request_decodes(s, c);
    uint64_t after = 0;
    for (int i; c->prompt_left && c->columns_left && (i = oldest_prompt(s, c, after)) >= 0;) {
        after = s->slots[i]->id;
        take_prompt(s, c, (uint32_t)i);
    }
}

/* ---- sending ------------------------------------------------------------------------------- */

static uint32_t emit_flow0(struct vf_scheduler *s, const uint32_t *take, struct sent_step *step)
{
    uint32_t n = 0;
    step->part_count = 0;
    for (uint32_t i = 0; i < s->info->sequences; i++) {
        struct request *r = s->slots[i];
        if (!r || !take[i])
            continue;
        struct part part = {i,       r->id,   r->generation,
                            r->sent, take[i], request_rows(r, r->sent, take[i])};
        step->parts[step->part_count++] = part;
        for (uint32_t p = part.first; p < part.first + part.count; p++, n++)
            s->columns[n] = (struct vf_step_column){.token = r->tokens[request_token(r, p)],
                                                    .position = request_position(r, p),
                                                    .sequence = i,
                                                    .primary = n,
                                                    .want_row = request_wants_row(r, p)};
    }
    return n;
}

static uint32_t emit_auxiliary(struct vf_scheduler *s, uint32_t n_primary)
{
    uint32_t n = n_primary;
    for (uint32_t flow = 1; flow < s->config->flow_count; flow++)
        for (uint32_t i = 0; i < n_primary; i++)
            if (s->columns[i].want_row) {
                s->columns[n] = s->columns[i];
                s->columns[n].flow = flow;
                s->columns[n++].want_row = false;
            }
    return n;
}

/* Sends one step if there is anything to send; *sent tells. */
static enum vf_code send_one(struct vf_scheduler *s, bool *sent, struct vf_err *err)
{
    *sent = false;
    if (s->step_count == s->info->depth || !vf_engine_can_submit(s->engine, false))
        return VF_OK;
    memset(s->take, 0, s->info->sequences * sizeof *s->take);
    struct composition c = {s->take, s->columns_max, s->info->chunk, 0};
    if (vf_engine_can_submit(s->engine, true))
        c.rows_left = s->info->rows_max;
    compose(s, &c);
    struct sent_step *step = &s->steps[(s->step_begin + s->step_count) % s->info->depth];
    uint32_t n = emit_flow0(s, s->take, step);
    if (n == 0)
        return VF_OK;
    uint32_t total = emit_auxiliary(s, n);
    uint64_t now = vf_now_ns();
    enum vf_code code = vf_engine_submit(s->engine, s->columns, total, &step->step_id, err);
    if (code)
        return code;
    for (uint32_t i = 0; i < step->part_count; i++) {
        struct request *r = s->slots[step->parts[i].slot];
        if (!r->began_ns)
            r->began_ns = now;
        r->sent += step->parts[i].count;
    }
    s->step_count++;
    *sent = true;
    return VF_OK;
}

static enum vf_code send_all(struct vf_scheduler *s, struct vf_err *err)
{
    bool sent = true;
    enum vf_code code = VF_OK;
    while (sent && !code)
        code = send_one(s, &sent, err);
    return code;
}

/* ---- results ------------------------------------------------------------------------------- */

/* The request a part belongs to; NULL when that has ended or gone back since. */
static struct request *part_request(const struct vf_scheduler *s, const struct part *part)
{
    struct request *r = s->slots[part->slot];
    bool same = r && r->id == part->id && r->generation == part->generation;
    return same && !r->ended && !r->cancelled ? r : NULL;
}

static bool is_eos(const struct vf_config *c, uint32_t token)
{
    for (uint32_t i = 0; i < c->eos_count; i++)
        if (c->eos_tokens[i] == token)
            return true;
    return false;
}

static enum vf_code finish_generate(struct vf_scheduler *s, struct request *r, enum vf_finish why,
                                    struct vf_err *err)
{
    enum vf_code code = request_deliver_rest(r, err);
    if (!code)
        end_done(s, r, request_stopped(r) ? VF_FINISH_STOP : why);
    return code;
}

/* Adds a sampled token and delivers it; ends the request where it ends. */
static enum vf_code take_token(struct vf_scheduler *s, struct request *r, uint32_t token,
                               struct vf_err *err)
{
    r->tokens[r->count++] = token;
    s->totals.tokens_decoded++;
    enum vf_code code = request_deliver(r, token, err);
    if (code)
        return code;
    if (r->cancelled)
        return VF_OK;
    if (request_stopped(r))
        end_done(s, r, VF_FINISH_STOP);
    else if (r->count == r->limit)
        return finish_generate(s, r, VF_FINISH_LENGTH, err);
    return VF_OK;
}

static enum vf_code take_row(struct vf_scheduler *s, struct request *r, const float *row,
                             struct vf_err *err)
{
    uint32_t token;
    enum vf_code code = vf_sampler_draw(s->sampler, &r->sampling, row, r->count, &token, err);
    if (code)
        return vf_err_prepend(err, "token %u: ", r->count);
    r->last_ns = vf_now_ns();
    if (!r->first_ns)
        r->first_ns = r->last_ns;
    if (!r->ignore_eos && is_eos(s->config, token))
        return finish_generate(s, r, VF_FINISH_EOS, err);
    return take_token(s, r, token, err);
}

static void take_score(struct vf_scheduler *s, struct request *r, const struct part *part,
                       const float *rows)
{
    r->received += part->rows;
    r->last_ns = vf_now_ns();
    r->events.rows(r->ctx, r->id, request_first_row(r, part->first, part->count), part->rows, rows);
    if (r->received == r->limit && !r->cancelled)
        end_done(s, r, VF_FINISH_STOP);
}

static void take_rows(struct vf_scheduler *s, const struct sent_step *step, const float *rows)
{
    for (uint32_t i = 0; i < step->part_count; i++) {
        const struct part *part = &step->parts[i];
        struct request *r = part_request(s, part);
        struct vf_err err;
        if (r) {
            r->alone = false;
            uint32_t end = (uint32_t)vf_min_u64(part->first + part->count, r->prompt);
            s->totals.tokens_prefilled += end > part->first ? end - part->first : 0;
            if (part->rows && r->kind == VF_REQUEST_SCORE)
                take_score(s, r, part, rows);
            else if (part->rows && take_row(s, r, rows, &err) != VF_OK)
                end_failed(s, r, &err);
        }
        if (part->rows)
            rows += (size_t)part->rows * s->config->vocab_size;
    }
}

static void go_back(struct request *r, const struct part *part)
{
    r->sent = part->first;
    r->generation++;
    r->alone = true;
}

static void take_failure(struct vf_scheduler *s, const struct sent_step *step,
                         const struct vf_err *err)
{
    uint32_t concerned = 0;
    for (uint32_t i = 0; i < step->part_count; i++)
        concerned += part_request(s, &step->parts[i]) != NULL;
    for (uint32_t i = 0; i < step->part_count; i++) {
        struct request *r = part_request(s, &step->parts[i]);
        /* Company counts even if it has ended since: it may have been the guilty one. */
        if (r && step->part_count > 1)
            go_back(r, &step->parts[i]);
        else if (r)
            end_failed(s, r, err);
    }
    vf_debug("step %" PRIu64 " of %u sequences (%u concerned) failed: %s", step->step_id,
             step->part_count, concerned, err->text);
}

static void take_done(struct vf_scheduler *s, const struct vf_step_done *done)
{
    VF_ASSERT(s->step_count > 0);
    const struct sent_step *step = &s->steps[s->step_begin];
    VF_ASSERT(step->step_id == done->step_id);
    if (done->failed)
        take_failure(s, step, &done->err);
    else
        take_rows(s, step, done->rows);
    vf_engine_release(s->engine, done->step_id);
    s->step_begin = (s->step_begin + 1) % s->info->depth;
    s->step_count--;
}

/* ---- poll ---------------------------------------------------------------------------------- */

static enum vf_code poll_engine(struct vf_scheduler *s, int timeout_ms,
                                const struct vf_poll_extra *extra, struct vf_err *err)
{
    struct vf_step_done done;
    bool got;
    enum vf_code code = vf_engine_wait(s->engine, timeout_ms, extra, &done, &got, err);
    if (!code && got)
        take_done(s, &done);
    return code;
}

enum vf_code vf_scheduler_poll(struct vf_scheduler *s, int timeout_ms,
                               const struct vf_poll_extra *extra, struct vf_err *err)
{
    end_cancelled(s);
    remove_ended(s);
    admit(s);
    if (s->broken) {
        *err = s->err;
        return err->code;
    }
    enum vf_code code = send_all(s, err);
    if (!code)
        code = poll_engine(s, timeout_ms, extra, err);
    if (code)
        fail_all(s, err);
    end_cancelled(s);
    remove_ended(s);
    return code;
}
