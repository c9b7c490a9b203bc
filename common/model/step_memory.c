/* One function per operation takes what the operation's struct names; the arena counts or carves.
 */
#include "common/model/step_memory.h"

#include "common/base/util.h"

/* What the sizes depend on. */
struct sizes {
    const struct vf_config *c;
    const struct vf_step_shape *shape;
    uint64_t columns, stride, pairs;
    struct vf_arena *arena;
};

static uint64_t pad32(uint64_t n)
{
    return vf_round_up(n, 32);
}

static float *floats(const struct sizes *s, uint64_t count, uint64_t width)
{
    return vf_arena_take(s->arena, count, width, sizeof(float));
}

static uint32_t *numbers(const struct sizes *s, uint64_t count)
{
    return vf_arena_take(s->arena, count, 1, sizeof(uint32_t));
}

static struct vf_acts_space acts(const struct sizes *s, uint64_t count, uint64_t width)
{
    return (struct vf_acts_space){
        .q = vf_arena_take(s->arena, count, width, 1),
        .scale = vf_arena_take(s->arena, count, width / 32, sizeof(float)),
        .sum = vf_arena_take(s->arena, count, width / 32, sizeof(int32_t))};
}

static void lay_region(const struct sizes *s, struct vf_region_space *out)
{
    out->job_count = s->c->expert_count + VF_JOBS_BESIDE_EXPERTS;
    out->jobs = vf_arena_take(s->arena, out->job_count, 1, VF_JOB_BYTES);
    out->products = vf_arena_take(s->arena, out->job_count, 1, VF_PRODUCT_BYTES);
}

static void lay_values(const struct sizes *s, const struct vf_part *part,
                       struct vf_values_space *out)
{
    out->buffers = vf_arena_take(s->arena, part->value_buffers, 1, sizeof *out->buffers);
    out->routes = vf_arena_take(s->arena, part->route_buffers, 1, sizeof *out->routes);
    for (uint32_t i = 0; i < part->value_buffers; i++) {
        float *buffer = floats(s, s->columns, s->stride);
        if (out->buffers)
            out->buffers[i] = buffer;
    }
    for (uint32_t i = 0; i < part->route_buffers; i++) {
        struct vf_route route = {.experts = numbers(s, s->pairs),
                                 .weights = floats(s, s->pairs, 1),
                                 .counts = numbers(s, s->columns)};
        if (out->routes)
            out->routes[i] = route;
    }
}

static void lay_attention(const struct sizes *s, struct vf_attention_space *out)
{
    const struct vf_config *c = s->c;
    uint64_t q = (uint64_t)c->head_count * c->head_dim;
    uint64_t kv = (uint64_t)c->kv_head_count * c->head_dim;
    uint64_t blocks = vf_div_up(s->shape->context, VF_KEY_BLOCK);
    out->acts = acts(s, s->columns, vf_max_u64(s->stride, pad32(q)));
    out->q = floats(s, s->columns, q);
    out->k = floats(s, s->columns, kv);
    out->v = floats(s, s->columns, kv);
    out->heads = floats(s, s->columns, pad32(q));
    out->rope_freq = vf_arena_take(s->arena, c->head_dim / 2, 1, sizeof(double));
    out->rope_cos = floats(s, s->columns, c->head_dim / 2);
    out->rope_sin = floats(s, s->columns, c->head_dim / 2);
    /* One partial result per block of keys: [blocks][group] of max, sum and head_dim floats. */
    out->partial_floats = blocks * (c->head_count / c->kv_head_count) * (c->head_dim + 2ull);
    /* Items that are split into blocks are fewer than VF_SPLIT_ITEMS_PER_THREAD per thread; a whole
     * item, of which each thread has one at a time, is as many columns. */
    out->partial_items = (uint64_t)VF_SPLIT_ITEMS_PER_THREAD * s->shape->threads;
    out->partials = floats(s, out->partial_items, out->partial_floats);
}

