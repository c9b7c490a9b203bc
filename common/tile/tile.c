/* The layout of tile.h in code: where a record lies, packing with quantisation, unpacking.
 *
 * Quantisation follows MODEL.md section 4 in float arithmetic: one division by the scale that was
 * rounded to f16, half to even. Two edges that the page leaves open:
 *   a scale that rounds to zero in f16 although a weight isn't zero: the group becomes zeros;
 *   a scale (or an f16 weight) beyond the largest f16: 65504, and the codes clip.
 */
#include "common/tile/tile.h"
#include "common/base/err.h"

#include <math.h>
#include <string.h>

#define TILE_ROW_BLOCKS (VF_TILE_ROWS / VF_RECORD_ROWS)
#define TILE_COL_GROUPS (VF_TILE_COLS / VF_RECORD_COLS)
#define SCALE_BYTES     (2 * VF_RECORD_ROWS)
#define F16_LARGEST     0x7bffu
#define F16_INFINITY    0x7c00u

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static uint16_t get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}

static uint32_t get_u32(const uint8_t *p)
{
    return get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

float vf_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0)
        return bits_float(sign | float_bits((float)mantissa * 0x1p-24f));
    if (exponent < 31)
        return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    return bits_float(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x00400000u : 0));
}

uint16_t vf_f32_to_f16(float f)
{
    uint32_t bits = float_bits(f);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, upper payload kept, as the hardware does it */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) /* 65536 and more */
        return (uint16_t)(sign | F16_INFINITY);
    if (magnitude < 0x38800000u) /* below 2^-14: the addition rounds at 2^-24 */
        return (uint16_t)(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
    magnitude += 0xc8000fffu + (magnitude >> 13 & 1u); /* rebias, half to even */
    return (uint16_t)(sign | magnitude >> 13);
}

float vf_bf16_to_f32(uint16_t b)
{
    return bits_float((uint32_t)b << 16);
}

