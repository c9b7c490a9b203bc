/* The matrix kernels.
 *
 * The reference decodes the bytes by the layout in tile.h's comment, walking the matrix in memory
 * order, and multiplies in double. Every other tier must return the scalar tier's bits, for
 * any range of row blocks and any number of columns, and write nothing else.
 */
#include "kernel_test.h"

struct acts_buffer {
    struct vf_acts acts;
    struct guarded x, q, scale, sum;
};

static void acts_create(struct acts_buffer *b, const struct vf_kernels *k, uint32_t n_col,
                        uint32_t cols, enum kind kind, enum guard side)
{
    uint32_t stride = (cols + 31) / 32 * 32;
    size_t groups = (size_t)n_col * stride / 32;
    b->x = guarded_alloc((size_t)n_col * stride * sizeof(float), side);
    b->q = guarded_alloc((size_t)n_col * stride, side);
    b->scale = guarded_alloc(groups * sizeof(float), side);
    b->sum = guarded_alloc(groups * sizeof(int32_t), side);
    for (uint32_t c = 0; c < n_col; c++)
        for (uint32_t i = 0; i < cols; i++)
            ((float *)b->x.p)[(size_t)c * stride + i] = rng_value(kind);
    k->quantize_q8(b->x.p, n_col * stride, b->q.p, b->scale.p, b->sum.p);
    b->acts = (struct vf_acts){b->x.p, b->q.p, b->scale.p, b->sum.p, n_col, cols, stride};
}

static void acts_destroy(struct acts_buffer *b)
{
    guarded_free(&b->x);
    guarded_free(&b->q);
    guarded_free(&b->scale);
    guarded_free(&b->sum);
}

/* ---- matrices ---- */

enum bytes_kind { BYTES_PACKED, BYTES_ANY, BYTES_ALL_ONES };

/* Packed from weights, or any bytes at all (NaN scales, -128 codes: a file may hold them). */
static struct guarded matrix_create(struct vf_matrix *m, enum vf_quant quant, uint32_t rows,
                                    uint32_t cols, enum bytes_kind kind, enum guard side)
{
    size_t bytes = vf_matrix_bytes(quant, rows, cols);
    struct guarded g = guarded_alloc(bytes, side);
    uint8_t *p = g.p;
    if (kind == BYTES_PACKED) {
        float *w = must_alloc((size_t)rows * cols * sizeof(*w));
        rng_fill(w, (size_t)rows * cols, KIND_PLAIN);
        vf_tile_pack_rows(quant, rows, cols, 0, rows, w, p);
        free(w);
    } else {
        for (size_t i = 0; i < bytes; i++)
            p[i] = kind == BYTES_ANY ? (uint8_t)rng_u32() : 0xff;
    }
    *m = (struct vf_matrix){p, rows, cols, quant};
    return g;
}

/* All codes at one end: nibble 15 or 0, or int8 -128 or 127, scale 1. */
static void matrix_fill_extreme(const struct vf_matrix *m, uint8_t *p, uint8_t body)
{
    size_t record = vf_record_bytes(m->quant);
    size_t bytes = vf_matrix_bytes(m->quant, m->rows, m->cols);
    for (size_t i = 0; i < bytes; i++)
        p[i] = i % record >= 32 ? body : i % 2 ? 0x3c : 0;
}

/* ---- the independent reference ---- */

static float read_half(const uint8_t *p)
{
    return half_value((uint16_t)(p[0] + 256 * p[1]));
}

static double weight_in_record(enum vf_quant quant, const uint8_t *record, uint32_t r, uint32_t c)
{
    const uint8_t *body = record + 32;
    float f;
    switch (quant) {
    case VF_QUANT_Q4: {
        uint32_t k = c % 16;
        uint8_t byte = body[64 * (k / 4) + 4 * r + k % 4];
        int q = c < 16 ? byte % 16 : byte / 16;
        return (double)read_half(record + 2 * r) * (q - 8);
    }
    case VF_QUANT_Q8:
        return (double)read_half(record + 2 * r) * (int8_t)body[64 * (c / 4) + 4 * r + c % 4];
    case VF_QUANT_F16:
        return read_half(record + 2 * (16 * c + r));
    default:
        memcpy(&f, record + 4 * (16 * c + r), sizeof(f));
        return f;
    }
}

