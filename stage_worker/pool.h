/* A pool of threads that run one function together.
 *
 * The calling thread takes part, so a pool of n has n - 1 threads of its own. A call is over when
 * every thread that entered it has left: one that is late, because it slept or another process has
 * its core, is not waited for, so the function must share its work out so that any number of
 * threads, the caller alone included, finish it. Threads wait by spinning briefly and then sleep on
 * a futex; an idle pool uses no CPU.
 */
#ifndef VF_STAGE_WORKER_POOL_H
#define VF_STAGE_WORKER_POOL_H

#include "common/base/err.h"

#include <stdint.h>

struct vf_pool;

/* thread in [0, threads), 0 is the caller: for per-thread scratch. */
typedef void vf_pool_fn(void *ctx, uint32_t thread);

enum vf_code vf_pool_create(uint32_t threads, struct vf_pool **out, struct vf_err *err);
void vf_pool_destroy(struct vf_pool *pool);
uint32_t vf_pool_threads(const struct vf_pool *pool);

/* Runs fn(ctx, 0) on the caller and fn(ctx, t) on every thread that comes before the caller is
 * done, perhaps twice in a row. Returns how long the caller then waited for the others, in
 * nanoseconds. */
uint64_t vf_pool_run(struct vf_pool *pool, vf_pool_fn *fn, void *ctx);

#endif
