/* Reads through io_uring.
 *
 * The region is registered in pieces of whole slots, as many as fit the kernel's limit of 1 GiB a
 * piece; the pages stay pinned for the life of the ring. A read into several slots can't use them,
 * since it may touch several pieces: the kernel pins its pages for the time of the read.
 *
 * Any call may be forbidden by a seccomp filter, io_uring_enter alone as well; so a read is tried
 * before the ring counts as usable. When io_uring_enter is refused later, what the kernel hasn't
 * taken is handed back. Completions are taken without a call, and waited for on the eventfd.
 */
#include "common/base/log.h"
#include "common/base/util.h"
#include "io_worker/read_engine_internal.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES_MAX (1ull << 30)
#define PIECES_MAX      16384u  /* the kernel's limit of registered buffers */
#define SHORT_MAX_NS    VF_S(1) /* the kernel may say "again" for so long */
#define DRAIN_POLL_MS   100

struct uring_backend {
    struct vf_read_backend base;
    struct vf_read_params params;
    struct io_uring ring;
    const struct vf_read_file *files;
    int event_fd;
    bool ring_open, files_registered, buffers_registered;
    uint32_t slots_per_piece;
    struct vf_read_list queued; /* in the ring, not taken by the kernel yet */
    uint32_t in_flight;         /* taken by the kernel */
    uint64_t short_since_ns;    /* it is short of something since then; 0: it isn't */
    int refused;                /* errno of the refusal; 0: none */
};

static void prepare(struct uring_backend *b, struct io_uring_sqe *sqe, struct vf_read *r)
{
    int fd = b->files_registered ? (int)r->file : b->files[r->file].fd;
    uint8_t *to = vf_read_address(&b->params, r);
    unsigned n = (unsigned)r->bytes; /* a record is below 2 GiB */
    if (r->more_count > 0) {
        vf_read_scatter(&b->params, r);
        io_uring_prep_readv(sqe, fd, r->engine.parts, r->more_count + 1, r->file_offset);
    } else if (b->buffers_registered) {
        io_uring_prep_read_fixed(sqe, fd, to, n, r->file_offset,
                                 (int)(r->slot / b->slots_per_piece));
    } else {
        io_uring_prep_read(sqe, fd, to, n, r->file_offset);
    }
}

/* Being short of something passes; anything else, or that for too long, is a refusal. */
static int refusal_of(struct uring_backend *b, int rc)
{
    if (rc >= 0) {
        b->short_since_ns = 0;
        return 0;
    }
    if (rc != -EAGAIN && rc != -EBUSY && rc != -EINTR)
        return -rc;
    uint64_t now_ns = vf_now_ns();
    if (b->short_since_ns == 0)
        b->short_since_ns = now_ns;
    return now_ns - b->short_since_ns > SHORT_MAX_NS ? -rc : 0;
}

/* Hands the queued reads to the kernel; what it doesn't take now, the next call does. */
static void push(struct uring_backend *b)
{
    if (!b->queued.first || b->refused)
        return;
    int rc = io_uring_submit(&b->ring);
    for (int i = 0; i < rc; i++) {
        vf_read_list_take(&b->queued);
        b->in_flight++;
    }
    b->refused = refusal_of(b, rc);
}

static enum vf_code uring_submit(struct vf_read_backend *base, struct vf_read *r,
                                 struct vf_err *err)
{
    struct uring_backend *b = (struct uring_backend *)base;
    struct io_uring_sqe *sqe = b->refused ? NULL : io_uring_get_sqe(&b->ring);
    if (!sqe && !b->refused)
        return vf_err_set(err, VF_ERR_IO, "io_uring: the submission queue is full");
    if (sqe) {
        prepare(b, sqe, r);
        sqe->rw_flags = b->files[r->file].rw_flags;
        if (b->files_registered)
            io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        io_uring_sqe_set_data(sqe, r);
    }
    vf_read_list_append(&b->queued, r);
    push(b);
    return VF_OK;
}

static struct vf_read *uring_reap(struct vf_read_backend *base)
{
    struct uring_backend *b = (struct uring_backend *)base;
    struct io_uring_cqe *cqe;
    push(b);
    if (b->in_flight == 0 || io_uring_peek_cqe(&b->ring, &cqe) != 0)
        return NULL;
    struct vf_read *r = io_uring_cqe_get_data(cqe);
    r->result = cqe->res;
    io_uring_cqe_seen(&b->ring, cqe);
    b->in_flight--;
    return r;
}

static int uring_refused(struct vf_read_backend *base, struct vf_read_list *reads)
{
    struct uring_backend *b = (struct uring_backend *)base;
    if (b->refused) {
        *reads = b->queued;
        b->queued = (struct vf_read_list){0};
    }
    return b->refused;
}

/* Without a call of io_uring, which may be forbidden by now: every completion is an event. */
static void drain(struct uring_backend *b)
{
    b->queued = (struct vf_read_list){0};
    for (;;) {
        struct pollfd p = {.fd = b->event_fd, .events = POLLIN};
        uint64_t events;
        while (uring_reap(&b->base))
            continue;
        if (b->in_flight == 0)
            return;
        if (poll(&p, 1, DRAIN_POLL_MS) > 0 && read(b->event_fd, &events, sizeof events) < 0)
            continue;
    }
}

