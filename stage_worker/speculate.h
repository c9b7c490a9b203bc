/* Speculative prefetch: guesses of the experts that the next layers will choose, ordered from an
 * idle drive while this layer still computes.
 *
 * For a model whose experts are due in the layer that chooses them, nothing is known early enough.
 * But the residual changes little from layer to layer: the next layer's norm and router applied to
 * the residual that this layer routed on name most of its experts. Right after a layer's own
 * experts are ordered, the guesses for the next layers of this worker are ordered as
 * VF_FETCH_SPECULATIVE, the likeliest first. Nothing that is computed depends on a guess.
 *
 * Only steps of a few columns speculate: the columns of a prompt want most experts anyway. When the
 * mode is VF_SPECULATE_AUTO, speculation_gate.h decides whether it pays. Part of the fetch
 * operation, used by the executor's thread.
 */
#ifndef VF_STAGE_WORKER_SPECULATE_H
#define VF_STAGE_WORKER_SPECULATE_H

#include "stage_worker/core.h"

/* What guesses for a layer need of its weights. */
struct guess_weights {
    struct vf_matrix router;
    const float *norm;
};

struct speculation {
    struct core *core;
    bool any; /* there is something to guess, and it may be */
    struct vf_speculation_gate gate;
    struct vf_speculation_stats stats;
    struct guess_weights *layers; /* [layer_count] */
    struct guess_target *targets; /* [op_count, VF_SPECULATE_REACH], the nearest first */
    vf_value *residuals; /* [op_count]: of a fetch, what its layer routed on before the norm */
    struct vf_guess_space space;
    struct vf_expert_ref *refs; /* of the guess at hand */
    bool running;               /* the step at hand speculates */
    bool counting;              /* ... or could have */
};

/* Without anything to guess, or with the mode off, the other functions do nothing. */
enum vf_code speculation_init(struct speculation *s, struct core *core, struct vf_err *err);
void speculation_deinit(struct speculation *s);

/* At a step's begin and, if it succeeded, its end; own_ns: without waiting for other workers. */
void speculation_begin_step(struct speculation *s);
void speculation_end_step(struct speculation *s, uint64_t own_ns);

/* After a fetch operation ordered refs[0..n): counts what was guessed of them, and guesses. */
void speculation_after_fetch(struct speculation *s, const struct vf_op *op,
                             const struct vf_expert_ref *refs, uint32_t n);
void speculation_stats(const struct speculation *s, struct vf_speculation_stats *out);

#endif
