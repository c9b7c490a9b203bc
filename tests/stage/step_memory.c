/* step_memory MODEL...: called by test_step_memory.py for every golden model. Prints TAP lines of
 * its own.
 *
 * For every number of stage workers and every time at which experts may run: what the coordinator
 * counts for a worker is what its executor takes, nothing that the executor takes beside it grows
 * with the columns of a step, values that live at the same time have buffers of their own, and what
 * comes from another worker is held exactly while it is read. */
#include "stage_worker/executor.h"
#include "stage_worker/schedule.h"
#include "tap.h"

#include "common/base/arena.h"
#include "common/model/step_memory.h"

#include <malloc.h>
#include <string.h>

#define COLUMNS_FEW  8u
#define COLUMNS_MANY 1024u
/* Of what large allocations round up; less than a number per column. */
#define ROUNDING_BYTES 2048u

struct model {
    struct vf_model_file *file;
    const struct vf_config *config;
    struct vf_program program;
    struct vf_placement placement;
};

/* What is wrong, said with TAP's notes. */
static uint32_t faults;
#define FAULT(...) (faults++, note(__VA_ARGS__))

static struct vf_executor_params params_of(const struct model *m, uint32_t worker, uint32_t columns,
                                           enum vf_experts_when when)
{
    const struct vf_kernels *kernels = NULL;
    struct vf_err err;
    vf_kernels_get(VF_KERNEL_SCALAR, &kernels, &err);
    return (struct vf_executor_params){.file = m->file,
                                       .program = &m->program,
                                       .placement = &m->placement,
                                       .worker = worker,
                                       .kernels = kernels,
                                       .q8 = true,
                                       .kv_f16 = true,
                                       .experts_when = when,
                                       .context = 300,
                                       .sequences = 2,
                                       .columns_max = columns,
                                       .rows_max = 3,
                                       .threads = 2,
                                       .speculate = VF_SPECULATE_ON};
}

static uint64_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

struct use {
    uint64_t buffers, kv, beside;
};

static struct use use_of(const struct model *m, uint32_t worker, uint32_t columns,
                         enum vf_experts_when when)
{
    struct vf_executor_params params = params_of(m, worker, columns, when);
    struct vf_executor *ex;
    struct vf_err err;
    struct use use = {0};
    uint64_t before = heap_bytes();
    if (vf_executor_create(&params, &ex, &err) != VF_OK) {
        FAULT("worker %u: %s", worker, err.text);
        return use;
    }
    use.buffers = vf_executor_buffer_bytes(ex);
    use.kv = vf_executor_kv_bytes(ex);
    use.beside = heap_bytes() - before - use.buffers;
    vf_executor_destroy(ex);
    return use;
}

static void compare(const struct model *m, uint32_t worker, uint32_t columns, bool sync,
                    struct use use)
{
    struct vf_step_shape shape = {.columns_max = columns,
                                  .rows_max = 3,
                                  .context = 300,
                                  .sequences = 2,
                                  .threads = 2,
                                  .kv_f16 = true,
                                  .sync = sync};
    struct vf_step_memory counted = {0};
    struct vf_err err;
    if (vf_step_memory_count(m->config, &m->program, &m->placement, worker, &shape, &counted,
                             &err) != VF_OK)
        FAULT("worker %u: %s", worker, err.text);
    if (counted.scratch_bytes != use.buffers || counted.kv_bytes != use.kv || use.buffers == 0)
        FAULT("worker %u of %u, %u columns, sync %d: counted %llu + %llu, used %llu + %llu", worker,
              m->placement.worker_count, columns, sync, (unsigned long long)counted.scratch_bytes,
              (unsigned long long)counted.kv_bytes, (unsigned long long)use.buffers,
              (unsigned long long)use.kv);
}

