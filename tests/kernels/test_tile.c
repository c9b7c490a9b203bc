/* Tiles: packed bytes against an independent packing, round trips, offsets, half floats.
 *
 * The independent packing walks the layout of tile.h's comment from the first byte to the last
 * and quantises in double where that is exact; half floats come from kernel_test.h.
 */
#include "kernel_test.h"

static const uint32_t sizes[][2] = {{1, 1},    {17, 33},    {128, 256}, {129, 257},
                                    {172, 64}, {300, 1000}, {16, 32},   {5, 2048},
                                    {1000, 5}, {128, 288},  {144, 256}};
#define SIZE_COUNT (sizeof(sizes) / sizeof(sizes[0]))

/* ---- an independent packer ---- */

struct cursor {
    uint8_t *p;
    const float *w;
    uint32_t rows, cols;
};

static float weight_at(const struct cursor *c, uint32_t row, uint32_t col)
{
    return row < c->rows && col < c->cols ? c->w[(size_t)row * c->cols + col] : 0.0f;
}

static uint16_t group_scale(const struct cursor *c, uint32_t row, uint32_t col, float steps)
{
    float largest = 0.0f;
    for (uint32_t i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(weight_at(c, row, col + i)));
    uint16_t half = half_nearest(largest / steps);
    return half == 0x7c00 ? 0x7bff : half;
}

static int code(float w, uint16_t half, int low, int high)
{
    if (half == 0)
        return 0;
    double q = nearbyint((double)(w / half_value(half)));
    return q < low ? low : q > high ? high : (int)q;
}

static void emit_u16(struct cursor *c, uint16_t v)
{
    *c->p++ = (uint8_t)(v & 255);
    *c->p++ = (uint8_t)(v >> 8);
}

static void emit_record_q4(struct cursor *c, uint32_t row, uint32_t col)
{
    uint16_t half[16];
    for (uint32_t r = 0; r < 16; r++)
        emit_u16(c, half[r] = group_scale(c, row + r, col, 7.0f));
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t k = 0; k < 4; k++) {
                int low = code(weight_at(c, row + r, col + 4 * j + k), half[r], -8, 7) + 8;
                int high = code(weight_at(c, row + r, col + 16 + 4 * j + k), half[r], -8, 7) + 8;
                *c->p++ = (uint8_t)(low + 16 * high);
            }
}

static void emit_record_q8(struct cursor *c, uint32_t row, uint32_t col)
{
    uint16_t half[16];
    for (uint32_t r = 0; r < 16; r++)
        emit_u16(c, half[r] = group_scale(c, row + r, col, 127.0f));
    for (uint32_t j = 0; j < 8; j++)
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t k = 0; k < 4; k++)
                *c->p++ = (uint8_t)code(weight_at(c, row + r, col + 4 * j + k), half[r], -127, 127);
}

static void emit_record_floats(struct cursor *c, enum vf_quant quant, uint32_t row, uint32_t col)
{
    for (uint32_t k = 0; k < 32; k++)
        for (uint32_t r = 0; r < 16; r++) {
            float w = weight_at(c, row + r, col + k);
            uint32_t bits;
            memcpy(&bits, &w, sizeof(bits));
            if (quant == VF_QUANT_F16)
                bits = half_nearest(w);
            emit_u16(c, (uint16_t)bits);
            if (quant == VF_QUANT_F32)
                emit_u16(c, (uint16_t)(bits >> 16));
        }
}

static void emit_record(struct cursor *c, enum vf_quant quant, uint32_t row, uint32_t col)
{
    if (quant == VF_QUANT_Q4)
        emit_record_q4(c, row, col);
    else if (quant == VF_QUANT_Q8)
        emit_record_q8(c, row, col);
    else
        emit_record_floats(c, quant, row, col);
}

