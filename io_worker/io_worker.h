/* An I/O worker's life in a run: hello, plan, ready, service, shutdown.
 *
 * It ends on the coordinator's Shutdown and on SIGTERM, after the reads in flight; and when the
 * coordinator dies: then it removes the run's directory and shared memory, since nobody else might.
 * SIGINT is ignored: a terminal sends it to the whole group, and the coordinator decides.
 */
#ifndef VF_IO_WORKER_IO_WORKER_H
#define VF_IO_WORKER_IO_WORKER_H

#include "common/base/err.h"

#include <stdint.h>

/* Runs until the end; called once, by the process's first thread before it starts others. A failure
 * has been reported to the coordinator when there is one. */
enum vf_code vf_io_worker_run(const char *run_dir, uint32_t index, struct vf_err *err);

#endif
