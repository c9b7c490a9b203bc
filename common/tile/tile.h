/* How one weight matrix [rows, cols] is laid out in bytes: tiles of 128 x 256 weights whose
 * 16-row by 32-column records are the unit a kernel consumes.
 *
 *   matrix   row stripes of 128 rows, top to bottom; in a stripe the tiles of 256 columns, left
 *            to right; a tile at the edge is smaller, never padded to full size
 *   tile     blocks of 16 rows, top to bottom; in a block the groups of 32 columns, left to right
 *   record   16 rows x 32 columns:
 *     q4     16 f16 scales (row order), then 256 bytes: byte 64*j + 4*r + c (j < 4, r < 16,
 *            c < 4) has column 4*j + c of row r in its low nibble and column 16 + 4*j + c in
 *            its high nibble; a nibble is q, the weight is scale * (q - 8)
 *     q8     16 f16 scales, then 512 bytes: byte 64*j + 4*r + c (j < 8) is column 4*j + c of
 *            row r as int8; the weight is scale * q
 *     f16    1024 bytes: half number 16*c + r (c < 32) is column c of row r
 *     f32    2048 bytes: float number 16*c + r is column c of row r
 *
 * Rows are padded to a multiple of 16 and columns to a multiple of 32 with zero weights (q4:
 * q = 8; a padding row's scale is 0). A full q4 tile is 8 x 8 records = 18,432 bytes. All
 * integers and floats are little-endian. Source: MODEL.md section 4, docs/FORMAT.md.
 */
#ifndef VF_COMMON_TILE_TILE_H
#define VF_COMMON_TILE_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_TILE_ROWS   128u
#define VF_TILE_COLS   256u
#define VF_RECORD_ROWS 16u
#define VF_RECORD_COLS 32u

enum vf_quant { /* stored in files: numbers never change */
                VF_QUANT_F32 = 0,
                VF_QUANT_F16 = 1,
                VF_QUANT_Q8 = 2,
                VF_QUANT_Q4 = 3,
                VF_QUANT_COUNT
};

/* 2048, 1024, 544, 288. */
static inline uint32_t vf_record_bytes(enum vf_quant quant)
{
    static const uint32_t bytes[VF_QUANT_COUNT] = {2048, 1024, 544, 288};
    return bytes[quant];
}
static inline uint32_t vf_row_blocks(uint64_t rows)
{
    return (uint32_t)((rows + VF_RECORD_ROWS - 1) / VF_RECORD_ROWS);
}
static inline uint32_t vf_col_groups(uint64_t cols)
{
    return (uint32_t)((cols + VF_RECORD_COLS - 1) / VF_RECORD_COLS);
}
/* Bytes of a whole matrix; rows < 2^32, cols < 2^32, so no overflow for any quant. */
static inline uint64_t vf_matrix_bytes(enum vf_quant quant, uint64_t rows, uint64_t cols)
{
    return (uint64_t)vf_row_blocks(rows) * vf_col_groups(cols) * vf_record_bytes(quant);
}

/* A matrix in memory; owns nothing. data is aligned to 64. */
struct vf_matrix {
    const uint8_t *data;
    uint32_t rows, cols;
    enum vf_quant quant;
};

/* Offset of the record of row block rb (rows 16*rb..) and column group g (columns 32*g..). */
uint64_t vf_record_offset(enum vf_quant quant, uint32_t rows, uint32_t cols, uint32_t rb,
                          uint32_t g);

/* Packs rows [row_begin, row_begin + row_count) of a matrix, given as f32 row-major with cols
 * columns, into out (the matrix's first byte). row_begin is a multiple of 16; row_count is too,
 * unless it reaches the last row. Quantises as MODEL.md section 4. Values are finite. */
void vf_tile_pack_rows(enum vf_quant quant, uint32_t rows, uint32_t cols, uint32_t row_begin,
                       uint32_t row_count, const float *src, uint8_t *out);
/* Rows that are quantised already (q4, q8), group by group of 32 columns: an f16 scale, then for q4
 * 16 bytes, byte i with column i in its low nibble and column 16 + i in its high nibble, for q8
 * 32 int8. The same numbers as a record's, in another order. */
static inline uint32_t vf_group_bytes(enum vf_quant quant)
{
    return vf_record_bytes(quant) / VF_RECORD_ROWS; /* 18, 34 */
}
/* One row [cols] into groups, vf_col_groups(cols) of them, as vf_tile_pack_rows quantises it. */
void vf_tile_quantise_row(enum vf_quant quant, uint32_t cols, const float *src, uint8_t *groups);
/* Packs a whole matrix out of such rows, which are stride bytes apart, into out. */
void vf_tile_pack_groups(enum vf_quant quant, uint32_t rows, uint32_t cols, const uint8_t *src,
                         size_t stride, uint8_t *out);
/* The reverse, dequantised: one row into dst[0..cols). Embedding lookup and the inspector. */
void vf_tile_unpack_row(const struct vf_matrix *m, uint32_t row, float *dst);

float vf_f16_to_f32(uint16_t h);
uint16_t vf_f32_to_f16(float f); /* round to nearest even */
float vf_bf16_to_f32(uint16_t b);

const char *vf_quant_name(enum vf_quant quant); /* "q4", ... */

#endif
