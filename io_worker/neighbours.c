#include "io_worker/neighbours.h"

#include "common/base/util.h"
#include "io_worker/read_engine.h"

uint32_t vf_neighbours_max(const struct vf_expert_bank *bank, uint64_t piece_bytes)
{
    return (uint32_t)vf_max_u64(1, vf_min_u64(VF_READ_SLOTS_MAX, piece_bytes / bank->record_bytes));
}

const struct vf_cache_order *vf_neighbour_of(const struct vf_expert_bank *bank,
                                             const struct vf_orders *orders,
                                             const struct vf_cache_order *order)
{
    struct vf_expert_ref ref = {.layer = order->ref.layer};
    if (!vf_expert_bank_next(bank, order->ref.layer, order->ref.expert, &ref.expert))
        return NULL;
    const struct vf_cache_order *next = vf_orders_find(orders, ref);
    return next && vf_order_level(next, order) ? next : NULL;
}
