/* The attention operation: projections, norms and rotation, the KV cache, scores over key blocks.
 *
 * Keys are split at fixed positions (blocks of VF_ATTN_BLOCK), each block gives a maximum, a sum
 * and a weighted value; the blocks of one column and KV head are combined in ascending order. Some
 * columns of a long list share a pass over the keys; a short list is split into blocks as well. The
 * arithmetic is the same.
 */
#include "stage_worker/attention.h"

#include "common/base/util.h"
#include "stage_worker/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- life, rotations --------------------------------------------------------------------------
 */

static void load_layer(struct attention_weights *w, const struct core *core, uint32_t l)
{
    const struct vf_model_file *f = core->p.file;
    w->k = weights_matrix(f, VF_T_K, l, 0);
    w->v = weights_matrix(f, VF_T_V, l, 0);
    w->q_bias = weights_vector(f, VF_T_Q_BIAS, l, 0);
    w->k_bias = weights_vector(f, VF_T_K_BIAS, l, 0);
    w->v_bias = weights_vector(f, VF_T_V_BIAS, l, 0);
    w->q_norm = weights_vector(f, VF_T_Q_NORM, l, 0);
    w->k_norm = weights_vector(f, VF_T_K_NORM, l, 0);
    for (uint32_t j = 0; j < core->flows; j++) {
        w->q[j] = weights_matrix(f, VF_T_Q, l, j);
        w->o[j] = weights_matrix(f, VF_T_O, l, j);
        w->query_coupling[j] = weights_vector(f, VF_T_QUERY_COUPLING, l, j);
    }
}

/* powl, sinl and cosl run on the x87 unit, which has no variants per instruction set. */
static void prepare_rotations(struct attention *at)
{
    const struct vf_config *c = at->config;
    uint32_t rotated = (uint32_t)(c->partial_rotary_factor * c->head_dim + 0.5);
    bool proportional = c->rope_kind == VF_ROPE_PROPORTIONAL;
    at->rope_pairs = rotated / 2;
    at->rope_distance = proportional ? c->head_dim / 2 : rotated / 2;
    uint32_t exponent_dim = proportional ? c->head_dim : rotated;
    for (uint32_t i = 0; i < at->rope_pairs; i++)
        at->space.rope_freq[i] =
            (double)powl((long double)c->rope_theta, -2.0L * i / (long double)exponent_dim);
}

static enum vf_code create_kv(struct attention *at, struct vf_err *err)
{
    const struct core *core = at->core;
    const struct vf_program *p = core->p.program;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->op_count; i++)
        if (core->p.placement->op_worker[i] == core->p.worker && p->ops[i].kind == VF_OP_ATTENTION)
            at->kv_index[p->ops[i].kv] = count++;
    struct vf_kv_shape shape = vf_kv_shape_of(at->config, &core->part, &core->shape);
    return vf_kv_cache_create(&shape, &at->kv, err);
}

enum vf_code attention_init(void *self, struct core *core, struct vf_err *err)
{
    struct attention *at = self;
    at->core = core;
    at->config = core->config;
    at->kernels = core->kernels;
    at->step = &core->step;
    at->space = core->space.attention;
    at->acts.space = at->space.acts;
    at->layers = calloc(core->config->layer_count, sizeof *at->layers);
    at->kv_index = calloc(core->p.program->effective_layers, sizeof *at->kv_index);
    if (!at->layers || !at->kv_index)
        return weights_no_memory(core->config, err);
    for (uint32_t l = 0; l < core->config->layer_count; l++)
        load_layer(&at->layers[l], core, l);
    prepare_rotations(at);
    return create_kv(at, err);
}

void attention_deinit(void *self)
{
    struct attention *at = self;
    vf_kv_cache_destroy(at->kv);
    free(at->layers);
    free(at->kv_index);
}

void attention_begin_step(void *self)
{
    struct attention *at = self;
    const struct vf_column *columns = at->step->columns;
    uint32_t pairs = at->rope_pairs;
    for (uint32_t c = 0; c < at->step->n_col; c++) {
        float *cosines = at->space.rope_cos + (size_t)c * pairs;
        float *sines = at->space.rope_sin + (size_t)c * pairs;
        if (columns[c].primary != c || (c > 0 && columns[c - 1].position == columns[c].position)) {
            size_t same = columns[c].primary != c ? columns[c].primary : c - 1;
            memcpy(cosines, at->space.rope_cos + same * pairs, pairs * sizeof *cosines);
            memcpy(sines, at->space.rope_sin + same * pairs, pairs * sizeof *sines);
            continue;
        }
        for (uint32_t i = 0; i < pairs; i++) {
            long double angle = (long double)columns[c].position * at->space.rope_freq[i];
            cosines[i] = (float)cosl(angle);
            sines[i] = (float)sinl(angle);
        }
    }
}

