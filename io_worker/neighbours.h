/* Which waiting order a read could take along: that for the record right behind the one it reads.
 * Records are joined only below the read size that the drive wants, since larger requests bring
 * nothing, and only where neither has to go before the other. Single-threaded. */
#ifndef VF_IO_WORKER_NEIGHBOURS_H
#define VF_IO_WORKER_NEIGHBOURS_H

#include "common/experts/bank.h"
#include "io_worker/orders.h"

/* How many records at most one read of piece_bytes joins, 1..VF_READ_SLOTS_MAX. */
uint32_t vf_neighbours_max(const struct vf_expert_bank *bank, uint64_t piece_bytes);
/* The waiting order for the record right behind order's, of its class and deadline; NULL: none.
 * Valid until the next put or take. */
const struct vf_cache_order *vf_neighbour_of(const struct vf_expert_bank *bank,
                                             const struct vf_orders *orders,
                                             const struct vf_cache_order *order);

#endif