/* w[rows][cols], by walking the records in memory order. */
static double *decode(const struct vf_matrix *m)
{
    double *w = must_alloc((size_t)m->rows * m->cols * sizeof(*w));
    static const uint32_t record_bytes[] = {2048, 1024, 544, 288};
    const uint8_t *record = m->data;
    for (uint32_t stripe = 0; stripe < m->rows; stripe += 128)
        for (uint32_t tile = 0; tile < m->cols; tile += 256)
            for (uint32_t row = stripe; row < stripe + 128 && row < m->rows; row += 16)
                for (uint32_t col = tile; col < tile + 256 && col < m->cols; col += 32) {
                    for (uint32_t r = 0; r < 16 && row + r < m->rows; r++)
                        for (uint32_t c = 0; c < 32 && col + c < m->cols; c++)
                            w[(size_t)(row + r) * m->cols + col + c] =
                                weight_in_record(m->quant, record, r, c);
                    record += record_bytes[m->quant];
                }
    return w;
}

static double activation(const struct vf_acts *a, bool q8, uint32_t col, uint32_t i)
{
    size_t at = (size_t)col * a->stride + i;
    return q8 ? (double)a->q[at] * (double)a->scale[at / 32] : (double)a->x[at];
}

static bool product_is_close(const struct vf_matrix *m, const struct vf_acts *a, bool q8,
                             const float *y, size_t y_stride)
{
    bool close = true;
    double *w = decode(m);
    for (uint32_t c = 0; c < a->n_col; c++)
        for (uint32_t r = 0; r < m->rows; r++) {
            double sum = 0.0, magnitude = 0.0;
            for (uint32_t i = 0; i < m->cols; i++) {
                double term = w[(size_t)r * m->cols + i] * activation(a, q8, c, i);
                sum += term;
                magnitude += fabs(term);
            }
            close &= close_to(y[c * y_stride + r], sum, 4e-6 * magnitude + 1e-30);
        }
    free(w);
    return close;
}

/* ---- tests ---- */

static const uint32_t sizes[][2] = {{1, 1},      {17, 33}, {128, 256}, {129, 257}, {172, 64},
                                    {300, 1000}, {16, 32}, {48, 544},  {260, 288}};
#define SIZE_COUNT (sizeof(sizes) / sizeof(sizes[0]))

static vf_matmul_fn *matmul_of(const struct vf_kernels *k, enum vf_quant quant, bool q8)
{
    return q8 ? k->matmul_q8[quant] : k->matmul_f32[quant];
}

static void test_scalar(const struct vf_kernels *k, enum vf_quant quant, bool q8)
{
    bool close = true;
    bool integer = q8 && (quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        struct vf_matrix m;
        struct acts_buffer b;
        struct guarded g =
            matrix_create(&m, quant, sizes[i][0], sizes[i][1], BYTES_PACKED, GUARD_END);
        acts_create(&b, k, 3, m.cols, KIND_PLAIN, GUARD_END);
        float *y = must_alloc(3 * m.rows * sizeof(*y));
        matmul_of(k, quant, q8)(&m, &b.acts, 0, vf_row_blocks(m.rows), y, m.rows);
        close &= product_is_close(&m, &b.acts, integer, y, m.rows);
        free(y);
        acts_destroy(&b);
        guarded_free(&g);
    }
    ok(close, "scalar %s with %s activations is W x", vf_quant_name(quant), q8 ? "q8" : "f32");
}

/* The whole product from the scalar tier, then the tier's by random splits of the row blocks,
 * in a buffer of the same stride whose end meets a guard page; untouched bytes stay. */
static bool tier_equals(const struct tiers *t, const struct vf_kernels *tier,
                        const struct vf_matrix *m, const struct vf_acts *acts, bool q8,
                        enum guard side)
{
    size_t stride = m->rows + rng_below(3);
    size_t count = (acts->n_col - 1) * stride + m->rows;
    struct guarded y = guarded_alloc(count * sizeof(float), side);
    float *wanted = must_alloc(count * sizeof(*wanted));
    for (size_t i = 0; i < count; i++)
        ((float *)y.p)[i] = wanted[i] = 1234.5f;
    uint32_t blocks = vf_row_blocks(m->rows);
    matmul_of(t->scalar, m->quant, q8)(m, acts, 0, blocks, wanted, stride);
    for (uint32_t rb = 0; rb < blocks;) {
        uint32_t end = rb + rng_below(blocks - rb + 1); /* an empty range is fine */
        matmul_of(tier, m->quant, q8)(m, acts, rb, end, y.p, stride);
        rb = end;
    }
    bool same = same_floats(y.p, wanted, count);
    if (!same)
        note("%ux%u, %u columns", m->rows, m->cols, acts->n_col);
    free(wanted);
    guarded_free(&y);
    return same;
}

