/* A pool of threads that run one parallel loop at a time.
 *
 * The calling thread takes part, so a pool of n has n - 1 threads of its own. Items are claimed one
 * by one from a shared counter; which thread runs an item never changes a result. Threads wait by
 * spinning briefly and then sleep on a futex, so an idle pool uses no CPU.
 */
#ifndef VF_STAGE_WORKER_POOL_H
#define VF_STAGE_WORKER_POOL_H

#include "common/err.h"

#include <stdint.h>

struct vf_pool;

/* thread in [0, threads): for per-thread scratch. */
typedef void vf_pool_fn(void *ctx, uint32_t item, uint32_t thread);

enum vf_code vf_pool_create(uint32_t threads, struct vf_pool **out, struct vf_err *err);
void vf_pool_destroy(struct vf_pool *pool);
uint32_t vf_pool_threads(const struct vf_pool *pool);

/* Runs fn(ctx, item, thread) for every item in [0, item_count) and returns when all are done. */
void vf_pool_run(struct vf_pool *pool, vf_pool_fn *fn, void *ctx, uint32_t item_count);

#endif
