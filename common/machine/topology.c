/* Cores and nodes come from hwloc, cut down to the process's affinity; limits from the control
 * groups.
 */
#include "common/machine/topology.h"

#include "common/base/util.h"
#include "common/machine/cgroup.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

static uint64_t meminfo_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return UINT64_MAX;
    char line[128];
    uint64_t kib = UINT64_MAX / 1024;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

uint64_t vf_memory_available(void)
{
    return vf_min_u64(meminfo_available(), vf_cgroup_memory_free(NULL));
}

uint64_t vf_shm_available(void)
{
    struct statvfs st;
    if (statvfs("/dev/shm", &st) != 0)
        return 0;
    uint64_t bytes;
    return vf_mul_u64(st.f_bavail, st.f_frsize, &bytes) ? bytes : UINT64_MAX;
}

/* ---- cores --------------------------------------------------------------------------------- */

/* Objects of a type that touch the usable set (and node's set). */
static uint32_t count_touching(hwloc_topology_t topo, hwloc_obj_type_t type,
                               hwloc_const_bitmap_t usable, hwloc_const_bitmap_t node)
{
    uint32_t n = 0;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(topo, type, o));)
        n += hwloc_bitmap_intersects(o->cpuset, usable) && hwloc_bitmap_intersects(o->cpuset, node);
    return n;
}

static uint32_t count_cores(hwloc_topology_t topo, hwloc_bitmap_t usable, hwloc_const_bitmap_t node)
{
    /* Hypervisors sometimes hide cores; hardware threads are always there. */
    uint32_t n = count_touching(topo, HWLOC_OBJ_CORE, usable, node);
    return n ? n : count_touching(topo, HWLOC_OBJ_PU, usable, node);
}

static void read_nodes(hwloc_topology_t topo, hwloc_bitmap_t usable, struct vf_topology *out)
{
    hwloc_bitmap_t here = hwloc_bitmap_alloc();
    for (hwloc_obj_t o = NULL;
         (o = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, o)) && here;) {
        hwloc_bitmap_and(here, o->cpuset, usable);
        uint32_t cores = hwloc_bitmap_iszero(here) ? 0 : count_cores(topo, here, here);
        if (cores == 0 || out->node_count == VF_TOPOLOGY_NODES_MAX)
            continue;
        out->nodes[out->node_count++] = (struct vf_topology_node){o->os_index, cores};
        out->cores += cores;
    }
    hwloc_bitmap_free(here);
}

enum vf_code vf_topology_read(struct vf_topology *out, struct vf_err *err)
{
    *out = (struct vf_topology){0};
    hwloc_topology_t topo;
    cpu_set_t set;
    /* hwloc would ask again for ever; EINVAL is a machine with more cores than the set has. */
    if (sched_getaffinity(0, sizeof set, &set) != 0 && errno != EINVAL)
        return vf_err_errno(err, VF_ERR_DENIED, errno, "can't tell which cores may be used");
    if (hwloc_topology_init(&topo) != 0)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the machine's topology");
    enum vf_code code = VF_OK;
    hwloc_bitmap_t usable = hwloc_bitmap_alloc();
    if (!usable || hwloc_topology_load(topo) != 0) {
        code = vf_err_set(err, VF_ERR_IO, "hwloc can't read the machine's topology");
        goto out;
    }
    if (hwloc_get_cpubind(topo, usable, HWLOC_CPUBIND_PROCESS) != 0 || hwloc_bitmap_iszero(usable))
        hwloc_bitmap_copy(usable, hwloc_topology_get_topology_cpuset(topo));
    read_nodes(topo, usable, out);
    if (out->node_count == 0) {
        out->nodes[0] = (struct vf_topology_node){0, 1};
        out->node_count = out->cores = 1;
    }
    out->quota = vf_cgroup_cpus(NULL);
out:
    hwloc_bitmap_free(usable);
    hwloc_topology_destroy(topo);
    return code;
}

uint32_t vf_topology_threads(const struct vf_topology *t, uint32_t node)
{
    uint32_t cores = t->nodes[node % t->node_count].cores;
    return t->quota && t->quota < cores ? t->quota : cores;
}
