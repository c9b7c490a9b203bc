/* The temporary file lies in the directory of the file that is replaced, not of a link to it, so
 * the rename stays within one file system.
 */
#include "common/base/out_file.h"

#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LINKS_MAX   40 /* as many as the kernel follows */
#define NAMES_TRIED 16 /* random names; a second one is hardly ever needed */

struct vf_out_file {
    char *path;   /* as the user named it, for messages */
    char *target; /* the name that is replaced: path with its links followed */
    char *temp;
    int fd;
    bool temp_exists;
};

/* ---- the name ------------------------------------------------------------------------------ */

static enum vf_code out_of_memory(const char *path, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory to write it", path);
}

/* Where the symbolic link at path leads, on the heap; NULL with errno set. */
static char *read_link(const char *path)
{
    char text[PATH_MAX];
    ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0)
        return NULL;
    text[n] = 0;
    const char *slash = strrchr(path, '/');
    int parent = text[0] == '/' || !slash ? 0 : (int)(slash - path) + 1;
    char *out = NULL;
    return asprintf(&out, "%.*s%s", parent, path, text) < 0 ? NULL : out;
}

/* Follows links by hand, because the last of them may lead to a file that isn't there yet. */
static enum vf_code follow_links(struct vf_out_file *f, struct vf_err *err)
{
    struct stat st;
    if (!(f->target = strdup(f->path)))
        return out_of_memory(f->path, err);
    for (int i = 0; lstat(f->target, &st) == 0 && S_ISLNK(st.st_mode); i++) {
        errno = ELOOP;
        char *next = i < LINKS_MAX ? read_link(f->target) : NULL;
        if (!next)
            return vf_err_errno(err, VF_ERR_IO, errno, "%s: following symbolic links", f->path);
        free(f->target);
        f->target = next;
    }
    return VF_OK;
}

static enum vf_code check_kind(const struct vf_out_file *f, const char *name, struct vf_err *err)
{
    struct stat st;
    if (stat(name, &st) != 0 || S_ISREG(st.st_mode))
        return VF_OK;
    return vf_err_set(err, VF_ERR_USAGE, "%s is %s; only a regular file can be replaced", f->path,
                      vf_file_kind(st.st_mode));
}

/* The first look asks the kernel, which also knows links that have no path: /dev/stdout. */
static enum vf_code find_target(struct vf_out_file *f, struct vf_err *err)
{
    enum vf_code code = check_kind(f, f->path, err);
    if (!code)
        code = follow_links(f, err);
    return code ? code : check_kind(f, f->target, err);
}

/* ---- the temporary file -------------------------------------------------------------------- */

static enum vf_code open_temp(struct vf_out_file *f, struct vf_err *err)
{
    errno = 0;
    for (int i = 0; i < NAMES_TRIED && f->fd < 0 && (i == 0 || errno == EEXIST); i++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return vf_err_errno(err, VF_ERR_IO, errno, "getrandom");
        free(f->temp);
        if (asprintf(&f->temp, "%s.part-%08x", f->target, random) < 0) {
            f->temp = NULL;
            return out_of_memory(f->path, err);
        }
        f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    if (f->fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't create a file beside it", f->path);
    f->temp_exists = true;
    return VF_OK;
}

enum vf_code vf_out_file_create(const char *path, struct vf_out_file **out, struct vf_err *err)
{
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of write, not the end */
    *out = NULL;
    if (!*path)
        return vf_err_set(err, VF_ERR_USAGE, "the name of the file to write is empty");
    struct vf_out_file *f = calloc(1, sizeof *f);
    if (!f)
        return out_of_memory(path, err);
    f->fd = -1;
    f->path = strdup(path);
    enum vf_code code = f->path ? find_target(f, err) : out_of_memory(path, err);
    if (!code)
        code = open_temp(f, err);
    if (code)
        vf_out_file_abandon(f);
    else
        *out = f;
    return code;
}

int vf_out_file_fd(const struct vf_out_file *f)
{
    return f->fd;
}

const char *vf_out_file_path(const struct vf_out_file *f)
{
    return f->path;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* The rename survives a power cut only when the directory is synced too. */
static enum vf_code sync_directory(struct vf_out_file *f, struct vf_err *err)
{
    int fd = open(dirname(f->target), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum vf_code code = VF_OK;
    /* One that may be written but not read can't be synced; some file systems have nothing to. */
    if (fd < 0 ? errno != EACCES : fsync(fd) != 0 && errno != EINVAL)
        code = vf_err_errno(err, VF_ERR_IO, errno, "%s: syncing its directory", f->path);
    if (fd >= 0)
        close(fd);
    return code;
}

static enum vf_code publish(struct vf_out_file *f, struct vf_err *err)
{
    if (fsync(f->fd) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't write it to the drive", f->path);
    int failed = close(f->fd);
    f->fd = -1;
    if (failed)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't write it to the drive", f->path);
    enum vf_code code = check_kind(f, f->target, err); /* writing may have taken hours */
    if (code)
        return code;
    if (rename(f->temp, f->target) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't give it its name", f->path);
    f->temp_exists = false;
    return sync_directory(f, err);
}

static enum vf_code report_full(const struct vf_out_file *f, uint64_t bytes, uint64_t free_bytes,
                                struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_IO,
                      "%s: needs %" PRIu64 " MiB, its file system has %" PRIu64
                      " MiB free: make room there or write elsewhere",
                      f->path, (bytes >> 20) + 1, free_bytes >> 20);
}

enum vf_code vf_out_file_reserve(struct vf_out_file *f, uint64_t bytes, struct vf_err *err)
{
    if (bytes == 0 || fallocate(f->fd, 0, 0, (off_t)bytes) == 0)
        return VF_OK;
    int cause = errno;
    struct statvfs fs = {0};
    bool known = fstatvfs(f->fd, &fs) == 0;
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    bool cannot = cause == EOPNOTSUPP || cause == ENOSYS || cause == EINTR;
    if (known && (cause == ENOSPC || (cannot && free_bytes < bytes)))
        return report_full(f, bytes, free_bytes, err);
    if (cannot && ftruncate(f->fd, (off_t)bytes) == 0)
        return VF_OK;
    return vf_err_errno(err, VF_ERR_IO, cannot ? errno : cause, "%s: reserving %" PRIu64 " bytes",
                        f->path, bytes);
}

enum vf_code vf_out_file_commit(struct vf_out_file *f, struct vf_err *err)
{
    enum vf_code code = publish(f, err);
    vf_out_file_abandon(f);
    return code;
}

void vf_out_file_abandon(struct vf_out_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->temp_exists)
        unlink(f->temp);
    free(f->temp);
    free(f->target);
    free(f->path);
    free(f);
}
