/* An I/O worker's life in a run: it joins (common/run/member.h), opens what the plan says, serves
 * orders until the end, which is the coordinator's Shutdown, SIGTERM, after the reads in flight,
 * or the coordinator's death.
 */
#ifndef VF_IO_WORKER_IO_WORKER_H
#define VF_IO_WORKER_IO_WORKER_H

#include "common/base/err.h"

#include <stdint.h>

/* Runs until the end; called once, by the process's first thread before it starts others. A failure
 * has been said to whom it concerns. */
enum vf_code vf_io_worker_run(const char *run_dir, uint32_t index, struct vf_err *err);

#endif
