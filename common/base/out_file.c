/* The temporary file is locked while it is written and lies in the directory of the file that is
 * replaced, not of a link to it, so the rename stays within one file system.
 */
#include "common/base/out_file.h"

#include "common/base/log.h"
#include "common/base/util.h"

#include <dirent.h>
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
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PART_INFIX  ".part-"
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

/* Who writes a part file holds its lock, so that a later run knows those whose writer is dead. One
 * that was taken for such a file before it was locked is gone, and another name is tried. */
static bool lock_temp(struct vf_out_file *f)
{
    struct stat st;
    while (flock(f->fd, LOCK_EX) != 0 && errno == EINTR)
        ;
    if (fstat(f->fd, &st) == 0 && st.st_nlink > 0)
        return true;
    close(f->fd);
    f->fd = -1;
    errno = EEXIST;
    return false;
}

static enum vf_code open_temp(struct vf_out_file *f, mode_t mode, struct vf_err *err)
{
    errno = 0;
    for (int i = 0; i < NAMES_TRIED && f->fd < 0 && (i == 0 || errno == EEXIST); i++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return vf_err_errno(err, VF_ERR_IO, errno, "getrandom");
        free(f->temp);
        if (asprintf(&f->temp, "%s" PART_INFIX "%08x", f->target, random) < 0) {
            f->temp = NULL;
            return out_of_memory(f->path, err);
        }
        f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        f->temp_exists = f->fd >= 0 && lock_temp(f);
    }
    if (f->fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't create a file beside it", f->path);
    return VF_OK;
}

/* The new file belongs to whom the old one belonged, as far as this user may say so. What its group
 * might do goes to no other group. */
static void take_over_mode(int fd, const struct stat *old)
{
    struct stat st;
    mode_t mode = old->st_mode & 0777;
    if (fchown(fd, old->st_uid, old->st_gid) != 0 && fchown(fd, (uid_t)-1, old->st_gid) != 0 &&
        (fstat(fd, &st) != 0 || st.st_gid != old->st_gid))
        mode &= 0707u | (mode & 07u) << 3;
    (void)!fchmod(fd, mode);
}

/* ---- what dead runs left ------------------------------------------------------------------- */

static bool is_part_of(const char *name, const char *target)
{
    size_t n = strlen(target), infix = sizeof PART_INFIX - 1;
    return strncmp(name, target, n) == 0 && strncmp(name + n, PART_INFIX, infix) == 0 &&
           strlen(name + n + infix) == 8 && strspn(name + n + infix, "0123456789abcdef") == 8;
}

/* Removes a part file whose lock nobody holds. Locked before it is looked at again: the name may
 * have become another file's. */
static void remove_part(int dir_fd, const char *name, const char *path)
{
    struct stat st, named;
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        fstatat(dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == st.st_ino &&
        named.st_dev == st.st_dev) {
        if (unlinkat(dir_fd, name, 0) == 0)
            vf_warn("%s: removed %s (%lld MiB), which a run that was killed left", path, name,
                    (long long)(st.st_size >> 20));
        else
            vf_warn("%s: a run that was killed left %s, which can't be removed: %s", path, name,
                    strerror(errno));
    }
    close(fd);
}

static void remove_dead_parts(const struct vf_out_file *f)
{
    const char *slash = strrchr(f->target, '/');
    const char *base = slash ? slash + 1 : f->target;
    char *copy = strdup(f->target);
    DIR *dir = copy ? opendir(dirname(copy)) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (is_part_of(e->d_name, base))
            remove_part(dirfd(dir), e->d_name, f->path);
    if (dir)
        closedir(dir);
    free(copy);
}

static enum vf_code begin(struct vf_out_file *f, struct vf_err *err)
{
    struct stat old;
    bool replaces = stat(f->target, &old) == 0;
    remove_dead_parts(f);
    enum vf_code code = open_temp(f, replaces ? 0600 : 0666, err);
    if (!code && replaces)
        take_over_mode(f->fd, &old);
    return code;
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
        code = begin(f, err);
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
    enum vf_code code = check_kind(f, f->target, err); /* writing may have taken hours */
    if (code)
        return code;
    if (rename(f->temp, f->target) != 0) /* while it is locked: a part file to the end */
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't give it its name", f->path);
    f->temp_exists = false;
    int failed = close(f->fd);
    f->fd = -1;
    if (failed)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't write it to the drive", f->path);
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
