/* Cores and nodes come from hwloc, cut down to the process's affinity; limits from the cgroup
 * files, where the tightest of a group and its ancestors counts.
 */
#include "common/topology.h"

#include "common/util.h"

#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define CGROUP_PATH_MAX 1024

/* ---- cgroups ------------------------------------------------------------------------------- */

/* Where the files of one controller are for this process. */
struct cgroup {
    char root[64];              /* mount point */
    char path[CGROUP_PATH_MAX]; /* below it, "" or "/..." */
    bool v2;
};

/* True when the comma-separated list names the controller. */
static bool names_controller(const char *list, size_t n, const char *controller)
{
    size_t len = strlen(controller);
    for (size_t i = 0; i + len <= n; i++)
        if ((i == 0 || list[i - 1] == ',') && memcmp(list + i, controller, len) == 0 &&
            (i + len == n || list[i + len] == ','))
            return true;
    return false;
}

static void cgroup_set(struct cgroup *cg, bool v2, const char *controller, const char *path)
{
    cg->v2 = v2;
    if (v2)
        snprintf(cg->root, sizeof cg->root, "/sys/fs/cgroup");
    else
        snprintf(cg->root, sizeof cg->root, "/sys/fs/cgroup/%s", controller);
    snprintf(cg->path, sizeof cg->path, "%s", strcmp(path, "/") == 0 ? "" : path);
}

/* A line of /proc/self/cgroup is "id:controllers:path"; v2 has no controllers. A v1 hierarchy that
 * has the controller wins over the unified one. */
static bool cgroup_find(const char *controller, struct cgroup *cg)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return false;
    bool found = false;
    char line[CGROUP_PATH_MAX + 128];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        size_t list_bytes = (size_t)(path - list) - 1;
        if (list_bytes == 0 && !found) {
            cgroup_set(cg, true, controller, path + 1);
            found = true;
        } else if (names_controller(list + 1, list_bytes, controller)) {
            cgroup_set(cg, false, controller, path + 1);
            found = true;
            break;
        }
    }
    fclose(f);
    return found;
}

/* Goes to the parent group; false when cg was the root. */
static bool cgroup_up(struct cgroup *cg)
{
    char *slash = strrchr(cg->path, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

static bool cgroup_read(const struct cgroup *cg, const char *file, char *buf, size_t size)
{
    char path[CGROUP_PATH_MAX + 160];
    snprintf(path, sizeof path, "%s%s/%s", cg->root, cg->path, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(buf, 1, size - 1, f);
    buf[n] = 0;
    fclose(f);
    return n > 0;
}

/* A number, or false for "max", a missing file and anything else. */
static bool cgroup_number(const struct cgroup *cg, const char *file, uint64_t *out)
{
    char buf[64];
    return cgroup_read(cg, file, buf, sizeof buf) && sscanf(buf, "%" SCNu64, out) == 1;
}

/* CPUs' worth of time of one group, 0 without a limit. */
static double group_cpus(const struct cgroup *cg)
{
    double quota = 0, period = 0;
    if (cg->v2) {
        char buf[64];
        if (!cgroup_read(cg, "cpu.max", buf, sizeof buf) ||
            sscanf(buf, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else {
        char buf[64];
        if (!cgroup_read(cg, "cpu.cfs_quota_us", buf, sizeof buf) ||
            sscanf(buf, "%lf", &quota) != 1)
            return 0;
        if (!cgroup_read(cg, "cpu.cfs_period_us", buf, sizeof buf) ||
            sscanf(buf, "%lf", &period) != 1)
            return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

static uint32_t read_quota(void)
{
    struct cgroup cg;
    if (!cgroup_find("cpu", &cg))
        return 0;
    double least = 0;
    do {
        double cpus = group_cpus(&cg);
        if (cpus > 0 && (least == 0 || cpus < least))
            least = cpus;
    } while (cgroup_up(&cg));
    if (least <= 0 || least > 65536)
        return 0;
    uint32_t whole = (uint32_t)least;
    return whole + ((double)whole < least);
}

/* The value of "key N" in a memory.stat file. */
static uint64_t stat_value(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncmp(p, key, len) == 0 && p[len] == ' ')
            return strtoull(p + len, NULL, 10);
    return 0;
}

/* Bytes a group may still take; UINT64_MAX without a limit. */
static uint64_t group_memory(const struct cgroup *cg)
{
    uint64_t limit, used;
    if (!cgroup_number(cg, cg->v2 ? "memory.max" : "memory.limit_in_bytes", &limit) ||
        !cgroup_number(cg, cg->v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        return UINT64_MAX;
    char stat[8192];
    uint64_t droppable = 0;
    if (cgroup_read(cg, "memory.stat", stat, sizeof stat))
        droppable = stat_value(stat, cg->v2 ? "inactive_file" : "total_inactive_file") +
                    stat_value(stat, cg->v2 ? "active_file" : "total_active_file");
    used -= vf_min_u64(used, droppable);
    return limit > used ? limit - used : 0;
}

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
    uint64_t least = meminfo_available();
    struct cgroup cg;
    if (!cgroup_find("memory", &cg))
        return least;
    do
        least = vf_min_u64(least, group_memory(&cg));
    while (cgroup_up(&cg));
    return least;
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
    out->quota = read_quota();
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
