/* The gate on made-up step times: it keeps what pays, leaves what doesn't, is fooled by neither
 * drift nor outliers nor steps of other sizes, asks again rarely, and notices a change. */
#include "stage_worker/speculation_gate.h"
#include "tap.h"

#include <math.h>

struct world {
    double gain;          /* share of a step's time that speculation saves */
    double noise;         /* share, standard deviation */
    double drift;         /* share that a step takes longer than the one before */
    uint32_t outlier;     /* every so many steps one takes 50 times as long; 0: never */
    uint32_t columns_for; /* the number of columns changes after so many steps; 0: never */
};

static uint64_t state;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

/* Runs steps; returns how many of them speculated. */
static uint32_t run(struct vf_speculation_gate *g, const struct world *w, uint32_t steps)
{
    uint32_t with = 0;
    double ns = 5e7;
    for (uint32_t i = 0; i < steps; i++) {
        bool on = vf_speculation_gate_next(g);
        uint32_t columns = w->columns_for ? 1 + i / w->columns_for % 2 : 1;
        double t = ns * columns * (on ? 1 - w->gain : 1) * fmax(0.1, 1 + w->noise * normal());
        if (w->outlier && i % w->outlier == w->outlier - 1)
            t *= 50;
        vf_speculation_gate_done(g, columns, (uint64_t)t);
        with += on;
        ns *= 1 + w->drift;
    }
    return with;
}

/* Until a probe has ended, at most `most` steps. */
static bool probe(struct vf_speculation_gate *g, const struct world *w, uint32_t most)
{
    uint64_t before = g->probes;
    for (uint32_t i = 0; i < most && g->probes == before; i++)
        run(g, w, 1);
    return g->probes > before;
}

/* How many of 100 gates end their first probe with the answer on. */
static int answers_on(const struct world *w, uint32_t most)
{
    int on = 0;
    for (int i = 0; i < 100; i++) {
        struct vf_speculation_gate g;
        vf_speculation_gate_init(&g, VF_SPECULATE_AUTO);
        if (!probe(&g, w, most))
            return -1;
        on += g.on;
    }
    return on;
}

static void test_modes(void)
{
    struct vf_speculation_gate g;
    struct world bad = {.gain = -0.5}, good = {.gain = 0.5};
    vf_speculation_gate_init(&g, VF_SPECULATE_ON);
    ok(run(&g, &bad, 1000) == 1000 && g.probes == 0, "on: always, whatever it costs");
    vf_speculation_gate_init(&g, VF_SPECULATE_OFF);
    ok(run(&g, &good, 1000) == 0 && g.probes == 0, "off: never, whatever it would save");
}

static void test_answers(void)
{
    uint32_t longest = VF_GATE_WARM_STEPS + 2 * VF_GATE_BLOCK_STEPS * VF_GATE_PAIRS_MAX + 1;
    struct world w = {.gain = 0.1, .noise = 0.05};
    ok(answers_on(&w, longest) == 100, "10%% saved: on");
    w.gain = -0.1;
    ok(answers_on(&w, longest) == 0, "10%% lost: off");
    w.gain = 0;
    w.noise = 0.01;
    ok(answers_on(&w, longest) <= 2, "nothing saved: off");
    w = (struct world){.gain = 0.1, .noise = 0.2};
    int on = answers_on(&w, longest);
    note("10%% saved under noise of 20%%: on %d of 100", on);
    ok(on >= 90, "10%% saved under much noise: mostly on");
    w.gain = -0.1;
    on = answers_on(&w, longest);
    note("10%% lost under noise of 20%%: on %d of 100", on);
    ok(on <= 5, "10%% lost under much noise: mostly off");
    w = (struct world){.gain = 0.05, .drift = 0.01};
    ok(answers_on(&w, longest) == 100, "5%% saved while steps become 1%% longer each: on");
    w.gain = -0.05;
    ok(answers_on(&w, longest) == 0, "5%% lost meanwhile: off");
    w = (struct world){.gain = 0.15, .noise = 0.02, .outlier = 37};
    ok(answers_on(&w, longest) >= 95, "15%% saved, some steps held up by something else: on");
    w.gain = -0.15;
    ok(answers_on(&w, longest) <= 5, "15%% lost meanwhile: off");
    w = (struct world){.gain = 0.1, .noise = 0.02, .columns_for = 21};
    ok(answers_on(&w, 4 * longest) == 100, "10%% saved, changing numbers of columns: on");
    w.gain = -0.1;
    ok(answers_on(&w, 4 * longest) == 0, "10%% lost meanwhile: off");
}

static void test_rarely(void)
{
    struct vf_speculation_gate g;
    struct world w = {.gain = -0.2, .noise = 0.03};
    vf_speculation_gate_init(&g, VF_SPECULATE_AUTO);
    probe(&g, &w, 1000);
    ok(run(&g, &w, VF_GATE_HOLD_MIN) == 0, "off: holds for %u steps", VF_GATE_HOLD_MIN);
    ok(probe(&g, &w, 1000) && !g.on && g.hold_steps == 2 * VF_GATE_HOLD_MIN,
       "then asks again, and the same answer holds twice as long");
    uint32_t with = run(&g, &w, 100000);
    note("%u of 100000 steps speculated in vain, %llu probes", with, (unsigned long long)g.probes);
    ok(with < 1000 && g.probes >= 10 && g.hold_steps == VF_GATE_HOLD_MAX,
       "in the long run hardly a step is lost");
    w.gain = 0.2;
    ok(probe(&g, &w, 2 * VF_GATE_HOLD_MAX) && g.on && g.hold_steps == VF_GATE_HOLD_MIN,
       "it notices when speculation begins to pay, and asks soon again");
    ok(run(&g, &w, VF_GATE_HOLD_MIN) == VF_GATE_HOLD_MIN, "on: holds");
    w.gain = -0.2;
    ok(probe(&g, &w, 1000) && !g.on, "and when it no longer does");
}

static void test_steady(void)
{
    struct vf_speculation_gate g;
    struct world w = {.gain = 0.1, .noise = 0.02, .columns_for = 1};
    vf_speculation_gate_init(&g, VF_SPECULATE_AUTO);
    run(&g, &w, 10000);
    ok(g.probes == 0, "no pair of steps of different numbers of columns is compared");
    vf_speculation_gate_init(&g, VF_SPECULATE_AUTO);
    for (uint32_t i = 0; i < 2000; i++) {
        vf_speculation_gate_next(&g);
        vf_speculation_gate_done(&g, 1, 0);
    }
    ok(!isnan(g.gain_share) && !g.on, "steps that take no time are no reason to speculate");
}

int main(void)
{
    plan(21);
    state = 7;
    test_modes();
    test_answers();
    test_rarely();
    test_steady();
    return 0;
}
