#include "bench/read_probe.h"

#include "bench/rig.h"
#include "common/bandwidth.h"
#include "common/clock.h"

#include <stdatomic.h>
#include <string.h>

#define PIECE_BYTES (1u << 20)
#define PIECES      ((uint32_t)(VF_BANDWIDTH_BUFFER_BYTES / PIECE_BYTES))

struct pass {
    const uint64_t *words;
    atomic_uint next;         /* relaxed: pieces are independent */
    atomic_uint_fast64_t sum; /* so that the reads can't be optimised away */
};

static void read_pieces(void *ctx, uint32_t thread)
{
    (void)thread;
    struct pass *pass = ctx;
    uint64_t sum = 0;
    uint32_t piece;
    const size_t count = PIECE_BYTES / sizeof(uint64_t);
    while ((piece = atomic_fetch_add_explicit(&pass->next, 1, memory_order_relaxed)) < PIECES)
        sum += vf_bandwidth_read(pass->words + piece * count, count);
    atomic_fetch_add_explicit(&pass->sum, sum, memory_order_relaxed);
}

enum vf_code read_probe_open(struct read_probe *p, uint32_t threads, struct vf_err *err)
{
    *p = (struct read_probe){.words = rig_memory(VF_BANDWIDTH_BUFFER_BYTES)};
    if (!p->words)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a read probe of %llu MiB",
                          VF_BANDWIDTH_BUFFER_BYTES >> 20);
    memset(p->words, 1, VF_BANDWIDTH_BUFFER_BYTES);
    return vf_pool_create(threads, &p->pool, err);
}

void read_probe_close(struct read_probe *p)
{
    vf_pool_destroy(p->pool);
    rig_memory_free(p->words, VF_BANDWIDTH_BUFFER_BYTES);
}

double read_probe_pass(struct read_probe *p)
{
    struct pass pass = {.words = p->words};
    uint64_t began_ns = vf_now_ns();
    vf_pool_run(p->pool, read_pieces, &pass);
    uint64_t ns = vf_now_ns() - began_ns;
    return pass.sum ? (double)VF_BANDWIDTH_BUFFER_BYTES / (double)ns : 0;
}
