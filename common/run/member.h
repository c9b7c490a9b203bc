/* A worker's membership in a run: the whole conversation with the coordinator, for every role.
 *
 *     joining   hello is sent; plan, or a refusal, comes
 *     planned   the worker builds what the plan says
 *     ready     messages are taken one by one until the end
 *     over      Shutdown, a signal, an error, or the coordinator's death
 *
 * A worker creates a member, receives the plan, builds, says ready and loops over vf_member_next
 * and whatever it waits for beside it. Messages of another epoch, unreadable ones and those that
 * its role doesn't take are dropped here; heartbeats are answered here.
 *
 * Errors. Until the plan is there nobody else knows of this process, so the caller says why it
 * failed; from then on vf_member_fail tells the coordinator, which tells the user. A hello that the
 * run has no place for is answered with an Error: VF_ERR_BUSY when somebody has this index,
 * VF_ERR_USAGE when the run has no such index.
 *
 * Threads: a member belongs to one thread. A thread of its own watches the coordinator: when it
 * dies this process ends on the spot with status 1, also in the middle of a long step, after
 * on_orphaned, and removes the run's files and shared memory, since nobody else might.
 *
 * Deadlines: VF_MEMBER_PLAN_WAIT_MS for the plan, VF_MEMBER_GOODBYE_MS for the coordinator to take
 * an Error, the caller's own for vf_member_next. Sends never wait.
 */
#ifndef VF_COMMON_RUN_MEMBER_H
#define VF_COMMON_RUN_MEMBER_H

#include "common/base/err.h"
#include "common/run/run_dir.h"
#include "common/run/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#define VF_MEMBER_PLAN_WAIT_MS 60000 /* the coordinator may be busy creating a large cache */
#define VF_MEMBER_GOODBYE_MS   2000

struct vf_member;

struct vf_member_params {
    const char *run_dir; /* a path */
    Vflow__Role role;
    uint32_t index;
    int stop_fd; /* readable: the worker shall leave as if the run were over; -1: none */
    /* Called by the watching thread when the coordinator has died; NULL: nothing to do. */
    void (*on_orphaned)(void *ctx);
    /* Fills what a heartbeat reports, valid until the next call; NULL: nothing. */
    const Vflow__StepStats *(*stats)(void *ctx);
    void *ctx;
};

/* Opens the run, begins to watch its coordinator, connects and sends hello. */
enum vf_code vf_member_create(const struct vf_member_params *params, struct vf_member **out,
                              struct vf_err *err);
/* Waits for the plan, which lives as long as the member. *plan NULL with VF_OK: it is over. */
enum vf_code vf_member_wait_plan(struct vf_member *m, const Vflow__Plan **plan, struct vf_err *err);
enum vf_code vf_member_ready(struct vf_member *m, Vflow__Ready *ready, struct vf_err *err);

/* What to poll for beside the worker's own: fills items[0 .. the count returned). */
#define VF_MEMBER_ITEMS_MAX 2
int vf_member_poll_items(const struct vf_member *m, zmq_pollitem_t items[VF_MEMBER_ITEMS_MAX]);

enum vf_member_event { VF_MEMBER_NOTHING, VF_MEMBER_STEP, VF_MEMBER_OVER };
/* The next event, VF_MEMBER_NOTHING after timeout_ms (0 polls, -1 waits). Of VF_MEMBER_STEP,
 * *message is the Step's envelope, valid until the next call. Fails when the connection does, and
 * with an Error of the coordinator's. */
enum vf_code vf_member_next(struct vf_member *m, int timeout_ms, enum vf_member_event *event,
                            const Vflow__Envelope **message, struct vf_err *err);
/* Fills version, epoch and request_id, and sends. */
enum vf_code vf_member_send(struct vf_member *m, uint64_t request_id, Vflow__Envelope *body,
                            struct vf_err *err);

/* Ends the membership with why: tells the coordinator and stays until it has answered, since a
 * closed socket may drop what is in it; says it on stderr itself while there is no plan. */
void vf_member_fail(struct vf_member *m, const struct vf_err *why);
/* on_orphaned may run until this returns. NULL is fine. */
void vf_member_destroy(struct vf_member *m);

void *vf_member_zmq(const struct vf_member *m); /* the process's context */
const struct vf_run_dir *vf_member_run_dir(const struct vf_member *m);
uint32_t vf_member_epoch(const struct vf_member *m); /* the plan's; 0 before */

/* The main of a worker program: --run-dir, --index and -v, the log, faults and signals; then run.
 * SIGINT is ignored: a terminal sends it to the whole group, and the coordinator decides. Returns
 * the exit status. */
struct vf_member_program {
    const char *name, *noun, *summary; /* "vflow-io-worker", "I/O worker", of --help */
    const char *log_role;              /* "io" */
    uint32_t index_count;              /* a run's most */
    enum vf_code (*run)(const char *run_dir, uint32_t index, struct vf_err *err);
};
int vf_member_main(const struct vf_member_program *program, int argc, char **argv);

#endif
