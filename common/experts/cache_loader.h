/* The loading side of the expert cache: an I/O worker gets a slot for an order, fills it, and says
 * when its front and when its record is whole, or failed.
 *
 * Between begin and finish, or abandon, the slot is loading and its data the loader's. One thread
 * uses a loader. The first group of calls takes the table's mutex and fails as cache.h says; a slot
 * that this loader isn't loading is VF_ERR_INTERNAL.
 */
#ifndef VF_COMMON_EXPERTS_CACHE_LOADER_H
#define VF_COMMON_EXPERTS_CACHE_LOADER_H

#include "common/experts/cache.h"

struct vf_cache_loader;

/* Enters this process as I/O worker io_worker, which one process at a time may be. Slots that a
 * dead predecessor was loading become free (vf_expert_cache_release_loader). The cache is borrowed.
 * VF_ERR_USAGE: the run has fewer. */
enum vf_code vf_cache_loader_open(struct vf_expert_cache *c, uint32_t io_worker,
                                  struct vf_cache_waker waker, struct vf_cache_loader **out,
                                  struct vf_err *err);
/* Frees what is still loading. NULL is fine. */
void vf_cache_loader_close(struct vf_cache_loader *l);

/* ---- loads --------------------------------------------------------------------------------- */

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
enum vf_code vf_cache_loader_begin(struct vf_cache_loader *l, const struct vf_cache_order *order,
                                   enum vf_cache_begin *result, uint32_t *slot, struct vf_err *err);
/* The front of the record that the slot is loading has landed and stays. Wakes the waiters if
 * somebody waits for this one. */
enum vf_code vf_cache_loader_mark_front(struct vf_cache_loader *l, uint32_t slot,
                                        struct vf_err *err);
/* failure NULL: the slot is ready. Else it becomes failed if somebody waits for it, or free. Wakes
 * the waiters, and other I/O workers that wait for a slot. */
enum vf_code vf_cache_loader_finish(struct vf_cache_loader *l, uint32_t slot,
                                    const struct vf_cache_failure *failure, struct vf_err *err);
/* Gives up a speculative load that nobody asked for meanwhile, with if_late only when its time has
 * come or another I/O worker is starved: *abandoned, and the slot is free. The caller has no read
 * of it in flight. Wakes other I/O workers that wait for a slot. */
enum vf_code vf_cache_loader_abandon(struct vf_cache_loader *l, uint32_t slot, bool if_late,
                                     bool *abandoned, struct vf_err *err);

/* ---- counters and hints -------------------------------------------------------------------- */

/* Adds to the worker's totals (struct vf_cache_io_stats), without the mutex. */
void vf_cache_loader_count_read(struct vf_cache_loader *l, uint32_t process, uint64_t bytes,
                                uint64_t latency_ns, bool failed);
void vf_cache_loader_count_merged(struct vf_cache_loader *l);
void vf_cache_loader_count_joined(struct vf_cache_loader *l, uint32_t records);
void vf_cache_loader_count_busy(struct vf_cache_loader *l, uint64_t ns);
/* Whether a worker has work that isn't speculative, and whether one of the others has: those that
 * share a drive speculate only when none has. A hint. */
void vf_cache_loader_set_busy(struct vf_cache_loader *l, bool busy);
bool vf_cache_loader_others_busy(const struct vf_cache_loader *l);
void vf_cache_loader_heartbeat(struct vf_cache_loader *l);

#endif