/* Early and late, of which the larger is counted; sync. */
static void check_count(const struct model *m, uint32_t worker)
{
    static const uint32_t columns[] = {COLUMNS_FEW, COLUMNS_MANY};
    struct use sync[2], most[2];
    for (int i = 0; i < 2; i++) {
        struct use late = use_of(m, worker, columns[i], VF_EXPERTS_LATE);
        most[i] = use_of(m, worker, columns[i], VF_EXPERTS_EARLY);
        if (late.buffers > most[i].buffers)
            most[i] = late;
        sync[i] = use_of(m, worker, columns[i], VF_EXPERTS_SYNC);
        compare(m, worker, columns[i], false, most[i]);
        compare(m, worker, columns[i], true, sync[i]);
    }
    if (sync[1].beside > sync[0].beside + ROUNDING_BYTES)
        FAULT("worker %u: beside its buffers %llu bytes with %u columns, %llu with %u", worker,
              (unsigned long long)sync[0].beside, COLUMNS_FEW, (unsigned long long)sync[1].beside,
              COLUMNS_MANY);
}

/* ---- buffers and actions ----------------------------------------------------------------------
 */

static bool touches(const struct vf_program *p, const struct vf_op *op, vf_value v)
{
    bool any = op->out == v;
    for (uint32_t k = 0; k < op->in_count; k++)
        any |= vf_op_inputs(p, op)[k] == v;
    return any;
}

static bool crosses(const struct model *m, uint32_t worker, vf_value v)
{
    bool any = false;
    for (uint32_t e = 0; e < m->placement.edge_count; e++)
        any |= m->placement.edges[e].value == v &&
               (m->placement.edges[e].from == worker || m->placement.edges[e].to == worker);
    return any;
}

/* No buffer has two values at once, and there are no more than values that live at once. */
static void check_buffers(const struct model *m, const struct vf_part *part)
{
    const struct vf_program *p = &m->program;
    uint32_t most[2] = {0};
    for (vf_value v = 0; v < p->value_count; v++) {
        struct vf_span a = part->spans[v];
        bool own = a.begin <= a.end && !crosses(m, part->worker, v);
        if (own != (part->buffer[v] != VF_BUFFER_NONE))
            FAULT("worker %u: %s has a buffer, or none, without reason", part->worker,
                  p->values[v].name);
        uint32_t live = 0; /* where v begins */
        for (vf_value u = 0; own && u < p->value_count; u++) {
            struct vf_span b = part->spans[u];
            if (part->buffer[u] == VF_BUFFER_NONE || p->values[u].is_route != p->values[v].is_route)
                continue;
            live += b.begin <= a.begin && a.begin <= b.end;
            if (u != v && part->buffer[u] == part->buffer[v] && a.begin <= b.end &&
                b.begin <= a.end)
                FAULT("worker %u: %s and %s share a buffer", part->worker, p->values[u].name,
                      p->values[v].name);
        }
        uint32_t *of_kind = &most[p->values[v].is_route];
        *of_kind = live > *of_kind ? live : *of_kind;
    }
    if (part->value_buffers > most[0] || part->route_buffers > most[1])
        FAULT("worker %u: %u and %u buffers for %u and %u values at once", part->worker,
              part->value_buffers, part->route_buffers, most[0], most[1]);
}

/* Received before the first operation that reads it and released behind the last one, once. */
static void check_edge(const struct model *m, const struct vf_part *part, const struct schedule *s,
                       uint32_t e)
{
    const struct vf_edge *edge = &m->placement.edges[e];
    uint32_t received = 0, released = 0, sent = 0, reads = 0, made = 0;
    for (uint32_t a = 0; a < s->count; a++) {
        const struct action *act = &s->actions[a];
        bool about = act->count == 0 && act->index == e;
        received += about && act->kind == ACTION_RECEIVE;
        released += about && act->kind == ACTION_RELEASE;
        sent += about && act->kind == ACTION_SEND;
        if (released > received || sent > made)
            FAULT("worker %u: edge %u is released or sent too early", part->worker, e);
        for (uint32_t i = act->index; i < act->index + act->count; i++) {
            const struct vf_op *op = &m->program.ops[part->order[i]];
            made += op->out == edge->value;
            if (edge->to != part->worker || !touches(&m->program, op, edge->value))
                continue;
            reads++;
            if (received != 1 || released != 0)
                FAULT("worker %u: edge %u isn't held where it is read", part->worker, e);
        }
    }
    bool to = edge->to == part->worker, from = edge->from == part->worker;
    if (received != to || released != to || sent != from || (to && reads == 0))
        FAULT("worker %u: edge %u is received %u, released %u, sent %u times", part->worker, e,
              received, released, sent);
}

