/* What one stage worker needs to run steps: one piece of memory with every buffer of its
 * operations, and a KV cache.
 *
 * vf_step_space_lay is the only place where a buffer gets a size. The coordinator's memory plan
 * lets it count before anything exists; the worker carves its memory with it. A buffer that isn't
 * in a struct below doesn't exist, so the two can't disagree.
 */
#ifndef VF_COMMON_MODEL_STEP_MEMORY_H
#define VF_COMMON_MODEL_STEP_MEMORY_H

#include "common/base/arena.h"
#include "common/model/part.h"

/* Attention's keys are cached and summed in blocks of so many positions. */
#define VF_KEY_BLOCK 256u
/* Attention splits its (column, KV head) items into blocks of keys only while there are fewer than
 * so many items per thread; beyond, an item may be as many columns. */
#define VF_SPLIT_ITEMS_PER_THREAD 4u
/* Steps of more columns don't guess experts. */
#define VF_SPECULATE_COLUMNS_MAX 8u
/* Jobs of one parallel region: a few for each expert of a layer, and attention's (a query matrix of
 * each flow, keys, values) and the dense FFN's (a matrix of each flow) beside them. */
#define VF_JOBS_BESIDE_EXPERTS (2u * VF_FLOWS_MAX + 8u)
/* Records of the worker's own types, which it asserts to be of these sizes. */
#define VF_JOB_BYTES          56u
#define VF_PRODUCT_BYTES      152u
#define VF_EXPERT_REF_BYTES   8u
#define VF_EXPERT_FRONT_BYTES 16u
#define VF_EXPERT_VIEW_BYTES  80u

struct vf_step_shape {
    uint32_t columns_max, rows_max, context, sequences, threads;
    bool kv_f16;
    bool sync; /* experts run right behind their fetch */
};

/* ---- buffers, by operation; P: columns x experts of one at most --------------------------------
 */

/* Space for activations as int8. */
struct vf_acts_space {
    int8_t *q;    /* [columns, width] */
    float *scale; /* [columns, width / 32] */
    int32_t *sum; /* [columns, width / 32] */
};

/* A routing decision: per column, its experts in rank order. */
struct vf_route {
    uint32_t *experts; /* [columns, top] */
    float *weights;    /* [columns, top] */
    uint32_t *counts;  /* [columns]: experts of the column's flow */
};

struct vf_region_space {
    uint32_t job_count; /* that fit */
    void *jobs;         /* of VF_JOB_BYTES */
    void *products;     /* of VF_PRODUCT_BYTES: what jobs compute */
};

struct vf_values_space {
    float **buffers;         /* [value_buffers][columns, stride] */
    struct vf_route *routes; /* [route_buffers] */
};

struct vf_attention_space {
    struct vf_acts_space acts;  /* of its input, then of its heads' outputs */
    float *q, *k, *v;           /* [columns, Hq * hd], twice [columns, Hkv * hd] */
    float *heads;               /* [columns, Hq * hd padded]: their outputs */
    double *rope_freq;          /* [hd / 2] */
    float *rope_cos, *rope_sin; /* [columns, hd / 2] */
    float *partials;            /* [partial_items, partial_floats] */
    uint64_t partial_items, partial_floats;
};

struct vf_dense_space {
    struct vf_acts_space acts, hidden_acts;
    float *hidden, *up; /* [columns, F padded] */
};

struct vf_router_space {
    float *logits; /* [columns, E] */
};

/* Distinct experts of some columns. */
struct vf_expert_set_space {
    uint32_t *experts; /* [E] */
    uint32_t *index;   /* [E] */
};

struct vf_fetch_space {
    struct vf_expert_set_space set;
    void *refs; /* [E] of VF_EXPERT_REF_BYTES */
};

/* Of guesses; up to VF_SPECULATE_COLUMNS_MAX columns. */
struct vf_guess_space {
    float *normed;     /* [columns, stride] */
    float *logits;     /* [columns, E] */
    void *refs;        /* [E] of VF_EXPERT_REF_BYTES */
    uint8_t *guessed;  /* [layers, E] */
    uint8_t *by_layer; /* [layers] */
};

struct vf_experts_space {
    struct vf_expert_set_space set;
    struct vf_acts_space acts, pair_acts, hidden_acts;
    float *pair_in, *pair_out;         /* [P, stride] */
    float *pair_hidden, *pair_up;      /* [P, Fe padded] */
    uint32_t *pair_column, *pair_rank; /* [P] */
    uint32_t *pair_begin;              /* [E + 1] */
    uint32_t *outstanding;             /* [E] */
    void *refs, *got, *fronts, *views; /* [E] each of its record */
};

struct vf_head_space {
    struct vf_acts_space acts;
    float *in;  /* [rows * flows, stride] */
    float *out; /* [rows * flows, vocabulary] */
};

/* Operations that the worker doesn't run have no space. */
struct vf_step_space {
    uint32_t stride; /* floats per column of a value: the hidden size padded to 32 */
    struct vf_region_space region;
    struct vf_values_space values;
    struct vf_attention_space attention;
    struct vf_dense_space dense;
    struct vf_router_space router;
    struct vf_fetch_space fetch;
    struct vf_guess_space guess;
    struct vf_experts_space experts;
    struct vf_head_space head;
};

/* Takes every buffer of the part from the arena, or counts them. */
void vf_step_space_lay(const struct vf_config *config, const struct vf_part *part,
                       const struct vf_step_shape *shape, struct vf_arena *arena,
                       struct vf_step_space *out);
/* How large the arena must be. VF_ERR_LIMIT when a buffer can't be that large. */
enum vf_code vf_step_space_bytes(const struct vf_config *config, const struct vf_part *part,
                                 const struct vf_step_shape *shape, uint64_t *bytes,
                                 struct vf_err *err);

/* ---- the KV cache -----------------------------------------------------------------------------
 */

struct vf_kv_shape {
    uint32_t layers; /* caches this worker holds: one for each of its attention operations */
    uint32_t sequences, kv_heads, head_dim, context;
    bool f16;
};

struct vf_kv_shape vf_kv_shape_of(const struct vf_config *config, const struct vf_part *part,
                                  const struct vf_step_shape *shape);
/* Keys, or values, of one head of one sequence in one layer. */
uint64_t vf_kv_head_bytes(const struct vf_kv_shape *shape);
/* VF_ERR_LIMIT when it can't be that large. */
enum vf_code vf_kv_bytes(const struct vf_kv_shape *shape, uint64_t *bytes, struct vf_err *err);

/* ---- for a plan -------------------------------------------------------------------------------
 */

struct vf_step_memory {
    uint64_t scratch_bytes; /* the arena */
    uint64_t kv_bytes;
};

/* What a worker of a placement needs. Without sync, whether experts run early or late is decided
 * when there is a memory plan, so the larger of both is counted. VF_ERR_LIMIT, VF_ERR_NO_MEMORY. */
enum vf_code vf_step_memory_count(const struct vf_config *config, const struct vf_program *program,
                                  const struct vf_placement *placement, uint32_t worker,
                                  const struct vf_step_shape *shape, struct vf_step_memory *out,
                                  struct vf_err *err);

/* Experts a column can have at most. */
static inline uint32_t vf_experts_top_max(const struct vf_config *c)
{
    return c->flow_count > 1 && c->expert_top_k_aux > c->expert_top_k ? c->expert_top_k_aux
                                                                      : c->expert_top_k;
}

#endif
