/* A stage worker's life in a run: it joins, builds its executor from the plan, and runs steps until
 * it is told to stop or the coordinator dies (common/run/member.h).
 *
 * Threads: the caller's (member and executor), the executor's pool, and the member's own, so that a
 * worker leaves even in the middle of a long step.
 */
#ifndef VF_STAGE_WORKER_WORKER_H
#define VF_STAGE_WORKER_WORKER_H

#include "common/base/err.h"

#include <stdint.h>

/* Runs until the end; called once. A failure has been said to whom it concerns. */
enum vf_code vf_stage_worker_run(const char *run_dir, uint32_t index, struct vf_err *err);

#endif
