/* The specification: every kernel in plain C, in the order of operations kernels.h fixes.
 *
 * Clarity decides here. The vector tiers return these bits; tests/kernels compares them.
 */
#include "common/kernels/kernels_math.h"
#include "common/kernels/kernels_tiers.h"

#include <math.h>
#include <string.h>

#define LANES          16u
#define COLS_AT_A_TIME 8u /* activation columns that share one decoding of a record */

/* ---- matrices ---- */

/* One record as numbers: scales, and weights without them (q4: q - 8, q8: q). */
struct record {
    float scale[VF_RECORD_ROWS];
    int32_t code[VF_RECORD_ROWS][VF_RECORD_COLS]; /* q4, q8 */
    float weight[VF_RECORD_ROWS][VF_RECORD_COLS];
};

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static float load_float(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static int32_t code_at(enum vf_quant quant, const uint8_t *body, uint32_t r, uint32_t c)
{
    if (quant == VF_QUANT_Q8)
        return (int8_t)body[64 * (c / 4) + 4 * r + c % 4];
    uint8_t pair = body[64 * (c % 16 / 4) + 4 * r + c % 4];
    return (c < 16 ? pair & 15 : pair >> 4) - 8;
}

static void decode_codes(enum vf_quant quant, const uint8_t *p, struct record *rec)
{
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++) {
        rec->scale[r] = vf_f16_to_f32(load_u16(p + 2 * r));
        for (uint32_t c = 0; c < VF_RECORD_COLS; c++) {
            rec->code[r][c] = code_at(quant, p + 2 * VF_RECORD_ROWS, r, c);
            rec->weight[r][c] = (float)rec->code[r][c];
        }
    }
}

static void decode_floats(enum vf_quant quant, const uint8_t *p, struct record *rec)
{
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++)
        for (uint32_t c = 0; c < VF_RECORD_COLS; c++) {
            uint32_t i = VF_RECORD_ROWS * c + r;
            rec->weight[r][c] =
                quant == VF_QUANT_F16 ? vf_f16_to_f32(load_u16(p + 2 * i)) : load_float(p + 4 * i);
        }
}

static float dot_f32(const float *w, const float *x)
{
    float p[4] = {0};
    for (uint32_t j = 0; j < VF_RECORD_COLS; j++)
        p[j % 4] = fmaf(w[j], x[j], p[j % 4]);
    return (p[0] + p[1]) + (p[2] + p[3]);
}

static int32_t dot_q8(const int32_t *w, const int8_t *x)
{
    int32_t sum = 0;
    for (uint32_t j = 0; j < VF_RECORD_COLS; j++)
        sum += w[j] * x[j];
    return sum;
}

/* Adds one record's part of 16 rows for one activation column. */
typedef void accumulate_fn(const struct record *rec, const struct vf_acts *acts, uint32_t col,
                           uint32_t g, float *acc);

static void accumulate_scaled_f32(const struct record *rec, const struct vf_acts *acts,
                                  uint32_t col, uint32_t g, float *acc)
{
    const float *x = acts->x + (size_t)col * acts->stride + g * VF_RECORD_COLS;
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++)
        acc[r] = fmaf(rec->scale[r], dot_f32(rec->weight[r], x), acc[r]);
}

static void accumulate_plain_f32(const struct record *rec, const struct vf_acts *acts, uint32_t col,
                                 uint32_t g, float *acc)
{
    const float *x = acts->x + (size_t)col * acts->stride + g * VF_RECORD_COLS;
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++)
        acc[r] = acc[r] + dot_f32(rec->weight[r], x);
}

static void accumulate_q8(const struct record *rec, const struct vf_acts *acts, uint32_t col,
                          uint32_t g, float *acc)
{
    const int8_t *x = acts->q + (size_t)col * acts->stride + g * VF_RECORD_COLS;
    float scale = acts->scale[(size_t)col * (acts->stride / VF_RECORD_COLS) + g];
    for (uint32_t r = 0; r < VF_RECORD_ROWS; r++)
        acc[r] = fmaf((float)dot_q8(rec->code[r], x), rec->scale[r] * scale, acc[r]);
}

static void matmul_block(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb,
                         uint32_t col, uint32_t col_count, accumulate_fn *accumulate, float *y,
                         size_t y_stride)
{
    float acc[COLS_AT_A_TIME][VF_RECORD_ROWS] = {{0}};
    struct record rec;
    bool integer = m->quant == VF_QUANT_Q4 || m->quant == VF_QUANT_Q8;
    for (uint32_t g = 0; g < vf_col_groups(m->cols); g++) {
        const uint8_t *p = m->data + vf_record_offset(m->quant, m->rows, m->cols, rb, g);
        if (integer)
            decode_codes(m->quant, p, &rec);
        else
            decode_floats(m->quant, p, &rec);
        for (uint32_t c = 0; c < col_count; c++)
            accumulate(&rec, acts, col + c, g, acc[c]);
    }
    for (uint32_t c = 0; c < col_count; c++)
        for (uint32_t r = 0; r < VF_RECORD_ROWS && rb * VF_RECORD_ROWS + r < m->rows; r++)
            y[(col + c) * y_stride + rb * VF_RECORD_ROWS + r] = acc[c][r];
}

