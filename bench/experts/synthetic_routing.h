/* Synthetic routing traces with the statistics of real models' routing:
 *
 *     logit_e(t) = sqrt(a) popularity_e + sqrt(b) persistent_e(t) + sqrt(1 - a - b) noise_e(t)
 *
 * per layer, each part of variance 1, persistent_e AR(1) over the tokens with coefficient r; a
 * token's experts are the top k. make-model --routing builds weights to the same formula.
 */
#ifndef VF_BENCH_EXPERTS_SYNTHETIC_ROUTING_H
#define VF_BENCH_EXPERTS_SYNTHETIC_ROUTING_H

#include "bench/experts/routing_trace.h"

struct synthetic_routing {
    const char *name;
    uint32_t layers, experts, top_k;
    double a, b, r;
    double first_a; /* a of layer 0, whose b is 0; below 0: as the others */
    const char *what;
};
extern const struct synthetic_routing synthetic_routings[]; /* up to one without a name */

const struct synthetic_routing *synthetic_routing_find(const char *name); /* NULL: none */
enum vf_code synthetic_routing_make(const struct synthetic_routing *s, uint32_t token_count,
                                    uint64_t seed, struct vf_routing_trace *out,
                                    struct vf_err *err);

#endif
