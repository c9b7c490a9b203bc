/* Integer products for many activation columns, shared by the vector tiers; lanes are rows.
 *
 * The columns are served in panels of up to PANEL_COLS. Tile by tile the panel's codes are copied
 * side by side, where no two columns fight for the same cache sets, and stay in the first-level
 * cache for all row blocks of the tile. A few records at a time are unpacked once for the whole
 * panel and multiplied with PANEL_TILE_COLS columns in registers. The sums of a stripe wait in
 * the panel between tiles, so that each one grows in the order of kernels.h.
 *
 * Included after lanes_panel_avx2.h or lanes_panel_avx512.h, whose words it speaks, and after
 * the tier's own
 *   panel_start(quant, sum)        what a dot product starts with, from the sum of the codes
 *   panel_step(quant, dot, w, q)   adds one step's products to it
 *   panel_finish(quant, dot)       the exact dot product as 32-bit integers
 *   panel_is_wide(quant)           weights and codes of 16 bits instead of 8
 *   panel_copy_codes(quant, q, out) the 32 codes of a group, in the order of the steps
 *   panel_unpack(quant, body, out) one record's weights, step after step, out[PANEL_STEP_BYTES]
 *                                  apart
 */
#ifndef VF_COMMON_KERNELS_LANES_PANEL_H
#define VF_COMMON_KERNELS_LANES_PANEL_H

#include "common/kernels/lanes_walk.h"

#define PANEL_COLS 64u /* half as many with wide codes */
/* Both kinds of step feed 64 bytes of a record's weights and four bytes of each column's codes. */
#define RECORD_STEP_BYTES 64u
#define PANEL_VECTORS     2u /* registers of rows that share a broadcast */
#define BLOCK_VECTORS     (VF_RECORD_ROWS / PANEL_LANES)
#define PANEL_BLOCKS      (PANEL_VECTORS / BLOCK_VECTORS)
#define PANEL_STEP_BYTES  (PANEL_BLOCKS * RECORD_STEP_BYTES)
#define STEPS_MAX         16u

struct panel {
    const struct vf_matrix *m;
    const struct vf_acts *acts;
    uint32_t rb, rb_end, col, col_count;
    uint32_t group, group_count; /* of the tile at hand */
    /* One to PANEL_BLOCKS row blocks of the tile: [group][step][block][16 rows] */
    _Alignas(64) uint8_t weights[TILE_COL_GROUPS * STEPS_MAX * PANEL_STEP_BYTES];
    _Alignas(64) float weight_scale[TILE_COL_GROUPS][PANEL_BLOCKS][VF_RECORD_ROWS];
    /* The panel's columns of the tile: [column][group][step] of four bytes */
    _Alignas(64) int8_t codes[PANEL_COLS * VF_TILE_COLS];
    float scale[PANEL_COLS][TILE_COL_GROUPS];
    int32_t start[PANEL_COLS][TILE_COL_GROUPS];
    _Alignas(64) float acc[TILE_ROW_BLOCKS][PANEL_COLS][VF_RECORD_ROWS];
};

static ALWAYS_INLINE uint32_t panel_code_bytes(enum vf_quant quant)
{
    return panel_is_wide(quant) ? 2 : 1;
}

static ALWAYS_INLINE void pack_column(enum vf_quant quant, struct panel *p, uint32_t c,
                                      uint32_t groups)
{
    const struct vf_acts *a = p->acts;
    size_t group = (size_t)(p->col + c) * (a->stride / VF_RECORD_COLS) + p->group;
    const int8_t *q = a->q + group * VF_RECORD_COLS;
    int8_t *codes = p->codes + (size_t)c * VF_TILE_COLS * panel_code_bytes(quant);
    for (uint32_t g = 0; g < groups; g++) {
        panel_copy_codes(quant, q, codes);
        q += VF_RECORD_COLS;
        codes += VF_RECORD_COLS * panel_code_bytes(quant);
    }
    for (uint32_t g = 0; g < groups; g++) {
        p->scale[c][g] = a->scale[group + g];
        p->start[c][g] = panel_start(quant, a->sum[group + g]);
    }
}

