/* What the executor's rooms share: weights, buffers and the step at hand.
 *
 * schedule.c, weights.c and scratch.c build it once, executor.c runs the schedule, attention.c,
 * ffn.c, experts.c and head.c implement the operations as jobs of parallel regions (region.h), most
 * of them products and loops of work.c. Everything here belongs to one executor.
 */
#ifndef VF_STAGE_WORKER_INTERNAL_H
#define VF_STAGE_WORKER_INTERNAL_H

#include "stage_worker/executor.h"
#include "stage_worker/kv_cache.h"
#include "stage_worker/region.h"
#include "stage_worker/speculate.h"

#include "common/model/stages.h"
#include "common/model/step_memory.h"

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
enum action_kind {
    ACTION_RECEIVE,
    ACTION_COLUMNS, /* operations that go column by column, one behind the other */
    ACTION_OP,      /* one light operation */
    ACTION_HEAVY,   /* the heavy operations of a stage, side by side */
    ACTION_SEND
};
struct action {
    enum action_kind kind;
    uint32_t index; /* of the edge, or of the first operation in ex->order */
    uint32_t count; /* operations */
};

/* Activations of an operation at hand, in the precision the products read. */
struct acts {
    int8_t *q; /* space for view.q, view.scale, view.sum; one allocation that begins here */
    float *scale;
    int32_t *sum;
    struct vf_acts view;
};

struct matmul;
/* Called on rows that were just computed, while they are in cache. */
typedef void finish_fn(struct vf_executor *ex, const struct matmul *mm, uint32_t row_begin,
                       uint32_t row_end);

/* A matrix product: y [n_col, y_stride] = m x acts. */
struct matmul {
    struct vf_matrix m;
    struct vf_acts acts;
    float *y;
    size_t y_stride;
    bool exact_f32; /* router: f32 activations whatever the mode */
    /* Second matrix of the same shape on the same activations (gate and up); data NULL: none. Its
     * product goes to y2. */
    struct vf_matrix m2;
    float *y2;
    finish_fn *finish; /* NULL: none. It gets rows from a multiple of 32 on. */
    uint32_t layer;    /* for finish */
    uint32_t index;    /* for finish: what column 0 of y is */
};

/* An expert at hand: its record, or the front of it. */
struct expert_view {
    uint32_t expert; /* index into union_experts */
    bool is_whole;
    bool has_hidden; /* its hidden activations were computed from the front */
    struct vf_matrix gate, up, down;
};

struct vf_executor {
    struct vf_executor_params p;
    const struct vf_config *config;
    uint32_t flows;
    struct vf_pool *pool;
    struct region region;   /* the jobs of the next parallel region */
    struct matmul *matmuls; /* [region.capacity]: what its products compute */
    uint32_t matmul_count;

    struct layer_weights *layers; /* [layer_count] */
    struct vf_matrix embed[VF_FLOWS_MAX], head;
    const float *final_norm;
    struct vf_kv_cache *kv;
    uint32_t *kv_index; /* [effective layers] -> cache of this worker */

    uint32_t *order, *slot; /* [op_count] each: common/model/stages.h */
    struct action *actions;
    uint32_t action_count;
    uint32_t *value_buffer; /* [value_count] -> buffer or route index */
    float **buffers;        /* [buffer_count][columns_max, stride] */
    uint32_t buffer_count;
    struct route *routes;
    uint32_t route_count;
    uint32_t stride; /* floats per column of a value: hidden_size rounded up to 32 */

    /* Scratch, sized for columns_max columns at create. */
    struct acts attention_acts; /* of attention's input, then of its heads' outputs */
    struct acts dense_acts, hidden_acts, expert_acts, pair_acts, pair_hidden_acts, head_acts;
    float *q, *k, *v;                                  /* [columns_max, Hq*hd], [.., Hkv*hd] */
    float *attn;                                       /* [columns_max, Hq*hd padded] */
    float *partials;                                   /* attention partials, see attention.c */
    uint64_t partial_floats;                           /* per (column, KV head) */
    uint32_t partial_items;                            /* how many items fit */
    float *hidden, *hidden_up;                         /* [columns_max, F padded] */
    float *pair_hidden, *pair_up, *pair_out, *pair_in; /* experts: [pairs_max, ...] */
    uint32_t *pair_column;                             /* [pair] -> column */
    uint32_t *pair_rank;                               /* [column, rank] -> pair */
    uint32_t *union_experts;    /* distinct experts of a step, in order of first choice */
    uint32_t *expert_seen;      /* [expert_count]: index in union_experts + 1, or 0 */
    struct vf_expert_ref *refs; /* experts still outstanding, and what acquire gave for them */
    const uint8_t **got;
    struct vf_expert_front *fronts; /* taken of them */
    uint32_t *outstanding;          /* indices into union_experts */
    uint32_t distinct_count, outstanding_count, view_count;
    struct expert_view *expert_views; /* of those that can be worked on */
    uint32_t *pair_begin;             /* [distinct + 1] */
    float *router_logits;             /* [columns_max, E] */
    float *head_in, *head_out;        /* [rows * flows, ...] */
    float *rope_cos, *rope_sin;       /* [columns_max, pairs] */
    double *rope_freq;                /* [pairs] */
    uint32_t rope_pairs, rope_distance;

