/* Opening one file for reads: direct, or buffered with or without dropping behind. */
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "io_worker/read_engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHY_BYTES 128u

/* What the file system asks of direct reads. One that doesn't tell is tried instead. */
static bool alignment_fits(int fd, char why[WHY_BYTES])
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) != 0 || !(sx.stx_mask & STATX_DIOALIGN))
        return true;
    if (sx.stx_dio_offset_align == 0) {
        snprintf(why, WHY_BYTES, "it says that it can't read this file directly");
        return false;
    }
    if (sx.stx_dio_offset_align <= VF_READ_ALIGN && sx.stx_dio_mem_align <= VF_READ_ALIGN)
        return true;
    snprintf(why, WHY_BYTES,
             "it needs offsets aligned to %u and memory to %u bytes, records are to %u",
             sx.stx_dio_offset_align, sx.stx_dio_mem_align, VF_READ_ALIGN);
    return false;
#else
    (void)fd, (void)why;
    return true;
#endif
}

/* Some file systems accept O_DIRECT in open and refuse the first read. */
static bool direct_read_works(int fd, char why[WHY_BYTES])
{
    void *page = NULL;
    if (posix_memalign(&page, VF_READ_ALIGN, VF_READ_ALIGN) != 0) {
        snprintf(why, WHY_BYTES, "no memory for trying");
        return false;
    }
    ssize_t n = pread(fd, page, VF_READ_ALIGN, 0);
    bool refused = n < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
    free(page);
    if (refused)
        snprintf(why, WHY_BYTES, "it refuses direct reads");
    return !refused;
}

/* An fd opened with O_DIRECT, or -1 with the reason in why. */
static int open_direct(const char *path, char why[WHY_BYTES])
{
    int fault = vf_fault("io.direct");
    int fd = fault > 0 && fault < VF_FAULT_SHORT ? -1 : open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, WHY_BYTES, "%s", strerror(fault ? fault : errno));
        return -1;
    }
    if (alignment_fits(fd, why) && direct_read_works(fd, why))
        return fd;
    close(fd);
    return -1;
}

static bool drops_by_itself(int fd)
{
    char byte;
    struct iovec iov = {&byte, 1};
    return preadv2(fd, &iov, 1, 0, RWF_DONTCACHE) >= 0;
}

enum vf_code vf_read_file_open(const char *path, bool buffered, struct vf_read_file *out,
                               struct vf_err *err)
{
    char why[WHY_BYTES];
    *out = (struct vf_read_file){.fd = -1};
    if (!buffered) {
        out->fd = open_direct(path, why);
        out->direct = out->fd >= 0;
        if (out->direct)
            return VF_OK;
    }
    out->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0)
        return vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno, "%s", path);
    /* Records are asked for whole and in no order: reading on behind them would be waste. */
    posix_fadvise(out->fd, 0, 0, POSIX_FADV_RANDOM);
    if (buffered)
        return VF_OK;
    vf_warn("%s: reading through the page cache, the file system can't do it directly: %s", path,
            why);
    out->rw_flags = drops_by_itself(out->fd) ? RWF_DONTCACHE : 0;
    out->drop = out->rw_flags == 0;
    return VF_OK;
}

void vf_read_file_drop(const struct vf_read_file *f, uint64_t offset, uint64_t bytes)
{
    if (f->drop)
        posix_fadvise(f->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}