/* ---- queries, keys, values ------------------------------------------------------------------ */

/* The product of each flow's columns with its own matrix, or of all with one. */
static void add_flow_matmuls(struct attention *at, const struct vf_matrix *matrices,
                             const struct vf_acts *acts, float *y, size_t y_stride)
{
    uint32_t sets = at->config->flow_specific_dense ? at->core->flows : 1;
    for (uint32_t j = 0; j < sets; j++) {
        uint32_t begin = sets > 1 ? at->step->flow_begin[j] : 0;
        uint32_t count = (sets > 1 ? at->step->flow_begin[j + 1] : at->step->n_col) - begin;
        struct matmul mm = {.m = matrices[j],
                            .acts = slice_acts(acts, begin, count),
                            .y = y + begin * y_stride,
                            .y_stride = y_stride};
        if (count)
            work_add_matmul(&at->core->work, &mm);
    }
}

static void add_projections(struct attention *at, const struct attention_weights *w)
{
    const struct vf_config *c = at->config;
    const struct vf_acts *acts = &at->acts.view;
    size_t kv_width = (size_t)c->kv_head_count * c->head_dim;
    add_flow_matmuls(at, w->q, acts, at->space.q, (size_t)c->head_count * c->head_dim);
    struct matmul mm = {.m = w->k,
                        .acts = slice_acts(acts, 0, at->step->n_primary),
                        .y = at->space.k,
                        .y_stride = kv_width};
    work_add_matmul(&at->core->work, &mm);
    mm.m = w->v;
    mm.y = at->space.v;
    work_add_matmul(&at->core->work, &mm);
}

static void norm_heads(const struct attention *at, float *x, uint32_t heads, const float *w)
{
    const struct vf_config *c = at->config;
    float offset = c->norm_weight_offset ? 1.0f : 0.0f;
    if (c->qk_norm == VF_QK_NORM_WHOLE) {
        at->kernels->rmsnorm(x, w, offset, c->norm_eps, heads * c->head_dim, x);
        return;
    }
    for (uint32_t h = 0; h < heads; h++)
        at->kernels->rmsnorm(x + (size_t)h * c->head_dim, w, offset, c->norm_eps, c->head_dim,
                             x + (size_t)h * c->head_dim);
}

static void rotate_heads(const struct attention *at, float *x, uint32_t heads, uint32_t column)
{
    size_t first = (size_t)column * at->rope_pairs;
    for (uint32_t h = 0; h < heads; h++)
        at->kernels->rope(x + (size_t)h * at->config->head_dim, at->space.rope_cos + first,
                          at->space.rope_sin + first, at->rope_pairs, at->rope_distance);
}

/* a_j * (Wq y_0), from flow 0's raw projection: runs before any norm or rotation. */
static void couple_queries(const struct region_job *job, uint32_t begin, uint32_t end,
                           uint32_t thread)
{
    (void)thread;
    struct attention *at = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t width = at->config->head_count * at->config->head_dim;
    for (uint32_t c = at->step->n_primary + begin; c < at->step->n_primary + end; c++)
        couple_column(at->core, at->layers[op->layer].query_coupling, at->space.q, width, width, c);
}

static void finish_query(const struct attention *at, const struct attention_weights *w,
                         uint32_t column)
{
    const struct vf_config *c = at->config;
    uint32_t width = c->head_count * c->head_dim;
    float *q = at->space.q + (size_t)column * width;
    if (w->q_bias)
        at->kernels->add(q, w->q_bias, width, q);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(at, q, c->head_count, w->q_norm);
    rotate_heads(at, q, c->head_count, column);
}

static void finish_key_value(const struct attention *at, const struct attention_weights *w,
                             uint32_t kv, uint32_t column)
{
    const struct vf_config *c = at->config;
    const struct vf_kernels *kernels = at->kernels;
    uint32_t width = c->kv_head_count * c->head_dim;
    float *k = at->space.k + (size_t)column * width, *v = at->space.v + (size_t)column * width;
    if (w->k_bias)
        kernels->add(k, w->k_bias, width, k);
    if (w->v_bias)
        kernels->add(v, w->v_bias, width, v);
    if (c->qk_norm != VF_QK_NORM_NONE)
        norm_heads(at, k, c->kv_head_count, w->k_norm);
    rotate_heads(at, k, c->kv_head_count, column);
    for (uint32_t h = 0; h < c->kv_head_count; h++) {
        float *value = v + (size_t)h * c->head_dim;
        if (c->v_norm)
            kernels->rmsnorm(value, NULL, 0.0f, c->norm_eps, c->head_dim, value);
        vf_kv_cache_put(at->kv, kernels, kv, at->step->columns[column].sequence, h,
                        at->step->columns[column].position, k + (size_t)h * c->head_dim, value);
    }
}

