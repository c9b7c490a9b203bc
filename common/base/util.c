#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_BYTES          (64u << 10) /* the first buffer of a text whose length isn't known */
#define LFS_POINTER_BYTES_MAX 1024u       /* git-lfs's own bound */

enum vf_code vf_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path,
                           struct vf_err *err)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return vf_err_errno(err, VF_ERR_IO, errno, "%s: read of %zu bytes at %llu", path, n,
                                (unsigned long long)offset);
        if (got == 0)
            return vf_err_set(err, VF_ERR_CORRUPT,
                              "%s: file ends at %llu, but %zu bytes at %llu are needed", path,
                              (unsigned long long)(offset + done), n, (unsigned long long)offset);
        done += (size_t)got;
    }
    return VF_OK;
}

enum vf_code vf_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path,
                            struct vf_err *err)
{
    size_t done = 0;
    while (done < n) {
        ssize_t put = pwrite(fd, (const char *)buf + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return vf_err_errno(err, VF_ERR_IO, put < 0 ? errno : ENOSPC,
                                "%s: write of %zu bytes at %llu", path, n,
                                (unsigned long long)offset);
        done += (size_t)put;
    }
    return VF_OK;
}

const char *vf_file_kind(mode_t mode)
{
    return S_ISREG(mode)    ? "a regular file"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "a special file";
}

static enum vf_code refuse_kind(const char *path, mode_t mode, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_CORRUPT, "%s is %s, must be a regular file", path,
                      vf_file_kind(mode));
}

static enum vf_code open_failed(const char *path, int error, struct vf_err *err)
{
    struct stat st;
    if (!*path)
        return vf_err_set(err, VF_ERR_NOT_FOUND, "the name of a file to read is empty");
    if (error == ENXIO && stat(path, &st) == 0) /* a socket can't be opened at all */
        return refuse_kind(path, st.st_mode, err);
    bool missing = error == ENOENT || error == ENOTDIR;
    char target[PATH_MAX] = "";
    if (error == ENOENT && readlink(path, target, sizeof target - 1) > 0)
        return vf_err_set(err, VF_ERR_NOT_FOUND,
                          "%s is a symbolic link to %s, which leads to no file", path, target);
    return vf_err_errno(err, missing ? VF_ERR_NOT_FOUND : VF_ERR_IO, error, "%s", path);
}

bool vf_name_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* What git leaves in place of a large file that it keeps elsewhere. */
static enum vf_code refuse_lfs_pointer(int fd, uint64_t bytes, const char *path, struct vf_err *err)
{
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    char text[sizeof begin - 1];
    if (bytes > LFS_POINTER_BYTES_MAX || bytes < sizeof text ||
        pread(fd, text, sizeof text, 0) != (ssize_t)sizeof text ||
        memcmp(text, begin, sizeof text) != 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s is a git-lfs pointer of %llu bytes, not the file itself: fetch it with "
                      "git lfs pull",
                      path, (unsigned long long)bytes);
}

enum vf_code vf_open_input(const char *path, int *fd, uint64_t *bytes, struct vf_err *err)
{
    /* O_NONBLOCK: the open of a FIFO returns, and can be looked at. Regular files ignore it. */
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (*fd < 0)
        return open_failed(path, errno, err);
    struct stat st;
    enum vf_code code = VF_OK;
    if (fstat(*fd, &st) != 0)
        code = vf_err_errno(err, VF_ERR_IO, errno, "%s", path);
    else if (!S_ISREG(st.st_mode))
        code = refuse_kind(path, st.st_mode, err);
    else
        code = refuse_lfs_pointer(*fd, (uint64_t)st.st_size, path, err);
    if (code) {
        close(*fd);
        *fd = -1;
        return code;
    }
    *bytes = (uint64_t)st.st_size;
    return VF_OK;
}

static enum vf_code read_open_file(int fd, uint64_t bytes, const char *path, size_t max,
                                   char **data, struct vf_err *err)
{
    if (bytes > max)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %llu bytes, at most %zu are allowed", path,
                          (unsigned long long)bytes, max);
    char *buf = malloc((size_t)bytes + 1);
    if (!buf)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for %llu bytes", path,
                          (unsigned long long)bytes);
    enum vf_code code = vf_pread_full(fd, buf, (size_t)bytes, 0, path, err);
    if (code) {
        free(buf);
        return code;
    }
    buf[bytes] = 0;
    *data = buf;
    return VF_OK;
}

enum vf_code vf_read_file(const char *path, size_t max, char **data, size_t *size,
                          struct vf_err *err)
{
    int fd;
    uint64_t bytes;
    enum vf_code code = vf_open_input(path, &fd, &bytes, err);
    if (code)
        return code;
    code = read_open_file(fd, bytes, path, max, data, err);
    if (!code)
        *size = (size_t)bytes;
    close(fd);
    return code;
}

/* Grows as it reads: a pipe doesn't tell its length. */
static enum vf_code read_stdin(size_t max, char **data, size_t *size, struct vf_err *err)
{
    static const char name[] = "standard input";
    size_t capacity = 0, n = 0;
    char *buf = NULL;
    for (;;) {
        if (n + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : STREAM_BYTES;
            char *grown = realloc(buf, capacity);
            if (!grown) {
                free(buf);
                return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for %zu bytes", name,
                                  capacity);
            }
            buf = grown;
        }
        ssize_t got = read(STDIN_FILENO, buf + n, capacity - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 || n + (size_t)got > max) {
            free(buf);
            return got < 0 ? vf_err_errno(err, VF_ERR_IO, errno, "%s", name)
                           : vf_err_set(err, VF_ERR_CORRUPT,
                                        "%s: more than the %zu bytes that are allowed", name, max);
        }
        if (got == 0)
            break;
        n += (size_t)got;
    }
    buf[n] = 0;
    *data = buf;
    *size = n;
    return VF_OK;
}

enum vf_code vf_read_text(const char *path, size_t max, char **data, size_t *size,
                          struct vf_err *err)
{
    return strcmp(path, "-") == 0 ? read_stdin(max, data, size, err)
                                  : vf_read_file(path, max, data, size, err);
}

char *vf_path_join(const char *dir, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

/* Bytes of the valid sequence at s, 0 if there is none within n bytes. */
static size_t utf8_sequence(const unsigned char *s, size_t n)
{
    unsigned char b = s[0];
    if (b < 0x80)
        return 1;
    size_t len = b >= 0xc2 && b <= 0xdf   ? 2
                 : (b & 0xf0) == 0xe0     ? 3
                 : b >= 0xf0 && b <= 0xf4 ? 4
                                          : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((b == 0xe0 && s[1] < 0xa0) || (b == 0xed && s[1] > 0x9f) || (b == 0xf0 && s[1] < 0x90) ||
        (b == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

size_t vf_utf8_valid_bytes(const char *s, size_t n)
{
    size_t i = 0, len = 1;
    for (; i < n && len > 0; i += len)
        len = utf8_sequence((const unsigned char *)s + i, n - i);
    return i;
}

bool vf_utf8_valid(const char *s, size_t n)
{
    return vf_utf8_valid_bytes(s, n) == n;
}

bool vf_signal_is_ignored(int signal_number)
{
    struct sigaction now;
    return sigaction(signal_number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

enum vf_code vf_flush_stdout(struct vf_err *err)
{
    if (fflush(stdout) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't write to stdout");
    if (ferror(stdout)) /* from earlier on, so its errno is lost */
        return vf_err_set(err, VF_ERR_IO, "can't write to stdout");
    return VF_OK;
}
