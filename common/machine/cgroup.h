/* What the control groups of this process allow: CPU time and memory, versions 1 and 2, where the
 * tightest of a group and its ancestors counts.
 *
 * Stateless. Files that are missing or say something else than a number mean "no limit". In a
 * container the own group's path may not be visible below the mount point; its ancestors are tried
 * then, up to the mount point itself, which is the container's group.
 */
#ifndef VF_COMMON_MACHINE_CGROUP_H
#define VF_COMMON_MACHINE_CGROUP_H

#include <stdint.h>

/* Where to look; NULL stands for the system's own. Tests bring theirs. */
struct vf_cgroup_files {
    const char *membership; /* /proc/self/cgroup */
    const char *mount;      /* /sys/fs/cgroup */
};

/* CPUs' worth of time, rounded up; 0 without a limit. */
uint32_t vf_cgroup_cpus(const struct vf_cgroup_files *files);
/* Bytes that may still be taken before a limit is met, page cache that can be dropped counting as
 * free; UINT64_MAX without a limit. */
uint64_t vf_cgroup_memory_free(const struct vf_cgroup_files *files);

#endif