/* Columns that the tile of registers computes in vain are there too, as zeros. */
static ALWAYS_INLINE void pack_columns(enum vf_quant quant, struct panel *p)
{
    uint32_t c = 0, column_bytes = VF_TILE_COLS * panel_code_bytes(quant);
    for (; c < p->col_count; c++) {
        if (p->group_count == TILE_COL_GROUPS)
            pack_column(quant, p, c, TILE_COL_GROUPS);
        else
            pack_column(quant, p, c, p->group_count);
    }
    for (; c % PANEL_TILE_COLS != 0; c++) {
        memset(p->codes + (size_t)c * column_bytes, 0, column_bytes);
        memset(p->scale[c], 0, sizeof(p->scale[c]));
        memset(p->start[c], 0, sizeof(p->start[c]));
    }
}

/* Fewer columns don't pay for the unpacking. */
static ALWAYS_INLINE bool panel_pays(enum vf_quant quant, uint32_t n_col)
{
    return n_col >= (panel_is_wide(quant) ? 16 : 8);
}

/* What pack_columns reads next, into the second-level cache: a share of its columns while this row
 * block is computed. */
static inline void prefetch_columns(const struct panel *p, uint32_t rb)
{
    const struct vf_acts *a = p->acts;
    uint32_t group = p->group + TILE_COL_GROUPS, first = p->col, count = p->col_count;
    if (group >= vf_col_groups(p->m->cols)) {
        group = 0;
        first = p->col + p->col_count < a->n_col ? p->col + p->col_count : 0;
        count = smaller(count, a->n_col - first);
    }
    uint32_t block = rb - p->rb, blocks = p->rb_end - p->rb;
    if (PREFETCH_BYTES == 0)
        return;
    for (uint32_t c = count * block / blocks;
         c < count * smaller(block + PANEL_BLOCKS, blocks) / blocks; c++) {
        size_t at = (size_t)(first + c) * (a->stride / VF_RECORD_COLS) + group;
        for (uint32_t i = 0; i < VF_TILE_COLS; i += 64)
            _mm_prefetch((const char *)a->q + at * VF_RECORD_COLS + i, _MM_HINT_T1);
        _mm_prefetch((const char *)(a->scale + at), _MM_HINT_T1);
        _mm_prefetch((const char *)(a->sum + at), _MM_HINT_T1);
    }
}

static ALWAYS_INLINE void unpack_block(enum vf_quant quant, struct panel *p, const uint8_t *record,
                                       uint32_t block)
{
    uint32_t steps = VF_RECORD_COLS * panel_code_bytes(quant) / 4;
    for (uint32_t g = 0; g < p->group_count; g++) {
        prefetch_record(record, vf_record_bytes(quant));
        lanes_store(p->weight_scale[g][block], lanes_load_f16(record));
        panel_unpack(quant, record + 2 * VF_RECORD_ROWS,
                     p->weights + (size_t)g * steps * PANEL_STEP_BYTES + block * RECORD_STEP_BYTES);
        record += vf_record_bytes(quant);
    }
}

/* The unpacked rows times `count` columns from col on; acc is the first row block's of them. */
static ALWAYS_INLINE void multiply(enum vf_quant quant, const struct panel *p, uint32_t col,
                                   uint32_t count, uint32_t vectors, float *acc)
{
    const uint32_t steps = VF_RECORD_COLS * panel_code_bytes(quant) / 4;
    const size_t vector_stride = PANEL_BLOCKS > 1 ? PANEL_COLS * VF_RECORD_ROWS : PANEL_LANES;
    const size_t column_bytes = VF_TILE_COLS * panel_code_bytes(quant);
    const int8_t *codes = p->codes + col * column_bytes;
    const uint8_t *weights = p->weights;
    for (uint32_t g = 0; g < p->group_count; g++) {
        panel_ints dot[PANEL_TILE_COLS][PANEL_VECTORS];
        UNROLLED
        for (uint32_t c = 0; c < count; c++)
            for (uint32_t v = 0; v < vectors; v++)
                dot[c][v] = panel_ints_set(p->start[col + c][g]);
        UNROLLED
        for (uint32_t s = 0; s < steps; s++) {
            panel_ints w[PANEL_VECTORS];
            for (uint32_t v = 0; v < vectors; v++)
                w[v] = panel_ints_load(weights + v * 4 * PANEL_LANES);
            weights += PANEL_STEP_BYTES;
            UNROLLED
            for (uint32_t c = 0; c < count; c++) {
                int32_t four;
                memcpy(&four, codes + c * column_bytes + 4 * s, sizeof(four));
                panel_ints q = panel_ints_set(four);
                for (uint32_t v = 0; v < vectors; v++)
                    dot[c][v] = panel_step(quant, dot[c][v], w[v], q);
            }
        }
        codes += 4 * steps;
        UNROLLED
        for (uint32_t c = 0; c < count; c++) {
            panel_floats scale = panel_floats_set(p->scale[col + c][g]);
            for (uint32_t v = 0; v < vectors; v++)
                panel_add_scaled(panel_finish(quant, dot[c][v]),
                                 p->weight_scale[g][0] + v * PANEL_LANES, scale,
                                 acc + c * VF_RECORD_ROWS + v * vector_stride);
        }
    }
}

