#include "coordinator/plan/plan_drive.h"

#include "common/base/util.h"
#include "common/model/stages.h"
#include "coordinator/plan/plan_model.h"

#include <math.h>
#include <stdlib.h>

const char *vf_plan_drive_source(const struct vf_plan_drive *drive)
{
    static const char *const names[] = {NULL, "given", "throttled", "probed"};
    return names[drive->source];
}

/* Slots of experts that were ordered and aren't used yet, a layer's for each of the delay's window,
 * hold nothing for a later token. */
static double hit_share(const struct vf_plan *p)
{
    const struct vf_config *c = p->config;
    double all = (double)c->expert_count * c->layer_count;
    double slots = (double)p->shape.budget.cache_slots;
    double window = fmin(c->expert_delay + 1.0, c->layer_count);
    double ordered = window * vf_experts_per_token(c);
    return slots >= all ? 1.0 : fmax(slots - ordered, 0) / (all - ordered);
}

static void find_drive_speed(const struct vf_plan *p, struct vf_plan_drive *d)
{
    const Vflow__RunSettings *s = &p->shape.settings;
    if (p->options.drive_speed) {
        d->bytes_per_s = (double)p->options.drive_speed;
        d->source = VF_DRIVE_SPEED_GIVEN;
    } else if (s->io_throttle) {
        d->bytes_per_s = (double)s->io_throttle * s->io_workers;
        d->source = VF_DRIVE_SPEED_THROTTLED;
    } else if (p->shape.drive.bytes_per_s > 0) {
        d->bytes_per_s = p->shape.drive.bytes_per_s;
        d->source = VF_DRIVE_SPEED_PROBED;
    }
}

/* What a clock that counts bytes of memory says while the drive reads one layer's misses. */
static double fetch_cost(const struct vf_plan *p)
{
    double misses = vf_experts_per_token(p->config) * (1 - p->drive.hit_share);
    double seconds = misses * (double)p->expert_record_bytes / p->drive.bytes_per_s;
    return seconds * p->bandwidth_gb_s * 1e9;
}

struct streamed { /* arrays of op_count entries */
    double *cost, *start, *finish;
    uint32_t *resource, *order, *slot;
};

static double run_streamed(const struct vf_plan *p, struct streamed *s)
{
    const struct vf_program *g = &p->program;
    double busy[VF_STAGE_WORKERS_MAX + 1];
    uint32_t drive = p->shape.placement.worker_count;
    bool sync = p->shape.settings.overlap == VFLOW__OVERLAP__OVERLAP_SYNC;
    vf_stages_order(g, sync ? VF_EXPERTS_SYNC : VF_EXPERTS_LATE, s->order, s->slot);
    for (uint32_t i = 0; i < g->op_count; i++) {
        bool fetch = g->ops[i].kind == VF_OP_FETCH;
        s->cost[i] = fetch ? fetch_cost(p) : (double)p->op_bytes[i];
        s->resource[i] = fetch ? drive : p->shape.placement.op_worker[i];
    }
    return vf_program_schedule(g, s->cost, s->order, s->resource, busy, drive + 1, s->start,
                               s->finish);
}

static enum vf_code schedule(struct vf_plan *p, struct vf_err *err)
{
    uint32_t n = p->program.op_count;
    struct streamed s = {.cost = calloc(n, sizeof *s.cost),
                         .start = calloc(n, sizeof *s.start),
                         .finish = calloc(n, sizeof *s.finish),
                         .resource = calloc(n, sizeof *s.resource),
                         .order = calloc(n, sizeof *s.order),
                         .slot = calloc(n, sizeof *s.slot)};
    bool whole = s.cost && s.start && s.finish && s.resource && s.order && s.slot;
    if (whole)
        p->token_ms = vf_plan_token_ms(p, run_streamed(p, &s));
    free(s.cost);
    free(s.start);
    free(s.finish);
    free(s.resource);
    free(s.order);
    free(s.slot);
    return whole ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for %u ops", n);
}

enum vf_code vf_plan_add_drive(struct vf_plan *p, struct vf_err *err)
{
    struct vf_plan_drive *d = &p->drive;
    double wanted = (double)vf_config_effective_layers(p->config) * vf_experts_per_token(p->config);
    find_drive_speed(p, d);
    d->hit_share = hit_share(p);
    d->token_bytes = wanted * (1 - d->hit_share) * (double)p->expert_record_bytes;
    d->read_ms = d->bytes_per_s > 0 ? 1e3 * d->token_bytes / d->bytes_per_s : NAN;
    if (isfinite(d->read_ms))
        return schedule(p, err);
    p->token_ms = d->token_bytes > 0 ? NAN : p->token_ms;
    return VF_OK;
}
