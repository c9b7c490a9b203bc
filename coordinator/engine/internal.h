/* What the engine's rooms share. engine.c builds and tears down, control.c talks to the workers and
 * watches them, steps.c keeps the steps in flight. All of it belongs to the one thread that calls
 * the engine.
 */
#ifndef VF_COORDINATOR_ENGINE_INTERNAL_H
#define VF_COORDINATOR_ENGINE_INTERNAL_H

#include "common/experts/cache.h"
#include "common/run/mailbox.h"
#include "common/run/run_dir.h"
#include "common/run/shm.h"
#include "common/run/wire.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/process.h"
#include "coordinator/engine/shape.h"

#define ENGINE_EPOCH       1u
#define ENGINE_WORKERS_MAX (VF_STAGE_WORKERS_MAX + VF_CACHE_IO_WORKERS_MAX)
#define ENGINE_EXTRA_MAX   32 /* sockets and descriptors a caller may wait for beside ours */

/* Deadlines. Loading checks every weight's checksum, so it may take as long as the slowest drive we
 * accept needs to read the file; a step of a large model on a slow drive may take minutes. */
#define HELLO_NS             VF_S(30)
#define LOAD_BASE_NS         VF_S(60)
#define LOAD_BYTES_PER_S_MIN (20u << 20)
#define STEP_NS              VF_S(660) /* longer than a worker waits for another one in a step */
#define HEARTBEAT_NS         VF_S(5)
#define SILENCE_NS           VF_S(20) /* an unanswered heartbeat, of a worker that isn't in a step */
#define BLAME_NS             VF_S(2)  /* for the worker that failed a step to say why */
#define TOTALS_NS            VF_S(10)
/* An I/O worker that dies is started again, unless it does so more often than this. */
#define REVIVALS_MAX       8u
#define REVIVALS_WINDOW_NS VF_S(60)
#define SHUTDOWN_GRACE_NS  VF_S(3)
#define PROGRESS_NS        VF_S(1) /* loading that takes longer shows a bar on a terminal */

enum worker_state { WORKER_STARTING, WORKER_LOADING, WORKER_READY, WORKER_LOST };

struct worker {
    enum vf_worker_role role;
    uint32_t index;
    char name[24]; /* "stage worker 0": for messages */
    enum worker_state state;
    struct vf_process process;
    pid_t pid;                /* stays when the process is gone */
    struct vf_wire_peer peer; /* id_bytes 0 until its hello */
    uint64_t heard_ns;
    uint64_t asked_ns;              /* the last heartbeat sent */
    uint32_t asks_open;             /* heartbeats sent and not answered */
    uint64_t deadline_ns;           /* of the state it is in, until READY */
    struct vf_engine_totals totals; /* its last heartbeat's */
    uint64_t weight_bytes, kv_bytes;
    uint32_t threads;
    uint32_t revivals; /* since revivals_since_ns */
    uint64_t revivals_since_ns;
};

struct flight { /* a step that was sent and not yet taken */
    uint64_t id;
    uint32_t columns, rows_wanted, row_count;
    int slot; /* of the logits ring; -1: a step without rows */
    bool answered, failed, explained;
    uint64_t answered_ns;
    struct vf_err err; /* explained */
};

struct vf_engine {
    struct vf_engine_params params;
    char *model_path; /* absolute */
    struct vf_engine_info info;
    struct vf_run_shape shape;

    struct vf_model_file *file;
    const struct vf_config *config;
    struct vf_program program;

    struct vf_run_dir *run_dir;
    struct vf_run_state *run_state;
    struct vf_mailboxes *mailboxes; /* NULL with one stage worker */
    struct vf_expert_cache *cache;
    struct vf_shm logits;
    void *zmq, *router;

    struct worker workers[ENGINE_WORKERS_MAX];
    uint32_t worker_count;
    uint32_t ready_count;

    /* A ring of at most VF_MAILBOX_DEPTH steps, oldest first. */
    struct flight flights[VF_MAILBOX_DEPTH];
    uint32_t flight_begin, flight_count;
    uint64_t oldest_since_ns; /* since when the oldest flight is the oldest */
    uint64_t idle_since_ns;   /* since when nothing is in flight */
    uint64_t next_step_id;
    uint64_t slot_step[VF_LOGITS_SLOTS]; /* step that holds the slot; 0: free */

    /* Reused for every step. */
    Vflow__Column *columns;
    Vflow__Column **column_list;

    bool broken;
    struct vf_err err; /* why */
};

/* ---- control.c ---- */

enum vf_code engine_start_workers(struct vf_engine *e, struct vf_err *err);
enum vf_code engine_wait_ready(struct vf_engine *e, struct vf_err *err);
/* Waits until deadline_ns for anything to happen and handles it; *extra_ready when it was one of
 * the caller's. Fails once the engine is broken. */
enum vf_code engine_turn(struct vf_engine *e, uint64_t deadline_ns,
                         const struct vf_poll_extra *extra, bool *extra_ready, struct vf_err *err);
/* Sends to a worker; a worker that can't take it breaks the engine. */
enum vf_code engine_send(struct vf_engine *e, struct worker *w, Vflow__Envelope *m,
                         struct vf_err *err);
/* The engine can't go on: shuts everything down and keeps *why for every later call. */
enum vf_code engine_break(struct vf_engine *e, const struct vf_err *why);
/* Tells every worker to leave, waits, kills who stays. */
void engine_shutdown_workers(struct vf_engine *e, const char *reason);

/* Asks a worker how it is; one that can't take the question is noticed by other means. */
void engine_ask_worker(struct vf_engine *e, struct worker *w);

/* ---- totals.c ---- */

/* Nothing counted yet. */
void engine_totals_init(struct vf_engine_totals *t);
/* What a worker reported of its whole life; NULL: nothing. */
void engine_take_stats(struct worker *w, const Vflow__StepStats *stats);

/* ---- steps.c ---- */

struct flight *engine_oldest_flight(struct vf_engine *e);
/* True when the oldest step's outcome is known. */
bool engine_oldest_done(struct vf_engine *e);
/* A step result from w; a result out of place breaks the engine. */
void engine_take_result(struct vf_engine *e, struct worker *w, const Vflow__StepResult *r);
/* When the oldest flight needs attention; UINT64_MAX: never. Fails when it is overdue. */
uint64_t engine_flight_deadline(const struct vf_engine *e);
void engine_check_flights(struct vf_engine *e, uint64_t now);

#endif
