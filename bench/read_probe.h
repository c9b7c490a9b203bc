/* The memory's read ceiling, one pass at a time, to be put between the things that are compared
 * with it: a machine whose bandwidth wanders within seconds then wanders for both, and a median
 * stands beside a median.
 *
 * A pass is a plain read of a buffer well above the caches by as many threads as the other side
 * has, which claim pieces of it one by one as its threads do.
 */
#ifndef VF_BENCH_READ_PROBE_H
#define VF_BENCH_READ_PROBE_H

#include "stage_worker/pool.h"

struct read_probe {
    struct vf_pool *pool;
    uint64_t *words;
};

/* read_probe_close after a failure too. */
enum vf_code read_probe_open(struct read_probe *p, uint32_t threads, struct vf_err *err);
void read_probe_close(struct read_probe *p);
/* GB/s of one pass. */
double read_probe_pass(struct read_probe *p);

#endif
