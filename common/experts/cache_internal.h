/* The expert cache's object in shared memory, and the handle on it: what its files
 * share. Arrows point down: cache_reader.c and cache_loader.c (the doors), cache.c (object and
 * mutex), cache_slots.c (the table under the mutex), cache_stats.c (counters, without it). */
#ifndef VF_COMMON_EXPERTS_CACHE_INTERNAL_H
#define VF_COMMON_EXPERTS_CACHE_INTERNAL_H

#include "common/base/index_heap.h"
#include "common/experts/cache_loader.h"
#include "common/experts/cache_reader.h"
#include "common/experts/policy.h"
#include "common/run/shm.h"

#include <pthread.h>
#include <stdatomic.h>

#define NO_LOADER             UINT32_MAX
#define CACHE_REST_NS         VF_S(2) /* of a slot whose loader died: a drive's read takes far less */
#define VF_CACHE_LATENCY_BINS 96u

struct cache_process {             /* written under the mutex, bytes_read by the loaders */
    _Alignas(64) uint64_t reached; /* deadline of its latest pin; earlier orders are abandoned */
    _Atomic uint64_t bytes_read;   /* relaxed: a statistic, as is read_ns */
    _Atomic uint64_t read_ns;      /* time with a load for it in flight, guesses apart */
    uint64_t reading_since_ns;
    uint32_t reading; /* such loads in flight */
};

struct cache_io {                      /* written by its I/O worker alone */
    _Alignas(64) _Atomic uint64_t pid; /* release/acquire: start_time is valid when pid isn't 0 */
    _Atomic uint64_t start_time;
    _Atomic uint64_t heartbeat_ns; /* relaxed, like all that follow: statistics */
    _Atomic uint64_t reads, bytes, read_errors;
    _Atomic uint64_t latency_ns_sum, latency_ns_max;
    _Atomic uint64_t latencies[VF_CACHE_LATENCY_BINS]; /* reads by cache_stats.c's bins */
    _Atomic uint64_t merged, stale, evictions;
    _Atomic uint64_t busy_ns, joined;
    _Atomic uint64_t busy; /* relaxed, a hint: it has work that isn't speculative */
};

struct cache_header {
    _Atomic uint64_t magic; /* stored last, with release; openers load it with acquire */
    uint32_t version, header_bytes;
    char run_id[VF_RUN_ID_MAX];
    uint32_t layer_count, expert_count, slot_count, io_worker_count;
    uint64_t record_bytes, fingerprint;
    uint64_t keys_offset, slots_offset, pins_offset, data_offset, total_bytes;
    uint64_t lists_offset, policy_offset;
    _Alignas(64) pthread_mutex_t mutex;
    _Atomic int32_t holder; /* pid of the last one that took it; relaxed: for a message */
    _Alignas(64) _Atomic uint32_t event_count; /* futex; release by loaders, acquire by waiters */
    _Alignas(64) uint32_t starved; /* bit w: I/O worker w has an order without slot; this and what
                                      follows under the mutex */
    uint32_t free_count, protected_count, due_count; /* of the lists */
    uint64_t loads;                                  /* begun; the number of the latest */
    /* Written under the mutex, read without. */
    _Atomic uint64_t prefetched_used, prefetched_wasted, guessed_used, guessed_wasted;
    struct cache_process processes[VF_CACHE_PROCESSES_MAX];
    struct cache_io io_workers[VF_CACHE_IO_WORKERS_MAX];
};

struct cache_key {
    uint32_t slot_plus1; /* 0: none */
    uint32_t ordered;    /* 1: an order is on its way and has no slot yet */
};

enum { CACHE_PREFETCHED = 1, CACHE_GUESSED = 2 };

struct cache_slot {
    _Alignas(64) uint32_t state; /* of vf_cache_slot_view */
    uint32_t key;
    uint32_t pin_count;  /* sum of the slot's pins */
    uint32_t loader;     /* LOADING: I/O worker */
    uint32_t prefetched; /* until its first use: CACHE_PREFETCHED, or GUESSED; 0: on demand */
    uint32_t wanted;     /* until its first use: somebody waits for it */
    uint32_t is_protected;
    uint32_t ordered_by; /* is_protected: process, and the deadline of its order */
    uint64_t deadline;
    uint64_t since_ns; /* READY, ERROR: loaded then; FREE: not to be used before */
    _Alignas(64) uint32_t failure_code;
    int32_t failure_errno;
    uint64_t failure_xxh3;
    uint32_t is_speculative; /* loaded on a guess that hasn't come true yet */
    uint32_t reading_plus1;  /* process whose read time this load counts to; 0: none */
    uint32_t list;           /* which one it stands in, and where */
    uint32_t place, due_place;
    uint32_t listed_key;
    uint32_t front_landed; /* LOADING: readers may look at the front */
    uint64_t load;         /* number of its latest load */
};