static void check_part(const struct model *m, uint32_t worker, enum vf_experts_when when)
{
    struct vf_part part;
    struct schedule s;
    struct vf_err err;
    if (vf_part_make(&m->program, &m->placement, worker, when, &part, &err) != VF_OK ||
        schedule_init(&s, &m->program, &m->placement, &part, &err) != VF_OK) {
        FAULT("%s", err.text);
        return;
    }
    check_buffers(m, &part);
    for (uint32_t e = 0; e < m->placement.edge_count; e++)
        check_edge(m, &part, &s, e);
    schedule_deinit(&s);
    vf_part_deinit(&part);
}

/* ---- models -----------------------------------------------------------------------------------
 */

static void check_model(const char *path)
{
    struct model m = {0};
    struct vf_err err;
    faults = 0;
    if (vf_model_file_open(path, &m.file, &err) != VF_OK) {
        ok(false, "%s", err.text);
        return;
    }
    m.config = vf_model_file_config(m.file);
    if (vf_program_compile(m.config, &m.program, &err) != VF_OK)
        FAULT("%s", err.text);
    uint32_t layers = m.program.effective_layers, placements = 0;
    for (uint32_t workers = 1; !faults && workers <= layers; workers++, placements++) {
        if (vf_placement_make(VF_PLACEMENT_PIPELINE, m.config, &m.program, workers, &m.placement,
                              &err) != VF_OK)
            FAULT("%s", err.text);
        for (uint32_t w = 0; !faults && w < workers; w++) {
            check_count(&m, w);
            for (int when = 0; when < VF_EXPERTS_WHEN_COUNT; when++)
                check_part(&m, w, (enum vf_experts_when)when);
        }
        vf_placement_deinit(&m.placement);
    }
    const char *name = strrchr(path, '/');
    ok(faults == 0 && placements == layers, "%s: %u placements, count and use are the same",
       name ? name + 1 : path, placements);
    vf_program_deinit(&m.program);
    vf_model_file_close(m.file);
}

static void check_arena(void)
{
    struct vf_arena counter = {0};
    vf_arena_take(&counter, 3, 5, 4);
    vf_arena_take(&counter, 0, 5, 4);
    vf_arena_take(&counter, 1, 1, 1);
    uint8_t *memory = aligned_alloc(VF_ARENA_ALIGN, counter.used);
    struct vf_arena arena = {.base = memory};
    uint8_t *a = vf_arena_take(&arena, 3, 5, 4), *none = vf_arena_take(&arena, 0, 5, 4);
    uint8_t *b = vf_arena_take(&arena, 1, 1, 1);
    ok(a == memory && !none && b >= a + 60 + VF_ARENA_ALIGN && (uintptr_t)b % VF_ARENA_ALIGN == 0 &&
           arena.used == counter.used && !arena.too_large,
       "an arena counts what it carves, with a line between two buffers");
    free(memory);
    vf_arena_take(&counter, UINT64_MAX / 2, 3, 8);
    vf_arena_take(&counter, 1, 1, 1);
    ok(counter.too_large, "what overflows is remembered");
}

int main(int argc, char **argv)
{
    plan(2 + (argc - 1));
    check_arena();
    for (int i = 1; i < argc; i++)
        check_model(argv[i]);
    return 0;
}
