/* Sizes of a run, decided before anything is created: context, columns and rows of a step, and
 * whether experts stay in memory or stream through a cache of how many slots.
 *
 * Pure apart from what it is told about the machine, so that tests can ask about any machine.
 */
#ifndef VF_COORDINATOR_ENGINE_BUDGET_H
#define VF_COORDINATOR_ENGINE_BUDGET_H

#include "coordinator/engine/engine.h"

/* Default context: enough for a conversation, and a KV cache that fits beside most models. */
#define VF_CONTEXT_DEFAULT 4096u
/* A slot of the logits ring stays below this, and below an eighth of the free shared memory. */
#define VF_LOGITS_SLOT_BYTES_MAX ((uint64_t)64 << 20)
#define VF_LOGITS_SLOTS          2u

struct vf_budget_model {
    uint64_t file_bytes;
    uint32_t expert_count;  /* per layer; 0: none */
    uint32_t expert_layers; /* weight layers */
    uint64_t record_bytes;  /* of one expert */
    uint32_t context_max, vocab_size, flow_count;
    uint64_t kv_values; /* numbers kept per position: all layers, keys and values */
};

struct vf_budget_machine {
    uint64_t memory_bytes, shm_bytes; /* available */
};

struct vf_budget {
    uint32_t context, chunk, columns_max, rows_max;
    uint64_t kv_bytes;
    uint64_t logits_bytes; /* of the whole ring */
    bool stream;
    uint64_t cache_slots; /* 0 unless stream */
};

/* VF_ERR_USAGE for a context above the model's and a cache below one expert; VF_ERR_LIMIT when the
 * KV caches can't fit the memory. */
enum vf_code vf_budget_decide(const struct vf_engine_params *params,
                              const struct vf_budget_model *model,
                              const struct vf_budget_machine *machine, struct vf_budget *out,
                              struct vf_err *err);

#endif