_Static_assert(sizeof(struct cache_key) == 8, "the key table is fixed-width");
_Static_assert(sizeof(struct cache_slot) == 128, "the slot table is fixed-width");
_Static_assert(sizeof(struct cache_process) == 64, "a line per process");
_Static_assert(VF_CACHE_IO_WORKERS_MAX <= 32, "starved is a 32-bit set");

struct vf_expert_cache {
    struct vf_shm shm;
    struct vf_cache_geometry g; /* checked copy; the one in shared memory isn't read again */
    uint32_t key_count;
    struct cache_header *h;
    struct cache_key *keys;
    struct cache_slot *slots;
    uint32_t *lists; /* [3 * slot_count] */
    struct vf_policy policy;
    bool lists_broken; /* found under the mutex, rebuilt before it is given back */
    uint16_t (*pins)[VF_CACHE_PROCESSES_MAX]; /* [slot_count] */
    uint8_t *data;
};

static inline uint32_t key_of(const struct vf_expert_cache *c, struct vf_expert_ref ref)
{
    VF_ASSERT(ref.layer < c->g.layer_count && ref.expert < c->g.expert_count);
    return ref.layer * c->g.expert_count + ref.expert;
}

/* ---- cache_slots.c; all under the mutex ------------------------------------------------------ */

bool cache_slot_is_sane(const struct vf_expert_cache *c, const struct cache_slot *s);
uint32_t cache_slot_index(const struct vf_expert_cache *c, const struct cache_slot *s);
/* The slot of a key, NULL when it has none or the index contradicts the slot. */
struct cache_slot *cache_find_slot(struct vf_expert_cache *c, uint32_t key);
bool cache_is_protected(const struct vf_expert_cache *c, const struct cache_slot *s);

/* To be called whenever a slot's state, pins, claims or time changed: puts it where it belongs. */
void cache_file_slot(struct vf_expert_cache *c, struct cache_slot *s);
void cache_set_free(struct vf_expert_cache *c, struct cache_slot *s, uint64_t usable_from_ns);
/* Takes the expert out of its slot, which becomes free. */
void cache_evict(struct vf_expert_cache *c, struct cache_slot *s, uint64_t usable_from_ns);
/* What a prefetch or a guess loaded meets its end: counts it once. */
void cache_count_prefetch(struct cache_slot *s, _Atomic uint64_t *prefetched,
                          _Atomic uint64_t *guessed);
/* The slot an order gets: a free one, else the one worth least, else the protected one with the
 * least claim that the order may override. NULL when all of them have better claims. */
struct cache_slot *cache_choose_slot(struct vf_expert_cache *c, const struct vf_cache_order *order);
bool cache_lists_are_broken(const struct vf_expert_cache *c);
void cache_rebuild_lists(struct vf_expert_cache *c);
/* Rebuilds all that is derived from the slots and their pins. A slot that makes no sense becomes
 * free; if it is pinned it stays, without an entry in the index, until its last pin goes. */
void cache_repair(struct vf_expert_cache *c);
/* The process ordered the slot's expert for the deadline: of several orders the earliest counts, a
 * guess doesn't. */
void cache_protect(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process,
                   uint64_t deadline);
/* A load begins that the process is going to need: while at least one is in flight, its read time
 * runs. */
void cache_take_off(struct vf_expert_cache *c, struct cache_slot *s, uint32_t process);
/* The slot's load, if it counts to a process's read time, is over. */
void cache_land(struct vf_expert_cache *c, struct cache_slot *s);

/* ---- cache.c -------------------------------------------------------------------------------- */

/* Takes the mutex, and repairs the table if its holder died. */
enum vf_code cache_lock(struct vf_expert_cache *c, struct vf_err *err);
void cache_unlock(struct vf_expert_cache *c);
/* Tells all that wait: look again. */
void cache_announce(struct vf_expert_cache *c);

static inline void cache_wake(const struct vf_cache_waker *waker, uint32_t starved)
{
    for (uint32_t w = 0; starved && waker->wake && w < VF_CACHE_IO_WORKERS_MAX; w++)
        if (starved >> w & 1)
            waker->wake(waker->ctx, w);
}

/* ---- cache_stats.c -------------------------------------------------------------------------- */

uint32_t cache_latency_bin(uint64_t latency_ns); /* < VF_CACHE_LATENCY_BINS */

#endif
