/* The attention operation: projections, norms and rotation, the KV cache, scores over key blocks.
 *
 * Keys are split at fixed positions (blocks of VF_ATTN_BLOCK), each block gives a maximum, a sum
 * and a weighted value; the blocks of one column and KV head are combined in ascending order. Some
 * columns of a long list share a pass over the keys; a short list is split into blocks as well. The
 * arithmetic is the same.
 */
#include "stage_worker/internal.h"

#include "common/base/util.h"

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

/* The product of each flow's columns with its own matrix, or of all with one. */
static void add_flow_matmuls(struct vf_executor *ex, const struct vf_matrix *matrices,
                             const struct vf_acts *acts, float *y, size_t y_stride)
{
    uint32_t sets = ex->config->flow_specific_dense ? ex->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? ex->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? ex->flow_begin[j + 1] : ex->n_col) - begin;
        struct matmul mm = {.m = matrices[j],
                            .acts = slice_acts(acts, begin, count),
                            .y = y + begin * y_stride,
                            .y_stride = y_stride};
        if (count)
            add_matmul(ex, &mm);
    }
}

static void add_projections(struct vf_executor *ex, const struct layer_weights *w)
{
    const struct vf_config *c = ex->config;
    const struct vf_acts *acts = &ex->attention_acts.view;
    size_t kv_width = (size_t)c->kv_head_count * c->head_dim;
    add_flow_matmuls(ex, w->q, acts, ex->q, (size_t)c->head_count * c->head_dim);
    struct matmul mm = {
        .m = w->k, .acts = slice_acts(acts, 0, ex->n_primary), .y = ex->k, .y_stride = kv_width};
    add_matmul(ex, &mm);
    mm.m = w->v;
    mm.y = ex->v;
    add_matmul(ex, &mm);
}

static void norm_heads(const struct vf_executor *ex, float *x, uint32_t heads, const float *w)
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

static void rotate_heads(const struct vf_executor *ex, float *x, uint32_t heads, uint32_t column)
{
    size_t at = (size_t)column * ex->rope_pairs;
    for (uint32_t h = 0; h < heads; h++)
        ex->p.kernels->rope(x + (size_t)h * ex->config->head_dim, ex->rope_cos + at,
                            ex->rope_sin + at, ex->rope_pairs, ex->rope_distance);
}

/* a_j * (Wq y_0), from flow 0's raw projection: runs before any norm or rotation. */
static void couple_queries(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t width = ex->config->head_count * ex->config->head_dim;
    for (uint32_t c = ex->n_primary + begin; c < ex->n_primary + end; c++)
        couple_column(ex, ex->layers[op->layer].query_coupling, ex->q, width, width, c);
}

static void finish_query(const struct vf_executor *ex, const struct layer_weights *w,
                         uint32_t column)
{
    const struct vf_config *c = ex->config;
    uint32_t width = c->head_count * c->head_dim;
    float *q = ex->q + (size_t)column * width;
    if (w->q_bias)
        ex->p.kernels->add(q, w->q_bias, width, q);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(ex, q, c->head_count, w->q_norm);
    rotate_heads(ex, q, c->head_count, column);
}

static void finish_key_value(const struct vf_executor *ex, const struct layer_weights *w,
                             uint32_t kv, uint32_t column)
{
    const struct vf_config *c = ex->config;
    const struct vf_kernels *kernels = ex->p.kernels;
    uint32_t width = c->kv_head_count * c->head_dim;
    float *k = ex->k + (size_t)column * width, *v = ex->v + (size_t)column * width;
    if (w->k_bias)
        kernels->add(k, w->k_bias, width, k);
    if (w->v_bias)
        kernels->add(v, w->v_bias, width, v);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(ex, k, c->kv_head_count, w->k_norm);
    rotate_heads(ex, k, c->kv_head_count, column);
    for (uint32_t h = 0; h < c->kv_head_count; h++) {
        float *value = v + (size_t)h * c->head_dim;
        if (c->v_norm)
            kernels->rmsnorm(value, NULL, 0.0f, c->norm_eps, c->head_dim, value);
        vf_kv_cache_put(ex->kv, kernels, kv, ex->columns[column].sequence, h,
                        ex->columns[column].position, k + (size_t)h * c->head_dim, value);
    }
}