static void matmul(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                   uint32_t rb_end, accumulate_fn *accumulate, float *y, size_t y_stride)
{
    VF_ASSERT(acts->cols == m->cols && rb_end <= vf_row_blocks(m->rows));
    for (uint32_t rb = rb_begin; rb < rb_end; rb++)
        for (uint32_t col = 0; col < acts->n_col; col += COLS_AT_A_TIME) {
            uint32_t left = acts->n_col - col;
            uint32_t count = left < COLS_AT_A_TIME ? left : COLS_AT_A_TIME;
            matmul_block(m, acts, rb, col, count, accumulate, y, y_stride);
        }
}

static void matmul_scaled_f32(const struct vf_matrix *m, const struct vf_acts *acts,
                              uint32_t rb_begin, uint32_t rb_end, float *y, size_t y_stride)
{
    matmul(m, acts, rb_begin, rb_end, accumulate_scaled_f32, y, y_stride);
}

static void matmul_plain_f32(const struct vf_matrix *m, const struct vf_acts *acts,
                             uint32_t rb_begin, uint32_t rb_end, float *y, size_t y_stride)
{
    matmul(m, acts, rb_begin, rb_end, accumulate_plain_f32, y, y_stride);
}

static void matmul_q8(const struct vf_matrix *m, const struct vf_acts *acts, uint32_t rb_begin,
                      uint32_t rb_end, float *y, size_t y_stride)
{
    matmul(m, acts, rb_begin, rb_end, accumulate_q8, y, y_stride);
}

/* A group with a NaN or infinity, and one whose scale underflows, has no codes. */
static void quantize_group(const float *x, int8_t *q, float *scale, int32_t *sum)
{
    uint32_t largest = 0; /* as bits, which order like magnitudes, NaN above infinity */
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++) {
        uint32_t bits = vf_float_bits(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    *sum = 0;
    *scale = largest >= 0x7f800000u ? NAN : vf_bits_float(largest) / 127.0f;
    memset(q, 0, VF_RECORD_COLS);
    if (!(*scale > 0.0f))
        return;
    for (uint32_t i = 0; i < VF_RECORD_COLS; i++) {
        float v = rintf(x[i] / *scale);
        v = v < -127.0f ? -127.0f : v;
        v = v > 127.0f ? 127.0f : v; /* a subnormal scale is coarse */
        q[i] = (int8_t)v;
        *sum += q[i];
    }
}

static void quantize_q8(const float *x, uint32_t n, int8_t *q, float *scale, int32_t *sum)
{
    for (uint32_t g = 0; g < n / VF_RECORD_COLS; g++)
        quantize_group(x + g * VF_RECORD_COLS, q + g * VF_RECORD_COLS, scale + g, sum + g);
}

/* ---- vectors ---- */

static float fold_add(float *lane)
{
    for (uint32_t width = LANES / 2; width > 0; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static float fold_max(float *lane)
{
    for (uint32_t width = LANES / 2; width > 0; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lane[i] = vf_math_max(lane[i], lane[i + width]);
    return lane[0];
}

static void fill_lanes(float *lane, float value)
{
    for (uint32_t i = 0; i < LANES; i++)
        lane[i] = value;
}

static void rmsnorm(const float *x, const float *w, float offset, float eps, uint32_t n, float *y)
{
    float lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    float r = 1.0f / sqrtf(fold_add(lane) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = w ? (x[i] * r) * (w[i] + offset) : x[i] * r;
}

static void rope(float *x, const float *cosine, const float *sine, uint32_t n_pair,
                 uint32_t distance)
{
    for (uint32_t i = 0; i < n_pair; i++) {
        float a = x[i];
        float b = x[i + distance];
        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[i + distance] = fmaf(b, cosine[i], a * sine[i]);
    }
}

static void act_mul(enum vf_activation act, const float *gate, const float *up, uint32_t n,
                    float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        float v = vf_math_activate(act, gate[i]);
        out[i] = up ? v * up[i] : v;
    }
}

static void axpy(float a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void mul_add(const float *w, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(w[i], x[i], y[i]);
}

static void add(const float *x, const float *y, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] + y[i];
}

static void scale_by(float a, uint32_t n, float *x)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * a;
}

static float softcap_one(float cap, float x)
{
    return cap * vf_math_tanh(x / cap);
}

static void softcap(float cap, uint32_t n, float *x)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = softcap_one(cap, x[i]);
}

static float max_of(const float *x, uint32_t n)
{
    float lane[LANES];
    fill_lanes(lane, -INFINITY);
    for (uint32_t i = 0; i < n; i++)
        lane[i % LANES] = vf_math_max(lane[i % LANES], x[i]);
    return fold_max(lane);
}

static float exp_sum(const float *x, float max, uint32_t n, float *out)
{
    float lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float e = vf_math_exp(x[i] - max);
        lane[i % LANES] = lane[i % LANES] + e;
        if (out)
            out[i] = e;
    }
    return fold_add(lane);
}

static void log_softmax(const float *x, float max, float log_sum, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (x[i] - max) - log_sum;
}

static void log_add_exp(const float *x, float x_add, const float *y, float y_add, uint32_t n,
                        float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = x[i] + x_add, b = y[i] + y_add;
        float larger = a > b ? a : b, smaller = a > b ? b : a;
        float d = larger > -INFINITY ? smaller - larger : -INFINITY;
        out[i] = larger + vf_math_log(1.0f + vf_math_exp(d));
    }
}

