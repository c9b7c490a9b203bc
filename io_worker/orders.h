/* Fetch orders that wait for a slot or a free place in the read queue: one per expert, in the order
 * (demand before scheduled before speculative, deadline, layer and expert: the order of a bank's
 * files). A second order for the same expert is merged into the first: the more urgent of each; a
 * guess that others know better than adds nothing. Single-threaded. */
#ifndef VF_IO_WORKER_ORDERS_H
#define VF_IO_WORKER_ORDERS_H

#include "common/experts/cache_loader.h"

struct vf_orders;

/* Whether a goes before b for sure: by class, then deadline. */
bool vf_order_before(const struct vf_cache_order *a, const struct vf_cache_order *b);
/* Whether neither goes before the other: of one class and deadline. */
bool vf_order_level(const struct vf_cache_order *a, const struct vf_cache_order *b);
/* Makes an order as urgent as another one for the same expert is. */
void vf_order_merge(struct vf_cache_order *into, const struct vf_cache_order *order);

/* For experts of keys 0..key_count (layer * expert_count + expert). */
enum vf_code vf_orders_create(uint32_t layer_count, uint32_t expert_count, struct vf_orders **out,
                              struct vf_err *err);
void vf_orders_destroy(struct vf_orders *q);

enum vf_orders_put { VF_ORDERS_NEW, VF_ORDERS_MERGED };
enum vf_orders_put vf_orders_put(struct vf_orders *q, const struct vf_cache_order *order);
/* The most urgent one, NULL when empty; valid until the next put or take. */
const struct vf_cache_order *vf_orders_first(struct vf_orders *q);
/* The one for an expert, NULL when none waits; valid likewise. */
const struct vf_cache_order *vf_orders_find(const struct vf_orders *q, struct vf_expert_ref ref);
/* Of an expert that has one. */
void vf_orders_take(struct vf_orders *q, struct vf_expert_ref ref);

#endif
