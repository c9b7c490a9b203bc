/* Reads through io_uring.
 *
 * The region is registered in pieces of whole slots, as many as fit the kernel's limit of 1 GiB a
 * piece; the pages stay pinned for the life of the ring. A read into several slots can't use them,
 * since it may touch several pieces: the kernel pins its pages for the time of the read.
 */
#include "common/base/log.h"
#include "common/base/util.h"
#include "io_worker/engine_internal.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES_MAX (1ull << 30)
#define PIECES_MAX      16384u /* the kernel's limit of registered buffers */

struct uring_backend {
    struct vf_read_backend base;
    struct vf_read_params params;
    struct io_uring ring;
    const struct vf_read_file *files;
    bool ring_open, files_registered, buffers_registered;
    uint32_t slots_per_piece;
    uint32_t in_flight;
    struct iovec (*scatter)[VF_READ_SLOTS_MAX]; /* [depth], by tag: of reads into several slots */
};

static void prepare(struct uring_backend *b, struct io_uring_sqe *sqe, const struct vf_read *r)
{
    int fd = b->files_registered ? (int)r->file : b->files[r->file].fd;
    uint8_t *to = vf_read_address(&b->params, r);
    unsigned n = (unsigned)r->bytes; /* a record is below 2 GiB */
    if (r->more_count > 0) {
        struct iovec *iov = b->scatter[r->tag];
        vf_read_scatter(&b->params, r, iov);
        io_uring_prep_readv(sqe, fd, iov, r->more_count + 1, r->file_offset);
    } else if (b->buffers_registered) {
        io_uring_prep_read_fixed(sqe, fd, to, n, r->file_offset,
                                 (int)(r->slot / b->slots_per_piece));
    } else {
        io_uring_prep_read(sqe, fd, to, n, r->file_offset);
    }
}

static enum vf_code uring_submit(struct vf_read_backend *base, const struct vf_read *r,
                                 struct vf_err *err)
{
    struct uring_backend *b = (struct uring_backend *)base;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
    if (!sqe)
        return vf_err_set(err, VF_ERR_IO, "io_uring: the submission queue is full");
    prepare(b, sqe, r);
    sqe->rw_flags = b->files[r->file].rw_flags;
    if (b->files_registered)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, r->tag);
    /* Once prepared, the entry belongs to the ring: if the kernel is short of something now, the
     * next submission takes it along, and reap submits again. */
    io_uring_submit(&b->ring);
    b->in_flight++;
    return VF_OK;
}

static uint32_t uring_reap(struct vf_read_backend *base, struct vf_read_done *done, uint32_t max)
{
    struct uring_backend *b = (struct uring_backend *)base;
    if (io_uring_sq_ready(&b->ring) > 0)
        io_uring_submit(&b->ring);
    uint32_t n = 0;
    struct io_uring_cqe *cqe;
    while (n < max && io_uring_peek_cqe(&b->ring, &cqe) == 0) {
        done[n].tag = (uint32_t)io_uring_cqe_get_data64(cqe);
        done[n].result = cqe->res;
        io_uring_cqe_seen(&b->ring, cqe);
        n++;
    }
    b->in_flight -= n;
    return n;
}

static void uring_destroy(struct vf_read_backend *base)
{
    struct uring_backend *b = (struct uring_backend *)base;
    if (!b)
        return;
    while (b->in_flight > 0) {
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(&b->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
            break;
        while (io_uring_peek_cqe(&b->ring, &cqe) == 0) {
            io_uring_cqe_seen(&b->ring, cqe);
            b->in_flight--;
        }
    }
    if (b->ring_open)
        io_uring_queue_exit(&b->ring);
    free(b->scatter);
    free(b);
}

static const struct vf_read_backend_ops uring_ops = {
    .destroy = uring_destroy,
    .submit = uring_submit,
    .reap = uring_reap,
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
    b->scatter = calloc(params->depth, sizeof *b->scatter);
    int rc = b->scatter ? io_uring_queue_init(params->depth, &b->ring, 0) : -ENOMEM;
    b->ring_open = rc == 0;
    if (rc == 0)
        rc = io_uring_register_eventfd(&b->ring, event_fd);
    if (rc != 0) {
        uring_destroy(&b->base);
        return vf_err_errno(err, VF_ERR_UNSUPPORTED, -rc, "io_uring isn't available here");
    }
    register_files(b);
    register_buffers(b);
    *out = &b->base;
    return VF_OK;
}
