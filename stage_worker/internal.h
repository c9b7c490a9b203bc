/* What the executor's rooms share: weights, buffers and the step at hand.
 *
 * schedule.c, weights.c and scratch.c build it once, executor.c runs the schedule, attention.c,
 * ffn.c, experts.c and head.c implement the operations on region.c's parallel loops. Everything
 * here belongs to one executor.
 */
#ifndef VF_STAGE_WORKER_INTERNAL_H
#define VF_STAGE_WORKER_INTERNAL_H

#include "stage_worker/executor.h"
#include "stage_worker/kv_cache.h"
#include "stage_worker/pool.h"

/* Weights of one layer, resolved from the model file. What the model lacks stays zeroed. */
struct layer_weights {
    struct vf_matrix k, v;
    struct vf_matrix q[VF_FLOWS_MAX], o[VF_FLOWS_MAX]; /* flow j: its own or flow 0's */
    struct vf_matrix gate[VF_FLOWS_MAX], up[VF_FLOWS_MAX], down[VF_FLOWS_MAX];
    struct vf_matrix router;
    const float *attn_norm, *ffn_norm;
    const float *q_bias, *k_bias, *v_bias;
    const float *q_norm, *k_norm;
    const float *query_coupling[VF_FLOWS_MAX], *hidden_coupling[VF_FLOWS_MAX];
    const float *output_coupling[VF_FLOWS_MAX];
    const float *moe_hidden_coupling[VF_FLOWS_MAX], *moe_output_coupling[VF_FLOWS_MAX];
};

/* A routing decision: per column, its experts in rank order. */
struct route {
    uint32_t *experts; /* [columns_max, top_k_max] */
    float *weights;    /* [columns_max, top_k_max] */
    uint32_t *counts;  /* [columns_max]: k of the column's flow */
};

/* One entry of this worker's schedule. */
enum action_kind { ACTION_RECEIVE, ACTION_OP, ACTION_SEND };
struct action {
    enum action_kind kind;
    uint32_t index; /* op index, or edge index */
};

/* Aligned, zero-padded space for activations in both precisions. */
struct acts_space {
    int8_t *q;
    float *scale;
    int32_t *sum;
};

/* The three matrices of an expert at hand. */
struct expert_view {
    struct vf_matrix gate, up, down;
};

struct vf_executor {
    struct vf_executor_params p;
    const struct vf_config *config;
    uint32_t flows;
    struct vf_pool *pool;

    struct layer_weights *layers; /* [layer_count] */
    struct vf_matrix embed[VF_FLOWS_MAX], head;
    const float *final_norm;
    struct vf_kv_cache *kv;
    uint32_t *kv_index; /* [effective layers] -> cache of this worker */

    struct action *actions;
    uint32_t action_count;
    uint32_t *value_buffer; /* [value_count] -> buffer or route index */
    float **buffers;        /* [buffer_count][columns_max, stride] */
    uint32_t buffer_count;
    struct route *routes;
    uint32_t route_count;
    uint32_t stride; /* floats per column of a value: hidden_size rounded up to 32 */

    /* Scratch, sized for columns_max columns at create. */
    uint32_t wide;             /* largest padded activation width of dense operations */
    struct acts_space acts;    /* of the operation's input */
    struct acts_space acts2;   /* of its hidden activations */
    float *q, *k, *v;          /* [columns_max, Hq*hd], [.., Hkv*hd] */
    float *attn;               /* [columns_max, Hq*hd padded] */
    float *partials;           /* attention partials, see attention.c */
    uint64_t partial_floats;   /* per (column, KV head) */
    uint32_t partial_items;    /* how many items fit */
    float *hidden, *hidden_up; /* [columns_max, F padded] */
    float *pair_hidden, *pair_up, *pair_out, *pair_in; /* experts: [pairs_max, ...] */
    struct acts_space pair_acts, pair_acts2;
    uint32_t *pair_column;      /* [pair] -> column */
    uint32_t *pair_rank;        /* [column, rank] -> pair */
    uint32_t *union_experts;    /* distinct experts of a step, in order of first choice */
    uint32_t *expert_seen;      /* [expert_count]: index in union_experts + 1, or 0 */
    struct vf_expert_ref *refs; /* experts still outstanding, and what acquire gave for them */
    const uint8_t **got;
    uint32_t *outstanding, *ready; /* indices into union_experts */
    const uint8_t **ready_data;
    struct expert_view *expert_views;
    struct matmul_job *expert_jobs;
    uint32_t *pair_begin;       /* [distinct + 1] */
    float *router_logits;       /* [columns_max, E] */
    float *head_in, *head_out;  /* [rows * flows, ...] */
    float *rope_cos, *rope_sin; /* [columns_max, pairs] */
    double *rope_freq;          /* [pairs] */
    uint32_t rope_pairs, rope_distance;

