/* The attention operation: projections, norms and rotation, the KV cache, scores over key blocks.
 *
 * Keys are split at fixed positions (blocks of VF_ATTN_BLOCK), each block gives a maximum, a sum
 * and a weighted value; the blocks of one column and KV head are combined in ascending order. A
 * short list of columns is parallel over blocks as well, with the same arithmetic.
 */
#include "stage_worker/internal.h"

#include "common/util.h"

#include <math.h>
#include <string.h>

/* ---- rotations ---------------------------------------------------------------------------- */

/* powl, sinl and cosl run on the x87 unit, which has no variants per instruction set. */
void attention_init(struct vf_executor *ex)
{
    const struct vf_config *c = ex->config;
    uint32_t rotated = (uint32_t)(c->partial_rotary_factor * c->head_dim + 0.5);
    bool proportional = c->rope_kind == VF_ROPE_PROPORTIONAL;
    ex->rope_pairs = rotated / 2;
    ex->rope_distance = proportional ? c->head_dim / 2 : rotated / 2;
    uint32_t exponent_dim = proportional ? c->head_dim : rotated;
    for (uint32_t i = 0; i < ex->rope_pairs; i++)
        ex->rope_freq[i] =
            (double)powl((long double)c->rope_theta, -2.0L * i / (long double)exponent_dim);
}

void attention_prepare_step(struct vf_executor *ex)
{
    for (uint32_t c = 0; c < ex->n_col; c++) {
        float *cosines = ex->rope_cos + (size_t)c * ex->rope_pairs;
        float *sines = ex->rope_sin + (size_t)c * ex->rope_pairs;
        if (ex->columns[c].primary != c ||
            (c > 0 && ex->columns[c - 1].position == ex->columns[c].position)) {
            uint32_t same = ex->columns[c].primary != c ? ex->columns[c].primary : c - 1;
            memcpy(cosines, ex->rope_cos + (size_t)same * ex->rope_pairs,
                   ex->rope_pairs * sizeof *cosines);
            memcpy(sines, ex->rope_sin + (size_t)same * ex->rope_pairs,
                   ex->rope_pairs * sizeof *sines);
            continue;
        }
        for (uint32_t i = 0; i < ex->rope_pairs; i++) {
            long double angle = (long double)ex->columns[c].position * ex->rope_freq[i];
            cosines[i] = (float)cosl(angle);
            sines[i] = (float)sinl(angle);
        }
    }
}

/* ---- queries, keys, values ------------------------------------------------------------------ */

static void project(struct vf_executor *ex, const struct layer_weights *w,
                    const struct vf_acts *acts)
{
    const struct vf_config *c = ex->config;
    struct matmul_job jobs[2 + VF_FLOWS_MAX];
    uint32_t n = 0;
    size_t q_width = (size_t)c->head_count * c->head_dim;
    size_t kv_width = (size_t)c->kv_head_count * c->head_dim;
    if (!c->flow_specific_dense) {
        jobs[n++] =
            (struct matmul_job){.m = &w->q[0], .acts = *acts, .y = ex->q, .y_stride = q_width};
    } else {
        for (uint32_t j = 0; j < ex->flows; j++) {
            uint32_t begin = ex->flow_begin[j], count = ex->flow_begin[j + 1] - begin;
            if (count)
                jobs[n++] = (struct matmul_job){.m = &w->q[j],
                                                .acts = slice_acts(acts, begin, count),
                                                .y = ex->q + begin * q_width,
                                                .y_stride = q_width};
        }
    }
    struct vf_acts primary = slice_acts(acts, 0, ex->n_primary);
    jobs[n++] = (struct matmul_job){.m = &w->k, .acts = primary, .y = ex->k, .y_stride = kv_width};
    jobs[n++] = (struct matmul_job){.m = &w->v, .acts = primary, .y = ex->v, .y_stride = kv_width};
    run_matmuls(ex, jobs, n);
}

struct head_job {
    struct vf_executor *ex;
    const struct layer_weights *w;
    uint32_t kv;
};