static void finish_projections(const struct region_job *job, uint32_t begin, uint32_t end,
                               uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    const struct layer_weights *w = &ex->layers[op->layer];
    for (uint32_t column = begin; column < end; column++) {
        finish_query(ex, w, column);
        if (column < ex->n_primary) /* keys and values are flow 0's */
            finish_key_value(ex, w, ex->kv_index[op->kv], column);
    }
}

/* ---- scores ------------------------------------------------------------------------------------
 */

/* Columns that go over the keys together, in the partial space that a thread has. */
#define BATCH_COLUMNS_MAX VF_SPLIT_ITEMS_PER_THREAD

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

static uint32_t first_block(struct key_range keys)
{
    return keys.begin / VF_ATTN_BLOCK;
}

static uint32_t block_count(struct key_range keys)
{
    return (keys.end - 1) / VF_ATTN_BLOCK + 1 - first_block(keys);
}

/* Of any column of the step. */
static uint32_t most_blocks(const struct vf_executor *ex, const struct vf_op *op)
{
    uint32_t most = 0;
    for (uint32_t c = 0; c < ex->n_col; c++) {
        uint32_t blocks = block_count(visible_keys(ex, op->layer, c));
        most = blocks > most ? blocks : most;
    }
    return most;
}

/* Floats per column of ex->attn. */
static uint32_t heads_stride(const struct vf_executor *ex)
{
    return (uint32_t)vf_round_up((uint64_t)ex->config->head_count * ex->config->head_dim, 32);
}

/* What the blocks of an item gave, block after block: the queries' maxima, their sums, then queries
 * x head_dim values. The queries are those of one KV head in all columns of the item. */
struct partials {
    float *base;
    uint32_t queries, head_dim;
};

static float *partials_of(const struct partials *p, uint32_t slot)
{
    return p->base + (uint64_t)slot * p->queries * (p->head_dim + 2);
}

static uint32_t group_size(const struct vf_executor *ex)
{
    return ex->config->head_count / ex->config->kv_head_count;
}

/* The space of one (column, KV head) whose blocks are shared out. */
static struct partials split_partials(const struct vf_executor *ex, uint32_t pair)
{
    return (struct partials){ex->partials + pair * ex->partial_floats, group_size(ex),
                             ex->config->head_dim};
}

/* Consecutive columns of one sequence, at ascending positions, that go over its keys together. */
struct batch {
    uint32_t column, count, kv_head;
    struct key_range keys[BATCH_COLUMNS_MAX];
};

static struct batch batch_of(const struct vf_executor *ex, const struct vf_op *op, uint32_t column,
                             uint32_t end, uint32_t kv_head)
{
    struct batch b = {.column = column, .kv_head = kv_head};
    do {
        b.keys[b.count] = visible_keys(ex, op->layer, column + b.count);
        b.count++;
    } while (column + b.count < end &&
             ex->columns[column + b.count].sequence == ex->columns[column].sequence &&
             ex->columns[column + b.count].position > ex->columns[column + b.count - 1].position);
    return b;
}

/* The keys that the thread reads after a block of its item: of the next block, or of the next KV
 * head's first. NULL where they don't fill a block: most of what was fetched would be of no use. */
static const void *keys_after(const struct vf_executor *ex, const struct vf_op *op,
                              const struct batch *b, uint32_t block)
{
    const void *k, *v;
    struct key_range keys = {b->keys[0].begin, b->keys[b->count - 1].end};
    bool last = (block + 1) * VF_ATTN_BLOCK >= keys.end;
    uint32_t head = last ? b->kv_head + 1 : b->kv_head, next = last ? first_block(keys) : block + 1;
    if (head == ex->config->kv_head_count || (next + 1) * VF_ATTN_BLOCK > keys.end)
        return NULL;
    vf_kv_cache_block(ex->kv, ex->kv_index[op->kv], ex->columns[b->column].sequence, head, next, &k,
                      &v);
    return k;
}

/* The columns that see any key of the block are neighbours, since both ends of what a column sees
 * ascend. Returns how many they are, and from which on. */
