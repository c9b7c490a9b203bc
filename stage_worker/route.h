/* The router: per column, the experts of a layer and their weights. */
#ifndef VF_STAGE_WORKER_ROUTE_H
#define VF_STAGE_WORKER_ROUTE_H

#include "stage_worker/operation.h"

struct router {
    struct core *core;
    struct vf_matrix *layers; /* [layer_count] */
    struct vf_router_space space;
};
init_fn route_init;
deinit_fn route_deinit;
run_fn route_run;

/* The k largest of n logits, best first, ties to the lower index; NaN counts as the smallest. */
void select_top_k(const float *logits, uint32_t n, uint32_t k, uint32_t *chosen);

/* The distinct experts of some columns. */
struct expert_set {
    uint32_t *experts; /* [count], in order of first choice */
    uint32_t *index;   /* [expert_count]: where in experts, plus 1; 0: not in the set */
    uint32_t count;
};
/* Makes an empty set the experts of all columns; forget makes it empty, but leaves experts. */
void expert_set_collect(struct expert_set *set, const struct core *core, const struct vf_route *r);
void expert_set_forget(struct expert_set *set);

#endif
