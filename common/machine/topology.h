/* What this process may use of the machine: cores, NUMA nodes and memory, after affinity masks,
 * cpusets and cgroup limits (v1 and v2).
 */
#ifndef VF_COMMON_MACHINE_TOPOLOGY_H
#define VF_COMMON_MACHINE_TOPOLOGY_H

#include "common/base/err.h"

#include <stdint.h>

#define VF_TOPOLOGY_NODES_MAX 64u

struct vf_topology_node {
    uint32_t os_index;
    uint32_t cores; /* physical ones with at least one usable hardware thread */
};

struct vf_topology {
    struct vf_topology_node nodes[VF_TOPOLOGY_NODES_MAX]; /* those with usable cores */
    uint32_t node_count;                                  /* at least 1 */
    uint32_t cores;                                       /* of all nodes */
    uint32_t quota; /* CPUs' worth of time the cgroup grants, rounded up; 0: no limit */
};

enum vf_code vf_topology_read(struct vf_topology *out, struct vf_err *err);
/* Compute threads for a worker on nodes[node]: its physical cores, within the quota. */
uint32_t vf_topology_threads(const struct vf_topology *t, uint32_t node);

/* Bytes that can be allocated or cached without swapping and without meeting a cgroup limit;
 * page cache that can be dropped counts as available. */
uint64_t vf_memory_available(void);
/* Bytes free for shared-memory objects (/dev/shm is often small in containers). */
uint64_t vf_shm_available(void);

#endif