static void test_tier(const struct tiers *t, const struct vf_kernels *tier, enum vf_quant quant,
                      bool q8)
{
    bool same = true;
    for (size_t i = 0; i < SIZE_COUNT; i++)
        for (uint32_t n_col = 1; n_col <= 9 && same; n_col++) {
            struct vf_matrix m;
            struct acts_buffer b;
            enum guard side = n_col % GUARD_COUNT;
            enum bytes_kind bytes = n_col == 5 ? BYTES_ANY : n_col == 6 ? BYTES_ALL_ONES : 0;
            struct guarded g = matrix_create(&m, quant, sizes[i][0], sizes[i][1], bytes, side);
            acts_create(&b, t->scalar, n_col, m.cols, n_col % KIND_COUNT, side);
            same = tier_equals(t, tier, &m, &b.acts, q8, side);
            acts_destroy(&b);
            guarded_free(&g);
        }
    ok(same, "%s: %s with %s activations has the scalar bits", tier->name, vf_quant_name(quant),
       q8 ? "q8" : "f32");
}

/* Column counts around the tiles and panels of the products for many columns, over one row block,
 * several stripes and partial tiles. */
static void test_panels(const struct tiers *t, const struct vf_kernels *tier, enum vf_quant quant)
{
    static const uint32_t n_cols[] = {10, 15, 16, 17, 19, 23, 33, 63, 64, 65, 100, 130};
    static const uint32_t shapes[][2] = {{150, 300}, {16, 512}, {33, 31}};
    bool same = true;
    for (size_t i = 0; i < sizeof(n_cols) / sizeof(n_cols[0]); i++)
        for (size_t j = 0; j < sizeof(shapes) / sizeof(shapes[0]) && same; j++) {
            struct vf_matrix m;
            struct acts_buffer b;
            enum guard side = i % GUARD_COUNT;
            enum bytes_kind bytes = (i + j) % 3;
            struct guarded g = matrix_create(&m, quant, shapes[j][0], shapes[j][1], bytes, side);
            acts_create(&b, t->scalar, n_cols[i], m.cols, (i + j) % KIND_COUNT, side);
            same = tier_equals(t, tier, &m, &b.acts, true, side);
            acts_destroy(&b);
            guarded_free(&g);
        }
    ok(same, "%s: many columns of %s with q8 activations have the scalar bits", tier->name,
       vf_quant_name(quant));
}

/* Every number of whole stripes, with and without a part of one behind them, from every place in
 * the first: stripes that are read side by side, and those that are left over. */
static void test_stripes(const struct tiers *t, const struct vf_kernels *tier, enum vf_quant quant)
{
    bool same = true;
    for (uint32_t stripes = 1; stripes <= 9; stripes++)
        for (uint32_t n_col = 1; n_col <= 4 && same; n_col++) {
            struct vf_matrix m;
            struct acts_buffer b;
            enum guard side = stripes % GUARD_COUNT;
            uint32_t rows = 128 * stripes + rng_below(3) * 25;
            struct guarded g = matrix_create(&m, quant, rows, 272, BYTES_ANY, side);
            acts_create(&b, t->scalar, n_col, m.cols, KIND_PLAIN, side);
            uint32_t blocks = vf_row_blocks(rows);
            float *wanted = must_alloc((size_t)n_col * rows * sizeof(*wanted));
            float *y = must_alloc((size_t)n_col * rows * sizeof(*y));
            t->scalar->matmul_q8[quant](&m, &b.acts, 0, blocks, wanted, rows);
            for (uint32_t first = 0; first < 8; first++) {
                memset(y, 0, (size_t)n_col * rows * sizeof(*y));
                tier->matmul_q8[quant](&m, &b.acts, 0, first, y, rows);
                tier->matmul_q8[quant](&m, &b.acts, first, blocks, y, rows);
                same &= same_floats(y, wanted, (size_t)n_col * rows);
            }
            if (!same)
                note("%u rows, %u columns", rows, n_col);
            free(wanted);
            free(y);
            acts_destroy(&b);
            guarded_free(&g);
        }
    ok(same, "%s: stripes of %s side by side have the scalar bits", tier->name,
       vf_quant_name(quant));
}

