/* How fast this machine reads memory: the bound of decode, measured in a fraction of a second. */
#ifndef VF_COMMON_MACHINE_BANDWIDTH_H
#define VF_COMMON_MACHINE_BANDWIDTH_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VF_BANDWIDTH_BUFFER_BYTES (256ull << 20) /* well above the last-level caches */
#define VF_BANDWIDTH_THREADS_MAX  256u

/* CPUs this process may run on, at most VF_BANDWIDTH_THREADS_MAX. */
uint32_t vf_bandwidth_default_threads(void);
/* Best of a few passes over a buffer shared out among `threads` threads, in either way of reading;
 * GB/s of 10^9 bytes. */
enum vf_code vf_bandwidth_measure(uint32_t threads, double *gb_per_s, struct vf_err *err);
/* Two ways to read a lot of memory; which one is faster depends on the machine. */
enum vf_read_way {
    VF_READ_IN_ORDER,     /* front to back, with explicit prefetches */
    VF_READ_SIDE_BY_SIDE, /* three parts, a run of each in turn: more for the core to prefetch by
                           * itself
                           */
    VF_READ_WAYS
};
/* The read that is timed: the sum of words[0..count), whole runs of 128 words of it, in the widest
 * way this machine has. */
uint64_t vf_bandwidth_read(enum vf_read_way way, const uint64_t *words, size_t count);

#endif