static uint32_t counted_columns(const struct batch *b, uint32_t block, uint32_t *begin,
                                struct vf_attn_keys counted[BATCH_COLUMNS_MAX])
{
    uint32_t first = block * VF_ATTN_BLOCK, n = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        struct key_range keys = b->keys[i];
        if (keys.end <= first || keys.begin >= first + VF_ATTN_BLOCK)
            continue;
        if (n == 0)
            *begin = i;
        counted[n++] = (struct vf_attn_keys){
            .begin = keys.begin > first ? keys.begin - first : 0,
            .end = keys.end - first < VF_ATTN_BLOCK ? keys.end - first : VF_ATTN_BLOCK};
    }
    return n;
}

static void score_block(const struct vf_executor *ex, const struct vf_op *op, const struct batch *b,
                        uint32_t block, const struct partials *p, uint32_t slot)
{
    const struct vf_config *c = ex->config;
    struct vf_attn_keys counted[BATCH_COLUMNS_MAX];
    uint32_t group = group_size(ex), begin = 0, n = counted_columns(b, block, &begin, counted);
    float *out = partials_of(p, slot);
    struct vf_attn_args args = {
        .q = ex->q + ((size_t)(b->column + begin) * c->head_count + (size_t)b->kv_head * group) *
                         c->head_dim,
        .q_stride = c->head_dim,
        .q_column_stride = (size_t)c->head_count * c->head_dim,
        .n_q = n * group,
        .heads = group,
        .next_k = keys_after(ex, op, b, block),
        .kv_f16 = ex->p.kv_f16,
        .head_dim = c->head_dim,
        .keys = counted,
        .scale = c->attn_scale,
        .softcap = c->attn_softcap,
        .max = out + begin * group,
        .sum = out + p->queries + begin * group,
        .out = out + 2 * p->queries + (size_t)begin * group * c->head_dim,
        .out_stride = c->head_dim,
    };
    if (n == 0)
        return;
    vf_kv_cache_block(ex->kv, ex->kv_index[op->kv], ex->columns[b->column].sequence, b->kv_head,
                      block, &args.k, &args.v);
    ex->p.kernels->attention_block(&args);
}

/* Column i of the batch, out of its own blocks; slot 0 is the batch's first block. */
static void combine_blocks(const struct vf_executor *ex, const struct batch *b, uint32_t i,
                           const struct partials *p)
{
    uint32_t group = group_size(ex), hd = ex->config->head_dim;
    uint32_t begin = first_block(b->keys[i]) - first_block(b->keys[0]);
    uint32_t end = begin + block_count(b->keys[i]);
    for (uint32_t g = 0; g < group; g++) {
        uint32_t query = i * group + g;
        float max = -INFINITY, sum = 0.0f;
        for (uint32_t s = begin; s < end; s++) {
            float m = partials_of(p, s)[query];
            max = m > max || isnan(m) ? m : max;
        }
        float *out = ex->attn + (size_t)(b->column + i) * heads_stride(ex) +
                     ((size_t)b->kv_head * group + g) * hd;
        memset(out, 0, hd * sizeof *out);
        for (uint32_t s = begin; s < end; s++) {
            const float *slot = partials_of(p, s);
            float weight = vf_expf(slot[query] - max);
            sum = fmaf(weight, slot[p->queries + query], sum);
            ex->p.kernels->axpy(weight, slot + 2 * p->queries + (size_t)query * hd, hd, out);
        }
        ex->p.kernels->scale(1.0f / sum, hd, out);
    }
}

static void score_batch(const struct vf_executor *ex, const struct vf_op *op, const struct batch *b,
                        const struct partials *p)
{
    struct key_range all = {b->keys[0].begin, b->keys[b->count - 1].end};
    for (uint32_t slot = 0; slot < block_count(all); slot++)
        score_block(ex, op, b, first_block(all) + slot, p, slot);
    for (uint32_t i = 0; i < b->count; i++)
        combine_blocks(ex, b, i, p);
}

/* Columns of a whole item: as many as leave every thread some items. */
static uint32_t item_columns(const struct vf_executor *ex)
{
    uint32_t pairs = ex->n_col * ex->config->kv_head_count;
    uint32_t most = pairs / (VF_SPLIT_ITEMS_PER_THREAD * vf_pool_threads(ex->pool));
    return most < 1 ? 1 : most < BATCH_COLUMNS_MAX ? most : BATCH_COLUMNS_MAX;
}

