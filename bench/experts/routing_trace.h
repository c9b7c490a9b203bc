/* Routing traces: which experts every token used in every layer. Kept as a NumPy array of shape
 * [tokens, layers, top_k], each token's experts in rank order (docs/BENCHMARKS.md).
 *
 * A trace is a plain value that owns its experts. A recorder collects one from an executor's
 * routing decisions. Files are untrusted.
 */
#ifndef VF_BENCH_EXPERTS_ROUTING_TRACE_H
#define VF_BENCH_EXPERTS_ROUTING_TRACE_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VF_TRACE_LAYERS_MAX 4096u
#define VF_TRACE_TOP_MAX    256u
#define VF_TRACE_BYTES_MAX  (4ull << 30)

struct vf_routing_trace {
    uint32_t token_count, layer_count, top_k;
    uint32_t expert_max; /* the highest in it */
    uint16_t *experts;   /* [token_count][layer_count][top_k], heap */
};

/* Reads '<u2' or '<i4'. Refuses other shapes and types, experts outside 0 to 65534, and an expert
 * twice in one set. */
enum vf_code vf_routing_trace_read(const char *path, struct vf_routing_trace *out,
                                   struct vf_err *err);
/* Writes '<u2'. */
enum vf_code vf_routing_trace_write(const struct vf_routing_trace *trace, const char *path,
                                    struct vf_err *err);
void vf_routing_trace_deinit(struct vf_routing_trace *trace); /* a zeroed one is fine */

static inline const uint16_t *vf_routing_trace_at(const struct vf_routing_trace *t, uint32_t token,
                                                  uint32_t layer)
{
    return t->experts + ((size_t)token * t->layer_count + layer) * t->top_k;
}

struct vf_routing_recorder;
enum vf_code vf_routing_recorder_create(uint32_t layer_count, uint32_t top_k,
                                        struct vf_routing_recorder **out, struct vf_err *err);
/* The experts of so many further tokens of a layer: [token_count] rows, `stride` apart, top_k of
 * each. Never fails; memory that ran out is told by finish. */
void vf_routing_recorder_add(struct vf_routing_recorder *r, uint32_t layer, const uint32_t *experts,
                             uint32_t stride, uint32_t token_count);
/* The trace so far, the caller's to deinit. VF_ERR_UNSUPPORTED when the layers have not seen the
 * same number of tokens. */
enum vf_code vf_routing_recorder_finish(const struct vf_routing_recorder *r,
                                        struct vf_routing_trace *out, struct vf_err *err);
void vf_routing_recorder_destroy(struct vf_routing_recorder *r);

#endif
