/* A gate that the caller opens and closes, and that counts who is inside.
 *
 * gate        OPEN while threads may enter, WAITED while the caller sleeps until it is empty, and
 *             the number of threads inside. The caller opens it with release order once fn and ctx
 *             are set, and a thread enters with acquire order; a thread leaves with release order
 *             and the caller sees the gate empty with acquire order.
 * generation  counts the openings, each after the gate is open; threads sleep on it.
 * sleepers    threads that sleep or are about to. A thread announces itself before it looks at
 *             generation for the last time, and the caller counts generation up before it looks at
 *             sleepers, all sequentially consistent: one of the two sees the other.
 */
#include "stage_worker/pool.h"

#include "common/base/clock.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longer than the gap between two regions of one token or than a region's tail, where a sleep and
 * the wake behind it (some 50 us on a virtual machine) would cost more; far shorter than idling, or
 * than another process keeps a core. */
#define SPIN_NS (50 * 1000u)
/* Looks at a word between two looks at the clock. */
#define SPIN_LOOKS 16

#define OPEN   0x80000000u
#define WAITED 0x40000000u
#define INSIDE 0x3fffffffu

struct worker {
    struct vf_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct vf_pool {
    uint32_t threads;
    struct worker *workers; /* [threads - 1] */
    uint32_t started;
    vf_pool_fn *fn; /* NULL: the threads end */
    void *ctx;
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t gate;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- threads of the pool ----------------------------------------------------------------------
 */

struct spin {
    uint32_t looks;
    uint64_t until_ns;
};

/* A pause between two looks at a word; false once SPIN_NS have passed since the first. */
static bool keep_spinning(struct spin *s)
{
    _mm_pause();
    if (++s->looks % SPIN_LOOKS)
        return true;
    uint64_t now_ns = vf_now_ns();
    s->until_ns = s->until_ns ? s->until_ns : now_ns + SPIN_NS;
    return now_ns < s->until_ns;
}

/* Returns the generation once it differs from old. */
static uint32_t wait_generation(struct vf_pool *pool, uint32_t old)
{
    struct spin spin = {0};
    do {
        uint32_t seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (seen != old)
            return seen;
    } while (keep_spinning(&spin));
    atomic_fetch_add(&pool->sleepers, 1);
    uint32_t now;
    while ((now = atomic_load(&pool->generation)) == old)
        futex_wait(&pool->generation, old);
    atomic_fetch_sub(&pool->sleepers, 1);
    return now;
}

static bool enter(struct vf_pool *pool)
{
    uint32_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void leave(struct vf_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release) == WAITED + 1)
        futex_wake_all(&pool->gate);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct vf_pool *pool = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_generation(pool, seen);
        if (!enter(pool))
            continue; /* too late for this one */
        /* Perhaps the opening after the one seen. If its count isn't visible yet, this thread comes
         * in twice. */
        seen = atomic_load_explicit(&pool->generation, memory_order_relaxed);
        vf_pool_fn *fn = pool->fn;
        if (fn)
            fn(pool->ctx, w->index);
        leave(pool);
        if (!fn)
            return NULL;
    }
}

/* ---- the caller -------------------------------------------------------------------------------
 */

static void open_gate(struct vf_pool *pool, vf_pool_fn *fn, void *ctx)
{
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->gate, OPEN, memory_order_release);
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) != 0)
        futex_wake_all(&pool->generation);
}

static void close_gate(struct vf_pool *pool)
{
    uint32_t gate = atomic_fetch_and_explicit(&pool->gate, ~OPEN, memory_order_acquire) & ~OPEN;
    struct spin spin = {0};
    while ((gate & INSIDE) && keep_spinning(&spin))
        gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    while (gate & INSIDE) {
        if (!(gate & WAITED) &&
            !atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate | WAITED,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        futex_wait(&pool->gate, gate | WAITED);
        gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    }
}

uint64_t vf_pool_run(struct vf_pool *pool, vf_pool_fn *fn, void *ctx)
{
    if (pool->started == 0) {
        fn(ctx, 0);
        return 0;
    }
    open_gate(pool, fn, ctx);
    fn(ctx, 0);
    uint64_t began = vf_now_ns();
    close_gate(pool);
    return vf_now_ns() - began;
}

/* ---- life -------------------------------------------------------------------------------------
 */

enum vf_code vf_pool_create(uint32_t threads, struct vf_pool **out, struct vf_err *err)
{
    if (threads == 0)
        return vf_err_set(err, VF_ERR_INTERNAL, "a thread pool needs at least one thread");
    struct vf_pool *pool = aligned_alloc(64, (sizeof *pool + 63) & ~(size_t)63);
    if (!pool)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a thread pool");
    *pool = (struct vf_pool){.threads = threads};
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (!pool->workers) {
        free(pool);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u threads", threads);
    }
    for (uint32_t i = 0; i + 1 < threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i + 1};
        int rc = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (rc != 0) {
            vf_err_errno(err, VF_ERR_NO_MEMORY, rc, "starting thread %u of %u", i + 2, threads);
            vf_pool_destroy(pool);
            return VF_ERR_NO_MEMORY;
        }
        pool->started++;
    }
    *out = pool;
    return VF_OK;
}

void vf_pool_destroy(struct vf_pool *pool)
{
    if (!pool)
        return;
    open_gate(pool, NULL, NULL); /* and leaves it open: every thread comes through once more */
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

uint32_t vf_pool_threads(const struct vf_pool *pool)
{
    return pool->threads;
}