static void finish_projections(const struct region_job *job, uint32_t begin, uint32_t end,
                               uint32_t thread)
{
    (void)thread;
    struct attention *at = job->ctx;
    const struct vf_op *op = job->what;
    const struct attention_weights *w = &at->layers[op->layer];
    for (uint32_t column = begin; column < end; column++) {
        finish_query(at, w, column);
        if (column < at->step->n_primary) /* keys and values are flow 0's */
            finish_key_value(at, w, at->kv_index[op->kv], column);
    }
}

/* ---- scores ------------------------------------------------------------------------------------
 */

/* Columns that go over the keys together, in the partial space that a thread has. */
#define BATCH_COLUMNS_MAX VF_SPLIT_ITEMS_PER_THREAD

struct key_range {
    uint32_t begin, end; /* key positions */
};

static struct key_range visible_keys(const struct attention *at, uint32_t layer, uint32_t column)
{
    uint32_t position = at->step->columns[column].position;
    uint32_t window = at->config->sliding_window;
    struct key_range r = {0, position + 1};
    if (window && vf_config_layer_slides(at->config, layer) && r.end > window)
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
static uint32_t most_blocks(const struct attention *at, const struct vf_op *op)
{
    uint32_t most = 0;
    for (uint32_t c = 0; c < at->step->n_col; c++) {
        uint32_t blocks = block_count(visible_keys(at, op->layer, c));
        most = blocks > most ? blocks : most;
    }
    return most;
}

/* Floats per column of at->space.heads. */
static uint32_t heads_stride(const struct attention *at)
{
    return (uint32_t)vf_round_up((uint64_t)at->config->head_count * at->config->head_dim, 32);
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

static uint32_t group_size(const struct attention *at)
{
    return at->config->head_count / at->config->kv_head_count;
}

/* The space of one (column, KV head) whose blocks are shared out. */
static struct partials split_partials(const struct attention *at, uint32_t pair)
{
    return (struct partials){at->space.partials + pair * at->space.partial_floats, group_size(at),
                             at->config->head_dim};
}

/* Consecutive columns of one sequence, at ascending positions, that go over its keys together. */
struct batch {
    uint32_t column, count, kv_head;
    struct key_range keys[BATCH_COLUMNS_MAX];
};

static struct batch batch_of(const struct attention *at, const struct vf_op *op, uint32_t column,
                             uint32_t end, uint32_t kv_head)
{
    struct batch b = {.column = column, .kv_head = kv_head};
    do {
        b.keys[b.count] = visible_keys(at, op->layer, column + b.count);
        b.count++;
    } while (column + b.count < end &&
             at->step->columns[column + b.count].sequence == at->step->columns[column].sequence &&
             at->step->columns[column + b.count].position >
                 at->step->columns[column + b.count - 1].position);
    return b;
}

/* The keys that the thread reads after a block of its item: of the next block, or of the next KV
 * head's first. NULL where they don't fill a block: most of what was fetched would be of no use. */
static const void *keys_after(const struct attention *at, const struct vf_op *op,
                              const struct batch *b, uint32_t block)
{
    const void *k, *v;
    struct key_range keys = {b->keys[0].begin, b->keys[b->count - 1].end};
    bool last = (block + 1) * VF_ATTN_BLOCK >= keys.end;
    uint32_t head = last ? b->kv_head + 1 : b->kv_head, next = last ? first_block(keys) : block + 1;
    if (head == at->config->kv_head_count || (next + 1) * VF_ATTN_BLOCK > keys.end)
        return NULL;
    vf_kv_cache_block(at->kv, at->kv_index[op->kv], at->step->columns[b->column].sequence, head,
                      next, &k, &v);
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

static void score_block(const struct attention *at, const struct vf_op *op, const struct batch *b,
                        uint32_t block, const struct partials *p, uint32_t slot)
{
    const struct vf_config *c = at->config;
    struct vf_attn_keys counted[BATCH_COLUMNS_MAX];
    uint32_t group = group_size(at), begin = 0, n = counted_columns(b, block, &begin, counted);
    float *out = partials_of(p, slot);
    struct vf_attn_args args = {
        .q = at->space.q +
             ((size_t)(b->column + begin) * c->head_count + (size_t)b->kv_head * group) *
                 c->head_dim,
        .q_stride = c->head_dim,
        .q_column_stride = (size_t)c->head_count * c->head_dim,
        .n_q = n * group,
        .heads = group,
        .next_k = keys_after(at, op, b, block),
        .kv_f16 = at->core->p.kv_f16,
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
    vf_kv_cache_block(at->kv, at->kv_index[op->kv], at->step->columns[b->column].sequence,
                      b->kv_head, block, &args.k, &args.v);
    at->kernels->attention_block(&args);
}

/* Column i of the batch, out of its own blocks; slot 0 is the batch's first block. */
static void combine_blocks(const struct attention *at, const struct batch *b, uint32_t i,
                           const struct partials *p)
{
    uint32_t group = group_size(at), hd = at->config->head_dim;
    uint32_t begin = first_block(b->keys[i]) - first_block(b->keys[0]);
    uint32_t end = begin + block_count(b->keys[i]);
    for (uint32_t g = 0; g < group; g++) {
        uint32_t query = i * group + g;
        float max = -INFINITY, sum = 0.0f;
        for (uint32_t s = begin; s < end; s++) {
            float m = partials_of(p, s)[query];
            max = m > max || isnan(m) ? m : max;
        }
        float *out = at->space.heads + (size_t)(b->column + i) * heads_stride(at) +
                     ((size_t)b->kv_head * group + g) * hd;
        memset(out, 0, hd * sizeof *out);
        for (uint32_t s = begin; s < end; s++) {
            const float *slot = partials_of(p, s);
            float weight = vf_expf(slot[query] - max);
            sum = fmaf(weight, slot[p->queries + query], sum);
            at->kernels->axpy(weight, slot + 2 * p->queries + (size_t)query * hd, hd, out);
        }
        at->kernels->scale(1.0f / sum, hd, out);
    }
}

static void score_batch(const struct attention *at, const struct vf_op *op, const struct batch *b,
                        const struct partials *p)
{
    struct key_range all = {b->keys[0].begin, b->keys[b->count - 1].end};
    for (uint32_t slot = 0; slot < block_count(all); slot++)
        score_block(at, op, b, first_block(all) + slot, p, slot);
    for (uint32_t i = 0; i < b->count; i++)
        combine_blocks(at, b, i, p);
}

/* Columns of a whole item: as many as leave every thread some items. */
static uint32_t item_columns(const struct attention *at)
{
    uint32_t pairs = at->step->n_col * at->config->kv_head_count;
    uint32_t most = pairs / (VF_SPLIT_ITEMS_PER_THREAD * vf_pool_threads(at->core->pool));
    return most < 1 ? 1 : most < BATCH_COLUMNS_MAX ? most : BATCH_COLUMNS_MAX;
}

/* Items (columns, KV head), all blocks of each in this thread's partial space. */
static void score_whole(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct attention *at = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = at->config->kv_head_count, columns = item_columns(at);
    struct partials p = {at->space.partials + thread * BATCH_COLUMNS_MAX * at->space.partial_floats,
                         0, at->config->head_dim};
    for (uint32_t item = begin; item < end; item++) {
        uint32_t column = item / heads * columns;
        uint32_t column_end =
            column + columns < at->step->n_col ? column + columns : at->step->n_col;
        while (column < column_end) {
            struct batch b = batch_of(at, op, column, column_end, item % heads);
            p.queries = b.count * group_size(at);
            score_batch(at, op, &b, &p);
            column += b.count;
        }
    }
}

/* Items (column, KV head, block), combined by combine_split. Columns with fewer blocks than
 * another have empty items. */
static void score_split(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct attention *at = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = at->config->kv_head_count, blocks = most_blocks(at, op);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t pair = item / blocks, slot = item % blocks, column = pair / heads;
        struct batch b = batch_of(at, op, column, column + 1, pair % heads);
        struct partials p = split_partials(at, pair);
        if (slot < block_count(b.keys[0]))
            score_block(at, op, &b, first_block(b.keys[0]) + slot, &p, slot);
    }
}

static void combine_split(const struct region_job *job, uint32_t begin, uint32_t end,
                          uint32_t thread)
{
    (void)thread;
    struct attention *at = job->ctx;
    const struct vf_op *op = job->what;
    uint32_t heads = at->config->kv_head_count;
    for (uint32_t pair = begin; pair < end; pair++) {
        uint32_t column = pair / heads;
        struct batch b = batch_of(at, op, column, column + 1, pair % heads);
        struct partials p = split_partials(at, pair);
        combine_blocks(at, &b, 0, &p);
    }
}

/* Too few items for the threads: blocks of keys are items of their own. */
static bool splits_blocks(const struct attention *at)
{
    uint32_t threads = vf_pool_threads(at->core->pool);
    return threads > 1 &&
           at->step->n_col * at->config->kv_head_count < VF_SPLIT_ITEMS_PER_THREAD * threads;
}

static void add_scores(struct attention *at, const struct vf_op *op)
{
    uint32_t heads = at->config->kv_head_count, blocks = most_blocks(at, op);
    uint64_t block_bytes =
        (uint64_t)VF_ATTN_BLOCK * at->config->head_dim * (at->core->p.kv_f16 ? 4 : 8);
    if (splits_blocks(at))
        work_add_loop(&at->core->work, at, op, score_split, at->step->n_col * heads * blocks,
                      block_bytes);
    else
        work_add_loop(&at->core->work, at, op, score_whole,
                      (uint32_t)vf_div_up(at->step->n_col, item_columns(at)) * heads,
                      block_bytes * blocks);
}

/* ---- the operation ----------------------------------------------------------------------------
 */

enum vf_code attention_phase(void *self, const struct vf_op *op, uint32_t phase, uint32_t *next,
                             struct vf_err *err)
{
    (void)err;
    struct attention *at = self;
    const struct core *core = at->core;
    struct work *work = &at->core->work;
    const struct vf_config *c = at->config;
    const struct attention_weights *w = &at->layers[op->layer];
    uint32_t width = c->head_count * c->head_dim;
    switch (phase) {
    case 0:
        work_add_acts(work, &at->acts, value_in(core, op_input(core, op, 0)), at->step->n_col,
                      c->hidden_size, core->stride);
        break;
    case 1:
        add_projections(at, w);
        break;
    case 2:
        work_add_loop(&at->core->work, at, op, couple_queries,
                      at->step->n_col - at->step->n_primary, 12ull * width);
        break;
    case 3:
        work_add_loop(&at->core->work, at, op, finish_projections, at->step->n_col,
                      8ull * (width + 2ull * c->kv_head_count * c->head_dim));
        break;
    case 4:
        add_scores(at, op);
        break;
    case 5:
        if (splits_blocks(at))
            work_add_loop(&at->core->work, at, op, combine_split,
                          at->step->n_col * c->kv_head_count, 4ull * at->space.partial_floats);
        break;
    case 6:
        work_add_acts(work, &at->acts, at->space.heads, at->step->n_col, width, heads_stride(at));
        break;
    default:
        add_flow_matmuls(at, w->o, &at->acts.view, value_out(core, op->out), core->stride);
        *next = PHASE_END;
    }
    return VF_OK;
}

/* ---- when a step comes out of the numbers -----------------------------------------------------
 */

/* What column c of flow 0 sees in one layer. */
static enum vf_code blame_layer(const struct attention *at, const struct vf_op *op, uint32_t c,
                                struct vf_err *err)
{
    const struct vf_column *column = &at->step->columns[c];
    uint32_t heads = at->config->kv_head_count;
    for (uint64_t i = 0; i < (column->position + 1ull) * heads; i++) {
        uint32_t position = (uint32_t)(i / heads);
        bool of_key, is_nan;
        if (vf_kv_cache_finite(at->kv, at->kv_index[op->kv], column->sequence,
                               (uint32_t)(i % heads), position, &of_key, &is_nan))
            continue;
        return vf_err_set(err, VF_ERR_LIMIT,
                          at->core->shape.kv_f16 && !is_nan
                              ? "layer %u: %s of position %u are beyond 65504, the largest number "
                                "that the KV cache holds as f16: --kv f32 holds them"
                              : "layer %u: %s of position %u aren't finite: what enters the layer "
                                "leaves the range of f32",
                          op->step_layer, of_key ? "keys" : "values", position);
    }
    return VF_OK;
}

enum vf_code attention_blame(const struct attention *at, struct vf_err *err)
{
    const struct vf_program *p = at->core->p.program;
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < p->op_count && !code; i++) {
        bool own = at->core->p.placement->op_worker[i] == at->core->p.worker;
        for (uint32_t c = 0; own && p->ops[i].kind == VF_OP_ATTENTION && !code; c++) {
            if (c == at->step->n_primary)
                break;
            bool last = c + 1 == at->step->n_primary ||
                        at->step->columns[c + 1].sequence != at->step->columns[c].sequence;
            code = last ? blame_layer(at, &p->ops[i], c, err) : VF_OK;
        }
    }
    return code;
}
