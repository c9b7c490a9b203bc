/* The walk over a matrix that every vector matmul shares; lanes are a record's rows.
 *
 * The walk reads the records strictly in memory order: in a stripe the tiles left to right, in a
 * tile the row blocks top to bottom. The sums of up to eight row blocks wait in a small array
 * between tiles. A tile serves up to WALK_COLS activation columns before the next one is read, as
 * many of them per pass over a span of records as the span's function wants. Included after
 * lanes_avx2.h or lanes_avx512.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_WALK_H
#define VF_COMMON_KERNELS_LANES_WALK_H

#include "common/kernels/kernels.h"

#include <string.h>

#define WALK_COLS       16u
#define COLS_AT_A_TIME  4u /* of the integer spans */
#define TILE_ROW_BLOCKS (VF_TILE_ROWS / VF_RECORD_ROWS)
#define TILE_COL_GROUPS (VF_TILE_COLS / VF_RECORD_COLS)
/* Far enough to hide a memory access, near enough not to be evicted before use. A build may set
 * it to 0: no explicit prefetches. */
#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 3072u
#endif

/* A run of records of one row block inside a tile, for col_count columns. */
struct span {
    const uint8_t *record;
    uint32_t group, group_count; /* column groups */
    const struct vf_acts *acts;
    uint32_t col, col_count; /* activation columns */
};

/* Adds the span's part to acc[col_count][16]. */
typedef void span_fn(const struct span *span, float (*acc)[LANES]);

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline void prefetch_record(const uint8_t *record, uint32_t bytes)
{
    for (uint32_t i = 0; PREFETCH_BYTES && i < bytes; i += 64)
        _mm_prefetch((const char *)record + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* Row blocks [rb, rb_end) of one stripe for acts columns [col, col + col_count). */
struct stripe {
    const struct vf_matrix *m;
    const struct vf_acts *acts;
    uint32_t rb, rb_end, col, col_count;
    uint32_t span_cols; /* columns per pass over a span */
    float acc[TILE_ROW_BLOCKS][WALK_COLS][LANES];
};

static inline void walk_tile(struct stripe *s, span_fn *add_span, uint32_t group)
{
    const struct vf_matrix *m = s->m;
    uint32_t count = smaller(TILE_COL_GROUPS, vf_col_groups(m->cols) - group);
    const uint8_t *record = m->data + vf_record_offset(m->quant, m->rows, m->cols, s->rb, group);
    for (uint32_t rb = s->rb; rb < s->rb_end; rb++) {
        for (uint32_t c = 0; c < s->col_count; c += s->span_cols) {
            struct span span = {record,  group,      count,
                                s->acts, s->col + c, smaller(s->span_cols, s->col_count - c)};
            add_span(&span, &s->acc[rb - s->rb][c]);
        }
        record += (size_t)count * vf_record_bytes(m->quant);
    }
}

static inline void walk_stripe(struct stripe *s, span_fn *add_span, float *y, size_t y_stride)
{
    for (uint32_t b = 0; b < s->rb_end - s->rb; b++)
        memset(s->acc[b], 0, s->col_count * sizeof(s->acc[b][0]));
    for (uint32_t group = 0; group < vf_col_groups(s->m->cols); group += TILE_COL_GROUPS)
        walk_tile(s, add_span, group);
    for (uint32_t rb = s->rb; rb < s->rb_end; rb++) {
        uint32_t row = rb * VF_RECORD_ROWS;
        uint32_t count = smaller(VF_RECORD_ROWS, s->m->rows - row);
        for (uint32_t c = 0; c < s->col_count; c++)
            memcpy(y + (s->col + c) * y_stride + row, s->acc[rb - s->rb][c], count * sizeof(*y));
    }
}

static inline void walk_matrix(const struct vf_matrix *m, const struct vf_acts *acts,
                               uint32_t rb_begin, uint32_t rb_end, span_fn *add_span,
                               uint32_t span_cols, float *y, size_t y_stride)
{
    VF_ASSERT(acts->cols == m->cols && rb_end <= vf_row_blocks(m->rows));
    struct stripe s;
    s.m = m;
    s.acts = acts;
    s.span_cols = span_cols;
    for (s.rb = rb_begin; s.rb < rb_end; s.rb = s.rb_end) {
        s.rb_end = smaller(rb_end, s.rb - s.rb % TILE_ROW_BLOCKS + TILE_ROW_BLOCKS);
        for (s.col = 0; s.col < acts->n_col; s.col += s.col_count) {
            s.col_count = smaller(WALK_COLS, acts->n_col - s.col);
            walk_stripe(&s, add_span, y, y_stride);
        }
    }
}

#endif
