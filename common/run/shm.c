/* Shared-memory objects and futex words. */
#include "common/run/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static enum vf_code map_object(int fd, const char *name, size_t bytes, struct vf_shm *out,
                               struct vf_err *err)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return vf_err_errno(err, VF_ERR_NO_MEMORY, errno, "shared memory %s: cannot map %zu bytes",
                            name, bytes);
    out->base = base;
    out->bytes = bytes;
    return VF_OK;
}

/* Allocates every page now. */
static enum vf_code allocate_pages(int fd, const char *name, size_t bytes, struct vf_err *err)
{
    if (bytes == 0 || bytes > (size_t)INT64_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "shared memory %s: %zu bytes is out of range", name,
                          bytes);
    int rc;
    do
        rc = posix_fallocate(fd, 0, (off_t)bytes);
    while (rc == EINTR);
    if (rc == 0)
        return VF_OK;
    struct statvfs vfs;
    unsigned long long mib_free = 0;
    if (fstatvfs(fd, &vfs) == 0)
        mib_free = (unsigned long long)vfs.f_bavail * vfs.f_frsize >> 20;
    return vf_err_errno(err, VF_ERR_NO_MEMORY, rc,
                        "shared memory %s: %zu MiB wanted, /dev/shm has %llu MiB free", name,
                        (bytes >> 20) + 1, mib_free);
}

enum vf_code vf_shm_create(const char *name, size_t bytes, struct vf_shm *out, struct vf_err *err)
{
    *out = (struct vf_shm){0};
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "shared memory %s: cannot create", name);
    enum vf_code code = allocate_pages(fd, name, bytes, err);
    if (code == VF_OK)
        code = map_object(fd, name, bytes, out, err);
    if (code != VF_OK)
        shm_unlink(name);
    close(fd);
    return code;
}

static enum vf_code check_object(int fd, const char *name, size_t bytes_min, size_t *bytes,
                                 struct vf_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "shared memory %s", name);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return vf_err_set(err, VF_ERR_DENIED,
                          "shared memory %s: owner %ld, mode %o; allowed is a plain object of user "
                          "%ld with mode 600",
                          name, (long)st.st_uid, (unsigned)st.st_mode & 07777, (long)geteuid());
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes_min)
        return vf_err_set(err, VF_ERR_CORRUPT, "shared memory %s: %lld bytes, at least %zu needed",
                          name, (long long)st.st_size, bytes_min);
    *bytes = (size_t)st.st_size;
    return VF_OK;
}

enum vf_code vf_shm_open(const char *name, size_t bytes_min, struct vf_shm *out, struct vf_err *err)
{
    *out = (struct vf_shm){0};
    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno,
                            "shared memory %s: cannot open", name);
    size_t bytes = 0;
    enum vf_code code = check_object(fd, name, bytes_min, &bytes, err);
    if (code == VF_OK)
        code = map_object(fd, name, bytes, out, err);
    close(fd);
    return code;
}

void vf_shm_close(struct vf_shm *shm)
{
    if (shm->base)
        munmap(shm->base, shm->bytes);
    *shm = (struct vf_shm){0};
}

void vf_shm_unlink(const char *name)
{
    shm_unlink(name);
}

enum vf_code vf_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, WAIT a relative one. */
    long rc =
        syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc != 0 && errno == ETIMEDOUT ? VF_ERR_TIMEOUT : VF_OK;
}

void vf_futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