static void norm_heads(struct vf_executor *ex, float *x, uint32_t heads, const float *w)
{
    const struct vf_config *c = ex->config;
    float offset = c->norm_weight_offset ? 1.0f : 0.0f;
    if (c->qk_norm == VF_QK_NORM_WHOLE) {
        ex->p.kernels->rmsnorm(x, w, offset, c->norm_eps, heads * c->head_dim, x);
        return;
    }
    for (uint32_t h = 0; h < heads; h++)
        ex->p.kernels->rmsnorm(x + (size_t)h * c->head_dim, w, offset, c->norm_eps, c->head_dim,
                               x + (size_t)h * c->head_dim);
}

static void rotate_heads(struct vf_executor *ex, float *x, uint32_t heads, uint32_t column)
{
    size_t at = (size_t)column * ex->rope_pairs;
    for (uint32_t h = 0; h < heads; h++)
        ex->p.kernels->rope(x + (size_t)h * ex->config->head_dim, ex->rope_cos + at,
                            ex->rope_sin + at, ex->rope_pairs, ex->rope_distance);
}

/* a_j * (Wq y_0), from flow 0's raw projection: runs before any norm or rotation. */
static void couple_queries(struct vf_executor *ex, const struct layer_weights *w)
{
    uint32_t width = ex->config->head_count * ex->config->head_dim;
    for (uint32_t c = ex->n_primary; c < ex->n_col; c++) {
        const float *coupling = w->query_coupling[ex->columns[c].flow];
        if (coupling)
            ex->p.kernels->mul_add(coupling, ex->q + (size_t)ex->columns[c].primary * width, width,
                                   ex->q + (size_t)c * width);
    }
}

static void column_heads(void *ctx, uint32_t column, uint32_t thread)
{
    (void)thread;
    struct head_job *j = ctx;
    struct vf_executor *ex = j->ex;
    const struct vf_config *c = ex->config;
    const struct vf_kernels *kernels = ex->p.kernels;
    uint32_t q_width = c->head_count * c->head_dim, kv_width = c->kv_head_count * c->head_dim;
    float *q = ex->q + (size_t)column * q_width;
    if (j->w->q_bias)
        kernels->add(q, j->w->q_bias, q_width, q);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(ex, q, c->head_count, j->w->q_norm);
    rotate_heads(ex, q, c->head_count, column);
    if (column >= ex->n_primary)
        return; /* keys and values are flow 0's */
    float *k = ex->k + (size_t)column * kv_width, *v = ex->v + (size_t)column * kv_width;
    if (j->w->k_bias)
        kernels->add(k, j->w->k_bias, kv_width, k);
    if (j->w->v_bias)
        kernels->add(v, j->w->v_bias, kv_width, v);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(ex, k, c->kv_head_count, j->w->k_norm);
    rotate_heads(ex, k, c->kv_head_count, column);
    for (uint32_t h = 0; h < c->kv_head_count; h++) {
        float *value = v + (size_t)h * c->head_dim;
        if (c->v_norm)
            kernels->rmsnorm(value, NULL, 0.0f, c->norm_eps, c->head_dim, value);
        vf_kv_cache_put(ex->kv, kernels, j->kv, ex->columns[column].sequence, h,
                        ex->columns[column].position, k + (size_t)h * c->head_dim, value);
    }
}

/* ---- scores ------------------------------------------------------------------------------------
 */

struct key_range {
    uint32_t begin, end; /* key positions */
};

static struct key_range visible_keys(const struct vf_executor *ex, uint32_t layer, uint32_t column)
{
    uint32_t position = ex->columns[column].position;
    uint32_t window = ex->config->sliding_window;
    struct key_range r = {0, position + 1};
    if (window && vf_config_layer_slides(ex->config, layer) && r.end > window)
        r.begin = r.end - window;
    return r;
}

