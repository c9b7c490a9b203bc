/* What one stage worker allocates to run steps: its scratch buffers and its KV cache, from the
 * model's configuration, the worker's part of the program and the size of a step.
 *
 * The coordinator's memory plan adds these numbers up before anything exists; the worker allocates
 * exactly them (stage_worker/scratch.c asks here for every size). A buffer of the executor that
 * isn't counted here doesn't exist, so the two can't disagree.
 */
#ifndef VF_COMMON_MODEL_STEP_MEMORY_H
#define VF_COMMON_MODEL_STEP_MEMORY_H

#include "common/model/placement.h"

/* Attention's keys are cached and summed in blocks of so many positions. */
#define VF_KEY_BLOCK 256u
/* Attention splits its (column, KV head) items into blocks of keys only while there are fewer than
 * so many items per thread; beyond, an item may be as many columns. */
#define VF_SPLIT_ITEMS_PER_THREAD 4u
/* Every buffer starts on a cache line and ends on one. */
#define VF_SCRATCH_ALIGN 64u
/* Lists with an entry per expert of a layer (references, views, jobs), all together. */
#define VF_SCRATCH_EXPERT_BYTES 512u

enum vf_scratch { /* one buffer each unless it says otherwise; floats unless it says otherwise */
                  VF_SCRATCH_VALUE,          /* value_buffers of them: [columns, hidden padded] */
                  VF_SCRATCH_ROUTE,          /* route_buffers of them: experts, weights, counts */
                  VF_SCRATCH_Q,              /* [columns, Hq * hd] */
                  VF_SCRATCH_KV,             /* two: [columns, Hkv * hd] */
                  VF_SCRATCH_ATTN,           /* [columns, Hq * hd padded] */
                  VF_SCRATCH_ROPE,           /* two: [columns, hd] */
                  VF_SCRATCH_PARTIALS,       /* [partial_items, partial_floats] */
                  VF_SCRATCH_ACTS_ATTENTION, /* int8 activations [columns, hidden or Hq * hd] */
                  VF_SCRATCH_ACTS_DENSE,     /* int8 activations [columns, hidden padded] */
                  VF_SCRATCH_ACTS_DENSE_HIDDEN, /* int8 activations [columns, F padded] */
                  VF_SCRATCH_ACTS_EXPERTS,      /* int8 activations [columns, hidden padded] */
                  VF_SCRATCH_HIDDEN,            /* two: [columns, F padded] */
                  VF_SCRATCH_ROUTER,            /* [columns, E] */
                  VF_SCRATCH_EXPERTS,           /* lists by expert: VF_SCRATCH_EXPERT_BYTES each */
                  VF_SCRATCH_PAIR_LISTS,        /* two: a number for each (column, rank) */
                  VF_SCRATCH_PAIR,              /* two: [pairs, hidden padded] */
                  VF_SCRATCH_PAIR_HIDDEN,       /* two: [pairs, Fe padded] */
                  VF_SCRATCH_PAIR_ACTS,         /* int8 activations [pairs, hidden padded] */
                  VF_SCRATCH_PAIR_ACTS_HIDDEN,  /* int8 activations [pairs, Fe padded] */
                  VF_SCRATCH_ACTS_HEAD, /* int8 activations [rows * flows, hidden padded]; head's
                                           worker */
                  VF_SCRATCH_HEAD_IN,   /* [rows * flows, hidden padded]; head's worker */
                  VF_SCRATCH_HEAD_OUT,  /* [rows * flows, vocabulary]; head's worker */
                  VF_SCRATCH_COUNT
};

struct vf_step_shape {
    uint32_t columns_max, rows_max, context, sequences, threads;
    bool kv_f16, sync; /* sync: experts run right behind their fetch */
};

struct vf_step_memory {
    uint32_t value_buffers, route_buffers; /* values a worker holds at once, at most */
    uint32_t stride;                       /* hidden size padded to 32 */
    uint32_t partial_items;                /* attention partials that fit */
    uint64_t partial_floats;               /* of one item */
    uint64_t bytes[VF_SCRATCH_COUNT];      /* of one buffer, a multiple of VF_SCRATCH_ALIGN */
    uint64_t scratch_bytes;                /* of all buffers */
    uint32_t kv_layers;                    /* attention operations of the worker */
    uint64_t kv_bytes;
};

/* VF_ERR_LIMIT when a buffer can't be that large, VF_ERR_NO_MEMORY. */
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