static void uring_destroy(struct vf_read_backend *base)
{
    struct uring_backend *b = (struct uring_backend *)base;
    if (b->ring_open) {
        drain(b);
        io_uring_queue_exit(&b->ring);
    }
    free(b);
}

static const struct vf_read_backend_ops uring_ops = {
    .destroy = uring_destroy,
    .submit = uring_submit,
    .reap = uring_reap,
    .refused = uring_refused,
};

static void register_files(struct uring_backend *b)
{
    int fds[VF_READ_FILES_MAX];
    for (uint32_t i = 0; i < b->params.path_count; i++)
        fds[i] = b->files[i].fd;
    int rc = io_uring_register_files(&b->ring, fds, b->params.path_count);
    b->files_registered = rc == 0;
    if (rc != 0)
        vf_info("io_uring: the files couldn't be registered: %s", strerror(-rc));
}

static int register_pieces(struct uring_backend *b)
{
    uint32_t pieces = (uint32_t)vf_div_up(b->params.slot_count, b->slots_per_piece);
    struct iovec *iov = calloc(pieces, sizeof *iov);
    if (!iov)
        return -ENOMEM;
    for (uint32_t i = 0; i < pieces; i++) {
        uint32_t first = i * b->slots_per_piece;
        uint64_t slots = vf_min_u64(b->slots_per_piece, b->params.slot_count - first);
        iov[i].iov_base = b->params.region + first * b->params.slot_bytes;
        iov[i].iov_len = slots * b->params.slot_bytes;
    }
    int rc = io_uring_register_buffers(&b->ring, iov, pieces);
    free(iov);
    return rc;
}

static void register_buffers(struct uring_backend *b)
{
    uint64_t per_piece = PIECE_BYTES_MAX / b->params.slot_bytes;
    if (per_piece == 0 || vf_div_up(b->params.slot_count, per_piece) > PIECES_MAX) {
        vf_warn("io_uring: slots of %llu bytes can't be registered as fixed buffers",
                (unsigned long long)b->params.slot_bytes);
        return;
    }
    b->slots_per_piece = (uint32_t)vf_min_u64(per_piece, b->params.slot_count);
    int rc = register_pieces(b);
    b->buffers_registered = rc == 0;
    if (rc == -ENOMEM)
        vf_warn(
            "io_uring: the cache of %llu MiB can't be registered as fixed buffers; RLIMIT_MEMLOCK "
            "(ulimit -l) is too small; reading without",
            (unsigned long long)(b->params.slot_count * b->params.slot_bytes >> 20));
    else if (rc != 0)
        vf_warn("io_uring: fixed buffers were refused (%s); reading without", strerror(-rc));
}

/* 0, or -errno of a read of the first file's first page. */
static int try_read(struct uring_backend *b)
{
    void *page = aligned_alloc(VF_READ_ALIGN, VF_READ_ALIGN);
    struct io_uring_sqe *sqe = page ? io_uring_get_sqe(&b->ring) : NULL;
    if (!sqe) {
        free(page);
        return -ENOMEM;
    }
    io_uring_prep_read(sqe, b->files[0].fd, page, VF_READ_ALIGN, 0);
    int rc = io_uring_submit(&b->ring);
    if (rc < 0) {
        free(page);
        return rc;
    }
    struct io_uring_cqe *cqe;
    do
        rc = io_uring_wait_cqe(&b->ring, &cqe);
    while (rc == -EINTR);
    if (rc < 0)
        return rc; /* the page stays: the kernel may still write to it */
    rc = cqe->res < 0 ? cqe->res : 0;
    io_uring_cqe_seen(&b->ring, cqe);
    free(page);
    return rc;
}

/* 0, or -errno with the call that was refused. */
static int open_ring(struct uring_backend *b, const char **call)
{
    *call = "io_uring_setup";
    int rc = io_uring_queue_init(b->params.depth, &b->ring, 0);
    b->ring_open = rc == 0;
    if (rc != 0)
        return rc;
    *call = "io_uring_enter";
    rc = try_read(b);
    if (rc != 0)
        return rc;
    *call = "io_uring_register";
    return io_uring_register_eventfd(&b->ring, b->event_fd);
}

enum vf_code vf_read_uring_create(const struct vf_read_params *params,
                                  const struct vf_read_file *files, int event_fd,
                                  struct vf_read_backend **out, struct vf_err *err)
{
    *out = NULL;
    struct uring_backend *b = calloc(1, sizeof *b);
    if (!b)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "io_uring: out of memory");
    b->base.ops = &uring_ops;
    b->params = *params;
    b->files = files;
    b->event_fd = event_fd;
    const char *call;
    int rc = open_ring(b, &call);
    if (rc != 0) {
        uring_destroy(&b->base);
        return vf_err_errno(err, VF_ERR_UNSUPPORTED, -rc, "io_uring isn't available here: %s",
                            call);
    }
    register_files(b);
    register_buffers(b);
    *out = &b->base;
    return VF_OK;
}