static void f32_to_f16(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vf_f32_to_f16(x[i]);
}

static void f16_to_f32(const uint16_t *x, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vf_f16_to_f32(x[i]);
}

/* ---- attention ---- */

static float kv_at(const void *kv, bool f16, size_t i)
{
    return f16 ? vf_f16_to_f32(((const uint16_t *)kv)[i]) : ((const float *)kv)[i];
}

static float score(const struct vf_attn_args *a, const float *q, uint32_t t)
{
    size_t first = (size_t)(t / LANES) * a->head_dim * LANES + t % LANES;
    float p[4] = {0};
    for (uint32_t i = 0; i < a->head_dim; i++)
        p[i % 4] = fmaf(q[i], kv_at(a->k, a->kv_f16, first + i * LANES), p[i % 4]);
    float s = ((p[0] + p[1]) + (p[2] + p[3])) * a->scale;
    return a->softcap > 0.0f ? softcap_one(a->softcap, s) : s;
}

static float weighted_value(const struct vf_attn_args *a, struct vf_attn_keys keys, const float *p,
                            uint32_t i)
{
    float out = 0.0f;
    for (uint32_t t = keys.begin; t < keys.end; t++)
        out = fmaf(p[t], kv_at(a->v, a->kv_f16, (size_t)t * a->head_dim + i), out);
    return out;
}

static void attend(const struct vf_attn_args *a, uint32_t query)
{
    struct vf_attn_keys keys = vf_attn_keys_of(a, query);
    const float *q = vf_attn_query(a, query);
    float p[VF_ATTN_BLOCK];
    float max_lane[LANES];
    float sum_lane[LANES] = {0};
    fill_lanes(max_lane, -INFINITY);
    for (uint32_t t = keys.begin; t < keys.end; t++) {
        p[t] = score(a, q, t);
        max_lane[t % LANES] = vf_math_max(max_lane[t % LANES], p[t]);
    }
    float max = fold_max(max_lane);
    for (uint32_t t = keys.begin; t < keys.end; t++) {
        p[t] = vf_math_exp(p[t] - max);
        sum_lane[t % LANES] = sum_lane[t % LANES] + p[t];
    }
    a->max[query] = max;
    a->sum[query] = fold_add(sum_lane);
    for (uint32_t i = 0; i < a->head_dim; i++)
        a->out[query * a->out_stride + i] = weighted_value(a, keys, p, i);
}

static void attention_block(const struct vf_attn_args *a)
{
    for (uint32_t query = 0; query < a->n_q; query++)
        attend(a, query);
}

float vf_expf(float x)
{
    return vf_math_exp(x);
}

float vf_logf(float x)
{
    return vf_math_log(x);
}

float vf_tanhf(float x)
{
    return vf_math_tanh(x);
}

void vf_kernels_fill_scalar(struct vf_kernels *table)
{
    *table = (struct vf_kernels){
        .name = "scalar",
        .matmul_f32 = {[VF_QUANT_F32] = matmul_plain_f32,
                       [VF_QUANT_F16] = matmul_plain_f32,
                       [VF_QUANT_Q8] = matmul_scaled_f32,
                       [VF_QUANT_Q4] = matmul_scaled_f32},
        .matmul_q8 = {[VF_QUANT_F32] = matmul_plain_f32,
                      [VF_QUANT_F16] = matmul_plain_f32,
                      [VF_QUANT_Q8] = matmul_q8,
                      [VF_QUANT_Q4] = matmul_q8},
        .stripes_q8 = {1, 1, 1, 1, 1},
        .quantize_q8 = quantize_q8,
        .rmsnorm = rmsnorm,
        .rope = rope,
        .act_mul = act_mul,
        .axpy = axpy,
        .mul_add = mul_add,
        .add = add,
        .scale = scale_by,
        .softcap = softcap,
        .attention_block = attention_block,
        .max = max_of,
        .exp_sum = exp_sum,
        .log_softmax = log_softmax,
        .log_add_exp = log_add_exp,
        .f32_to_f16 = f32_to_f16,
        .f16_to_f32 = f16_to_f32,
    };
}
