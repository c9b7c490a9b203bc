/* Reads of pieces: submitted, completed, repeated, given up.
 *
 * A failed load is ended when its last piece in flight has come back, since the slot must not be
 * given away before. What a read that joins several loads doesn't bring, each load asks for again,
 * alone.
 */
#include "io_worker/loads_internal.h"

#include "common/base/fault.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define TRANSIENT_MAX 16 /* EINTR and EAGAIN in a row before they count as a failure */

static struct load *load_of(const struct piece_read *r, uint32_t i)
{
    return i == 0 ? r->load : r->more[i - 1];
}

static void end_read(struct vf_loads *l, struct piece_read *r)
{
    r->active = false;
    for (uint32_t i = 0; i <= r->read.more_count; i++)
        load_of(r, i)->in_flight--;
    if (--l->in_flight == 0)
        vf_cache_loader_count_busy(l->loader, vf_now_ns() - l->busy_since_ns);
}

/* A load that can't be completed ends with its last piece. */
static enum vf_code end_failed(struct vf_loads *l, struct load *load, struct vf_err *err)
{
    if (load->in_flight > 0)
        return VF_OK;
    struct vf_cache_failure failure = {.code = VF_ERR_IO, .sys_errno = load->failed_errno};
    vf_info("layer %u, expert %u: read of %s at offset %" PRIu64 " given up: %s",
            load->order.ref.layer, load->order.ref.expert, path_of(l, load), load->extent.offset,
            load->failed_errno ? strerror(load->failed_errno) : "the file ended");
    return loads_finish(l, load, &failure, err);
}

static enum vf_code fail_read(struct vf_loads *l, struct piece_read *r, int sys_errno,
                              struct vf_err *err)
{
    struct load *load = r->load;
    end_read(l, r);
    load->failed = true;
    load->failed_errno = sys_errno;
    return end_failed(l, load, err);
}

static void log_again(const struct vf_loads *l, const struct load *load, uint64_t offset,
                      int sys_errno)
{
    vf_info("layer %u, expert %u: reading %s at offset %" PRIu64 " again: %s",
            load->order.ref.layer, load->order.ref.expert, path_of(l, load),
            load->extent.offset + offset, sys_errno ? strerror(sys_errno) : "short");
}

/* Ends a read of joined loads that brought the first bytes of them. The others' pieces count as not
 * asked for yet; after an error they have had the first of their two chances. */
static void end_joined(struct vf_loads *l, struct piece_read *r, uint64_t bytes, int sys_errno)
{
    for (uint32_t i = 0; i <= r->read.more_count; i++) {
        struct load *load = load_of(r, i);
        if ((i + 1) * load->extent.bytes <= bytes) {
            load->landed = 1;
            continue;
        }
        log_again(l, load, 0, sys_errno);
        load->next_piece = 0;
        load->alone = true;
        load->retried = bytes == 0;
    }
    end_read(l, r);
}

static void complete_joined(struct vf_loads *l, struct piece_read *r, int64_t result)
{
    uint64_t bytes = result < 0 ? 0 : (uint64_t)result;
    uint64_t wanted = (1 + r->read.more_count) * r->load->extent.bytes;
    if (r->fault == VF_FAULT_SHORT)
        bytes = vf_min_u64(bytes, vf_round_up(wanted / 2, VF_READ_ALIGN));
    VF_ASSERT(bytes <= wanted);
    end_joined(l, r, bytes, result < 0 ? (int)-result : 0);
}

enum vf_code loads_submit(struct vf_loads *l, struct piece_read *r, struct vf_err *err)
{
    const struct load *load = r->load;
    uint64_t offset = piece_offset(l, r->piece) + r->done_bytes;
    uint64_t bytes = piece_bytes(l, load, r->piece) - r->done_bytes;
    r->fault = vf_fault("io.read");
    if (r->fault == VF_FAULT_SHORT && bytes > VF_READ_ALIGN && r->read.more_count == 0)
        bytes = vf_round_up(bytes / 2, VF_READ_ALIGN);
    r->read.slot = load->slot;
    r->read.slot_offset = offset;
    r->read.bytes = bytes;
    r->read.file = load->extent.file;
    r->read.file_offset = load->extent.offset + offset;
    for (uint32_t i = 0; i < r->read.more_count; i++)
        r->read.more[i] = r->more[i]->slot;
    struct vf_err why;
    if (vf_read_engine_submit(l->engine, &r->read, &why) == VF_OK)
        return VF_OK;
    vf_warn("%s", why.text);
    if (r->read.more_count == 0)
        return fail_read(l, r, EIO, err);
    end_joined(l, r, 0, EIO);
    return VF_OK;
}

/* A read error, or a file that ends too early: the piece once more, then no more. */
static enum vf_code retry_or_fail(struct vf_loads *l, struct piece_read *r, int sys_errno,
                                  struct vf_err *err)
{
    struct load *load = r->load;
    if (load->retried || load->failed)
        return fail_read(l, r, sys_errno, err);
    log_again(l, load, piece_offset(l, r->piece) + r->done_bytes, sys_errno);
    load->retried = true;
    r->done_bytes = 0;
    return loads_submit(l, r, err);
}

static enum vf_code take_piece(struct vf_loads *l, struct piece_read *r, struct vf_err *err)
{
    struct load *load = r->load;
    load->landed |= 1ull << r->piece;
    end_read(l, r);
    return load->failed ? end_failed(l, load, err) : VF_OK;
}

static enum vf_code complete_read(struct vf_loads *l, struct piece_read *r, struct vf_err *err)
{
    int64_t result = r->read.result;
    VF_ASSERT(r->active);
    if (r->fault > 0 && r->fault < VF_FAULT_SHORT)
        result = -r->fault;
    if ((result == -EINTR || result == -EAGAIN) && ++r->transients <= TRANSIENT_MAX)
        return loads_submit(l, r, err);
    if (r->read.more_count > 0) {
        complete_joined(l, r, result);
        return VF_OK;
    }
    if (result < 0)
        return retry_or_fail(l, r, (int)-result, err);
    r->transients = 0;
    /* Whole blocks only, so that the next read is aligned again. */
    uint64_t progress = (uint64_t)result & ~(uint64_t)(VF_READ_ALIGN - 1);
    if (progress == 0)
        return retry_or_fail(l, r, 0, err);
    uint64_t wanted = piece_bytes(l, r->load, r->piece);
    VF_ASSERT(progress <= wanted - r->done_bytes);
    r->done_bytes += progress;
    return r->done_bytes < wanted ? loads_submit(l, r, err) : take_piece(l, r, err);
}

enum vf_code loads_take_completions(struct vf_loads *l, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    uint32_t n = vf_read_engine_reap(l->engine, l->done, l->depth);
    for (uint32_t i = 0; i < n && code == VF_OK; i++)
        code = complete_read(l, (struct piece_read *)l->done[i], err);
    return code;
}
