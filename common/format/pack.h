/* Packs a piece of one stripe into tiles, with as many threads as there are CPUs.
 *
 * A tile's bytes depend on its own weights only, so the result is the same for any number of
 * threads. Part of the writer.
 */
#ifndef VF_COMMON_FORMAT_PACK_H
#define VF_COMMON_FORMAT_PACK_H

#include "common/format/layout.h"

#define VF_PACK_COLS_MAX    8192u /* columns of a piece: 32 tiles */
#define VF_PACK_TILES_MAX   (VF_PACK_COLS_MAX / VF_TILE_COLS)
#define VF_PACK_THREADS_MAX 16u /* more wouldn't find enough tiles in a piece */

struct vf_pack_piece {
    enum vf_quant quant;
    uint32_t rows, cols;   /* at most VF_TILE_ROWS and VF_PACK_COLS_MAX */
    const float *src;      /* first weight, or NULL: */
    const uint8_t *groups; /* first group of rows that are quantised already */
    size_t stride;         /* from row to row: weights of src, bytes of groups */
    uint32_t row, col;     /* of the first weight in the matrix */
};

/* CPUs this process may use, from 1 to VF_PACK_THREADS_MAX. */
unsigned vf_pack_threads(void);
/* Writes the piece's tiles behind each other to packed, vf_matrix_bytes(quant, rows, cols) bytes,
 * and its directory entries to tiles, at most VF_PACK_TILES_MAX. scratch is
 * [threads, VF_TILE_ROWS * VF_TILE_COLS]. */
void vf_pack_tiles(const struct vf_pack_piece *piece, unsigned threads, float *scratch,
                   uint8_t *packed, struct vf_disk_tile *tiles);

#endif
