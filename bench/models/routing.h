/* Weights whose routing has the statistics of a real model, in a real forward pass of any engine.
 *
 * Router logits of a layer, for the tokens t = 0, 1, 2 ... of a stream that walks the vocabulary
 * (id, id + 1, id + 2 ...; what such a model's own greedy decoding does):
 *
 *     z_e(t) = sqrt(a) popularity_e + sqrt(b) persistent_e(t) + sqrt(1 - a - b) noise_e(t)
 *
 * each part with variance 1 over the experts, different in every layer; persistent_e is AR(1) over
 * t with coefficient r. Of the noise a share is drift: it becomes known only as the layers before
 * run, so a layer's router read early predicts the experts as well as a real model's does.
 *
 * How: some dimensions of the residual are set apart. The embedding writes three regions of them
 * (a constant, a row that is AR(1) over the token's id, independent noise) and nothing else does; a
 * window for each layer is written by the attention of that layer and the experts before it, and
 * by nothing else. The router of a layer reads the regions, its own window and the three before
 * it, with independent random rows whose deviations are the shares. Everything else is random and
 * adds little to the residual. Keys equal queries, so that attention looks at its own
 * token and its output differs from token to token. The head's row i is the noise of the embedding
 * of i - 1, so that the likeliest next token is the next id.
 */
#ifndef VF_BENCH_MODELS_ROUTING_H
#define VF_BENCH_MODELS_ROUTING_H

#include "bench/models/random_weights.h"
#include "common/model/config.h"

#define BENCH_ROUTING_OLDER 3u /* windows read beside a layer's own */

struct bench_routing_shares {
    double popularity, persistent; /* a, b */
    double coefficient;            /* r */
    double fresh, older;           /* of the layer's own window, of each one before it */
};

struct bench_routing {
    const struct vf_config *config;
    struct bench_routing_shares shares, first; /* first: of layer 0 */
    uint32_t constant, persistent, noise;      /* first dimensions of the regions, in this order, */
    uint32_t windows, rest;                    /* of layer 0's window, and of all that is left */
    uint32_t window_dims;
    float dense_gain, expert_gain; /* give these outputs the variance 1 */
    float window_gain, rest_gain;  /* what of it goes to a window, and to what is left */
    float *row;                    /* of the persistent region: the last one made */
    uint32_t rows_made;
    uint64_t seed;
};

/* text: "realistic" (by the number of experts: OLMoE's, or from 96 on Qwen3-30B-A3B's), "flat" (all
 * noise), or "A,B,R". VF_ERR_USAGE for another, or a config that this can't be made for. config
 * is kept. */
enum vf_code bench_routing_init(struct bench_routing *r, const char *text,
                                const struct vf_config *config, uint64_t seed, struct vf_err *err);
void bench_routing_deinit(struct bench_routing *r); /* a zeroed struct is fine */

/* Embedding, head and router are made as numbers, row by row; the embedding's rows in order, once.
 */
bool bench_routing_makes(struct vf_tensor_id id);
void bench_routing_row(struct bench_routing *r, struct vf_tensor_id id, uint32_t row, float *out);
/* The other matrices are random. Changes (id, row) to the row whose stream is taken (queries repeat
 * keys). */
void bench_routing_source(const struct bench_routing *r, struct vf_tensor_id *id, uint32_t *row);
/* By what a row's weights are multiplied. */
float bench_routing_gain(const struct bench_routing *r, struct vf_tensor_id id, uint32_t row);

#endif
