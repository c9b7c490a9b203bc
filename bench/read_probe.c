#include "bench/read_probe.h"

#include "common/bandwidth.h"
#include "common/clock.h"

#include <stdatomic.h>
#include <string.h>

#define PIECE_BYTES (1u << 20)
#define PIECES      ((uint32_t)(VF_BANDWIDTH_BUFFER_BYTES / PIECE_BYTES))

struct pass {
    const uint8_t *bytes;
    atomic_uint_fast64_t sum; /* so that the reads can't be optimised away */
};

static void read_piece(void *ctx, uint32_t piece)
{
    struct pass *pass = ctx;
    const uint64_t *words = (const uint64_t *)(pass->bytes + (size_t)piece * PIECE_BYTES);
    atomic_fetch_add_explicit(&pass->sum, vf_bandwidth_read(words, PIECE_BYTES / sizeof *words),
                              memory_order_relaxed);
}

enum vf_code read_probe_open(struct rig *rig, uint32_t threads, struct vf_err *err)
{
    *rig = (struct rig){.bytes = VF_BANDWIDTH_BUFFER_BYTES,
                        .weights = rig_memory(VF_BANDWIDTH_BUFFER_BYTES)};
    if (!rig->weights)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a read probe of %llu MiB",
                          VF_BANDWIDTH_BUFFER_BYTES >> 20);
    memset(rig->weights, 1, rig->bytes);
    return vf_pool_create(threads, &rig->pool, err);
}

double read_probe_pass(const struct rig *rig)
{
    struct pass pass = {.bytes = rig->weights};
    uint64_t began_ns = vf_now_ns();
    rig_run_items(rig, read_piece, &pass, PIECES);
    uint64_t ns = vf_now_ns() - began_ns;
    return pass.sum ? (double)VF_BANDWIDTH_BUFFER_BYTES / (double)ns : 0;
}
