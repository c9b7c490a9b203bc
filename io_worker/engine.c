/* Opens the file as directly as it can be, chooses a backend, and says what it had to give up. */
#include "io_worker/engine.h"

#include "common/log.h"
#include "common/util.h"
#include "io_worker/engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

struct vf_read_engine {
    struct vf_read_params params;
    struct vf_read_backend *backend;
    int fd, event_fd;
    bool direct, uring;
    uint32_t in_flight;
};

/* ---- opening the file ---------------------------------------------------------------------- */

/* Asks the file system; kernels and file systems that don't tell are tried instead. */
static bool alignment_fits(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) != 0 || !(sx.stx_mask & STATX_DIOALIGN))
        return true;
    return sx.stx_dio_offset_align > 0 && sx.stx_dio_offset_align <= VF_READ_ALIGN &&
           sx.stx_dio_mem_align <= VF_READ_ALIGN;
#else
    (void)fd;
    return true;
#endif
}

/* Some file systems accept O_DIRECT in open and refuse the first read. */
static bool direct_read_works(int fd)
{
    void *page = NULL;
    if (posix_memalign(&page, VF_READ_ALIGN, VF_READ_ALIGN) != 0)
        return false;
    ssize_t n = pread(fd, page, VF_READ_ALIGN, 0);
    bool refused = n < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
    free(page);
    return !refused;
}

/* An fd opened with O_DIRECT, or -1 with the reason in *why. */
static int open_direct(const char *path, const char **why)
{
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        *why = strerror(errno);
        return -1;
    }
    *why = !alignment_fits(fd)      ? "it needs an alignment above 4096 bytes or none will do"
           : !direct_read_works(fd) ? "it refuses direct reads"
                                    : NULL;
    if (!*why)
        return fd;
    close(fd);
    return -1;
}

static enum vf_code open_file(struct vf_read_engine *e, struct vf_err *err)
{
    const char *path = e->params.path, *why = NULL;
    if (!e->params.buffered) {
        e->fd = open_direct(path, &why);
        e->direct = e->fd >= 0;
        if (e->direct)
            return VF_OK;
    }
    e->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (e->fd < 0)
        return vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno, "%s", path);
    /* Records are asked for whole and in no order: reading on behind them would be waste. */
    posix_fadvise(e->fd, 0, 0, POSIX_FADV_RANDOM);
    if (why)
        vf_warn("%s: reading through the page cache, the file system can't do it directly: %s",
                path, why);
    return VF_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code open_backend(struct vf_read_engine *e, struct vf_err *err)
{
    if (!e->params.no_uring) {
        struct vf_err why;
        if (vf_read_uring_create(&e->params, e->fd, e->event_fd, &e->backend, &why) == VF_OK) {
            e->uring = true;
            return VF_OK;
        }
        vf_warn("%s; reading with a pool of %u threads instead", why.text, e->params.depth);
    }
    return vf_read_pool_create(&e->params, e->fd, e->event_fd, &e->backend, err);
}

enum vf_code vf_read_engine_create(const struct vf_read_params *params, struct vf_read_engine **out,
                                   struct vf_err *err)
{
    *out = NULL;
    VF_ASSERT(params->depth >= 1 && params->depth <= VF_READ_DEPTH_MAX);
    VF_ASSERT((uintptr_t)params->region % VF_READ_ALIGN == 0);
    VF_ASSERT(params->slot_bytes > 0 && params->slot_bytes % VF_READ_ALIGN == 0);
    struct vf_read_engine *e = calloc(1, sizeof *e);
    if (!e)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "read engine: out of memory");
    e->params = *params;
    e->fd = e->event_fd = -1;
    enum vf_code code = open_file(e, err);
    if (code != VF_OK)
        goto done;
    e->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->event_fd < 0) {
        code = vf_err_errno(err, VF_ERR_IO, errno, "eventfd");
        goto done;
    }
    code = open_backend(e, err);
done:
    if (code != VF_OK)
        vf_read_engine_destroy(e);
    else
        *out = e;
    return code;
}

void vf_read_engine_destroy(struct vf_read_engine *e)
{
    if (!e)
        return;
    if (e->backend)
        e->backend->ops->destroy(e->backend);
    if (e->event_fd >= 0)
        close(e->event_fd);
    if (e->fd >= 0)
        close(e->fd);
    free(e);
}

/* ---- reads --------------------------------------------------------------------------------- */

enum vf_code vf_read_engine_submit(struct vf_read_engine *e, const struct vf_read *r,
                                   struct vf_err *err)
{
    VF_ASSERT(e->in_flight < e->params.depth);
    VF_ASSERT(r->slot < e->params.slot_count && r->bytes > 0);
    VF_ASSERT(r->slot_offset <= e->params.slot_bytes &&
              r->bytes <= e->params.slot_bytes - r->slot_offset);
    enum vf_code code = e->backend->ops->submit(e->backend, r, err);
    if (code == VF_OK)
        e->in_flight++;
    return code;
}

int vf_read_engine_fd(const struct vf_read_engine *e)
{
    return e->event_fd;
}

uint32_t vf_read_engine_reap(struct vf_read_engine *e, struct vf_read_done *done, uint32_t max)
{
    /* Reset before looking: a completion after the look makes it readable again. */
    uint64_t events;
    ssize_t ignored = read(e->event_fd, &events, sizeof events);
    (void)ignored;
    uint32_t n = e->backend->ops->reap(e->backend, done, max);
    VF_ASSERT(n <= e->in_flight);
    e->in_flight -= n;
    return n;
}

const char *vf_read_engine_name(const struct vf_read_engine *e)
{
    if (e->uring)
        return e->direct ? "uring direct" : "uring buffered";
    return e->direct ? "pread direct" : "pread buffered";
}
