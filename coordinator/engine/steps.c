/* Steps in flight. A step goes to every stage worker at once; the workers run steps in order, so
 * results of the head's worker come in order too and the flights are a ring. When a step fails, the
 * head's worker says that it did and the worker where it happened says why, in either order.
 */
#include "coordinator/engine/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>

static struct flight *flight_at(struct vf_engine *e, uint32_t i)
{
    return &e->flights[(e->flight_begin + i) % VF_MAILBOX_DEPTH];
}

struct flight *engine_oldest_flight(struct vf_engine *e)
{
    return e->flight_count ? flight_at(e, 0) : NULL;
}

static int free_slot(const struct vf_engine *e)
{
    for (int i = 0; i < (int)VF_LOGITS_SLOTS; i++)
        if (e->slot_step[i] == 0)
            return i;
    return -1;
}

bool vf_engine_can_submit(const struct vf_engine *e, bool with_rows)
{
    return !e->broken && e->flight_count < VF_MAILBOX_DEPTH && (!with_rows || free_slot(e) >= 0);
}

uint32_t vf_engine_in_flight(const struct vf_engine *e)
{
    return e->flight_count;
}

static uint32_t fill_columns(struct vf_engine *e, const struct vf_step_column *columns,
                             uint32_t count)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        Vflow__Column *c = &e->columns[i];
        c->token = columns[i].token;
        c->position = columns[i].position;
        c->sequence = columns[i].sequence;
        c->flow = columns[i].flow;
        c->primary = columns[i].primary;
        c->want_row = columns[i].want_row;
        rows += columns[i].want_row;
    }
    return rows;
}

static enum vf_code send_step(struct vf_engine *e, const struct flight *f, struct vf_err *err)
{
    Vflow__Step step = VFLOW__STEP__INIT;
    step.step_id = f->id;
    step.n_columns = f->columns;
    step.columns = e->column_list;
    step.logits_slot = f->slot < 0 ? 0 : (uint32_t)f->slot;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.request_id = f->id;
    m.body_case = VFLOW__ENVELOPE__BODY_STEP;
    m.step = &step;
    for (uint32_t i = 0; i < e->info.stage_workers; i++) {
        enum vf_code code = engine_send(e, &e->workers[i], &m, err);
        if (code)
            return code;
    }
    return VF_OK;
}

enum vf_code vf_engine_submit(struct vf_engine *e, const struct vf_step_column *columns,
                              uint32_t count, uint64_t *step_id, struct vf_err *err)
{
    if (e->broken) {
        *err = e->err;
        return err->code;
    }
    if (count == 0 || count > e->shape.budget.columns_max)
        return vf_err_set(err, VF_ERR_INTERNAL, "step of %u columns, allowed are 1 to %u", count,
                          e->shape.budget.columns_max);
    uint32_t rows = fill_columns(e, columns, count);
    if (rows > e->shape.budget.rows_max || !vf_engine_can_submit(e, rows > 0))
        return vf_err_set(err, VF_ERR_INTERNAL, "step of %u rows with %u steps in flight", rows,
                          e->flight_count);
    struct flight *f = flight_at(e, e->flight_count);
    *f = (struct flight){.id = e->next_step_id++,
                         .columns = count,
                         .rows_wanted = rows,
                         .slot = rows ? free_slot(e) : -1};
    if (f->slot >= 0)
        e->slot_step[f->slot] = f->id;
    if (e->flight_count++ == 0)
        e->oldest_since_ns = vf_now_ns();
    *step_id = f->id;
    return send_step(e, f, err);
}

static void break_protocol(struct vf_engine *e, const struct worker *w, const char *what,
                           uint64_t step_id)
{
    struct vf_err why;
    vf_err_set(&why, VF_ERR_PROTOCOL, "%s (pid %d): %s step %" PRIu64, w->name, (int)w->pid, what,
               step_id);
    engine_break(e, &why);
}

static void take_explanation(struct flight *f, const struct worker *w, const Vflow__Error *error)
{
    if (f->explained)
        return;
    f->explained = true;
    vf_wire_error_take(error, &f->err);
    vf_debug("step %" PRIu64 " failed on %s: %s", f->id, w->name, f->err.text);
}

