/* The expert cache: slots in one shared-memory object, one table for the stage workers (readers)
 * and I/O workers (loaders) of a host. This is the object; a stage worker opens a reader on it
 * (cache_reader.h), an I/O worker a loader (cache_loader.h).
 *
 * A slot goes free -> loading -> ready (or error) -> free. Readers pin a ready slot while they use
 * it. While it is loading they may look at the part that its loader says has landed; each load has
 * a number of its own, by which they find later whether the record is the one they looked at.
 * Loaders pick the slot for a new expert:
 *   - a slot that is loading or pinned is never taken;
 *   - a slot whose expert was ordered and not used yet is protected: an order takes it only with an
 *     earlier deadline, a demand also with the same one if nobody waits for the expert. Protection
 * ends at the first use, when the process that asked for it is past its deadline or dead, or,
 * against a demand that found nothing else, VF_CACHE_GRACE_NS after it was loaded (so an abandoned
 * prefetch can't block anybody for good). A speculative order takes no protected slot, and the one
 *     it got is protected against other guesses only;
 *   - of the others the one worth least goes, as common/experts/policy.h tells from the visits of
 *     the layers; what is known of an expert outlives its stay in the cache.
 * Deadlines are ranks: lower is needed sooner.
 *
 * The table is guarded by a process-shared robust mutex: when its holder died, the next one repairs
 * the table from the slots and their pins. A call that takes it may take VF_CACHE_LOCK_NS and fail
 * with VF_ERR_TIMEOUT (its holder is stopped) or VF_ERR_INTERNAL; nothing has happened then.
 * Outside of it there are atomics alone: the event count, which a loader raises with release after
 * its change and a reader reads with acquire before it looks; an I/O worker's pid, released after
 * its start time; and counters, relaxed, which may be of slightly different moments. Whatever is
 * read from the object is checked before use; geometry is checked once and kept privately. The data
 * of a slot belongs to its loader while it is loading, but for a front that has landed, and to
 * nobody's pen afterwards; the mutex orders both. A cache may be used by several threads, a reader
 * or loader by one at a time.
 *
 * Object (offsets in the header, little-endian, fixed-width): header | keys [layers * experts] |
 * slots [slots] | lists [3][slots] | policy | pins [slots][VF_CACHE_PROCESSES_MAX] |
 * data [slots][slot_bytes].
 */
#ifndef VF_COMMON_EXPERTS_CACHE_H
#define VF_COMMON_EXPERTS_CACHE_H

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/experts/bank.h"
#include "common/run/run_dir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VF_CACHE_PROCESSES_MAX  64u /* reading processes; as many as stage workers */
#define VF_CACHE_IO_WORKERS_MAX 32u
#define VF_CACHE_KEYS_MAX       (1u << 26) /* layers * experts; 44 bytes each */
#define VF_CACHE_SLOTS_MAX      (1u << 22)
#define VF_CACHE_GRACE_NS       VF_MS(250)
#define VF_CACHE_LOCK_NS        VF_S(10) /* a holder that lives but doesn't let go is a bug or stopped */

struct vf_expert_cache;

struct vf_cache_geometry {
    uint32_t layer_count, expert_count;
    uint32_t slot_count;
    uint32_t io_worker_count; /* 1..VF_CACHE_IO_WORKERS_MAX */
    uint64_t record_bytes;    /* of one expert; a slot has as many */
    uint64_t fingerprint;     /* of the model file */
};

/* Bytes of the whole object; VF_ERR_LIMIT names what is out of range. */
enum vf_code vf_expert_cache_bytes(const struct vf_cache_geometry *g, uint64_t *bytes,
                                   struct vf_err *err);
/* How many slots a budget of data bytes gives: at least 1, at most one per expert. */
uint32_t vf_expert_cache_slots_for(const struct vf_cache_geometry *g, uint64_t budget_bytes);

/* The coordinator creates the object under the run's name, everybody else opens it. */
enum vf_code vf_expert_cache_create(const struct vf_run_dir *rd, const struct vf_cache_geometry *g,
                                    struct vf_expert_cache **out, struct vf_err *err);
enum vf_code vf_expert_cache_open(const struct vf_run_dir *rd, struct vf_expert_cache **out,
                                  struct vf_err *err);
void vf_expert_cache_close(struct vf_expert_cache *c); /* unmaps; the name is the run's */

