/* The expert cache: slots in one shared-memory object, one table for the stage workers (readers)
 * and I/O workers (loaders) of a host.
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
 * the table from the slots and their pins. Counters and heartbeat words have one writer each.
 * Whatever is read from the object is checked before use; geometry is checked once and kept
 * privately. A handle may be used by several threads.
 *
 * Object (offsets in the header, little-endian, fixed-width): header | keys [layers * experts] |
 * slots [slots] | lists [3][slots] | policy | pins [slots][VF_CACHE_PROCESSES_MAX] |
 * data [slots][slot_bytes].
 */
#ifndef VF_COMMON_EXPERTS_CACHE_H
#define VF_COMMON_EXPERTS_CACHE_H

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/run/run_dir.h"
#include "stage_worker/expert_source.h"

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

/* ---- readers ------------------------------------------------------------------------------- */

enum vf_cache_found {
    VF_CACHE_MISSING, /* neither in a slot nor ordered */
    VF_CACHE_ORDERED, /* ordered, no slot yet */
    VF_CACHE_LOADING,
    VF_CACHE_READY,
    VF_CACHE_FAILED, /* its read failed; told once, the slot is free again */
};
struct vf_cache_failure {
    enum vf_code code;   /* VF_ERR_IO or VF_ERR_CORRUPT */
    int sys_errno;       /* VF_ERR_IO; 0: the file ended inside the record */
    uint64_t xxh3_found; /* VF_ERR_CORRUPT: the checksum of what was read */
};

/* A routing decision: a step uses these experts of a layer, each named once. What the choice of
 * victims learns from; called before their order. */
enum vf_code vf_expert_cache_visit(struct vf_expert_cache *c, uint32_t layer,
                                   const uint32_t *experts, uint32_t n, struct vf_err *err);
/* For orders about to be sent: protects every ref that has a slot until deadline (not for a
 * speculative one), marks the others as ordered, and tells in found[n] (MISSING: this order is the
 * first). */
enum vf_code vf_expert_cache_order(struct vf_expert_cache *c, uint32_t process,
                                   const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                   bool speculative, enum vf_cache_found *found,
                                   struct vf_err *err);
/* Pins every ref that is ready: found[i] READY, data[i] set; a ref given twice is pinned twice. Of
 * the others, data[i] is NULL; those loading are marked as waited for, so that a failure is kept
 * for this process, those without a slot as ordered (the caller sends a demand); FAILED fills
 * failures[i]. landed[i] has the number of a ready ref's load, and of a loading one whose front has
 * landed that and where; zero for others; landed may be NULL. Also tells the cache that the process
 * has come to deadline, which may free what it ordered for earlier: *starved as in unpin. */
enum vf_code vf_expert_cache_pin(struct vf_expert_cache *c, uint32_t process,
                                 const struct vf_expert_ref *refs, uint32_t n, uint64_t deadline,
                                 enum vf_cache_found *found, const uint8_t **data,
                                 struct vf_expert_front *landed, struct vf_cache_failure *failures,
                                 uint32_t *starved, struct vf_err *err);
/* Undoes pins: data[i] as vf_expert_cache_pin gave it, NULL is skipped. *starved has bit w set when
 * I/O worker w has an order waiting for a slot: the caller sends it a message. */
enum vf_code vf_expert_cache_unpin(struct vf_expert_cache *c, uint32_t process,
                                   const uint8_t *const *data, uint32_t n, uint32_t *starved,
                                   struct vf_err *err);
/* Gives back what a dead (or leaving) process pinned and ordered. */
enum vf_code vf_expert_cache_release_process(struct vf_expert_cache *c, uint32_t process,
                                             struct vf_err *err);

/* To wait for "some slot became ready or failed, or a front that somebody waits for has landed":
 * take the count, look (pin), then wait for the count to move on. VF_OK also without a reason,
 * VF_ERR_TIMEOUT after deadline_ns. */
uint32_t vf_expert_cache_event_count(const struct vf_expert_cache *c);
enum vf_code vf_expert_cache_wait(struct vf_expert_cache *c, uint32_t event_count,
                                  uint64_t deadline_ns);
uint64_t vf_expert_cache_bytes_read_for(const struct vf_expert_cache *c, uint32_t process);
/* Time during which at least one load that process ordered, guesses apart, was in flight. */
uint64_t vf_expert_cache_read_ns_for(const struct vf_expert_cache *c, uint32_t process);

/* ---- loaders ------------------------------------------------------------------------------- */