/* Whole tiles of columns, then half a tile or one more. */
static ALWAYS_INLINE void multiply_panel(enum vf_quant quant, const struct panel *p, uint32_t rb,
                                         uint32_t vectors)
{
    float(*acc)[VF_RECORD_ROWS] = (void *)p->acc[rb - p->rb];
    bool whole = vectors < PANEL_VECTORS; /* an odd row block isn't worth another shape */
    uint32_t c = 0;
    for (; c + (whole ? 0 : PANEL_TILE_COLS / 2) < p->col_count; c += PANEL_TILE_COLS)
        multiply(quant, p, c, PANEL_TILE_COLS, vectors, acc[c]);
    if (!whole && c < p->col_count)
        multiply(quant, p, c, PANEL_TILE_COLS / 2, vectors, acc[c]);
}

static ALWAYS_INLINE void panel_tile(enum vf_quant quant, struct panel *p)
{
    const struct vf_matrix *m = p->m;
    const uint8_t *record = m->data + vf_record_offset(quant, m->rows, m->cols, p->rb, p->group);
    pack_columns(quant, p);
    for (uint32_t rb = p->rb; rb < p->rb_end; rb += PANEL_BLOCKS) {
        uint32_t blocks = smaller(PANEL_BLOCKS, p->rb_end - rb);
        prefetch_columns(p, rb);
        for (uint32_t b = 0; b < blocks; b++) {
            unpack_block(quant, p, record, b);
            record += (size_t)p->group_count * vf_record_bytes(quant);
        }
        if (PANEL_BLOCKS > 1 && blocks == 1)
            multiply_panel(quant, p, rb, BLOCK_VECTORS);
        else
            multiply_panel(quant, p, rb, PANEL_VECTORS);
    }
}

static ALWAYS_INLINE void panel_stripe(enum vf_quant quant, struct panel *p, float *y,
                                       size_t y_stride)
{
    uint32_t groups = vf_col_groups(p->m->cols);
    uint32_t padded = (p->col_count + PANEL_TILE_COLS - 1) / PANEL_TILE_COLS * PANEL_TILE_COLS;
    for (uint32_t b = 0; b < p->rb_end - p->rb; b++)
        memset(p->acc[b], 0, padded * sizeof(p->acc[b][0]));
    for (p->group = 0; p->group < groups; p->group += TILE_COL_GROUPS) {
        p->group_count = smaller(TILE_COL_GROUPS, groups - p->group);
        panel_tile(quant, p);
    }
    for (uint32_t rb = p->rb; rb < p->rb_end; rb++) {
        uint32_t row = rb * VF_RECORD_ROWS;
        uint32_t count = smaller(VF_RECORD_ROWS, p->m->rows - row);
        for (uint32_t c = 0; c < p->col_count; c++)
            memcpy(y + (p->col + c) * y_stride + row, p->acc[rb - p->rb][c], count * sizeof(*y));
    }
}

static ALWAYS_INLINE void panel_matmul(enum vf_quant quant, const struct vf_matrix *m,
                                       const struct vf_acts *acts, uint32_t rb_begin,
                                       uint32_t rb_end, float *y, size_t y_stride)
{
    VF_ASSERT(m->quant == quant && acts->cols == m->cols && rb_end <= vf_row_blocks(m->rows));
    struct panel p;
    p.m = m;
    p.acts = acts;
    for (p.rb = rb_begin; p.rb < rb_end; p.rb = p.rb_end) {
        p.rb_end = smaller(rb_end, p.rb - p.rb % TILE_ROW_BLOCKS + TILE_ROW_BLOCKS);
        for (p.col = 0; p.col < acts->n_col; p.col += p.col_count) {
            p.col_count = smaller(PANEL_COLS / panel_code_bytes(quant), acts->n_col - p.col);
            panel_stripe(quant, &p, y, y_stride);
        }
    }
}

#endif
