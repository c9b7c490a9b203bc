/* A stage worker process: registers with the coordinator, builds its executor from the plan, runs
 * steps until it is told to stop or the coordinator dies.
 *
 * Threads: the main one (socket and executor), the executor's pool, and one that watches the
 * coordinator, so that a worker leaves even in the middle of a long step.
 */
#ifndef VF_STAGE_WORKER_WORKER_H
#define VF_STAGE_WORKER_WORKER_H

/* The program's main; returns its exit status. */
int vf_stage_worker_main(int argc, char **argv);

#endif
