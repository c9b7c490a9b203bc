/* Every program's own calls for memory, maps, shared memory, sockets and writes pass here: the
 * linker sends them (--wrap, see CMakeLists.txt). What libraries call inside isn't met. Each is a
 * fault site of the program's role; a fault that is no errno, like short, strikes as EIO.
 */
#include "common/base/fault.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static bool strikes(enum vf_fault_call call)
{
    return vf_fault_called(call) != VF_FAULT_NONE;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return strikes(VF_FAULT_MEMORY) ? NULL : __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    return strikes(VF_FAULT_MEMORY) ? NULL : __real_calloc(count, bytes);
}

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    return strikes(VF_FAULT_MEMORY) ? NULL : __real_realloc(old, bytes);
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    return strikes(VF_FAULT_MEMORY) ? NULL : __real_strdup(text);
}

void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return strikes(VF_FAULT_MEMORY) ? NULL : __real_aligned_alloc(align, bytes);
}

int __real_posix_memalign(void **out, size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes)
{
    return strikes(VF_FAULT_MEMORY) ? errno : __real_posix_memalign(out, align, bytes);
}

/* ---- maps and shared memory --------------------------------------------------------------------
 */

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (strikes(VF_FAULT_MAP))
        return MAP_FAILED;
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

int __real_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode)
{
    return strikes(VF_FAULT_SHM) ? -1 : __real_shm_open(name, flags, mode);
}

/* ---- sockets -----------------------------------------------------------------------------------
 */

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
    return strikes(VF_FAULT_SOCKET) ? -1 : __real_socket(domain, type, protocol);
}

/* ---- writes, but for those to stderr -----------------------------------------------------------
 */

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    return fd != STDERR_FILENO && strikes(VF_FAULT_WRITE) ? -1 : __real_write(fd, data, bytes);
}

ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return strikes(VF_FAULT_WRITE) ? -1 : __real_pwrite(fd, data, bytes, offset);
}

size_t __real_fwrite(const void *data, size_t size, size_t count, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t count, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t count, FILE *file)
{
    return file != stderr && strikes(VF_FAULT_WRITE) ? 0 : __real_fwrite(data, size, count, file);
}