struct vf_cache_order {
    struct vf_expert_ref ref;
    uint64_t deadline;
    uint32_t process;
    bool demand;      /* somebody waits */
    bool speculative; /* a guess; never both */
};
enum vf_cache_begin {
    VF_CACHE_BEGUN,   /* slot is loading for the caller, who fills it and calls finish */
    VF_CACHE_PRESENT, /* ready, failed or loading already */
    VF_CACHE_STALE,   /* a prefetch whose process is past it, an order fulfilled meanwhile, or a
                         guess for which there is no slot */
    VF_CACHE_STARVED, /* no slot may be taken; the worker is noted as starved until it gets one */
};
enum vf_code vf_expert_cache_begin(struct vf_expert_cache *c, uint32_t io_worker,
                                   const struct vf_cache_order *order, enum vf_cache_begin *result,
                                   uint32_t *slot, struct vf_err *err);
/* The front of the record that the slot is loading has landed and stays. Wakes the waiters if
 * somebody waits for this one. */
enum vf_code vf_expert_cache_mark_front(struct vf_expert_cache *c, uint32_t io_worker,
                                        uint32_t slot, struct vf_err *err);
/* failure NULL: the slot is ready. Else it becomes failed if somebody waits for it, or free. Wakes
 * the waiters. *starved: as in unpin, other I/O workers to tell. */
enum vf_code vf_expert_cache_finish(struct vf_expert_cache *c, uint32_t io_worker, uint32_t slot,
                                    const struct vf_cache_failure *failure, uint32_t *starved,
                                    struct vf_err *err);
/* Gives up a speculative load that nobody asked for meanwhile, with if_late only when its time has
 * come or another I/O worker is starved: *abandoned, and the slot is free. The caller has no read
 * of it in flight. *starved as in unpin. */
enum vf_code vf_expert_cache_abandon(struct vf_expert_cache *c, uint32_t io_worker, uint32_t slot,
                                     bool if_late, bool *abandoned, uint32_t *starved,
                                     struct vf_err *err);
/* Enters this process as I/O worker io_worker. Slots that a dead predecessor was loading become
 * free, but rest for two seconds first: its last reads may still land in them. */
enum vf_code vf_expert_cache_register_io(struct vf_expert_cache *c, uint32_t io_worker,
                                         struct vf_err *err);
/* Frees what io_worker was loading, as above; for the coordinator when one died. */
enum vf_code vf_expert_cache_release_io(struct vf_expert_cache *c, uint32_t io_worker,
                                        struct vf_err *err);

struct vf_cache_io_stats { /* totals of one I/O worker */
    uint64_t reads, bytes, read_errors;
    uint64_t latency_ns_sum, latency_ns_max; /* submission to completion of whole records */
    uint64_t merged, stale;                  /* orders that found another one, or came too late */
    uint64_t evictions;
    uint64_t busy_ns; /* time with at least one read in flight */
    uint64_t joined;  /* records that were read along with the one before them, in one request */
};
/* Adds to the worker's totals; one caller per io_worker. */
void vf_expert_cache_count_read(struct vf_expert_cache *c, uint32_t io_worker, uint32_t process,
                                uint64_t bytes, uint64_t latency_ns, bool failed);
void vf_expert_cache_count_merged(struct vf_expert_cache *c, uint32_t io_worker);
void vf_expert_cache_count_joined(struct vf_expert_cache *c, uint32_t io_worker, uint32_t records);
void vf_expert_cache_count_busy(struct vf_expert_cache *c, uint32_t io_worker, uint64_t ns);
/* Whether a worker has work that isn't speculative, and whether one of the others has: those that
 * share a drive speculate only when none has. A hint. */
void vf_expert_cache_set_busy(struct vf_expert_cache *c, uint32_t io_worker, bool busy);
bool vf_expert_cache_others_busy(const struct vf_expert_cache *c, uint32_t io_worker);
void vf_expert_cache_heartbeat(struct vf_expert_cache *c, uint32_t io_worker);

/* ---- anybody ------------------------------------------------------------------------------- */

struct vf_cache_io_state {
    pid_t pid;           /* 0: not registered yet */
    uint64_t start_time; /* vf_process_start_time of pid */
    uint64_t heartbeat_ns;
    struct vf_cache_io_stats stats;
};
/* io_worker < io_worker_count. */
struct vf_cache_io_state vf_expert_cache_io_state(const struct vf_expert_cache *c,
                                                  uint32_t io_worker);

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