static void take_head_result(struct vf_engine *e, struct worker *w, struct flight *f,
                             const Vflow__StepResult *r)
{
    if (f->answered) {
        break_protocol(e, w, "second result of", f->id);
    } else if (!r->failed && r->rows != f->rows_wanted) {
        break_protocol(e, w, "wrong number of rows in the result of", f->id);
    } else {
        f->answered = true;
        f->answered_ns = vf_now_ns();
        f->failed = r->failed;
        f->row_count = r->failed ? 0 : r->rows;
    }
}

void engine_take_result(struct vf_engine *e, struct worker *w, const Vflow__StepResult *r)
{
    struct flight *f = NULL;
    for (uint32_t i = 0; i < e->flight_count && !f; i++)
        if (flight_at(e, i)->id == r->step_id)
            f = flight_at(e, i);
    if (!f) { /* a second worker's report about a step that was given up */
        vf_debug("%s reports about step %" PRIu64 ", which isn't in flight", w->name, r->step_id);
        return;
    }
    if (r->failed && r->error && r->error->code != VF_OK)
        take_explanation(f, w, r->error);
    if (w->index == e->shape.placement.head_worker)
        take_head_result(e, w, f, r);
}

bool engine_oldest_done(struct vf_engine *e)
{
    struct flight *f = engine_oldest_flight(e);
    if (!f || !f->answered)
        return false;
    if (!f->failed || f->explained)
        return true;
    if (vf_now_ns() - f->answered_ns < BLAME_NS)
        return false;
    vf_err_set(&f->err, VF_ERR_INTERNAL, "step %" PRIu64 " failed and no stage worker said why",
               f->id);
    f->explained = true;
    return true;
}

uint64_t engine_flight_deadline(const struct vf_engine *e)
{
    if (e->flight_count == 0)
        return UINT64_MAX;
    const struct flight *f = &e->flights[e->flight_begin];
    return f->answered ? f->answered_ns + BLAME_NS : e->oldest_since_ns + STEP_NS;
}

void engine_check_flights(struct vf_engine *e, uint64_t now)
{
    const struct flight *f = engine_oldest_flight(e);
    if (!f || f->answered || now < e->oldest_since_ns + STEP_NS)
        return;
    const struct worker *head = &e->workers[e->shape.placement.head_worker];
    struct vf_err why;
    vf_err_set(&why, VF_ERR_TIMEOUT,
               "waited %u s for %s (pid %d) to finish step %" PRIu64 " of %u columns",
               (unsigned)(STEP_NS / VF_S(1)), head->name, (int)head->pid, f->id, f->columns);
    engine_break(e, &why);
}

static void take_oldest(struct vf_engine *e, struct vf_step_done *done)
{
    struct flight *f = engine_oldest_flight(e);
    *done = (struct vf_step_done){.step_id = f->id, .failed = f->failed};
    if (f->failed) {
        done->err = f->err;
        vf_engine_release(e, f->id);
    } else if (f->slot >= 0) {
        size_t slot_floats = (size_t)e->shape.budget.rows_max * e->config->vocab_size;
        done->rows = (const float *)e->logits.base + (size_t)f->slot * slot_floats;
        done->row_count = f->row_count;
    }
    e->flight_begin = (e->flight_begin + 1) % VF_MAILBOX_DEPTH;
    e->flight_count--;
    e->oldest_since_ns = e->idle_since_ns = vf_now_ns();
}

void vf_engine_release(struct vf_engine *e, uint64_t step_id)
{
    for (uint32_t i = 0; i < VF_LOGITS_SLOTS; i++)
        if (e->slot_step[i] == step_id)
            e->slot_step[i] = 0;
}

enum vf_code vf_engine_wait(struct vf_engine *e, int timeout_ms, const struct vf_poll_extra *extra,
                            struct vf_step_done *done, bool *got, struct vf_err *err)
{
    *got = false;
    uint64_t deadline = vf_now_ns() + VF_MS(timeout_ms < 0 ? 0 : timeout_ms);
    bool extra_ready = false;
    for (;;) {
        if (e->broken) {
            *err = e->err;
            return err->code;
        }
        if (engine_oldest_done(e)) {
            take_oldest(e, done);
            *got = true;
            return VF_OK;
        }
        if (extra_ready)
            return VF_OK;
        enum vf_code code = engine_turn(e, deadline, extra, &extra_ready, err);
        if (code)
            return code;
        if (!engine_oldest_done(e) && vf_now_ns() >= deadline)
            return VF_OK;
    }
}