const struct vf_cache_geometry *vf_expert_cache_geometry(const struct vf_expert_cache *c);
uint8_t *vf_expert_cache_slot_data(const struct vf_expert_cache *c, uint32_t slot);
/* Which I/O worker loads an expert. */
uint32_t vf_expert_cache_io_of(const struct vf_expert_cache *c, struct vf_expert_ref ref);

struct vf_cache_failure {
    enum vf_code code;   /* VF_ERR_IO or VF_ERR_CORRUPT */
    int sys_errno;       /* VF_ERR_IO; 0: the file ended inside the record */
    uint64_t xxh3_found; /* VF_ERR_CORRUPT: the checksum of what was read */
};

/* How a reader or loader tells an I/O worker that waits for a slot to look again: called at the end
 * of a call that may have freed one, without the mutex, once for each such worker but the caller.
 */
struct vf_cache_waker {
    void (*wake)(void *ctx, uint32_t io_worker); /* NULL: nobody is told; a short poll finds it */
    void *ctx;
};

/* Frees what I/O worker io_worker was loading, and forgets its orders, so that whoever waits for
 * one orders it again: for the coordinator when one died. The slots rest for two seconds first,
 * since its last reads may still land in them. */
enum vf_code vf_expert_cache_release_loader(struct vf_expert_cache *c, uint32_t io_worker,
                                            struct vf_err *err);

/* ---- counters ------------------------------------------------------------------------------ */

struct vf_cache_io_stats { /* totals of one I/O worker */
    uint64_t reads, bytes, read_errors;
    uint64_t latency_ns_sum, latency_ns_max; /* submission to completion of whole records */
    uint64_t merged, stale;                  /* orders that found another one, or came too late */
    uint64_t evictions;
    uint64_t busy_ns; /* time with at least one read in flight */
    uint64_t joined;  /* records that were read along with the one before them, in one request */
};
struct vf_cache_io_state {
    pid_t pid;           /* 0: not registered yet */
    uint64_t start_time; /* vf_process_start_time of pid */
    uint64_t heartbeat_ns;
    struct vf_cache_io_stats stats;
};
/* io_worker < io_worker_count. */
struct vf_cache_io_state vf_expert_cache_io_state(const struct vf_expert_cache *c,
                                                  uint32_t io_worker);

struct vf_cache_process_stats { /* of one reading process */
    uint64_t bytes_read;        /* loaded on its orders */
    uint64_t read_ns; /* time with at least one load that it ordered, guesses apart, in flight */
};
/* process < VF_CACHE_PROCESSES_MAX. */
struct vf_cache_process_stats vf_expert_cache_process_stats(const struct vf_expert_cache *c,
                                                            uint32_t process);

struct vf_cache_totals { /* of the whole cache */
    uint64_t reads, bytes, evictions;
    uint64_t joined; /* of the reads: along with the record before it, in one request */
    /* Loaded for an order before anybody waited for them: there when wanted; gone without a use.
     * What came late is in neither. */
    uint64_t prefetched_used, prefetched_wasted;
    uint64_t guessed_used, guessed_wasted; /* the same of speculative orders */
    uint64_t read_ns; /* time with a load in flight, guesses apart, summed over the processes */
    double latency_ms_mean, latency_ms_median, latency_ms_p95, latency_ms_max; /* 0 without reads;
                         median and p95 to within a tenth */
    double
        bytes_per_s; /* while a read was in flight, summed over the I/O workers; 0 without reads */
};
struct vf_cache_totals vf_expert_cache_totals(const struct vf_expert_cache *c);

struct vf_cache_slot_view { /* for tests and diagnosis */
    enum { VF_SLOT_FREE, VF_SLOT_LOADING, VF_SLOT_READY, VF_SLOT_ERROR } state;
    struct vf_expert_ref ref;
    uint32_t pin_count;
    bool is_protected, is_speculative;
    bool front_landed; /* LOADING */
    uint64_t deadline;
};
enum vf_code vf_expert_cache_view(struct vf_expert_cache *c, uint32_t slot,
                                  struct vf_cache_slot_view *out, struct vf_err *err);

/* For tests of recovery: takes the table's mutex and keeps it. */
enum vf_code vf_expert_cache_lock_for_test(struct vf_expert_cache *c, struct vf_err *err);

#endif
