/* The expert cache's object in shared memory, and the handle on it: what expert_cache.c (object,
 * counters) and expert_cache_table.c (who may take which slot) share. */
#ifndef VF_COMMON_EXPERT_CACHE_INTERNAL_H
#define VF_COMMON_EXPERT_CACHE_INTERNAL_H

#include "common/expert_cache.h"
#include "common/shm.h"

#include <pthread.h>
#include <stdatomic.h>

#define NO_LOADER UINT32_MAX

struct cache_process {             /* written under the mutex, bytes_read by the loaders */
    _Alignas(64) uint64_t reached; /* deadline of its latest pin; earlier orders are abandoned */
    _Atomic uint64_t bytes_read;   /* relaxed: a statistic */
};

struct cache_io {                      /* written by its I/O worker alone */
    _Alignas(64) _Atomic uint64_t pid; /* release/acquire: start_time is valid when pid isn't 0 */
    _Atomic uint64_t start_time;
    _Atomic uint64_t heartbeat_ns; /* relaxed, like all that follow: statistics */
    _Atomic uint64_t reads, bytes, read_errors;
    _Atomic uint64_t latency_ns_sum, latency_ns_max;
    _Atomic uint64_t merged, stale, evictions;
};

struct cache_header {
    _Atomic uint64_t magic; /* stored last, with release; openers load it with acquire */
    uint32_t version, header_bytes;
    char run_id[VF_RUN_ID_MAX];
    uint32_t layer_count, expert_count, slot_count, io_worker_count;
    uint64_t record_bytes, fingerprint;
    uint64_t keys_offset, slots_offset, pins_offset, data_offset, total_bytes;
    _Alignas(64) pthread_mutex_t mutex;
    _Alignas(64) _Atomic uint32_t event_count; /* futex; release by finish, acquire by waiters */
    _Alignas(64) uint64_t use_clock;           /* under the mutex, as is starved */
    uint32_t starved;                          /* bit w: I/O worker w has an order without slot */
    struct cache_process processes[VF_CACHE_PROCESSES_MAX];
    struct cache_io io_workers[VF_CACHE_IO_WORKERS_MAX];
};

struct cache_key {
    uint32_t slot_plus1; /* 0: none */
    uint32_t ordered;    /* 1: an order is on its way and has no slot yet */
    uint32_t value;      /* while it has no slot: as it left its last one */
    uint32_t reserved;
    uint64_t last_use;
};

struct cache_slot {
    _Alignas(64) uint32_t state; /* of vf_cache_slot_view */
    uint32_t key;
    uint32_t pin_count; /* sum of the slot's pins */
    uint32_t loader;    /* LOADING: I/O worker */
    uint32_t value;     /* decayed uses at last_use */
    uint32_t wanted;    /* until its first use: somebody waits for it */
    uint32_t is_protected;
    uint32_t ordered_by; /* is_protected: process, and the deadline of its order */
    uint64_t deadline;
    uint64_t last_use; /* use_clock */
    uint64_t since_ns; /* READY, ERROR: loaded then; FREE: not to be used before */
    _Alignas(64) uint32_t failure_code;
    int32_t failure_errno;
    uint64_t failure_xxh3;
};

_Static_assert(sizeof(struct cache_key) == 24, "the key table is fixed-width");
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
    uint16_t (*pins)[VF_CACHE_PROCESSES_MAX]; /* [slot_count] */
    uint8_t *data;
};

static inline uint32_t key_of(const struct vf_expert_cache *c, struct vf_expert_ref ref)
{
    VF_ASSERT(ref.layer < c->g.layer_count && ref.expert < c->g.expert_count);
    return ref.layer * c->g.expert_count + ref.expert;
}

#endif
