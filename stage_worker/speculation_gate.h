/* Whether speculative prefetch pays: decides step by step if a stage worker speculates, from what
 * its steps took with and without.
 *
 * It probes: pairs of short blocks of steps, one block with speculation and one without, in turning
 * order, so that a drift of the machine or of the text counts for neither. As soon as the
 * differences of the pairs are clear, or after the last pair, the better one stays for many steps;
 * then it probes again, more rarely each time the answer is the same. Speculation must win by
 * something: it costs the drive and other processes what isn't seen here.
 *
 * A pure object without clocks. Steps of another number of columns take another time, so a pair is
 * of one number: a change starts the pair again.
 */
#ifndef VF_STAGE_WORKER_SPECULATION_GATE_H
#define VF_STAGE_WORKER_SPECULATION_GATE_H

#include <stdbool.h>
#include <stdint.h>

enum vf_speculate { VF_SPECULATE_OFF, VF_SPECULATE_ON, VF_SPECULATE_AUTO };

#define VF_GATE_WARM_STEPS  8u    /* of the first probe: the cache is cold */
#define VF_GATE_BLOCK_STEPS 4u    /* a pair is two blocks */
#define VF_GATE_PAIRS_MIN   6u    /* before anything is clear */
#define VF_GATE_PAIRS_MAX   16u   /* of a probe */
#define VF_GATE_HOLD_MIN    512u  /* steps from a probe to the next; doubled each time the answer */
#define VF_GATE_HOLD_MAX    8192u /* is the same */
#define VF_GATE_GAIN_MIN    0.01  /* share of a step's time that speculation must save */

struct vf_speculation_gate {
    enum vf_speculate mode;
    bool on;             /* the answer of the last probe */
    bool answered;       /* there was one */
    uint32_t hold_steps; /* after the last probe */
    uint32_t left;       /* steps to warm up or to hold before the probe goes on */
    uint32_t columns;    /* of the steps of the pair at hand */
    uint32_t step;       /* in the pair */
    uint32_t pairs;      /* whole ones */
    double block_ns[2];  /* of the pair at hand: without, with */
    double typical_ns;   /* average of the probe's steps, against which one is an outlier */
    uint32_t typical_of;
    double sum_ns[2];     /* of the whole pairs */
    double gain, gain_sq; /* sums over the pairs of (without - with) and its square */
    uint64_t probes;      /* ended ones */
    double gain_share;    /* of the last probe: what speculation saved of a step's time */
};

void vf_speculation_gate_init(struct vf_speculation_gate *g, enum vf_speculate mode);
/* Whether the next step speculates. The same until done is called. */
bool vf_speculation_gate_next(const struct vf_speculation_gate *g);
/* A step that could have speculated ran, and took ns. */
void vf_speculation_gate_done(struct vf_speculation_gate *g, uint32_t columns, uint64_t ns);

#endif
