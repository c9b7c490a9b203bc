/* Random numbers for models that are made up: counter-based, so that any row of any tensor can be
 * had by itself, and made of integer operations and correctly rounded ones only, so that a seed
 * means the same weights on every machine.
 *
 * A random matrix is q4 from the start: codes in -7..7 with a triangular distribution, and a scale
 * for each group of 32 that wanders by a quarter. Other quantisations hold those same weights.
 */
#ifndef VF_BENCH_MODELS_RANDOM_WEIGHTS_H
#define VF_BENCH_MODELS_RANDOM_WEIGHTS_H

#include "common/model/tensors.h"

#include <stddef.h>
#include <stdint.h>

/* A stream of random bits; a copy repeats it. */
struct bench_random {
    uint64_t state;
};

/* The stream of one row of one tensor. */
struct bench_random bench_random_row(uint64_t seed, struct vf_tensor_id id, uint64_t row);
uint64_t bench_random_next(struct bench_random *r);
/* Uniform in [-1, 1). */
float bench_random_uniform(struct bench_random *r);
/* Nearly normal (the sum of twelve uniform numbers) with variance 1. */
float bench_random_normal(struct bench_random *r);

/* A row of cols weights, a multiple of 32, with standard deviation `deviation`, as the groups of
 * tile.h (18 bytes each). Deviation 0 gives zeros. */
void bench_random_groups(struct bench_random *r, uint32_t cols, float deviation, uint8_t *groups);
/* Such a row as numbers; exact. */
void bench_expand_groups(const uint8_t *groups, uint32_t cols, float *row);

#endif
