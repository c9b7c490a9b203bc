/* The walk over a matrix that every vector matmul shares; lanes are a record's rows.
 *
 * A stripe is read strictly in memory order: its tiles left to right, in a tile the row blocks top
 * to bottom. With few columns the vector tiers read up to four stripes side by side, a record of
 * each in turn: a core's own prefetchers follow a stream only to the end of a page, and several
 * streams keep more reads under way. The sums of up to eight row blocks wait in a small array
 * between tiles. A tile serves up to WALK_COLS activation columns before the next one is read, as
 * many of them per pass over a span of records as the span's function wants. Included after
 * lanes_avx2.h or lanes_avx512.h.
 */
#ifndef VF_COMMON_KERNELS_LANES_WALK_H
#define VF_COMMON_KERNELS_LANES_WALK_H

#include "common/kernels/kernels.h"

#include <string.h>

#define WALK_COLS 16u
/* Columns of a pass over an integer span. */
#define SPAN_COLS 4u
_Static_assert(SPAN_COLS >= VF_STRIPES_COLS, "several stripes take all their columns in one pass");
#define TILE_ROW_BLOCKS (VF_TILE_ROWS / VF_RECORD_ROWS)
#define TILE_COL_GROUPS (VF_TILE_COLS / VF_RECORD_COLS)
/* Far enough to hide a memory access, near enough not to be evicted before use. A build may set
 * it to 0: no explicit prefetches. */
#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 3072u
#endif

/* A run of records of one row block inside a tile, for col_count columns; and the runs at the same
 * place of the stripes after it. */
struct span {
    const uint8_t *record;
    size_t apart; /* bytes from a stripe's record to the next one's */
    uint32_t stripes;
    uint32_t group, group_count; /* column groups */
    const struct vf_acts *acts;
    uint32_t col, col_count; /* activation columns */
};

/* Adds the span's part to acc[stripes * col_count][16], each stripe's columns side by side. */
typedef void span_fn(const struct span *span, float (*acc)[LANES]);

/* What a matmul brings to the walk. */
struct walk {
    span_fn *add_span;
    uint32_t span_cols; /* columns per pass over a span */
    /* As in the kernels' table, stripes side by side by columns; NULL: always one. */
    const uint8_t *stripes;
};

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline void prefetch_record_ahead(const uint8_t *record, uint32_t bytes, uint32_t ahead)
{
    for (uint32_t i = 0; PREFETCH_BYTES && i < bytes; i += 64)
        _mm_prefetch((const char *)record + ahead + i, _MM_HINT_T0);
}

static inline void prefetch_record(const uint8_t *record, uint32_t bytes)
{
    prefetch_record_ahead(record, bytes, PREFETCH_BYTES);
}

/* Row blocks [rb, rb_end) of a stripe, and those of the stripes after it, for acts columns
 * [col, col + col_count). */
struct band {
    const struct vf_matrix *m;
    const struct vf_acts *acts;
    uint32_t rb, rb_end, stripes, col, col_count;
    float acc[TILE_ROW_BLOCKS][WALK_COLS][LANES]; /* [stripe][column] of a row block */
};

static inline void walk_tile(struct band *b, const struct walk *w, uint32_t group)
{
    const struct vf_matrix *m = b->m;
    uint32_t count = smaller(TILE_COL_GROUPS, vf_col_groups(m->cols) - group);
    const uint8_t *record = m->data + vf_record_offset(m->quant, m->rows, m->cols, b->rb, group);
    struct span span = {.apart = (size_t)TILE_ROW_BLOCKS * vf_col_groups(m->cols) *
                                 vf_record_bytes(m->quant),
                        .stripes = b->stripes,
                        .group = group,
                        .group_count = count,
                        .acts = b->acts};
    for (uint32_t rb = b->rb; rb < b->rb_end; rb++) {
        span.record = record;
        for (uint32_t c = 0; c < b->col_count; c += w->span_cols) {
            span.col = b->col + c;
            span.col_count = smaller(w->span_cols, b->col_count - c);
            w->add_span(&span, &b->acc[rb - b->rb][c]);
        }
        record += (size_t)count * vf_record_bytes(m->quant);
    }
}

static inline void store_band(const struct band *b, float *y, size_t y_stride)
{
    for (uint32_t s = 0; s < b->stripes; s++) {
        for (uint32_t i = 0; i < b->rb_end - b->rb; i++) {
            uint32_t row = (b->rb + s * TILE_ROW_BLOCKS + i) * VF_RECORD_ROWS;
            uint32_t count = smaller(VF_RECORD_ROWS, b->m->rows - row);
            for (uint32_t c = 0; c < b->col_count; c++)
                memcpy(y + (b->col + c) * y_stride + row, b->acc[i][s * b->col_count + c],
                       count * sizeof(*y));
        }
    }
}

static inline void walk_band(struct band *b, const struct walk *w, float *y, size_t y_stride)
{
    for (uint32_t i = 0; i < b->rb_end - b->rb; i++)
        memset(b->acc[i], 0, (size_t)b->stripes * b->col_count * sizeof(b->acc[i][0]));
    for (uint32_t group = 0; group < vf_col_groups(b->m->cols); group += TILE_COL_GROUPS)
        walk_tile(b, w, group);
    store_band(b, y, y_stride);
}

/* How many whole stripes from rb on to read side by side. */
static inline uint32_t stripes_side_by_side(const struct walk *w, uint32_t n_col, uint32_t rb,
                                            uint32_t rb_end)
{
    bool several = w->stripes && n_col <= VF_STRIPES_COLS && rb % TILE_ROW_BLOCKS == 0;
    uint32_t stripes = several ? w->stripes[n_col] : 1;
    while (stripes > 1 && rb + stripes * TILE_ROW_BLOCKS > rb_end)
        stripes /= 2;
    return stripes;
}

static inline void walk_matrix(const struct vf_matrix *m, const struct vf_acts *acts,
                               uint32_t rb_begin, uint32_t rb_end, struct walk walk, float *y,
                               size_t y_stride)
{
    VF_ASSERT(acts->cols == m->cols && rb_end <= vf_row_blocks(m->rows));
    struct band b; /* its sums are set to zero as far as they are used */
    b.m = m;
    b.acts = acts;
    for (b.rb = rb_begin; b.rb < rb_end; b.rb = b.rb_end + (b.stripes - 1) * TILE_ROW_BLOCKS) {
        b.stripes = stripes_side_by_side(&walk, acts->n_col, b.rb, rb_end);
        b.rb_end = smaller(rb_end, b.rb - b.rb % TILE_ROW_BLOCKS + TILE_ROW_BLOCKS);
        for (b.col = 0; b.col < acts->n_col; b.col += b.col_count) {
            b.col_count = smaller(WALK_COLS, acts->n_col - b.col);
            walk_band(&b, &walk, y, y_stride);
        }
    }
}

#endif