struct score_job {
    struct vf_executor *ex;
    const struct vf_op *op;
    uint32_t kv;
    uint32_t first_column; /* of this batch of items */
    uint32_t blocks;       /* items per (column, KV head); 1: one item does all blocks */
    bool combine;
};

/* Results of block `slot` of an item: group maxima, group sums, then group x head_dim values. */
static float *partial_slot(const struct vf_executor *ex, uint64_t item, uint32_t slot)
{
    uint32_t group = ex->config->head_count / ex->config->kv_head_count;
    return ex->partials + item * ex->partial_floats +
           (uint64_t)slot * group * (ex->config->head_dim + 2);
}

static void score_block(struct vf_executor *ex, const struct score_job *j, uint32_t column,
                        uint32_t kv_head, struct key_range keys, uint32_t block, float *out)
{
    const struct vf_config *c = ex->config;
    uint32_t group = c->head_count / c->kv_head_count;
    uint32_t first = block * VF_ATTN_BLOCK;
    struct vf_attn_args args = {
        .q = ex->q + ((size_t)column * c->head_count + (size_t)kv_head * group) * c->head_dim,
        .q_stride = c->head_dim,
        .n_q = group,
        .kv_f16 = ex->p.kv_f16,
        .head_dim = c->head_dim,
        .key_begin = keys.begin > first ? keys.begin - first : 0,
        .key_end = keys.end - first < VF_ATTN_BLOCK ? keys.end - first : VF_ATTN_BLOCK,
        .scale = c->attn_scale,
        .softcap = c->attn_softcap,
        .max = out,
        .sum = out + group,
        .out = out + 2 * group,
        .out_stride = c->head_dim,
    };
    vf_kv_cache_block(ex->kv, j->kv, ex->columns[column].sequence, kv_head, block, &args.k,
                      &args.v);
    ex->p.kernels->attention_block(&args);
}

static void combine_blocks(struct vf_executor *ex, uint64_t item, uint32_t blocks, uint32_t column,
                           uint32_t kv_head)
{
    const struct vf_config *c = ex->config;
    uint32_t group = c->head_count / c->kv_head_count, hd = c->head_dim;
    uint32_t width = (uint32_t)vf_round_up((uint64_t)c->head_count * hd, 32);
    for (uint32_t g = 0; g < group; g++) {
        float max = -INFINITY, sum = 0.0f;
        for (uint32_t b = 0; b < blocks; b++) {
            float m = partial_slot(ex, item, b)[g];
            max = m > max || isnan(m) ? m : max;
        }
        float *out = ex->attn + (size_t)column * width + ((size_t)kv_head * group + g) * hd;
        memset(out, 0, hd * sizeof *out);
        for (uint32_t b = 0; b < blocks; b++) {
            const float *slot = partial_slot(ex, item, b);
            float weight = vf_expf(slot[g] - max);
            sum = fmaf(weight, slot[group + g], sum);
            ex->p.kernels->axpy(weight, slot + 2 * group + (size_t)g * hd, hd, out);
        }
        ex->p.kernels->scale(1.0f / sum, hd, out);
    }
}

/* All blocks of one column and KV head, in this thread's partial space. */
static void score_whole(void *ctx, uint32_t item, uint32_t thread)
{
    struct score_job *j = ctx;
    uint32_t heads = j->ex->config->kv_head_count;
    uint32_t column = item / heads, kv_head = item % heads;
    struct key_range keys = visible_keys(j->ex, j->op->layer, column);
    uint32_t first = keys.begin / VF_ATTN_BLOCK, end = (keys.end - 1) / VF_ATTN_BLOCK + 1;
    for (uint32_t b = first; b < end; b++)
        score_block(j->ex, j, column, kv_head, keys, b, partial_slot(j->ex, thread, b - first));
    combine_blocks(j->ex, thread, end - first, column, kv_head);
}

