/* Which worker runs which operation, and what crosses between workers.
 *
 * A placement assigns each operation of a program to one stage worker and derives, from the
 * values' uses alone, one edge per (value, reading worker): the producer's worker sends the
 * value as soon as it exists, the reader receives it right before its first use. Nobody writes
 * by hand what travels over a boundary. Each worker's schedule is the program's order
 * restricted to its operations, so the sums, and the bits, are the same for every placement.
 */
#ifndef VF_COMMON_MODEL_PLACEMENT_H
#define VF_COMMON_MODEL_PLACEMENT_H

#include "common/model/program.h"
#include "common/model/tensors.h"
#include "common/tile/tile.h"

#define VF_STAGE_WORKERS_MAX 64u

struct vf_edge {
    vf_value value;
    uint32_t from, to;    /* workers */
    uint32_t send_after;  /* op index: the producer */
    uint32_t recv_before; /* op index: the first reader on `to` */
};

struct vf_placement {
    uint32_t worker_count;
    uint32_t *op_worker; /* [op_count] */
    struct vf_edge *edges;
    uint32_t edge_count;
    uint32_t head_worker; /* the worker that answers with log-probabilities */
};

enum vf_placement_kind {
    /* Contiguous groups of effective layers, sized so that the largest group's weight bytes per
     * token are smallest. 1 to effective_layers workers. All iterations of a fixed_point block stay
     * on one worker only if the split says so; weights are shared through the page cache either
     * way. */
    VF_PLACEMENT_PIPELINE,
    VF_PLACEMENT_KIND_COUNT
};

/* Made once for a run. VF_ERR_USAGE for a worker_count that the kind doesn't allow. */
enum vf_code vf_placement_make(enum vf_placement_kind kind, const struct vf_config *config,
                               const struct vf_program *p, uint32_t worker_count,
                               struct vf_placement *out, struct vf_err *err);
/* The same placement from its op_worker [count] alone, as another process received it.
 * VF_ERR_PROTOCOL when it isn't one: not a worker for every operation, a worker out of range or
 * without an operation, a routing decision that would have to travel. */
enum vf_code vf_placement_from(const struct vf_program *p, uint32_t worker_count,
                               const uint32_t *op_worker, size_t count, struct vf_placement *out,
                               struct vf_err *err);
void vf_placement_deinit(struct vf_placement *pl);

/* Whether an op reads a tensor outside the expert bank; tied: the head is the embedding. */
bool vf_op_reads(const struct vf_op *op, const struct vf_tensor_id *id, bool tied);
/* Distinct experts of a layer that one token's flows choose: exact for one flow and for replay, the
 * most there can be for independent routers. */
uint32_t vf_experts_per_token(const struct vf_config *config);
/* Bytes of weights one op reads for one token with all its flows (experts: vf_experts_per_token of
 * them), every matrix in the given precision. */
uint64_t vf_op_weight_bytes(const struct vf_config *config, const struct vf_op *op,
                            enum vf_quant quant);

#endif
