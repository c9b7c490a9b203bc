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
 * mode is VF_SPECULATE_AUTO, speculation_gate.h decides whether it pays. Internal to the executor,
 * used by its thread.
 */
#ifndef VF_STAGE_WORKER_SPECULATE_H
#define VF_STAGE_WORKER_SPECULATE_H

#include "common/base/err.h"
#include "common/model/program.h"

#include <stdint.h>

#define VF_SPECULATE_COLUMNS_MAX 8u

struct vf_executor;

/* Needs the schedule and the weights. Without anything to guess, or with the mode off, it makes
 * nothing and the other functions do nothing. */
enum vf_code speculation_create(struct vf_executor *ex, struct vf_err *err);
void speculation_destroy(struct vf_executor *ex);

/* At a step's begin and, if it succeeded, its end; own_ns: without waiting for other workers. */
void speculation_begin_step(struct vf_executor *ex);
void speculation_end_step(struct vf_executor *ex, uint64_t own_ns);

/* After a fetch operation ordered ex->refs[0..n): counts what was guessed of them, and guesses.
 * Overwrites ex->refs, ex->router_logits and ex->pair_in, which nothing needs from here to the
 * experts operation. */
void speculation_after_fetch(struct vf_executor *ex, const struct vf_op *op, uint32_t n);

#endif
