/* What a cell's samples come to.
 *
 * IO_eff, the time that the reads alone demand of a staged token: all its bytes at the drive's own
 * speed, the latency of one layer's reads (the others' hide behind the queue), and the compute at
 * both ends of a token beside which nothing can be read. None of staged's times goes into it.
 *
 * Ratios are taken token by token and their medians reported, so that what the machine does beside
 * meets both sides of each.
 */
#include "bench/experts/overlap.h"

struct samples {
    const struct overlap_arm *arms;
    double floor_ms, tax; /* of C */
    double *scratch;
    uint32_t count;
};
typedef double sample_fn(const struct samples *s, uint32_t token);

static double compute_of(const struct samples *s, uint32_t t)
{
    return s->arms[OVERLAP_CACHED].ms[t];
}

static double hidden_of(const struct samples *s, uint32_t t)
{
    return 1 - s->arms[OVERLAP_STAGED].stall_ms[t] / s->arms[OVERLAP_SYNC].stall_ms[t];
}

static double win_of(const struct samples *s, uint32_t t)
{
    return s->arms[OVERLAP_SYNC].ms[t] / s->arms[OVERLAP_STAGED].ms[t];
}

static double model_of(const struct samples *s, uint32_t t)
{
    double compute = compute_of(s, t);
    return (compute + s->arms[OVERLAP_SYNC].stall_ms[t]) /
           fmax((1 + s->tax) * compute, s->floor_ms);
}

static double off_of(const struct samples *s, uint32_t t)
{
    return win_of(s, t) / model_of(s, t) - 1;
}

static double interference_of(const struct samples *s, uint32_t t)
{
    const struct overlap_arm *staged = &s->arms[OVERLAP_STAGED];
    return (staged->ms[t] - staged->stall_ms[t]) / compute_of(s, t) - 1;
}

static struct bench_stat spread(const struct samples *s, sample_fn *fn)
{
    for (uint32_t t = 0; t < s->count; t++)
        s->scratch[t] = fn(s, t);
    return (struct bench_stat){bench_median(s->scratch, s->count),
                               bench_quantile(s->scratch, s->count, 0.1),
                               bench_quantile(s->scratch, s->count, 0.9)};
}

static struct bench_stat spread_of(const struct samples *s, const double *values)
{
    for (uint32_t t = 0; t < s->count; t++)
        s->scratch[t] = values[t];
    return (struct bench_stat){bench_median(s->scratch, s->count),
                               bench_quantile(s->scratch, s->count, 0.1),
                               bench_quantile(s->scratch, s->count, 0.9)};
}

static double bytes_ms(const struct overlap_cell *cell, enum overlap_arm_kind kind)
{
    return 1e3 * cell->read_bytes[kind] / cell->drive;
}

void overlap_summarise(const struct overlap_arm *arms, const struct overlap_model *m,
                       uint32_t tokens, double *scratch, struct overlap_cell *cell)
{
    struct samples s = {.arms = arms, .scratch = scratch, .count = tokens};
    for (int i = 0; i < OVERLAP_ARMS; i++) {
        cell->ms[i] = spread_of(&s, arms[i].ms);
        cell->stall_ms[i] = spread_of(&s, arms[i].stall_ms);
        cell->read_bytes[i] /= tokens;
    }
    double beyond_ms = cell->stall_ms[OVERLAP_SYNC].median - bytes_ms(cell, OVERLAP_SYNC);
    cell->latency_ms = fmax(beyond_ms, 0) / m->read_layers;
    s.floor_ms = cell->floor_ms = bytes_ms(cell, OVERLAP_STAGED) + cell->latency_ms +
                                  (m->front + m->back) * cell->ms[OVERLAP_CACHED].median;
    cell->hidden = spread(&s, hidden_of);
    cell->win = spread(&s, win_of);
    cell->model = spread(&s, model_of);
    cell->off = spread(&s, off_of);
    cell->interference = spread(&s, interference_of);
    s.tax = cell->interference.median;
    cell->model_taxed = spread(&s, model_of).median;
    cell->off_taxed = spread(&s, off_of).median;
}
