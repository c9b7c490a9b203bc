/* The parts of loads.c and load_reads.c; nobody else includes this. */
#ifndef VF_IO_WORKER_LOADS_INTERNAL_H
#define VF_IO_WORKER_LOADS_INTERNAL_H

#include "common/base/util.h"
#include "io_worker/loads.h"
#include "io_worker/orders.h"

#include <xxhash.h>

struct load {
    bool active;
    struct vf_cache_order order;
    struct vf_expert_extent extent;
    uint32_t slot;
    uint32_t piece_count;
    uint32_t next_piece; /* the first one not asked for yet */
    uint32_t hashed;     /* pieces of the front that are in the hash */
    uint32_t in_flight;
    uint64_t landed; /* bit i: piece i is there */
    bool front_told;
    uint64_t started_ns;
    bool retried, failed;
    bool alone;       /* a read that joined it with others didn't bring it: not joined again */
    int failed_errno; /* failed; 0: the file ended */
    XXH3_state_t *hash;
};

struct piece_read {
    struct vf_read read; /* first: the engine gives it back */
    bool active;
    struct load *load;
    uint32_t piece;
    uint64_t done_bytes;
    uint32_t transients;
    int fault;                                /* strikes when this read completes */
    struct load *more[VF_READ_SLOTS_MAX - 1]; /* joined to load, in the order of the file; as many
                                                 as the read has slots more */
};

struct vf_loads {
    struct vf_expert_bank bank;
    struct vf_expert_cache *cache;
    struct vf_cache_loader *loader;
    struct vf_read_engine *engine;
    struct vf_orders *orders;
    uint32_t depth;
    uint64_t piece_bytes;
    uint64_t front; /* pieces with gate and up, as in landed; 0: not told */
    bool own_drive;
    struct load *loads; /* [load_count] */
    uint32_t load_count, active, active_guesses;
    struct piece_read *reads; /* [depth] */
    struct vf_read **done;    /* [depth], of one turn */
    uint32_t in_flight;
    uint32_t join_max;      /* records of a read */
    bool starved;           /* no slot for the first order */
    bool waits_for_idle;    /* guesses wait for other workers */
    uint64_t busy_since_ns; /* in_flight > 0 */
};

static inline uint64_t piece_offset(const struct vf_loads *l, uint32_t piece)
{
    return piece * l->piece_bytes;
}

static inline uint64_t piece_bytes(const struct vf_loads *l, const struct load *load,
                                   uint32_t piece)
{
    return vf_min_u64(l->piece_bytes, load->extent.bytes - piece_offset(l, piece));
}

static inline const char *path_of(const struct vf_loads *l, const struct load *load)
{
    return l->bank.files[load->extent.file];
}

/* Ends a load one way or the other; failure NULL: its record is whole. */
enum vf_code loads_finish(struct vf_loads *l, struct load *load,
                          const struct vf_cache_failure *failure, struct vf_err *err);
/* Asks the engine for what is missing of a read's piece, or of the records it joins. */
enum vf_code loads_submit(struct vf_loads *l, struct piece_read *r, struct vf_err *err);
/* Takes what the engine has read: pieces land, are asked for again, or fail their load. */
enum vf_code loads_take_completions(struct vf_loads *l, struct vf_err *err);

#endif
