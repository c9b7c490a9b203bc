/* Records on their way from the drive into slots of the expert cache.
 *
 * Orders wait by urgency (orders.h). A record is read in pieces, at most depth of them in flight,
 * and the most urgent record's piece is always the next: a demand that comes while a prefetch is
 * being read waits for the pieces in flight, not for the record. Pieces are hashed in their order
 * while later ones are read, so that a record is announced as soon as its last piece has landed and
 * its checksum is right; its front, a whole number of pieces, is marked in the cache before that,
 * as soon as it has landed. A piece that fails is read once more, once a record.
 *
 * Speculative records are begun, and go on, only while nothing else is queued or in flight, here
 * and at the other I/O workers of the same drive; at most half of depth is theirs, and one whose
 * time has come unused is given up between two pieces.
 *
 * Records of which several make a piece are read together, by one request, where they lie next to
 * each other, are equally urgent and find slots. A request that fails or is short is repeated
 * record by record; each of them has its own checksum and its own end.
 *
 * Single-threaded; whoever owns it waits on its descriptor and calls turn.
 */
#ifndef VF_IO_WORKER_LOADS_H
#define VF_IO_WORKER_LOADS_H

#include "common/experts/bank.h"
#include "common/experts/cache_loader.h"
#include "io_worker/read_engine.h"

#define VF_IO_PIECES_MAX    64u /* of a record: a bit each */
#define VF_IO_DEPTH_DEFAULT 4u
#define VF_IO_PIECE_DEFAULT (1u << 20)

struct vf_loads_params {
    struct vf_expert_cache *cache;     /* outlives the loads, as does the loader */
    struct vf_cache_loader *loader;    /* on the cache; from now on used by the loads alone */
    const struct vf_expert_bank *bank; /* copied; what it points to outlives the loads */
    uint32_t depth;                    /* pieces in flight, 1..VF_READ_DEPTH_MAX */
    uint64_t piece_bytes;              /* 0: the default; larger where a record would have more than
                                          VF_IO_PIECES_MAX, else smaller so that one ends with the
                                          front */
    uint64_t throttle_bytes;           /* a second; 0: none */
    bool buffered, no_uring;
};

struct vf_loads;

enum vf_code vf_loads_create(const struct vf_loads_params *params, struct vf_loads **out,
                             struct vf_err *err);
/* Waits for reads in flight. NULL is fine. */
void vf_loads_destroy(struct vf_loads *l);

/* Readable when turn has something to do. */
int vf_loads_fd(const struct vf_loads *l);
/* How long the caller may wait at most without a message or the descriptor, in ms; -1: for ever. */
int vf_loads_wait_ms(const struct vf_loads *l);

/* Takes an order for one of this worker's experts; the reading begins with the next turn. */
void vf_loads_order(struct vf_loads *l, const struct vf_cache_order *order);
/* Takes completions and starts what can be started. */
enum vf_code vf_loads_turn(struct vf_loads *l, struct vf_err *err);

const char *vf_loads_engine(const struct vf_loads *l); /* vf_read_engine_name */

#endif
