/* What a run decides before anything is created: context, columns and rows of a step, whether
 * experts stay in memory or stream through a cache of how many slots, and how much memory all of it
 * takes: the memory plan.
 *
 * The plan counts what the run's processes hold together: pages of the model file that they have
 * mapped (once, however many map them), their own memory, shared memory, and what the kernel keeps
 * for it. It doesn't count page cache that nobody has mapped, which the kernel takes back when it
 * needs it. A run that can't be kept below what is allowed is refused.
 *
 * Pure apart from what it is told about the machine, so that tests can ask about any machine.
 */
#ifndef VF_COORDINATOR_ENGINE_BUDGET_H
#define VF_COORDINATOR_ENGINE_BUDGET_H

#include "common/format/model_file.h"
#include "common/machine/topology.h"
#include "common/model/placement.h"
#include "common/settings/settings.h"

/* Default context: enough for a conversation, and a KV cache that fits beside most models. */
#define VF_CONTEXT_DEFAULT 4096u
/* A slot of the logits ring stays below this, and below an eighth of the free shared memory. */
#define VF_LOGITS_SLOT_BYTES_MAX ((uint64_t)64 << 20)
#define VF_LOGITS_SLOTS          2u

struct vf_budget_model {
    const struct vf_config *config;
    const struct vf_program *program;
    const struct vf_placement *placement;
    uint64_t weight_bytes;        /* outside the expert bank, read by any worker */
    uint64_t worker_weight_bytes; /* the same, once for every worker that reads them */
    uint64_t worker_runs;         /* contiguous parts of the file in which they lie, likewise */
    uint64_t record_bytes;        /* of one expert; 0 without experts */
    uint64_t tensor_count;        /* entries of the tensor table */
    uint64_t tokenizer_bytes;     /* of the embedded tokenizer; 0: none */
};

struct vf_budget_machine {
    uint64_t memory_bytes, shm_bytes; /* available */
    uint32_t threads;                 /* of a stage worker, unless the parameters say */
};

enum vf_memory_item {
    VF_MEMORY_WEIGHTS,   /* outside the experts */
    VF_MEMORY_EXPERTS,   /* all of them, or the slots of the expert cache */
    VF_MEMORY_KV,        /* KV caches, as if every position were in use */
    VF_MEMORY_BUFFERS,   /* of a step, in every stage worker */
    VF_MEMORY_SHARED,    /* shared memory but the slots: the run's state, mailboxes, rows, the
                            cache's table */
    VF_MEMORY_KERNEL,    /* page tables, page cache index, registered buffers */
    VF_MEMORY_TOKENIZER, /* and the sampler */
    VF_MEMORY_PROCESSES, /* programs, libraries, stacks, messages */
    VF_MEMORY_ITEM_COUNT
};

struct vf_memory_plan {
    uint64_t allowed; /* by --memory, or what is available less a reserve */
    bool given;       /* by --memory */
    uint64_t available;
    uint64_t bytes[VF_MEMORY_ITEM_COUNT];
    uint64_t need;          /* their sum */
    uint64_t shm_bytes;     /* of need: shared-memory objects */
    uint64_t shm_available; /* /dev/shm's free room */
    bool shm_limits;        /* the expert cache is smaller than memory allows because of it */
};

struct vf_budget {
    uint32_t context, chunk, columns_max, rows_max;
    uint64_t logits_bytes; /* of the whole ring */
    uint32_t io_workers;   /* 0 unless stream */
    bool stream;
    uint64_t cache_slots; /* 0 unless stream */
    struct vf_memory_plan memory;
};

/* VF_ERR_USAGE for a context above the model's, a cache below one expert, and a --memory that can't
 * hold the run; VF_ERR_LIMIT when this machine can't. Either way out->memory says what is needed
 * and allowed. The settings say which KV precision; scores: whole texts will be scored, so a step
 * has many rows. */
enum vf_code vf_budget_decide(const Vflow__RunSettings *settings, bool scores,
                              const struct vf_budget_model *model,
                              const struct vf_budget_machine *machine, struct vf_budget *out,
                              struct vf_err *err);

/* Fills a model from an open file with its program and placement, all of which it borrows. */
enum vf_code vf_budget_model_from_file(const struct vf_model_file *file,
                                       const struct vf_program *program,
                                       const struct vf_placement *placement,
                                       struct vf_budget_model *out, struct vf_err *err);
/* The same before there is a file: as the converter would store the config with every matrix but
 * the routers in one precision, without a tokenizer. */
enum vf_code vf_budget_model_from_config(const struct vf_config *config, enum vf_quant quant,
                                         const struct vf_program *program,
                                         const struct vf_placement *placement,
                                         struct vf_budget_model *out, struct vf_err *err);
/* This machine, as it is now. */
void vf_budget_machine_read(const struct vf_topology *topology, struct vf_budget_machine *out);

const char *vf_memory_item_name(enum vf_memory_item item); /* "weights", "experts", "kv", ... */
/* "123.4 MiB", "2.50 GiB"; returns text. */
#define VF_BYTES_TEXT 32u
const char *vf_bytes_text(uint64_t bytes, char text[VF_BYTES_TEXT]);

#endif