static void lay_dense(const struct sizes *s, struct vf_dense_space *out)
{
    uint64_t width = pad32(s->c->ffn_size);
    out->acts = acts(s, s->columns, s->stride);
    out->hidden_acts = acts(s, s->columns, width);
    out->hidden = floats(s, s->columns, width);
    out->up = floats(s, s->columns, width);
}

static struct vf_expert_set_space expert_set(const struct sizes *s)
{
    return (struct vf_expert_set_space){.experts = numbers(s, s->c->expert_count),
                                        .index = numbers(s, s->c->expert_count)};
}

static void *expert_records(const struct sizes *s, uint64_t bytes)
{
    return vf_arena_take(s->arena, s->c->expert_count, 1, bytes);
}

static void lay_fetch(const struct sizes *s, struct vf_fetch_space *out)
{
    out->set = expert_set(s);
    out->refs = expert_records(s, VF_EXPERT_REF_BYTES);
}

static void lay_guess(const struct sizes *s, struct vf_guess_space *out)
{
    uint64_t columns = vf_min_u64(s->columns, VF_SPECULATE_COLUMNS_MAX);
    out->normed = floats(s, columns, s->stride);
    out->logits = floats(s, columns, s->c->expert_count);
    out->refs = expert_records(s, VF_EXPERT_REF_BYTES);
    out->guessed = vf_arena_take(s->arena, s->c->layer_count, s->c->expert_count, 1);
    out->by_layer = vf_arena_take(s->arena, s->c->layer_count, 1, 1);
}

static void lay_experts(const struct sizes *s, struct vf_experts_space *out)
{
    uint64_t width = pad32(s->c->expert_ffn_size);
    out->set = expert_set(s);
    out->acts = acts(s, s->columns, s->stride);
    out->pair_acts = acts(s, s->pairs, s->stride);
    out->hidden_acts = acts(s, s->pairs, width);
    out->pair_in = floats(s, s->pairs, s->stride);
    out->pair_out = floats(s, s->pairs, s->stride);
    out->pair_hidden = floats(s, s->pairs, width);
    out->pair_up = floats(s, s->pairs, width);
    out->pair_column = numbers(s, s->pairs);
    out->pair_rank = numbers(s, s->pairs);
    out->pair_begin = numbers(s, s->c->expert_count + 1ull);
    out->outstanding = numbers(s, s->c->expert_count);
    out->refs = expert_records(s, VF_EXPERT_REF_BYTES);
    out->got = expert_records(s, sizeof(void *));
    out->fronts = expert_records(s, VF_EXPERT_FRONT_BYTES);
    out->views = expert_records(s, VF_EXPERT_VIEW_BYTES);
}

static void lay_head(const struct sizes *s, struct vf_head_space *out)
{
    uint64_t rows = (uint64_t)s->shape->rows_max * s->c->flow_count;
    out->acts = acts(s, rows, s->stride);
    out->in = floats(s, rows, s->stride);
    out->out = floats(s, rows, s->c->vocab_size);
}

void vf_step_space_lay(const struct vf_config *config, const struct vf_part *part,
                       const struct vf_step_shape *shape, struct vf_arena *arena,
                       struct vf_step_space *out)
{
    struct sizes s = {.c = config, .shape = shape, .columns = shape->columns_max, .arena = arena};
    s.stride = pad32(config->hidden_size);
    s.pairs = s.columns * vf_experts_top_max(config);
    *out = (struct vf_step_space){.stride = (uint32_t)s.stride};
    const uint32_t *runs = part->op_counts;
    lay_region(&s, &out->region);
    lay_values(&s, part, &out->values);
    if (runs[VF_OP_ATTENTION])
        lay_attention(&s, &out->attention);
    if (runs[VF_OP_DENSE])
        lay_dense(&s, &out->dense);
    if (runs[VF_OP_ROUTE])
        out->router.logits = floats(&s, s.columns, config->expert_count);
    if (runs[VF_OP_FETCH]) {
        lay_fetch(&s, &out->fetch);
        lay_guess(&s, &out->guess);
    }
    if (runs[VF_OP_EXPERTS])
        lay_experts(&s, &out->experts);
    if (runs[VF_OP_HEAD])
        lay_head(&s, &out->head);
}

