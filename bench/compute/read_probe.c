#include "bench/compute/read_probe.h"

#include <string.h>

enum vf_code read_probe_open(struct rig *rig, uint32_t threads, struct vf_err *err)
{
    *rig = (struct rig){.bytes = VF_BANDWIDTH_BUFFER_BYTES,
                        .weights = rig_memory(VF_BANDWIDTH_BUFFER_BYTES)};
    if (!rig->weights)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a read probe of %llu MiB",
                          VF_BANDWIDTH_BUFFER_BYTES >> 20);
    memset(rig->weights, 1, rig->bytes);
    return vf_pool_create(threads, &rig->pool, err);
}
