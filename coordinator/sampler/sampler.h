/* Choosing the next token from log-probabilities.
 *
 * A draw depends on nothing but the log-probabilities, the parameters, the seed and the position:
 * not on the machine, the batch or what was drawn before, so a replayed sequence draws the same
 * tokens. All arithmetic is IEEE double in a fixed order with an exp of its own.
 *
 * The rule, for L[i] = logp[i] and M = max L:
 *   temperature 0     the lowest i with L[i] = M
 *   else              w[i] = exp((L[i] - M) / temperature)
 *     ranking         descending L, equal ones by ascending i
 *     top_k           the first top_k of the ranking
 *     top_p           of those, the shortest front of the ranking whose sum of w is at least
 *                     top_p times the sum of w over all of them
 *     min_p           of those, the ones with w[i] >= min_p (the best has w = 1)
 *     draw            the first of the tokens left, by ascending i, at which the sum of w passes
 *                     u * (sum over all of them), u = vf_sampler_uniform(seed, position)
 */
#ifndef VF_COORDINATOR_SAMPLER_SAMPLER_H
#define VF_COORDINATOR_SAMPLER_SAMPLER_H

#include "common/base/err.h"

#include <stdint.h>

#define VF_TEMPERATURE_MAX 1000.0

struct vf_sampling {
    double temperature; /* 0: greedy; at most VF_TEMPERATURE_MAX */
    uint32_t top_k;     /* 0: off */
    double top_p;       /* from 0 to 1; 1: off */
    double min_p;       /* from 0 to 1; 0: off */
    uint64_t seed;
};

/* VF_ERR_USAGE naming the option whose value is out of range or not a number. */
enum vf_code vf_sampling_check(const struct vf_sampling *s, struct vf_err *err);

/* Working memory for one vocabulary size; used by one thread at a time. */
struct vf_sampler;
enum vf_code vf_sampler_create(uint32_t vocab_size, struct vf_sampler **out, struct vf_err *err);
void vf_sampler_destroy(struct vf_sampler *s);

/* logp [vocab_size] f32, natural logarithms (any common offset is allowed); -inf is a token that
 * can't be drawn. position is the index in the sequence of the token being drawn. A NaN or +inf,
 * or no finite entry, is VF_ERR_INTERNAL: the model's output is broken. */
enum vf_code vf_sampler_draw(struct vf_sampler *s, const struct vf_sampling *params,
                             const float *logp, uint64_t position, uint32_t *token,
                             struct vf_err *err);

/* Uniform in [0, 1), a multiple of 2^-53: the first two words of Philox4x32-10 with the counter
 * (position low, position high, 0, 0) and the key (seed low, seed high). */
double vf_sampler_uniform(uint64_t seed, uint64_t position);
/* The block function itself (Salmon et al., 2011). */
void vf_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
