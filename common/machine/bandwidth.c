/* Each thread fills and then reads its own slice, so a slice lies on its reader's node. */
#include "common/machine/bandwidth.h"

#include "common/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of either way in turn; the first also pays for page faults that the fill left over. */
#define PASSES (3 * VF_READ_WAYS)

enum gate_state { GATE_CLOSED, GATE_GO, GATE_ABANDON };
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum gate_state state;
    pthread_barrier_t barrier;
};

struct slice {
    uint64_t *words;
    size_t count;
    struct gate *gate;
    uint64_t begin_ns[PASSES], end_ns[PASSES];
    uint64_t sum;
};

uint32_t vf_bandwidth_default_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    uint32_t n = (uint32_t)CPU_COUNT(&set);
    return n > VF_BANDWIDTH_THREADS_MAX ? VF_BANDWIDTH_THREADS_MAX : n;
}

typedef uint64_t words4 __attribute__((vector_size(32), aligned(8)));

#define RUN_WORDS 32u /* four cache lines */
#define STREAMS   3u
/* Of the one stream: far enough to hide a memory access. */
#define PREFETCH_WORDS 384u

/* The sums of a read, wide enough that no addition waits for the one before it. */
struct sums {
    words4 at[8];
};

static inline __attribute__((always_inline)) void add_run(struct sums *sums, const uint64_t *w)
{
#pragma GCC unroll 8
    for (size_t k = 0; k < 8; k++)
        sums->at[k] += *(const words4 *)(w + 4 * k);
}

static inline __attribute__((always_inline)) uint64_t read_runs(enum vf_read_way way,
                                                                const uint64_t *w, size_t count)
{
    struct sums sums = {{{0}}};
    size_t part = count / STREAMS / RUN_WORDS * RUN_WORDS;
    if (way == VF_READ_SIDE_BY_SIDE) {
        for (size_t i = 0; i < part; i += RUN_WORDS)
#pragma GCC unroll 4
            for (size_t s = 0; s < STREAMS; s++)
                add_run(&sums, w + s * part + i);
    } else {
        for (size_t i = 0; i < STREAMS * part; i += RUN_WORDS) {
#pragma GCC unroll 4
            for (size_t k = 0; k < 4; k++)
                __builtin_prefetch(w + i + PREFETCH_WORDS + 8 * k);
            add_run(&sums, w + i);
        }
    }
    words4 all = {0};
    for (size_t k = 0; k < 8; k++)
        all += sums.at[k];
    return (all[0] + all[1]) + (all[2] + all[3]);
}

static inline __attribute__((always_inline)) uint64_t read_way(enum vf_read_way way,
                                                               const uint64_t *w, size_t count)
{
    return way == VF_READ_SIDE_BY_SIDE ? read_runs(VF_READ_SIDE_BY_SIDE, w, count)
                                       : read_runs(VF_READ_IN_ORDER, w, count);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t read_wide(enum vf_read_way way, const uint64_t *w,
                                                          size_t count)
{
    return read_way(way, w, count);
}
#endif

uint64_t vf_bandwidth_read(enum vf_read_way way, const uint64_t *w, size_t count)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return read_wide(way, w, count);
#endif
    return read_way(way, w, count);
}

static void open_gate(struct gate *g, enum gate_state state)
{
    pthread_mutex_lock(&g->lock);
    g->state = state;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static bool pass_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->state == GATE_CLOSED)
        pthread_cond_wait(&g->changed, &g->lock);
    bool go = g->state == GATE_GO;
    pthread_mutex_unlock(&g->lock);
    return go;
}

static void *run_slice(void *arg)
{
    struct slice *s = arg;
    if (!pass_gate(s->gate))
        return NULL;
    memset(s->words, 1, s->count * sizeof *s->words);
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&s->gate->barrier);
        s->begin_ns[pass] = vf_now_ns();
        s->sum += vf_bandwidth_read(pass % VF_READ_WAYS, s->words, s->count);
        s->end_ns[pass] = vf_now_ns();
    }
    return NULL;
}

/* From the first thread's start to the last one's end. */
static uint64_t pass_ns(const struct slice *slices, uint32_t threads, int pass)
{
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < threads; i++) {
        if (slices[i].begin_ns[pass] < begin)
            begin = slices[i].begin_ns[pass];
        if (slices[i].end_ns[pass] > end)
            end = slices[i].end_ns[pass];
    }
    return end > begin ? end - begin : 1;
}

static double best_gb_per_s(const struct slice *slices, uint32_t threads)
{
    double best = 0.0, bytes = 0.0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < threads; i++) {
        bytes += (double)(slices[i].count * sizeof(uint64_t));
        sum += slices[i].sum;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        double speed = bytes / (double)pass_ns(slices, threads, pass);
        if (speed > best)
            best = speed;
    }
    return sum ? best : 0.0; /* every word is non-zero, and the reads can't be optimised away */
}

/* Starts the threads behind a gate, so that one which can't be started stops all of them before
 * any waits for it. */
static int run_threads(struct slice *slices, uint32_t threads)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t *ids = calloc(threads, sizeof *ids);
    if (!ids)
        return ENOMEM;
    int error = pthread_barrier_init(&gate.barrier, NULL, threads);
    if (error) {
        free(ids);
        return error;
    }
    uint32_t started = 0;
    while (!error && started < threads) {
        slices[started].gate = &gate;
        error = pthread_create(&ids[started], NULL, run_slice, &slices[started]);
        if (!error)
            started++;
    }
    open_gate(&gate, error ? GATE_ABANDON : GATE_GO);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&gate.barrier);
    free(ids);
    return error;
}

enum vf_code vf_bandwidth_measure(uint32_t threads, double *gb_per_s, struct vf_err *err)
{
    uint64_t *buffer = mmap(NULL, VF_BANDWIDTH_BUFFER_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return vf_err_errno(err, VF_ERR_NO_MEMORY, errno,
                            "measuring the memory bandwidth: %llu bytes",
                            VF_BANDWIDTH_BUFFER_BYTES);
    madvise(buffer, VF_BANDWIDTH_BUFFER_BYTES, MADV_HUGEPAGE);
    struct slice *slices = calloc(threads, sizeof *slices);
    int error = slices ? 0 : ENOMEM;
    size_t words = VF_BANDWIDTH_BUFFER_BYTES / sizeof *buffer / threads;
    for (uint32_t i = 0; slices && i < threads; i++) {
        slices[i].words = buffer + i * words;
        slices[i].count = words;
    }
    if (!error)
        error = run_threads(slices, threads);
    if (!error)
        *gb_per_s = best_gb_per_s(slices, threads);
    free(slices);
    munmap(buffer, VF_BANDWIDTH_BUFFER_BYTES);
    if (error)
        return vf_err_errno(err, VF_ERR_LIMIT, error, "measuring the memory bandwidth: %u threads",
                            threads);
    return VF_OK;
}