const char *vf_quant_name(enum vf_quant quant)
{
    static const char *const names[VF_QUANT_COUNT] = {"f32", "f16", "q8", "q4"};
    return (unsigned)quant < VF_QUANT_COUNT ? names[quant] : "unknown";
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint64_t vf_record_offset(enum vf_quant quant, uint32_t rows, uint32_t cols, uint32_t rb,
                          uint32_t g)
{
    uint32_t stripe_begin = rb - rb % TILE_ROW_BLOCKS;
    uint32_t stripe_blocks = min_u32(TILE_ROW_BLOCKS, vf_row_blocks(rows) - stripe_begin);
    uint32_t groups = vf_col_groups(cols);
    uint32_t tile_begin = g - g % TILE_COL_GROUPS;
    uint32_t tile_groups = min_u32(TILE_COL_GROUPS, groups - tile_begin);
    uint64_t record = (uint64_t)stripe_begin * groups + (uint64_t)tile_begin * stripe_blocks +
                      (uint64_t)(rb - stripe_begin) * tile_groups + (g - tile_begin);
    return record * vf_record_bytes(quant);
}

static float largest_magnitude(const float *w, uint32_t n)
{
    float largest = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float magnitude = fabsf(w[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static uint16_t f16_within_range(float f)
{
    uint16_t h = vf_f32_to_f16(f);
    if ((h & 0x7fffu) == F16_INFINITY)
        h = (uint16_t)((h & 0x8000u) | F16_LARGEST);
    return h;
}

/* rint(w / scale) within [low, high]; clipping first keeps the number small enough for the
 * addition of 1.5 * 2^23 to round it half to even. */
static int quantise(float w, float scale, float low, float high)
{
    float v = w / scale;
    v = v < low ? low : v;
    v = v > high ? high : v;
    return (int)((v + 12582912.0f) - 12582912.0f);
}

/* Codes of one row's group, in [low, high] around zero; returns the f16 scale. */
static uint16_t quantise_group(const float *w, float low, float high, int8_t *code)
{
    uint16_t half = f16_within_range(largest_magnitude(w, VF_RECORD_COLS) / high);
    float scale = vf_f16_to_f32(half);
    memset(code, 0, VF_RECORD_COLS);
    if (scale == 0.0f)
        return 0;
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        code[i] = (int8_t)quantise(w[i], scale, low, high);
    return half;
}

/* A row's group as rows of groups have it: scale, then codes column by column. */
static void encode_q4(const float *w, uint8_t *group)
{
    int8_t code[VF_RECORD_COLS];
    put_u16(group, quantise_group(w, -8.0f, 7.0f, code));
    for (uint32_t i = 0; i < VF_RECORD_COLS / 2; i++) {
        unsigned low = (unsigned)(code[i] + 8);
        unsigned high = (unsigned)(code[i + 16] + 8);
        group[2 + i] = (uint8_t)(low | high << 4);
    }
}

static void encode_q8(const float *w, uint8_t *group)
{
    int8_t code[VF_RECORD_COLS];
    put_u16(group, quantise_group(w, -127.0f, 127.0f, code));
    memcpy(group + 2, code, sizeof code);
}

/* Scale r and every fourth byte quad of the record are row r's. */
static void place_group(uint32_t group_bytes, const uint8_t *group, uint32_t r, uint8_t *record)
{
    memcpy(record + 2 * r, group, 2);
    for (uint32_t i = 2; i < group_bytes; i += 4)
        memcpy(record + SCALE_BYTES + 16 * (i - 2) + 4 * r, group + i, 4);
}

static void pack_row_q4(const float *w, uint32_t r, uint8_t *record)
{
    uint8_t group[2 + VF_RECORD_COLS / 2];
    encode_q4(w, group);
    place_group(sizeof group, group, r, record);
}

static void pack_row_q8(const float *w, uint32_t r, uint8_t *record)
{
    uint8_t group[2 + VF_RECORD_COLS];
    encode_q8(w, group);
    place_group(sizeof group, group, r, record);
}

static void pack_row_f16(const float *w, uint32_t r, uint8_t *record)
{
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        put_u16(record + 2 * (VF_RECORD_ROWS * i + r), f16_within_range(w[i]));
}

static void pack_row_f32(const float *w, uint32_t r, uint8_t *record)
{
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        put_u32(record + 4 * (VF_RECORD_ROWS * i + r), float_bits(w[i]));
}

typedef void pack_row_fn(const float *w, uint32_t r, uint8_t *record);

static pack_row_fn *const pack_row[VF_QUANT_COUNT] = {
    [VF_QUANT_F32] = pack_row_f32,
    [VF_QUANT_F16] = pack_row_f16,
    [VF_QUANT_Q8] = pack_row_q8,
    [VF_QUANT_Q4] = pack_row_q4,
};

/* src is the first of row_count rows of the row block (fewer than 16: the rest is padding). */
static void pack_record(enum vf_quant quant, uint32_t cols, uint32_t g, uint32_t row_count,
                        const float *src, uint8_t *record)
{
    uint32_t col = g * VF_RECORD_COLS;
    uint32_t count = min_u32(VF_RECORD_COLS, cols - col);
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++) {
        float group[VF_RECORD_COLS] = {0};
        if (r < row_count)
            memcpy(group, src + (size_t)r * cols + col, count * sizeof(*group));
        pack_row[quant](group, r, record);
    }
}

void vf_tile_pack_rows(enum vf_quant quant, uint32_t rows, uint32_t cols, uint32_t row_begin,
                       uint32_t row_count, const float *src, uint8_t *out)
{
    VF_ASSERT(row_begin % VF_RECORD_ROWS == 0 && row_count <= rows - row_begin);
    VF_ASSERT(row_count % VF_RECORD_ROWS == 0 || row_count == rows - row_begin);
    for (uint32_t row = 0; row < row_count; row += VF_RECORD_ROWS) {
        uint32_t rb = (row_begin + row) / VF_RECORD_ROWS;
        uint32_t present = min_u32(VF_RECORD_ROWS, row_count - row);
        const float *block = src + (size_t)row * cols;
        for (uint32_t g = 0; g < vf_col_groups(cols); g++)
            pack_record(quant, cols, g, present, block,
                        out + vf_record_offset(quant, rows, cols, rb, g));
    }
}

void vf_tile_quantise_row(enum vf_quant quant, uint32_t cols, const float *src, uint8_t *groups)
{
    VF_ASSERT(quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8);
    for (uint32_t col = 0; col < cols; col += VF_RECORD_COLS) {
        float w[VF_RECORD_COLS] = {0};
        memcpy(w, src + col, min_u32(VF_RECORD_COLS, cols - col) * sizeof(*w));
        if (quant == VF_QUANT_Q4)
            encode_q4(w, groups);
        else
            encode_q8(w, groups);
        groups += vf_group_bytes(quant);
    }
}

/* What a row of zeros gives, which is what a padding row holds. */
static void zero_group(enum vf_quant quant, uint8_t *group)
{
    memset(group, quant == VF_QUANT_Q4 ? 0x88 : 0, vf_group_bytes(quant));
    put_u16(group, 0);
}

void vf_tile_pack_groups(enum vf_quant quant, uint32_t rows, uint32_t cols, const uint8_t *src,
                         size_t stride, uint8_t *out)
{
    VF_ASSERT(quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8);
    uint32_t bytes = vf_group_bytes(quant);
    uint8_t padding[2 + VF_RECORD_COLS];
    zero_group(quant, padding);
    for (uint32_t rb = 0; rb < vf_row_blocks(rows); rb++) {
        for (uint32_t g = 0; g < vf_col_groups(cols); g++) {
            uint8_t *record = out + vf_record_offset(quant, rows, cols, rb, g);
            for (uint32_t r = 0; r < VF_RECORD_ROWS; r++) {
                uint32_t row = rb * VF_RECORD_ROWS + r;
                place_group(bytes, row < rows ? src + row * stride + (size_t)g * bytes : padding, r,
                            record);
            }
        }
    }
}

static void unpack_row_q4(const uint8_t *record, uint32_t r, float *w)
{
    float scale = vf_f16_to_f32(get_u16(record + 2 * r));
    const uint8_t *body = record + SCALE_BYTES + 4 * r;
    for (uint32_t i = 0; i < VF_RECORD_COLS / 2; i++) {
        uint8_t pair = body[64 * (i / 4) + i % 4];
        w[i] = scale * (float)((int)(pair & 15u) - 8);
        w[i + 16] = scale * (float)((int)(pair >> 4) - 8);
    }
}

static void unpack_row_q8(const uint8_t *record, uint32_t r, float *w)
{
    float scale = vf_f16_to_f32(get_u16(record + 2 * r));
    const uint8_t *body = record + SCALE_BYTES + 4 * r;
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        w[i] = scale * (float)(int8_t)body[64 * (i / 4) + i % 4];
}

static void unpack_row_f16(const uint8_t *record, uint32_t r, float *w)
{
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        w[i] = vf_f16_to_f32(get_u16(record + 2 * (VF_RECORD_ROWS * i + r)));
}

static void unpack_row_f32(const uint8_t *record, uint32_t r, float *w)
{
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++)
        w[i] = bits_float(get_u32(record + 4 * (VF_RECORD_ROWS * i + r)));
}

typedef void unpack_row_fn(const uint8_t *record, uint32_t r, float *w);

static unpack_row_fn *const unpack_row[VF_QUANT_COUNT] = {
    [VF_QUANT_F32] = unpack_row_f32,
    [VF_QUANT_F16] = unpack_row_f16,
    [VF_QUANT_Q8] = unpack_row_q8,
    [VF_QUANT_Q4] = unpack_row_q4,
};

void vf_tile_unpack_row(const struct vf_matrix *m, uint32_t row, float *dst)
{
    VF_ASSERT(row < m->rows);
    for (uint32_t g = 0; g < vf_col_groups(m->cols); g++) {
        float group[VF_RECORD_COLS];
        uint64_t offset = vf_record_offset(m->quant, m->rows, m->cols, row / VF_RECORD_ROWS, g);
        uint32_t count = min_u32(VF_RECORD_COLS, m->cols - g * VF_RECORD_COLS);
        unpack_row[m->quant](m->data + offset, row % VF_RECORD_ROWS, group);
        memcpy(dst + (size_t)g * VF_RECORD_COLS, group, count * sizeof(*group));
    }
}
