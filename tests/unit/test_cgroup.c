/* Limits of control groups, read from trees of files like the kernel's. */
#include "common/machine/cgroup.h"
#include "tap.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static char home[] = "/tmp/vf-cgroup-XXXXXX";
static char membership[64], mount[64];
static const struct vf_cgroup_files files = {membership, mount};

/* Writes home/path, with the folders it lies in. */
__attribute__((format(printf, 2, 3))) static void put(const char *path, const char *fmt, ...)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", home, path);
    for (char *slash = full + sizeof home; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    va_list args;
    va_start(args, fmt);
    if (!f || vfprintf(f, fmt, args) < 0 || fclose(f) != 0) {
        printf("Bail out! can't write %s\n", full);
        _exit(1);
    }
    va_end(args);
}

static void clear(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", home);
    if (system(command) != 0)
        note("can't clear %s", home);
}

static void test_v1(void)
{
    put("membership", "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n0::/ignored\n");
    ok(vf_cgroup_memory_free(&files) == UINT64_MAX && vf_cgroup_cpus(&files) == 0,
       "version 1: no files, no limits");
    put("cgroup/memory/a/b/memory.limit_in_bytes", "%llu\n", 400ull * MIB);
    put("cgroup/memory/a/b/memory.usage_in_bytes", "%llu\n", 150ull * MIB);
    put("cgroup/memory/a/b/memory.stat",
        "cache 1\ninactive_file 7\ntotal_inactive_file %llu\ntotal_active_file %llu\n", 20ull * MIB,
        30ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 300 * MIB,
       "limit less usage, page cache of the whole subtree counting as free");
    put("cgroup/memory/a/memory.limit_in_bytes", "%llu\n", 300ull * MIB);
    put("cgroup/memory/a/memory.usage_in_bytes", "%llu\n", 160ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 140 * MIB, "a tighter parent counts");
    put("cgroup/memory/a/memory.usage_in_bytes", "%llu\n", 310ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 0, "a group above its limit has nothing left");
    put("cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put("cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    put("cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    put("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    ok(vf_cgroup_cpus(&files) == 2, "a parent's CPU quota, rounded up");
    clear();
}

static void test_v2(void)
{
    put("membership", "0::/a/b\n");
    put("cgroup/a/b/memory.max", "max\n");
    put("cgroup/a/b/memory.current", "%llu\n", 10ull * MIB);
    ok(vf_cgroup_memory_free(&files) == UINT64_MAX, "version 2: max is no limit");
    put("cgroup/a/memory.max", "%llu\n", 100ull * MIB);
    put("cgroup/a/memory.current", "%llu\n", 60ull * MIB);
    put("cgroup/a/memory.stat", "anon 1\ninactive_file %llu\nactive_file %llu\nshmem 5\n",
        5ull * MIB, 5ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 50 * MIB, "a parent's limit");
    put("cgroup/a/b/memory.high", "%llu\n", 45ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 35 * MIB, "memory.high slows down, so it counts too");
    put("cgroup/a/cpu.max", "max 100000\n");
    ok(vf_cgroup_cpus(&files) == 0, "max is no CPU quota");
    put("cgroup/a/b/cpu.max", "50000 100000\n");
    ok(vf_cgroup_cpus(&files) == 1, "half a CPU is one");
    clear();
}

/* In a container the group's own path isn't there; the mount point is the container's group. */
static void test_container(void)
{
    put("membership", "3:memory:/docker/0123\n");
    put("cgroup/memory/memory.limit_in_bytes", "%llu\n", 64ull * MIB);
    put("cgroup/memory/memory.usage_in_bytes", "%llu\n", 4ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 60 * MIB, "version 1 in a container");
    put("membership", "0::/../../elsewhere\n");
    put("cgroup/memory.max", "%llu\n", 32ull * MIB);
    ok(vf_cgroup_memory_free(&files) == 32 * MIB,
       "version 2 in a namespace, and a usage that can't be read");
    put("cgroup/memory.max", "a lot\n");
    ok(vf_cgroup_memory_free(&files) == UINT64_MAX, "what isn't a number is no limit");
    clear();
}

int main(void)
{
    plan(5 + 5 + 3);
    if (!mkdtemp(home))
        return 1;
    snprintf(membership, sizeof membership, "%s/membership", home);
    snprintf(mount, sizeof mount, "%s/cgroup", home);
    test_v1();
    test_v2();
    test_container();
    rmdir(home);
    return 0;
}
