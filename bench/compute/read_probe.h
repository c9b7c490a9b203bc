/* The memory's read ceiling, one pass at a time, to be put between the things that are compared
 * with it: a machine whose bandwidth wanders within seconds then wanders for both, and a median
 * stands beside a median.
 *
 * A pass (rig_read_pass) is a plain read of a buffer well above the caches by as many threads as
 * the other side has, which claim pieces of it one by one as its threads do.
 */
#ifndef VF_BENCH_COMPUTE_READ_PROBE_H
#define VF_BENCH_COMPUTE_READ_PROBE_H

#include "bench/compute/rig.h"

/* A rig of a pool and the buffer, nothing else. rig_close after a failure too. */
enum vf_code read_probe_open(struct rig *rig, uint32_t threads, struct vf_err *err);

#endif
