/* Replays a routing trace through an expert cache of so many slots, without loading anything: which
 * of the experts that a model wanted would have been there.
 *
 * One cache over all layers, as in the engine. The trace is walked token by token, layer by layer.
 * Of the experts that a token wants of a layer, those that are there are pinned first; each of the
 * others then takes a free slot or that of the policy's victim, and is pinned too; then all of them
 * may be given up again. The rule is the same for every policy.
 */
#ifndef VF_BENCH_EXPERTS_REPLAY_SIM_H
#define VF_BENCH_EXPERTS_REPLAY_SIM_H

#include "bench/experts/routing_trace.h"
#include "common/base/err.h"

enum replay_policy {
    REPLAY_LRU,    /* the expert not used for the longest */
    REPLAY_LFU,    /* the least uses, each counting half after half_life tokens; ties as LRU */
    REPLAY_VFLOW,  /* common/experts/policy.h, what the engine does */
    REPLAY_BELADY, /* the expert whose next use is furthest: nothing can do better */
};

struct replay_setup {
    enum replay_policy policy;
    double half_life; /* REPLAY_LFU, in tokens, > 0 */
    uint32_t slots;   /* at least the trace's top_k */
    uint32_t warmup;  /* tokens that aren't counted; below the trace's */
    uint32_t experts; /* of a layer; above every expert in the trace */
};
struct replay_result {
    uint64_t wanted, hits; /* after the warm-up */
    uint64_t *layer_hits;  /* NULL or [layers], added to */
};

enum vf_code replay_run(const struct vf_routing_trace *trace, const struct replay_setup *setup,
                        struct replay_result *result, struct vf_err *err);

/* What a trace is like, after the warm-up. */
struct replay_statistics {
    double overlap; /* share of a token's experts that the token before used, mean of layers */
    double overlap_first; /* of layer 0 */
    double entropy;       /* of a layer's use of its experts, in bits, mean of layers */
};
enum vf_code replay_describe(const struct vf_routing_trace *trace, uint32_t experts,
                             struct replay_statistics *out, struct vf_err *err);

#endif