static enum vf_code too_large(const struct vf_step_shape *shape, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_LIMIT,
                      "steps of %u columns, %u rows and %u sequences of %u positions need more "
                      "memory than can be addressed",
                      shape->columns_max, shape->rows_max, shape->sequences, shape->context);
}

enum vf_code vf_step_space_bytes(const struct vf_config *config, const struct vf_part *part,
                                 const struct vf_step_shape *shape, uint64_t *bytes,
                                 struct vf_err *err)
{
    struct vf_arena counter = {0};
    struct vf_step_space space;
    vf_step_space_lay(config, part, shape, &counter, &space);
    *bytes = counter.used;
    return counter.too_large ? too_large(shape, err) : VF_OK;
}

/* ---- the KV cache -----------------------------------------------------------------------------
 */

struct vf_kv_shape vf_kv_shape_of(const struct vf_config *c, const struct vf_part *part,
                                  const struct vf_step_shape *shape)
{
    return (struct vf_kv_shape){.layers = part->op_counts[VF_OP_ATTENTION],
                                .sequences = shape->sequences,
                                .kv_heads = c->kv_head_count,
                                .head_dim = c->head_dim,
                                .context = shape->context,
                                .f16 = shape->kv_f16};
}

uint64_t vf_kv_head_bytes(const struct vf_kv_shape *s)
{
    uint64_t positions = vf_round_up(s->context, VF_KEY_BLOCK);
    return positions * s->head_dim * (s->f16 ? sizeof(uint16_t) : sizeof(float));
}

enum vf_code vf_kv_bytes(const struct vf_kv_shape *s, uint64_t *bytes, struct vf_err *err)
{
    *bytes = vf_kv_head_bytes(s);
    if (vf_mul_u64(*bytes, 2ull * s->kv_heads, bytes) && vf_mul_u64(*bytes, s->sequences, bytes) &&
        vf_mul_u64(*bytes, s->layers, bytes) && *bytes <= (uint64_t)1 << 46)
        return VF_OK;
    return vf_err_set(err, VF_ERR_LIMIT,
                      "KV cache of %u layers, %u sequences, %u positions is too large to map",
                      s->layers, s->sequences, s->context);
}

/* ---- for a plan -------------------------------------------------------------------------------
 */

static enum vf_code count_when(const struct vf_config *config, const struct vf_program *program,
                               const struct vf_placement *placement, uint32_t worker,
                               enum vf_experts_when when, const struct vf_step_shape *shape,
                               struct vf_step_memory *out, struct vf_err *err)
{
    struct vf_part part;
    uint64_t bytes = 0;
    enum vf_code code = vf_part_make(program, placement, worker, when, &part, err);
    if (code != VF_OK)
        return code;
    struct vf_kv_shape kv = vf_kv_shape_of(config, &part, shape);
    code = vf_kv_bytes(&kv, &out->kv_bytes, err);
    if (code == VF_OK)
        code = vf_step_space_bytes(config, &part, shape, &bytes, err);
    out->scratch_bytes = vf_max_u64(out->scratch_bytes, bytes);
    vf_part_deinit(&part);
    return code;
}

enum vf_code vf_step_memory_count(const struct vf_config *config, const struct vf_program *program,
                                  const struct vf_placement *placement, uint32_t worker,
                                  const struct vf_step_shape *shape, struct vf_step_memory *out,
                                  struct vf_err *err)
{
    *out = (struct vf_step_memory){0};
    enum vf_code code = VF_OK;
    for (int when = 0; code == VF_OK && when < VF_EXPERTS_WHEN_COUNT; when++)
        if ((when == VF_EXPERTS_SYNC) == shape->sync)
            code = count_when(config, program, placement, worker, (enum vf_experts_when)when, shape,
                              out, err);
    return code;
}