    /* The step at hand. */
    const struct vf_column *columns;
    uint32_t n_col;     /* all flows */
    uint32_t n_primary; /* flow 0: columns [0, n_primary) */
    uint32_t flow_begin[VF_FLOWS_MAX + 1];
    uint64_t step_id;
    float *rows;
    uint32_t row_count;

    struct vf_executor_stats stats;
    uint64_t *op_ns; /* [op_count] */
};

static inline float *value_data(const struct vf_executor *ex, vf_value v)
{
    return ex->buffers[ex->value_buffer[v]];
}
static inline struct route *value_route(const struct vf_executor *ex, vf_value v)
{
    return &ex->routes[ex->value_buffer[v]];
}

/* Experts a column can have at most: the stride of routing decisions. */
static inline uint32_t top_k_max(const struct vf_config *c)
{
    return c->flow_count > 1 && c->expert_top_k_aux > c->expert_top_k ? c->expert_top_k_aux
                                                                      : c->expert_top_k;
}

/* Building an executor, in this order; each leaves what it made in ex, also on failure. */
bool is_mine(const struct vf_executor *ex, uint32_t op_idx);
enum vf_code schedule_build(struct vf_executor *ex, struct vf_err *err);
enum vf_code weights_load(struct vf_executor *ex, struct vf_err *err);
enum vf_code scratch_alloc(struct vf_executor *ex, struct vf_err *err);
void scratch_free(struct vf_executor *ex);

/* Prepares n_col columns of x [n_col, stride] (padding zero) for matrices of cols columns. */
struct vf_acts prepare_acts(struct vf_executor *ex, const float *x, uint32_t n_col, uint32_t cols,
                            uint32_t stride, struct acts_space *space);
/* The same activations, narrowed to columns [begin, begin + n_col). */
struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col);

/* One matrix product of a parallel region: y [n_col, y_stride] = m x acts. */
struct matmul_job {
    const struct vf_matrix *m;
    struct vf_acts acts;
    float *y;
    size_t y_stride;
    bool exact_f32; /* router: f32 activations whatever the mode */
    /* Second matrix of the same shape on the same activations (gate and up); data NULL: none. Its
     * product goes to y2, and `finish` is called on the rows of both while they are in cache. */
    struct vf_matrix m2;
    float *y2;
    void (*finish)(struct vf_executor *ex, const struct matmul_job *job, uint32_t row_begin,
                   uint32_t row_end);
    uint32_t flow;                        /* for finish */
    uint32_t item_begin, blocks_per_item; /* set by run_matmuls */
};
/* Runs several products as one parallel region. */
void run_matmuls(struct vf_executor *ex, struct matmul_job *jobs, uint32_t count);
/* A parallel loop; work_bytes (memory touched in all) decides whether waking threads pays. */
void run_parallel(struct vf_executor *ex, vf_pool_fn *fn, void *ctx, uint32_t item_count,
                  uint64_t work_bytes);

void op_attention(struct vf_executor *ex, const struct vf_op *op);
void attention_init(struct vf_executor *ex); /* rotation frequencies; once, after scratch_alloc */
void attention_prepare_step(struct vf_executor *ex); /* rotations of the step's positions */
void op_dense(struct vf_executor *ex, const struct vf_op *op);
void op_route(struct vf_executor *ex, const struct vf_op *op);
void op_fetch(struct vf_executor *ex, const struct vf_op *op);
enum vf_code op_experts(struct vf_executor *ex, const struct vf_op *op, struct vf_err *err);
void op_head(struct vf_executor *ex, const struct vf_op *op);

#endif