/* Items (columns, KV head), all blocks of each in this thread's partial space. */
static void score_whole(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = ex->config->kv_head_count, columns = item_columns(ex);
    struct partials p = {ex->partials + thread * BATCH_COLUMNS_MAX * ex->partial_floats, 0,
                         ex->config->head_dim};
    for (uint32_t item = begin; item < end; item++) {
        uint32_t column = item / heads * columns;
        uint32_t column_end = column + columns < ex->n_col ? column + columns : ex->n_col;
        while (column < column_end) {
            struct batch b = batch_of(ex, op, column, column_end, item % heads);
            p.queries = b.count * group_size(ex);
            score_batch(ex, op, &b, &p);
            column += b.count;
        }
    }
}

/* Items (column, KV head, block), combined by combine_split. Columns with fewer blocks than
 * another have empty items. */
static void score_split(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = ex->config->kv_head_count, blocks = most_blocks(ex, op);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t pair = item / blocks, slot = item % blocks, column = pair / heads;
        struct batch b = batch_of(ex, op, column, column + 1, pair % heads);
        struct partials p = split_partials(ex, pair);
        if (slot < block_count(b.keys[0]))
            score_block(ex, op, &b, first_block(b.keys[0]) + slot, &p, slot);
    }
}

static void combine_split(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = ex->config->kv_head_count;
    for (uint32_t pair = begin; pair < end; pair++) {
        uint32_t column = pair / heads;
        struct batch b = batch_of(ex, op, column, column + 1, pair % heads);
        struct partials p = split_partials(ex, pair);
        combine_blocks(ex, &b, 0, &p);
    }
}

/* Too few items for the threads: blocks of keys are items of their own. */
static bool splits_blocks(const struct vf_executor *ex)
{
    uint32_t threads = vf_pool_threads(ex->pool);
    return threads > 1 &&
           ex->n_col * ex->config->kv_head_count < VF_SPLIT_ITEMS_PER_THREAD * threads;
}

static void add_scores(struct vf_executor *ex, const struct vf_op *op)
{
    uint32_t heads = ex->config->kv_head_count, blocks = most_blocks(ex, op);
    uint64_t block_bytes = (uint64_t)VF_ATTN_BLOCK * ex->config->head_dim * (ex->p.kv_f16 ? 4 : 8);
    if (splits_blocks(ex))
        add_loop(ex, op, score_split, ex->n_col * heads * blocks, block_bytes);
    else
        add_loop(ex, op, score_whole, (uint32_t)vf_div_up(ex->n_col, item_columns(ex)) * heads,
                 block_bytes * blocks);
}

/* ---- the operation ----------------------------------------------------------------------------
 */

enum vf_code attention_phase(struct vf_executor *ex, const struct vf_op *op, uint32_t phase,
                             uint32_t *next, struct vf_err *err)
{
    (void)err;
    const struct vf_config *c = ex->config;
    const struct layer_weights *w = &ex->layers[op->layer];
    uint32_t width = c->head_count * c->head_dim;
    switch (phase) {
    case 0:
        add_acts(ex, &ex->attention_acts, value_data(ex, vf_op_inputs(ex->p.program, op)[0]),
                 ex->n_col, c->hidden_size, ex->stride);
        break;
    case 1:
        add_projections(ex, w);
        break;
    case 2:
        add_loop(ex, op, couple_queries, ex->n_col - ex->n_primary, 12ull * width);
        break;
    case 3:
        add_loop(ex, op, finish_projections, ex->n_col,
                 8ull * (width + 2ull * c->kv_head_count * c->head_dim));
        break;
    case 4:
        add_scores(ex, op);
        break;
    case 5:
        if (splits_blocks(ex))
            add_loop(ex, op, combine_split, ex->n_col * c->kv_head_count,
                     4ull * ex->partial_floats);
        break;
    case 6:
        add_acts(ex, &ex->attention_acts, ex->attn, ex->n_col, width, heads_stride(ex));
        break;
    default:
        add_flow_matmuls(ex, w->o, &ex->attention_acts.view, value_data(ex, op->out), ex->stride);
        *next = PHASE_END;
    }
    return VF_OK;
}
