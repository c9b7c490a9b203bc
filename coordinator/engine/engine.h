/* The engine: one run of worker processes that together compute steps of one model.
 *
 * It owns the run directory, the shared memory, the control socket and the worker processes: it
 * starts them, tells them the plan, sends every step to every stage worker and takes the result
 * from the head's worker. A worker that dies or falls silent breaks the engine: every other worker
 * is shut down and every later call fails with the same error. Destroying it leaves nothing
 * behind: no process, no shared-memory object, no socket file.
 *
 * One thread. Nothing blocks but vf_engine_create, vf_engine_wait and vf_engine_totals, each with
 * a deadline and a way out through cancel_fd.
 */
#ifndef VF_COORDINATOR_ENGINE_ENGINE_H
#define VF_COORDINATOR_ENGINE_ENGINE_H

#include "common/base/err.h"
#include "common/experts/cache.h"
#include "common/format/model_file.h"
#include "common/settings/settings.h"
#include "vflow.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vf_engine;
struct vf_run_dir;

struct vf_engine_params {
    Vflow__RunSettings settings; /* borrows their strings */
    bool scores;                 /* whole texts will be scored: steps have many rows */
    int cancel_fd;               /* readable: give up with VF_ERR_CANCELLED; -1: none */
};

struct vf_engine_info { /* fixed once the engine runs */
    uint32_t stage_workers, io_workers, threads;
    uint32_t context, sequences;
    uint32_t chunk;       /* columns of flow 0 in a step, at most */
    uint32_t rows_max;    /* log-probability rows of a step, at most */
    uint32_t depth;       /* steps worth having in flight */
    const char *experts;  /* "none", "resident", "streamed" */
    uint64_t cache_bytes; /* expert cache */
    uint64_t expert_bytes, weight_bytes, kv_bytes;
    uint32_t io_depth;        /* reads in flight per I/O worker; 0: their default */
    uint64_t io_read_bytes;   /* of each; 0: their default */
    double drive_bytes_per_s; /* as probed at the start; 0: it wasn't */
    double drive_latency_ms;
    uint64_t memory_bytes,
        memory_allowed; /* planned for all processes, and the most they may take */
};

struct vf_step_column {
    uint32_t token, position, sequence, flow;
    uint32_t primary; /* index of flow 0's column of the same position */
    bool want_row;
};

struct vf_step_done {
    uint64_t step_id;
    bool failed; /* err says why; the engine goes on */
    struct vf_err err;
    const float *rows; /* [row_count, vocab_size], valid until vf_engine_release(step_id) */
    uint32_t row_count;
};

struct vf_engine_totals {   /* of all workers since the start; addition: common/run/counters.h */
    Vflow__StepStats stats; /* its speculation is the next member, not a pointer */
    Vflow__SpeculationStats speculation;
    bool speculates;          /* some stage worker can guess */
    Vflow__ExpertReads reads; /* zeros unless experts are streamed, as what follows */
    uint64_t expert_reads, expert_bytes_read, expert_evictions;
    double read_bytes_per_s;               /* while a read was in flight, of all I/O workers */
    uint64_t guesses_used, guesses_wasted; /* experts read on a guess */
    uint64_t guess_bytes_wasted;           /* at most */
};

enum vf_worker_role { VF_WORKER_STAGE, VF_WORKER_IO };
struct vf_worker_view {
    enum vf_worker_role role;
    uint32_t index;
    int pid;
    const char *state; /* "starting", "loading", "ready", "lost" */
    uint64_t heard_ms_ago;
};

/* Zmq sockets and descriptors whose readability also ends a wait. */
struct vf_poll_extra {
    void *const *sockets;
    int socket_count;
    const int *fds;
    int fd_count;
};

/* Opens the model, starts every worker and waits until all are ready. */
enum vf_code vf_engine_create(const struct vf_engine_params *params, struct vf_engine **out,
                              struct vf_err *err);
void vf_engine_destroy(struct vf_engine *e); /* NULL is fine */

const struct vf_model_file *vf_engine_model(const struct vf_engine *e);
const struct vf_engine_info *vf_engine_info(const struct vf_engine *e);
/* The run's directory, where other sockets of this process belong too. */
const struct vf_run_dir *vf_engine_run_dir(const struct vf_engine *e);

/* Whether a step (with rows or without) could be sent now. */
bool vf_engine_can_submit(const struct vf_engine *e, bool with_rows);
/* Sends a step in the order of stage_worker/executor.h; columns are copied. */
enum vf_code vf_engine_submit(struct vf_engine *e, const struct vf_step_column *columns,
                              uint32_t count, uint64_t *step_id, struct vf_err *err);
/* Waits at most timeout_ms (0: not at all) for the oldest step to end, for extra, or for anything
 * else that happens. *got tells whether *done was filled. An error means the engine is broken. */
enum vf_code vf_engine_wait(struct vf_engine *e, int timeout_ms, const struct vf_poll_extra *extra,
                            struct vf_step_done *done, bool *got, struct vf_err *err);
/* Gives the rows of a finished step back. Once per step taken from vf_engine_wait. */
void vf_engine_release(struct vf_engine *e, uint64_t step_id);
uint32_t vf_engine_in_flight(const struct vf_engine *e);

/* What the workers reported with their last heartbeat, and with fresh = true asks them first, which
 * needs that no step is in flight. */
enum vf_code vf_engine_read_totals(struct vf_engine *e, bool fresh, struct vf_engine_totals *out,
                                   struct vf_err *err);
uint32_t vf_engine_worker_count(const struct vf_engine *e);
void vf_engine_worker(const struct vf_engine *e, uint32_t i, struct vf_worker_view *out);

#endif
