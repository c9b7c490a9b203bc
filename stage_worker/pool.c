/* One generation counter starts a loop, one countdown ends it; both are futex words. */
#include "stage_worker/pool.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 10 us: longer than the gap between two loops of one token, far shorter than idling. */
#define SPIN_COUNT 400

struct worker {
    struct vf_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct vf_pool {
    uint32_t threads;
    struct worker *workers; /* [threads - 1] */
    uint32_t started;
    vf_pool_fn *fn;
    void *ctx;
    uint32_t item_count;
    bool stop;
    /* generation: released by the caller once fn, ctx and item_count are set, acquired by workers.
     * busy: workers that haven't finished the generation; released by each, acquired by caller. */
    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t next_item;
    _Alignas(64) _Atomic uint32_t busy;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Returns the word's value once it differs from old. */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t old)
{
    for (int i = 0; i < SPIN_COUNT; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
        _mm_pause();
    }
    for (;;) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
        futex_wait(word, old);
    }
}

static void run_items(struct vf_pool *pool, uint32_t thread)
{
    for (;;) {
        uint32_t item = atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);
        if (item >= pool->item_count)
            return;
        pool->fn(pool->ctx, item, thread);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct vf_pool *pool = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_change(&pool->generation, seen);
        if (pool->stop)
            return NULL;
        run_items(pool, w->index);
        if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1)
            futex_wake_all(&pool->busy);
    }
}

static void start_generation(struct vf_pool *pool)
{
    atomic_store_explicit(&pool->busy, pool->started, memory_order_relaxed);
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    futex_wake_all(&pool->generation);
}

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
    pool->stop = true;
    start_generation(pool);
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

uint32_t vf_pool_threads(const struct vf_pool *pool)
{
    return pool->threads;
}

void vf_pool_run(struct vf_pool *pool, vf_pool_fn *fn, void *ctx, uint32_t item_count)
{
    if (pool->threads == 1 || item_count <= 1) {
        for (uint32_t i = 0; i < item_count; i++)
            fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->item_count = item_count;
    start_generation(pool);
    run_items(pool, 0);
    for (uint32_t busy; (busy = atomic_load_explicit(&pool->busy, memory_order_acquire)) != 0;)
        wait_change(&pool->busy, busy);
}
