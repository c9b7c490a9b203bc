/* A serial drive in arithmetic: what is asked for waits for what was asked for before. */
#include "common/base/util.h"
#include "io_worker/read_engine_internal.h"

uint64_t vf_throttle_due_ns(struct vf_throttle *t, uint64_t bytes, uint64_t now_ns)
{
    if (t->bytes_per_s == 0)
        return 0;
    /* Reads are below 2 GiB, so the product stays below 2^61. */
    uint64_t takes_ns = bytes * VF_S(1) / t->bytes_per_s;
    t->busy_until_ns = vf_max_u64(t->busy_until_ns, now_ns) + takes_ns;
    return t->busy_until_ns + VF_READ_THROTTLE_LATENCY_NS;
}