/* Stripes, tiles, row blocks, groups: in memory order. Checks vf_record_offset on the way. */
static bool emit_matrix(struct cursor *c, enum vf_quant quant, const uint8_t *start)
{
    bool offsets_ok = true;
    for (uint32_t stripe = 0; stripe < c->rows; stripe += 128)
        for (uint32_t tile = 0; tile < c->cols; tile += 256)
            for (uint32_t row = stripe; row < stripe + 128 && row < c->rows; row += 16)
                for (uint32_t col = tile; col < tile + 256 && col < c->cols; col += 32) {
                    uint64_t offset = vf_record_offset(quant, c->rows, c->cols, row / 16, col / 32);
                    offsets_ok &= offset == (uint64_t)(c->p - start);
                    emit_record(c, quant, row, col);
                }
    return offsets_ok;
}

/* ---- tests ---- */

static void test_half_floats(void)
{
    bool widen_ok = true;
    for (uint32_t h = 0; h < 65536; h++)
        widen_ok &= same_float(vf_f16_to_f32((uint16_t)h), half_value((uint16_t)h));
    ok(widen_ok, "every half float widens exactly");

    bool narrow_ok = true;
    for (uint64_t u = 0; u < (1u << 31); u += 251) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            float f = bits_to_float((uint32_t)u | sign << 31);
            uint16_t found = vf_f32_to_f16(f);
            narrow_ok &= f != f ? (found & 0x7fff) > 0x7c00 : found == half_nearest(f);
        }
    }
    ok(narrow_ok, "floats narrow to the nearest half, ties to even");

    bool middle_ok = true; /* halfway between two neighbours, and one bit to each side */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double mid = ((double)half_value((uint16_t)h) +
                      (h == 0x7bff ? 65536.0 : (double)half_value((uint16_t)(h + 1)))) /
                     2.0;
        float f = (float)mid;
        middle_ok &= vf_f32_to_f16(f) == h + (h & 1u);
        middle_ok &= vf_f32_to_f16(nextafterf(f, 0.0f)) == h;
        middle_ok &= vf_f32_to_f16(nextafterf(f, INFINITY)) == h + 1;
    }
    ok(middle_ok, "ties between half floats");
    ok(same_float(vf_bf16_to_f32(0x3f80), 1.0f) && same_float(vf_bf16_to_f32(0xff80), -INFINITY) &&
           same_float(vf_bf16_to_f32(0x0001), 0x1p-133f) && isnan(vf_bf16_to_f32(0x7fc0)),
       "bf16 widens");
}

static void fill_weights(float *w, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t shape = rng_below(8);
        for (uint32_t c = 0; c < cols; c++) {
            float v = 0.1f * rng_unit();
            if (shape == 0)
                v = 0.0f;
            else if (shape == 1)
                v = ldexpf(rng_unit(), -20 - (int)rng_below(12)); /* scales near f16's end */
            else if (shape == 2)
                v = 400.0f * rng_unit();
            else if (shape == 3)
                v = (float)((int)rng_below(15) - 7) * 0.5f + (rng_below(2) ? 0.25f : 0.0f);
            w[(size_t)r * cols + c] = v;
        }
    }
}

static double unpack_limit(enum vf_quant quant, float w, float largest)
{
    double magnitude = fabs((double)w);
    switch (quant) {
    case VF_QUANT_F32:
        return 0.0;
    case VF_QUANT_F16:
        return magnitude * 0x1p-11 + 0x1p-25;
    case VF_QUANT_Q8: /* half a step, a clipped code's f16 error, a scale lost to zero */
        return (double)largest * (0.502 / 127 + 0x1p-11) + 127 * 0x1p-25;
    default:
        return (double)largest * (0.51 / 7 + 0x1p-11) + 7 * 0x1p-25;
    }
}

static bool unpack_is_close(const struct vf_matrix *m, const float *w)
{
    bool close = true;
    float *row = must_alloc(m->cols * sizeof(*row));
    for (uint32_t r = 0; r < m->rows; r++) {
        const float *source = w + (size_t)r * m->cols;
        vf_tile_unpack_row(m, r, row);
        for (uint32_t c = 0; c < m->cols; c++) {
            float largest = 0.0f;
            for (uint32_t i = c / 32 * 32; i < m->cols && i < c / 32 * 32 + 32; i++)
                largest = fmaxf(largest, fabsf(source[i]));
            close &= close_to(row[c], source[c], unpack_limit(m->quant, source[c], largest));
        }
    }
    free(row);
    return close;
}