/* More columns than one pass holds, against one column at a time. */
static void test_many_columns(const struct vf_kernels *k, const struct vf_kernels *scalar,
                              enum vf_quant quant, bool q8)
{
    struct vf_matrix m;
    struct acts_buffer b;
    struct guarded g = matrix_create(&m, quant, 150, 300, BYTES_PACKED, GUARD_END);
    acts_create(&b, scalar, 37, m.cols, KIND_PLAIN, GUARD_END);
    uint32_t blocks = vf_row_blocks(m.rows);
    float *y = must_alloc(37 * m.rows * sizeof(*y));
    float *one = must_alloc(m.rows * sizeof(*one));
    bool same = true;
    matmul_of(k, quant, q8)(&m, &b.acts, 0, blocks, y, m.rows);
    for (uint32_t c = 0; c < 37; c++) {
        size_t group = (size_t)c * b.acts.stride / 32;
        struct vf_acts acts = {b.acts.x + (size_t)c * b.acts.stride,
                               b.acts.q + (size_t)c * b.acts.stride,
                               b.acts.scale + group,
                               b.acts.sum + group,
                               1,
                               m.cols,
                               b.acts.stride};
        matmul_of(k, quant, q8)(&m, &acts, 0, blocks, one, m.rows);
        same &= same_floats(one, y + (size_t)c * m.rows, m.rows);
    }
    ok(same, "%s: 37 columns of %s with %s activations equal single ones", k->name,
       vf_quant_name(quant), q8 ? "q8" : "f32");
    free(one);
    free(y);
    acts_destroy(&b);
    guarded_free(&g);
}

/* Largest weights times largest codes, of both signs: where 16-bit sums would clip. The result is
 * exact. */
static void test_extremes(const struct vf_kernels *k, enum vf_quant quant, uint8_t body, int weight,
                          uint32_t rows, uint32_t n_col)
{
    struct vf_matrix m;
    struct acts_buffer b;
    bool exact = true;
    struct guarded g = matrix_create(&m, quant, rows, 288, BYTES_ANY, GUARD_END);
    matrix_fill_extreme(&m, g.p, body);
    acts_create(&b, k, n_col, m.cols, KIND_PLAIN, GUARD_END);
    for (uint32_t i = 0; i < n_col * m.cols; i++)
        ((float *)b.x.p)[i] = i / m.cols % 2 ? -127.0f : 127.0f;
    k->quantize_q8(b.x.p, n_col * m.cols, b.q.p, b.scale.p, b.sum.p);
    float *y = must_alloc((size_t)n_col * rows * sizeof(*y));
    k->matmul_q8[quant](&m, &b.acts, 0, vf_row_blocks(rows), y, rows);
    for (uint32_t i = 0; i < rows * n_col; i++)
        exact &=
            same_float(y[i], (i / rows % 2 ? -127.0f : 127.0f) * (float)weight * (float)m.cols);
    ok(exact, "%s: %s weights of %d times codes of 127 are exact, %u rows, %u columns", k->name,
       vf_quant_name(quant), weight, rows, n_col);
    free(y);
    acts_destroy(&b);
    guarded_free(&g);
}

#define EXTREMES 16

static void test_extremes_of(const struct vf_kernels *k)
{
    static const uint32_t shapes[][2] = {{16, 2}, {16, 24}, {640, 1}, {640, 2}}; /* rows, columns */
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        test_extremes(k, VF_QUANT_Q4, 0xff, 7, shapes[i][0], shapes[i][1]);
        test_extremes(k, VF_QUANT_Q4, 0x00, -8, shapes[i][0], shapes[i][1]);
        test_extremes(k, VF_QUANT_Q8, 0x7f, 127, shapes[i][0], shapes[i][1]);
        test_extremes(k, VF_QUANT_Q8, 0x80, -128, shapes[i][0], shapes[i][1]);
    }
}

int main(void)
{
    struct tiers t = tiers_available();
    plan(4 * VF_QUANT_COUNT + EXTREMES + t.other_count * (4 + EXTREMES + 4 * VF_QUANT_COUNT));
    rng_seed(3);
    test_extremes_of(t.scalar);
    for (int q8 = 0; q8 < 2; q8++)
        for (int quant = 0; quant < VF_QUANT_COUNT; quant++) {
            test_scalar(t.scalar, quant, q8);
            test_many_columns(t.scalar, t.scalar, quant, q8);
        }
    for (int i = 0; i < t.other_count; i++) {
        test_extremes_of(t.other[i]);
        test_stripes(&t, t.other[i], VF_QUANT_Q8);
        test_stripes(&t, t.other[i], VF_QUANT_Q4);
        test_panels(&t, t.other[i], VF_QUANT_Q8);
        test_panels(&t, t.other[i], VF_QUANT_Q4);
        for (int q8 = 0; q8 < 2; q8++)
            for (int quant = 0; quant < VF_QUANT_COUNT; quant++) {
                test_tier(&t, t.other[i], quant, q8);
                test_many_columns(t.other[i], t.scalar, quant, q8);
            }
    }
    return 0;
}
