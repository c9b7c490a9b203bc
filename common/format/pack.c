/* Every thread takes every n-th tile of the piece. Threads live for one piece: some milliseconds
 * of work against some ten microseconds to start one. */
#include "common/format/pack.h"

#include "common/base/util.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <xxhash.h>

struct share {
    const struct vf_pack_piece *piece;
    uint64_t first, step, count;
    float *scratch; /* one tile */
    uint8_t *packed;
    struct vf_disk_tile *tiles;
};

unsigned vf_pack_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : (unsigned)vf_min_u64((uint64_t)n, VF_PACK_THREADS_MAX);
}

/* The tile is packed as a matrix of its own. */
static void pack_tile(const struct share *s, uint64_t i)
{
    const struct vf_pack_piece *piece = s->piece;
    struct vf_tile_place p = vf_tile_locate(piece->quant, piece->rows, piece->cols, i);
    uint8_t *out = s->packed + p.offset;
    if (piece->groups) {
        size_t into = (size_t)vf_col_groups(p.col) * vf_group_bytes(piece->quant);
        vf_tile_pack_groups(piece->quant, p.rows, p.cols, piece->groups + into, piece->stride, out);
    } else {
        for (uint32_t r = 0; r < p.rows; r++)
            memcpy(s->scratch + (size_t)r * p.cols, piece->src + r * piece->stride + p.col,
                   p.cols * sizeof *piece->src);
        vf_tile_pack_rows(piece->quant, p.rows, p.cols, 0, p.rows, s->scratch, out);
    }
    s->tiles[i] = (struct vf_disk_tile){
        .row = piece->row,
        .col = piece->col + p.col,
        .rows = (uint16_t)p.rows,
        .cols = (uint16_t)p.cols,
        .xxh3_low = (uint32_t)XXH3_64bits(out, p.bytes),
    };
}

static void *pack_share(void *arg)
{
    const struct share *s = arg;
    for (uint64_t i = s->first; i < s->count; i += s->step)
        pack_tile(s, i);
    return NULL;
}

void vf_pack_tiles(const struct vf_pack_piece *piece, unsigned threads, float *scratch,
                   uint8_t *packed, struct vf_disk_tile *tiles)
{
    struct share shares[VF_PACK_THREADS_MAX];
    pthread_t ids[VF_PACK_THREADS_MAX];
    bool started[VF_PACK_THREADS_MAX] = {false};
    uint64_t count = vf_tile_count(piece->rows, piece->cols);
    VF_ASSERT(piece->rows <= VF_TILE_ROWS && count <= VF_PACK_TILES_MAX);
    VF_ASSERT(threads >= 1 && threads <= VF_PACK_THREADS_MAX);
    unsigned n = (unsigned)vf_min_u64(threads, count);
    for (unsigned t = 0; t < n; t++) {
        shares[t] = (struct share){
            .piece = piece,
            .first = t,
            .step = n,
            .count = count,
            .scratch = scratch + (size_t)t * VF_TILE_ROWS * VF_TILE_COLS,
            .packed = packed,
            .tiles = tiles,
        };
        /* The last share is this thread's own. */
        started[t] = t + 1 < n && pthread_create(&ids[t], NULL, pack_share, &shares[t]) == 0;
    }
    for (unsigned t = 0; t < n; t++)
        if (!started[t]) /* also a share whose thread couldn't start */
            pack_share(&shares[t]);
    for (unsigned t = 0; t < n; t++)
        if (started[t])
            pthread_join(ids[t], NULL);
}
