/* Runs one worker's part of a layer program over the columns of a step.
 *
 * An executor owns the KV cache of its attention layers, its buffers and its thread pool. One
 * thread calls it; the pool's threads work inside a call. Results depend on the file, the tokens
 * and the activation precision alone: not on threads, placement, kernels or batch company.
 */
#ifndef VF_STAGE_WORKER_EXECUTOR_H
#define VF_STAGE_WORKER_EXECUTOR_H

#include "common/format/model_file.h"
#include "common/kernels/kernels.h"
#include "common/model/placement.h"
#include "common/model/stages.h"
#include "common/run/mailbox.h"
#include "stage_worker/expert_source.h"
#include "stage_worker/speculation_gate.h"

struct vf_column { /* one token position of one flow */
    uint32_t token;
    uint32_t position;
    uint32_t sequence; /* KV cache slot */
    uint32_t flow;
    uint32_t primary; /* column of flow 0 at the same position; itself for flow 0 */
    bool want_row;    /* flow 0: write this position's log-probabilities */
};

/* Columns of flow 0 come first, sorted by sequence, positions ascending without gaps within a
 * sequence; then the auxiliary flows' columns, flow by flow, each with its primary in the step.
 * A position may be computed again (its keys and values are overwritten with the same bits). */
struct vf_step {
    uint64_t id;
    const struct vf_column *columns;
    uint32_t column_count;
};

struct vf_executor_params {
    const struct vf_model_file *file;
    const struct vf_program *program;
    const struct vf_placement *placement;
    uint32_t worker; /* which part of the placement */
    const struct vf_kernels *kernels;
    bool q8;                           /* activations quantised to int8; else f32 */
    bool kv_f16;                       /* keys and values stored as f16; else f32 */
    enum vf_experts_when experts_when; /* the same for all workers of a placement */
    uint32_t context, sequences, columns_max, rows_max;
    uint32_t threads;
    struct vf_expert_source *experts; /* NULL for a model without experts */
    struct vf_run_state *run_state;   /* its end ends a step; NULL: a run that nobody ends */
    struct vf_mailboxes *mailboxes;   /* NULL: no edges */
    enum vf_speculate speculate;      /* order guesses of the next layers' experts */
};

/* Totals since create. Together the times are all that vf_executor_run took. */
struct vf_executor_stats {
    uint64_t compute_ns; /* the calling thread at work */
    uint64_t barrier_ns; /* it waited at the end of parallel regions for the pool's threads */
    uint64_t hop_ns;     /* ... for values of other workers */
    uint64_t stall_ns;   /* ... for experts */
    uint64_t weight_bytes;
};

/* Guesses of speculative prefetch, in (column-shared) experts. */
struct vf_guess_counts {
    uint64_t guessed; /* for layers that then chose their experts */
    uint64_t right;   /* of these, chosen: right / guessed is the precision */
    uint64_t chosen;  /* by these layers: right / chosen is the recall */
};
#define VF_SPECULATE_REACH 2u /* layers ahead */
struct vf_speculation_stats {
    struct vf_guess_counts ahead[VF_SPECULATE_REACH]; /* [i]: i + 1 layers ahead */
    uint64_t steps, steps_speculated; /* of few enough columns; of these, with guesses */
    uint64_t guess_ns;                /* spent on guessing, part of the compute time */
    uint64_t probes;                  /* comparisons of steps with and without it that ended */
    double gain;                      /* of the last one: share of a step's time that was saved */
    bool on;                          /* the next step guesses */
};

struct vf_executor;
enum vf_code vf_executor_create(const struct vf_executor_params *params, struct vf_executor **out,
                                struct vf_err *err);
void vf_executor_destroy(struct vf_executor *ex);

/* The parts of the file that the operations of params->worker read, every expert of its layers
 * included when with_experts. Heap array, the caller frees; needs file, program, placement, worker
 * of params only. */
enum vf_code vf_executor_ranges(const struct vf_executor_params *params, bool with_experts,
                                struct vf_weight_range **ranges, size_t *count, uint64_t *bytes,
                                struct vf_err *err);

/* Copies those parts into this process's own memory (see vf_model_file_own_weights). file is
 * params->file. */
enum vf_code vf_executor_own_weights(const struct vf_executor_params *params,
                                     struct vf_model_file *file, bool with_experts,
                                     struct vf_err *err);

/* Runs one step. rows [rows_max, vocab_size] f32 receives, on the head's worker, the rows of the
 * columns with want_row in column order; *row_count says how many. deadline_ns bounds every wait
 * for another process. On failure the sequences of the step have undefined caches from the step's
 * first position on, other workers are told through their mailboxes, and the executor stays
 * usable. *peer_failed: the step failed elsewhere and that worker reports why. */
enum vf_code vf_executor_run(struct vf_executor *ex, const struct vf_step *step,
                             uint64_t deadline_ns, float *rows, uint32_t *row_count,
                             bool *peer_failed, struct vf_err *err);

/* Time spent in each operation of the program since create; [op_count], zeros for others' ones.
 * What operations spend in one parallel region is divided by what they move. */
const uint64_t *vf_executor_op_ns(const struct vf_executor *ex);
uint64_t vf_executor_weight_bytes(const struct vf_executor *ex); /* mapped for its operations */
uint64_t vf_executor_kv_bytes(const struct vf_executor *ex);
uint64_t vf_executor_buffer_bytes(const struct vf_executor *ex); /* of all its operations */
void vf_executor_stats(const struct vf_executor *ex, struct vf_executor_stats *out);
/* Whether there is anything to guess and it may be; without it, all the figures are zeros. */
bool vf_executor_speculates(const struct vf_executor *ex);
void vf_executor_speculation(const struct vf_executor *ex, struct vf_speculation_stats *out);
/* Checks the stored checksum of every matrix and vector this worker reads. With experts it also
 * goes over resident ones, of which a damaged one is no error before a step needs it. */
enum vf_code vf_executor_verify(const struct vf_executor *ex, bool with_experts,
                                struct vf_err *err);

#endif
