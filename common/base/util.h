/* Small helpers without an owner: checked arithmetic, rounding, exact file I/O. */
#ifndef VF_COMMON_BASE_UTIL_H
#define VF_COMMON_BASE_UTIL_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VF_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline bool vf_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool vf_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* align is a power of two; v is at most 2^63. */
static inline uint64_t vf_round_up(uint64_t v, uint64_t align)
{
    return (v + align - 1) & ~(align - 1);
}
static inline uint64_t vf_div_up(uint64_t v, uint64_t by)
{
    return (v + by - 1) / by;
}
static inline uint64_t vf_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t vf_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Reads or writes exactly n bytes at offset (EINTR and short transfers continue); a short file
 * is VF_ERR_CORRUPT. path is for the message. */
enum vf_code vf_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path,
                           struct vf_err *err);
enum vf_code vf_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path,
                            struct vf_err *err);
/* Opens a file that is read; *bytes is its size. Anything but a regular file is VF_ERR_CORRUPT and
 * named for what it is: a pipe would be waited for, a git-lfs pointer stands for another file. The
 * caller closes *fd. */
enum vf_code vf_open_input(const char *path, int *fd, uint64_t *bytes, struct vf_err *err);
/* Whether anything has this name, be it a link that leads nowhere or what may not be read: what is
 * optional is missing only where this is false. */
bool vf_name_exists(const char *path);
/* "a directory", "a FIFO", ... of a st_mode. */
const char *vf_file_kind(mode_t mode);
/* Whole file into a heap buffer with a NUL behind it (not counted); at most max bytes. */
enum vf_code vf_read_file(const char *path, size_t max, char **data, size_t *size,
                          struct vf_err *err);
/* The same for a text, which is read from standard input where path is "-": waits for whoever
 * writes there, so before signals are blocked. */
enum vf_code vf_read_text(const char *path, size_t max, char **data, size_t *size,
                          struct vf_err *err);
/* "dir/name" on the heap; NULL when out of memory. */
char *vf_path_join(const char *dir, const char *name);
/* True when s[0..n) is valid UTF-8 (no surrogates, no overlong forms). */
bool vf_utf8_valid(const char *s, size_t n);
/* Bytes before the first that isn't; n when all are. */
size_t vf_utf8_valid_bytes(const char *s, size_t n);

/* Whether a signal was ignored when this process began, by nohup or a script's background job: who
 * handles it leaves it alone then. To be asked before a handler is installed. */
bool vf_signal_is_ignored(int signal_number);

/* What was printed reaches stdout now, or never: VF_ERR_IO, also for an earlier print that failed.
 */
enum vf_code vf_flush_stdout(struct vf_err *err);

#endif
