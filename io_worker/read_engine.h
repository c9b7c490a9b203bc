/* Reads parts of one or more files into the slots of a memory region, asynchronously and several at
 * a time.
 *
 * Two engines behind one interface: io_uring with the region registered as fixed buffers and the
 * files registered, and a small pool of threads with pread where a container forbids io_uring or
 * one of its calls, be it from the start or later on. The files are read with O_DIRECT, or through
 * the page cache (buffered) on request and where a file system can't do direct reads at 4096-byte
 * alignment. Each fallback is said once. What a fallback leaves in the page cache is dropped behind
 * each read, since nobody will read it there again; buffered on request leaves the page cache
 * alone.
 *
 * A throttle makes a drive look slower than it is, for experiments: a serial drive of so many bytes
 * a second, on which every read also takes VF_READ_THROTTLE_LATENCY_NS.
 *
 * One thread uses an engine. Completions are announced on a file descriptor. An engine isn't
 * destroyed before its reads have ended: nothing lands in the region afterwards.
 */
#ifndef VF_IO_WORKER_READ_ENGINE_H
#define VF_IO_WORKER_READ_ENGINE_H

#include "common/base/clock.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define VF_READ_ALIGN               4096u /* of offsets, lengths and addresses */
#define VF_READ_DEPTH_MAX           256u
#define VF_READ_FILES_MAX           16u
#define VF_READ_SLOTS_MAX           16u /* of one read */
#define VF_READ_THROTTLE_LATENCY_NS 100000u

struct vf_read_params {
    const char *const *paths;
    uint32_t path_count;     /* 1..VF_READ_FILES_MAX */
    bool buffered;           /* don't try O_DIRECT */
    bool no_uring;           /* don't try io_uring */
    uint32_t depth;          /* reads in flight at most, 1..VF_READ_DEPTH_MAX */
    uint64_t throttle_bytes; /* a second; 0: none */
    uint8_t *region;         /* aligned to VF_READ_ALIGN */
    uint64_t slot_bytes;     /* multiple of VF_READ_ALIGN */
    uint32_t slot_count;
};

/* A read and its only record: the caller's memory, which is the engine's from submit until reap
 * gives it back. */
struct vf_read {
    uint32_t slot;
    uint64_t slot_offset, bytes; /* where in the slot, and how much; a read stays in its slot */
    uint32_t file;               /* index of its path */
    uint64_t file_offset;
    /* What lies behind that in the file goes to as many more slots, `bytes` to the beginning of
     * each: one request of the drive instead of several. slot_offset is 0 then. */
    uint32_t more_count;
    uint32_t more[VF_READ_SLOTS_MAX - 1];
    int64_t result; /* set by reap: bytes read, of all slots together (0: end of file), or -errno */
    struct {        /* the engine's own */
        struct vf_read *next;
        uint64_t due_ns; /* not given back before */
        struct iovec parts[VF_READ_SLOTS_MAX];
    } engine;
};

struct vf_read_engine;

enum vf_code vf_read_engine_create(const struct vf_read_params *params, struct vf_read_engine **out,
                                   struct vf_err *err);
/* Waits for reads in flight. NULL is fine. */
void vf_read_engine_destroy(struct vf_read_engine *e);

/* At most depth reads may be in flight. VF_ERR_IO when the kernel doesn't take it now; the read is
 * the caller's again then. */
enum vf_code vf_read_engine_submit(struct vf_read_engine *e, struct vf_read *read,
                                   struct vf_err *err);
/* Readable when completions may be there. */
int vf_read_engine_fd(const struct vf_read_engine *e);
/* Gives up to max completed reads back without waiting; returns how many. */
uint32_t vf_read_engine_reap(struct vf_read_engine *e, struct vf_read **done, uint32_t max);
/* "uring direct", "uring buffered", "pread direct", "pread buffered"; buffered when one file is */
const char *vf_read_engine_name(const struct vf_read_engine *e);

#endif
