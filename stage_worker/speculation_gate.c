#include "stage_worker/speculation_gate.h"

#include <math.h>

#define PAIR_STEPS (2 * VF_GATE_BLOCK_STEPS)
/* Differences are clear at so many standard errors; looked at after each pair, so more than two. */
#define CLEAR_ERRORS 3.0
/* A step that takes so many times the average was held up by something else; it counts as this. */
#define OUTLIER 4.0

void vf_speculation_gate_init(struct vf_speculation_gate *g, enum vf_speculate mode)
{
    *g = (struct vf_speculation_gate){.mode = mode, .left = VF_GATE_WARM_STEPS};
}

/* Even pairs begin with speculation, odd ones without. */
static bool speculates_in_pair(const struct vf_speculation_gate *g)
{
    return (g->step < VF_GATE_BLOCK_STEPS) == (g->pairs % 2 == 0);
}

bool vf_speculation_gate_next(const struct vf_speculation_gate *g)
{
    if (g->mode != VF_SPECULATE_AUTO)
        return g->mode == VF_SPECULATE_ON;
    return g->left > 0 ? g->on : speculates_in_pair(g);
}

static void start_pair(struct vf_speculation_gate *g)
{
    g->step = 0;
    g->block_ns[0] = g->block_ns[1] = 0;
}

static void start_probe(struct vf_speculation_gate *g)
{
    start_pair(g);
    g->pairs = 0;
    g->sum_ns[0] = g->sum_ns[1] = g->gain = g->gain_sq = 0;
    g->typical_ns = 0;
    g->typical_of = 0;
}

static void end_probe(struct vf_speculation_gate *g)
{
    g->gain_share = g->sum_ns[0] > 0 ? g->gain / g->sum_ns[0] : 0;
    bool on = g->gain_share > VF_GATE_GAIN_MIN;
    bool same = g->answered && on == g->on;
    g->hold_steps = !same                                  ? VF_GATE_HOLD_MIN
                    : 2 * g->hold_steps < VF_GATE_HOLD_MAX ? 2 * g->hold_steps
                                                           : VF_GATE_HOLD_MAX;
    g->left = g->hold_steps;
    g->on = on;
    g->answered = true;
    g->probes++;
    start_probe(g);
}

/* Whether the pairs so far tell the sign of the difference. */
static bool is_clear(const struct vf_speculation_gate *g)
{
    if (g->pairs < VF_GATE_PAIRS_MIN)
        return false;
    double n = g->pairs, mean = g->gain / n;
    double variance = (g->gain_sq - n * mean * mean) / (n - 1);
    return fabs(mean) > CLEAR_ERRORS * sqrt(fmax(variance, 0) / n);
}

static void end_pair(struct vf_speculation_gate *g)
{
    double gain = g->block_ns[0] - g->block_ns[1];
    g->gain += gain;
    g->gain_sq += gain * gain;
    g->sum_ns[0] += g->block_ns[0];
    g->sum_ns[1] += g->block_ns[1];
    g->pairs++;
    start_pair(g);
    if (g->pairs == VF_GATE_PAIRS_MAX || is_clear(g))
        end_probe(g);
}

/* The step's time, an outlier's cut. */
static double tame(struct vf_speculation_gate *g, double ns)
{
    if (g->typical_of >= PAIR_STEPS && ns > OUTLIER * g->typical_ns)
        ns = OUTLIER * g->typical_ns;
    g->typical_of++;
    g->typical_ns += (ns - g->typical_ns) / g->typical_of;
    return ns;
}

void vf_speculation_gate_done(struct vf_speculation_gate *g, uint32_t columns, uint64_t ns)
{
    if (g->mode != VF_SPECULATE_AUTO)
        return;
    if (g->left > 0) {
        g->left--;
        return;
    }
    if (columns != g->columns) {
        g->columns = columns;
        g->typical_of = 0;
        g->typical_ns = 0;
        start_pair(g);
        /* The step ran as the pair's order had it then, perhaps not as the new pair begins. */
        return;
    }
    g->block_ns[speculates_in_pair(g)] += tame(g, (double)ns);
    if (++g->step == PAIR_STEPS)
        end_pair(g);
}