    /* The step at hand. */
    const struct vf_column *columns;
    uint32_t n_col;     /* all flows */
    uint32_t n_primary; /* flow 0: columns [0, n_primary) */
    uint32_t flow_begin[VF_FLOWS_MAX + 1];
    uint64_t step_id;
    float *rows;
    uint32_t row_count;

    struct speculation *speculation; /* NULL: nothing to guess */
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
    return vf_experts_top_max(c);
}

/* Building an executor, in this order; each leaves what it made in ex, also on failure. */
bool is_mine(const struct vf_executor *ex, uint32_t op_idx);
enum vf_code schedule_build(struct vf_executor *ex, struct vf_err *err);
enum vf_code weights_load(struct vf_executor *ex, struct vf_err *err);
enum vf_code scratch_alloc(struct vf_executor *ex, struct vf_err *err);
void scratch_free(struct vf_executor *ex);

/* ---- work.c: what regions are made of ---- */

/* Makes acts->view of n_col columns of x [n_col, stride] (padding zero) for matrices of cols
 * columns; with q8 adds the loop that quantises them. */
void add_acts(struct vf_executor *ex, struct acts *acts, const float *x, uint32_t n_col,
              uint32_t cols, uint32_t stride);
/* The same, for columns that something else quantises into the space of acts. */
void view_acts(struct vf_executor *ex, struct acts *acts, const float *x, uint32_t n_col,
               uint32_t cols, uint32_t stride);
/* Quantises entries [begin, end) of column c of the view, begin a multiple of 32. */
void quantize_part(const struct vf_executor *ex, const struct acts *acts, uint32_t c,
                   uint32_t begin, uint32_t end);
/* The same activations, narrowed to columns [begin, begin + n_col). */
struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col);
/* Adds a product to the region, split by rows. */
void add_matmul(struct vf_executor *ex, const struct matmul *mm);
/* Adds a loop, job->ctx is ex and job->what op; a short one runs at once instead. */
void add_loop(struct vf_executor *ex, const struct vf_op *op, region_run_fn *run,
              uint32_t item_count, uint64_t item_cost);
/* Runs what was added, or forgets it. */
void run_region(struct vf_executor *ex);
void drop_region(struct vf_executor *ex);

/* ---- the operations ----
 *
 * A heavy operation is a row of phases. Each adds jobs that don't depend on each other to the
 * region, which runs before the next phase, together with what the other operations of the stage
 * have added. *next is phase + 1 unless the operation sets it: PHASE_END when the phase was its
 * last. A phase that adds nothing is followed by the next one at once. */
#define PHASE_END UINT32_MAX
typedef enum vf_code phase_fn(struct vf_executor *ex, const struct vf_op *op, uint32_t phase,
                              uint32_t *next, struct vf_err *err);
phase_fn attention_phase, dense_phase, experts_phase;

void attention_init(struct vf_executor *ex); /* rotation frequencies; once, after scratch_alloc */
void attention_prepare_step(struct vf_executor *ex); /* rotations of the step's positions */
void op_route(struct vf_executor *ex, const struct vf_op *op);
void op_fetch(struct vf_executor *ex, const struct vf_op *op);
void op_head(struct vf_executor *ex, const struct vf_op *op);
/* The k largest of n logits, best first, ties to the lower index; NaN counts as the smallest. */
void select_top_k(const float *logits, uint32_t n, uint32_t k, uint32_t *chosen);
/* Ranks orders of experts by when their consumer runs; a later step's rank behind. */
uint64_t deadline_rank(const struct vf_executor *ex, const struct vf_op *op);
/* out[c] += coupling[flow of c] * out[primary of c] for the columns of auxiliary flows that have a
 * coupling: x [n_col, stride], n entries of each. */
void couple_column(const struct vf_executor *ex, const float *const *coupling, float *x, uint32_t n,
                   uint32_t stride, uint32_t column);

#endif