static void test_size(enum vf_quant quant, uint32_t rows, uint32_t cols)
{
    size_t bytes = vf_matrix_bytes(quant, rows, cols);
    float *w = must_alloc((size_t)rows * cols * sizeof(*w));
    uint8_t *wanted = must_alloc(bytes);
    struct guarded whole = guarded_alloc(bytes, GUARD_END);
    struct guarded parts = guarded_alloc(bytes, GUARD_BEGIN);
    fill_weights(w, rows, cols);

    struct cursor c = {wanted, w, rows, cols};
    bool offsets_ok = emit_matrix(&c, quant, wanted);
    bool size_ok = (size_t)(c.p - wanted) == bytes;
    memset(whole.p, 0xa5, bytes);
    memset(parts.p, 0x5a, bytes);
    vf_tile_pack_rows(quant, rows, cols, 0, rows, w, whole.p);
    for (uint32_t row = 0; row < rows; row += 48)
        vf_tile_pack_rows(quant, rows, cols, row, rows - row < 48 ? rows - row : 48,
                          w + (size_t)row * cols, parts.p);
    struct vf_matrix m = {whole.p, rows, cols, quant};
    ok(offsets_ok && size_ok && memcmp(whole.p, wanted, bytes) == 0 &&
           memcmp(parts.p, wanted, bytes) == 0,
       "%s %ux%u: packed bytes", vf_quant_name(quant), rows, cols);
    ok(unpack_is_close(&m, w), "%s %ux%u: unpacks to what was packed", vf_quant_name(quant), rows,
       cols);
    guarded_free(&whole);
    guarded_free(&parts);
    free(wanted);
    free(w);
}

/* One group whose numbers show each rule of MODEL.md section 4. */
static void test_rules(void)
{
    float w[32] = {7.0f, -7.0f, 0.5f, 1.5f, -0.5f, -1.5f, 2.5f, -7.4f};
    uint8_t record[288];
    float back[32];
    w[7] = -6.5f; /* a scale of exactly 1: codes are ties to even */
    vf_tile_pack_rows(VF_QUANT_Q4, 1, 32, 0, 1, w, record);
    struct vf_matrix m = {record, 1, 32, VF_QUANT_Q4};
    vf_tile_unpack_row(&m, 0, back);
    static const float wanted[8] = {7, -7, 0, 2, 0, -2, 2, -6};
    ok(same_floats(back, wanted, 8), "q4 rounds halves to even");
    ok(record[0] == 0x00 && record[1] == 0x3c && record[2] == 0 && record[3] == 0,
       "scale 1.0 for the row, 0 for padding rows");
    ok(record[32] == (15 | 8 << 4) && record[36] == 0x88, "q = 8 is zero, in padding too");

    float tiny[32] = {1e-9f, -1e-9f};
    vf_tile_pack_rows(VF_QUANT_Q4, 1, 32, 0, 1, tiny, record);
    ok(record[0] == 0 && record[1] == 0 && record[32] == 0x88, "a scale that underflows: zeros");
    float huge[32] = {3e38f, -3e38f, 1.0f};
    vf_tile_pack_rows(VF_QUANT_Q4, 1, 32, 0, 1, huge, record);
    vf_tile_unpack_row(&m, 0, back);
    static const float clipped[3] = {7 * 65504.0f, -8 * 65504.0f, 0};
    ok(same_floats(back, clipped, 3), "a scale that overflows: the largest half, codes clip");
}

int main(void)
{
    plan(4 + 5 + 2 * (int)SIZE_COUNT * VF_QUANT_COUNT);
    rng_seed(1);
    test_half_floats();
    test_rules();
    for (int quant = 0; quant < VF_QUANT_COUNT; quant++)
        for (size_t i = 0; i < SIZE_COUNT; i++)
            test_size(quant, sizes[i][0], sizes[i][1]);
    return 0;
}
