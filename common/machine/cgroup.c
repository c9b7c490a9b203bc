/* The groups are found in /proc/self/cgroup, their limits in files of one number each. */
#include "common/machine/cgroup.h"

#include "common/base/util.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CGROUP_PATH_MAX 1024

/* Where the files of one controller are for this process. */
struct cgroup {
    char root[CGROUP_PATH_MAX]; /* mount point */
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

static void cgroup_set(struct cgroup *cg, const char *mount, bool v2, const char *controller,
                       const char *path)
{
    cg->v2 = v2;
    if (v2)
        snprintf(cg->root, sizeof cg->root, "%s", mount);
    else
        snprintf(cg->root, sizeof cg->root, "%s/%s", mount, controller);
    snprintf(cg->path, sizeof cg->path, "%s", strcmp(path, "/") == 0 ? "" : path);
}

/* A line of /proc/self/cgroup is "id:controllers:path"; v2 has no controllers. A v1 hierarchy that
 * has the controller wins over the unified one. */
static bool cgroup_find(const struct vf_cgroup_files *files, const char *controller,
                        struct cgroup *cg)
{
    const char *mount = files && files->mount ? files->mount : "/sys/fs/cgroup";
    FILE *f = fopen(files && files->membership ? files->membership : "/proc/self/cgroup", "re");
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
            cgroup_set(cg, mount, true, controller, path + 1);
            found = true;
        } else if (names_controller(list + 1, list_bytes, controller)) {
            cgroup_set(cg, mount, false, controller, path + 1);
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
    char path[2 * CGROUP_PATH_MAX + 64];
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

uint32_t vf_cgroup_cpus(const struct vf_cgroup_files *files)
{
    struct cgroup cg;
    if (!cgroup_find(files, "cpu", &cg))
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

/* The limit of one group; UINT64_MAX without one. Above memory.high a group is slowed down. */
static uint64_t group_limit(const struct cgroup *cg)
{
    uint64_t max = UINT64_MAX, high = UINT64_MAX;
    if (!cg->v2)
        return cgroup_number(cg, "memory.limit_in_bytes", &max) ? max : UINT64_MAX;
    cgroup_number(cg, "memory.max", &max);
    cgroup_number(cg, "memory.high", &high);
    return vf_min_u64(max, high);
}

static uint64_t group_free(const struct cgroup *cg)
{
    uint64_t limit = group_limit(cg), used = 0;
    if (limit == UINT64_MAX)
        return limit;
    cgroup_number(cg, cg->v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    char stat[8192];
    uint64_t droppable = 0;
    if (cgroup_read(cg, "memory.stat", stat, sizeof stat))
        droppable = stat_value(stat, cg->v2 ? "inactive_file" : "total_inactive_file") +
                    stat_value(stat, cg->v2 ? "active_file" : "total_active_file");
    used -= vf_min_u64(used, droppable);
    return limit > used ? limit - used : 0;
}

uint64_t vf_cgroup_memory_free(const struct vf_cgroup_files *files)
{
    uint64_t least = UINT64_MAX;
    struct cgroup cg;
    if (!cgroup_find(files, "memory", &cg))
        return least;
    do
        least = vf_min_u64(least, group_free(&cg));
    while (cgroup_up(&cg));
    return least;
}
