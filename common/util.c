#include "common/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static enum vf_code read_open_file(int fd, const char *path, size_t max, char **data, size_t *size,
                                   struct vf_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: not a regular file", path);
    if ((uint64_t)st.st_size > max)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %llu bytes, at most %zu are allowed", path,
                          (unsigned long long)st.st_size, max);
    char *buf = malloc((size_t)st.st_size + 1);
    if (!buf)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for %llu bytes", path,
                          (unsigned long long)st.st_size);
    enum vf_code code = vf_pread_full(fd, buf, (size_t)st.st_size, 0, path, err);
    if (code != VF_OK) {
        free(buf);
        return code;
    }
    buf[st.st_size] = 0;
    *data = buf;
    *size = (size_t)st.st_size;
    return VF_OK;
}

enum vf_code vf_read_file(const char *path, size_t max, char **data, size_t *size,
                          struct vf_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return vf_err_errno(err, errno == ENOENT || errno == ENOTDIR ? VF_ERR_NOT_FOUND : VF_ERR_IO,
                            errno, "%s", path);
    enum vf_code code = read_open_file(fd, path, max, data, size, err);
    close(fd);
    return code;
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

bool vf_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence((const unsigned char *)s + i, n - i);
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}