/* One block of one KV head of the column at hand; combined afterwards by combine_head. */
static void score_one_block(void *ctx, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct score_job *j = ctx;
    uint32_t kv_head = item / j->blocks, slot = item % j->blocks;
    struct key_range keys = visible_keys(j->ex, j->op->layer, j->first_column);
    score_block(j->ex, j, j->first_column, kv_head, keys, keys.begin / VF_ATTN_BLOCK + slot,
                partial_slot(j->ex, kv_head, slot));
}

static void combine_head(void *ctx, uint32_t kv_head, uint32_t thread)
{
    (void)thread;
    struct score_job *j = ctx;
    combine_blocks(j->ex, kv_head, j->blocks, j->first_column, kv_head);
}

static uint64_t kv_bytes_read(const struct vf_executor *ex, struct key_range keys)
{
    return (uint64_t)(keys.end - keys.begin) * ex->config->head_dim * (ex->p.kv_f16 ? 4 : 8);
}

static void score(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_config *c = ex->config;
    struct score_job job = {.ex = ex, .op = op, .kv = ex->kv_index[op->kv]};
    uint32_t threads = vf_pool_threads(ex->pool);
    if (ex->n_col * c->kv_head_count >= 4 * threads || threads == 1) {
        struct key_range keys = visible_keys(ex, op->layer, ex->n_primary - 1);
        run_parallel(ex, score_whole, &job, ex->n_col * c->kv_head_count,
                     kv_bytes_read(ex, keys) * ex->n_col * c->kv_head_count);
        return;
    }
    for (uint32_t column = 0; column < ex->n_col; column++) {
        struct key_range keys = visible_keys(ex, op->layer, column);
        job.first_column = column;
        job.blocks = (keys.end - 1) / VF_ATTN_BLOCK + 1 - keys.begin / VF_ATTN_BLOCK;
        uint64_t bytes = kv_bytes_read(ex, keys) * c->kv_head_count;
        run_parallel(ex, score_one_block, &job, c->kv_head_count * job.blocks, bytes);
        run_parallel(ex, combine_head, &job, c->kv_head_count,
                     (uint64_t)c->head_count * c->head_dim * job.blocks * 4);
    }
}

/* ---- output -------------------------------------------------------------------------------------
 */

static void project_out(struct vf_executor *ex, const struct layer_weights *w, float *out)
{
    const struct vf_config *c = ex->config;
    uint32_t cols = c->head_count * c->head_dim;
    struct vf_acts acts =
        prepare_acts(ex, ex->attn, ex->n_col, cols, (uint32_t)vf_round_up(cols, 32), &ex->acts2);
    struct matmul_job jobs[VF_FLOWS_MAX];
    uint32_t n = 0;
    if (!c->flow_specific_dense) {
        jobs[n++] =
            (struct matmul_job){.m = &w->o[0], .acts = acts, .y = out, .y_stride = ex->stride};
    } else {
        for (uint32_t j = 0; j < ex->flows; j++) {
            uint32_t begin = ex->flow_begin[j], count = ex->flow_begin[j + 1] - begin;
            if (count)
                jobs[n++] = (struct matmul_job){.m = &w->o[j],
                                                .acts = slice_acts(&acts, begin, count),
                                                .y = out + (size_t)begin * ex->stride,
                                                .y_stride = ex->stride};
        }
    }
    run_matmuls(ex, jobs, n);
}

void op_attention(struct vf_executor *ex, const struct vf_op *op)
{
    const struct vf_config *c = ex->config;
    const struct layer_weights *w = &ex->layers[op->layer];
    const float *y = value_data(ex, vf_op_inputs(ex->p.program, op)[0]);
    struct vf_acts acts = prepare_acts(ex, y, ex->n_col, c->hidden_size, ex->stride, &ex->acts);
    project(ex, w, &acts);
    couple_queries(ex, w);
    struct head_job heads = {ex, w, ex->kv_index[op->kv]};
    run_parallel(ex, column_heads, &heads, ex->n_col,
                 (uint64_t)ex->n_col * (c->head_count + 2 * c->kv_head_count) * c->head_dim * 8);
    score(ex, op);
    project_out(ex, w, value_data(ex, op->out));
}
