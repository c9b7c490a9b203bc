/* Sizes multiply in 64 bits with a sticky overflow, like the executor's own allocations would. */
#include "common/model/step_memory.h"

#include "common/model/stages.h"

#include "common/base/util.h"

#include <stdlib.h>

#define BYTES_MAX ((uint64_t)1 << 46) /* of one buffer: beyond any address space we map */

struct sizes {
    bool too_large;
};

static uint64_t mul(struct sizes *s, uint64_t a, uint64_t b)
{
    uint64_t out;
    if (!vf_mul_u64(a, b, &out) || out > BYTES_MAX) {
        s->too_large = true;
        return 0;
    }
    return out;
}

static uint64_t aligned(uint64_t bytes)
{
    return vf_round_up(bytes, VF_SCRATCH_ALIGN);
}

static uint64_t floats(struct sizes *s, uint64_t count, uint64_t width)
{
    return aligned(mul(s, mul(s, count, width), sizeof(float)));
}

/* Three arrays, each aligned. */
static uint64_t acts(struct sizes *s, uint64_t count, uint64_t width)
{
    uint64_t weights = mul(s, count, width);
    return aligned(weights) + 2 * aligned(weights / 32 * sizeof(float));
}

static uint32_t pad32(uint32_t n)
{
    return (uint32_t)vf_round_up(n, 32);
}

/* ---- how many values a worker holds at once -------------------------------------------------- */

/* The first and last slot of the execution order between which a worker holds a value; begin > end:
 * never. */
struct span {
    uint32_t begin, end;
};

static void widen(struct span *s, uint32_t slot)
{
    s->begin = slot < s->begin ? slot : s->begin;
    s->end = slot > s->end ? slot : s->end;
}

static void find_spans(const struct vf_program *p, const struct vf_placement *pl, uint32_t worker,
                       const uint32_t *slot, struct span *spans)
{
    for (uint32_t v = 0; v < p->value_count; v++)
        spans[v] = (struct span){UINT32_MAX, 0};
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (pl->op_worker[i] != worker)
            continue;
        const struct vf_op *op = &p->ops[i];
        if (op->out != VF_VALUE_NONE)
            widen(&spans[op->out], slot[i]);
        for (uint32_t k = 0; k < op->in_count; k++)
            widen(&spans[vf_op_inputs(p, op)[k]], slot[i]);
    }
}

/* The most spans of one kind that share a slot. */
static uint32_t most_live(const struct vf_program *p, const struct span *spans, bool routes,
                          int32_t *change)
{
    for (uint32_t i = 0; i <= p->op_count; i++)
        change[i] = 0;
    for (uint32_t v = 0; v < p->value_count; v++) {
        if (p->values[v].is_route != routes || spans[v].begin > spans[v].end)
            continue;
        change[spans[v].begin]++;
        change[spans[v].end + 1]--;
    }
    int32_t live = 0, most = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    return (uint32_t)most;
}

/* Early or late is decided when there is a memory plan, so the larger count of both holds. */
static enum vf_code count_values(const struct vf_program *p, const struct vf_placement *pl,
                                 uint32_t worker, bool sync, struct vf_step_memory *out,
                                 struct vf_err *err)
{
    struct span *spans = calloc(p->value_count + 1ull, sizeof *spans);
    int32_t *change = calloc(p->op_count + 1ull, sizeof *change);
    uint32_t *order = calloc(p->op_count + 1ull, sizeof *order);
    uint32_t *slot = calloc(p->op_count + 1ull, sizeof *slot);
    bool whole = spans && change && order && slot;
    for (int when = 0; whole && when < VF_EXPERTS_WHEN_COUNT; when++) {
        if ((when == VF_EXPERTS_SYNC) != sync)
            continue;
        vf_stages_order(p, (enum vf_experts_when)when, order, slot);
        find_spans(p, pl, worker, slot, spans);
        uint32_t values = most_live(p, spans, false, change);
        uint32_t routes = most_live(p, spans, true, change);
        out->value_buffers = values > out->value_buffers ? values : out->value_buffers;
        out->route_buffers = routes > out->route_buffers ? routes : out->route_buffers;
    }
    free(spans);
    free(change);
    free(order);
    free(slot);
    return whole ? VF_OK
                 : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u values", p->value_count);
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

static void size_attention(struct sizes *s, const struct vf_config *c,
                           const struct vf_step_shape *shape, struct vf_step_memory *m)
{
    uint64_t cols = shape->columns_max, q = (uint64_t)c->head_count * c->head_dim;
    uint64_t blocks = vf_div_up(shape->context, VF_KEY_BLOCK);
    m->bytes[VF_SCRATCH_Q] = floats(s, cols, q);
    m->bytes[VF_SCRATCH_KV] = floats(s, cols, (uint64_t)c->kv_head_count * c->head_dim);
    m->bytes[VF_SCRATCH_ATTN] = floats(s, cols, pad32((uint32_t)q));
    m->bytes[VF_SCRATCH_ROPE] = floats(s, cols, c->head_dim);
    /* One partial result per block of keys: [blocks][group] of max, sum and head_dim floats. */
    m->partial_floats = blocks * (c->head_count / c->kv_head_count) * (c->head_dim + 2ull);
    /* Items that are split into blocks are fewer than VF_SPLIT_ITEMS_PER_THREAD per thread; a whole
     * item, of which each thread has one at a time, is as many columns. */
    m->partial_items = VF_SPLIT_ITEMS_PER_THREAD * shape->threads;
    m->bytes[VF_SCRATCH_PARTIALS] = floats(s, m->partial_items, m->partial_floats);
}

static void size_experts(struct sizes *s, const struct vf_config *c, uint64_t cols,
                         struct vf_step_memory *m)
{
    uint64_t pairs = cols * vf_experts_top_max(c);
    uint32_t wide = pad32(c->expert_ffn_size);
    m->bytes[VF_SCRATCH_ROUTER] = floats(s, cols, c->expert_count);
    m->bytes[VF_SCRATCH_EXPERTS] = mul(s, c->expert_count + 1ull, VF_SCRATCH_EXPERT_BYTES);
    m->bytes[VF_SCRATCH_PAIR_LISTS] = aligned(mul(s, pairs, sizeof(uint32_t)));
    m->bytes[VF_SCRATCH_PAIR] = floats(s, pairs, m->stride);
    m->bytes[VF_SCRATCH_PAIR_HIDDEN] = floats(s, pairs, wide);
    m->bytes[VF_SCRATCH_ACTS_EXPERTS] = acts(s, cols, m->stride);
    m->bytes[VF_SCRATCH_PAIR_ACTS] = acts(s, pairs, m->stride);
    m->bytes[VF_SCRATCH_PAIR_ACTS_HIDDEN] = acts(s, pairs, wide);
}

static void size_buffers(struct sizes *s, const struct vf_config *c,
                         const struct vf_step_shape *shape, bool head, struct vf_step_memory *m)
{
    uint64_t cols = shape->columns_max;
    m->stride = pad32(c->hidden_size);
    m->bytes[VF_SCRATCH_VALUE] = floats(s, cols, m->stride);
    m->bytes[VF_SCRATCH_ROUTE] =
        2 * aligned(mul(s, cols * vf_experts_top_max(c), sizeof(uint32_t))) +
        aligned(mul(s, cols, sizeof(uint32_t)));
    size_attention(s, c, shape, m);
    m->bytes[VF_SCRATCH_ACTS_ATTENTION] =
        acts(s, cols, vf_max_u64(m->stride, pad32(c->head_count * c->head_dim)));
    m->bytes[VF_SCRATCH_ACTS_DENSE] = acts(s, cols, m->stride);
    m->bytes[VF_SCRATCH_ACTS_DENSE_HIDDEN] = acts(s, cols, pad32(c->ffn_size));
    m->bytes[VF_SCRATCH_HIDDEN] = floats(s, cols, pad32(c->ffn_size));
    if (c->expert_count > 0)
        size_experts(s, c, cols, m);
    if (head) {
        uint64_t rows = (uint64_t)shape->rows_max * c->flow_count;
        m->bytes[VF_SCRATCH_ACTS_HEAD] = acts(s, rows, m->stride);
        m->bytes[VF_SCRATCH_HEAD_IN] = floats(s, rows, m->stride);
        m->bytes[VF_SCRATCH_HEAD_OUT] = floats(s, rows, c->vocab_size);
    }
}

/* How many of each buffer there are. */
static uint64_t buffer_count(const struct vf_step_memory *m, int i)
{
    switch (i) {
    case VF_SCRATCH_VALUE:
        return m->value_buffers;
    case VF_SCRATCH_ROUTE:
        return m->route_buffers;
    case VF_SCRATCH_KV:
    case VF_SCRATCH_ROPE:
    case VF_SCRATCH_HIDDEN:
    case VF_SCRATCH_PAIR_LISTS:
    case VF_SCRATCH_PAIR:
    case VF_SCRATCH_PAIR_HIDDEN:
        return 2;
    default:
        return 1;
    }
}

static void size_kv(struct sizes *s, const struct vf_config *c, const struct vf_step_shape *shape,
                    struct vf_step_memory *m)
{
    uint64_t positions = vf_round_up(shape->context, VF_KEY_BLOCK);
    uint64_t position_bytes =
        2ull * c->kv_head_count * c->head_dim * (shape->kv_f16 ? sizeof(uint16_t) : sizeof(float));
    m->kv_bytes = mul(s, mul(s, mul(s, positions, position_bytes), shape->sequences), m->kv_layers);
}

enum vf_code vf_step_memory_count(const struct vf_config *config, const struct vf_program *program,
                                  const struct vf_placement *placement, uint32_t worker,
                                  const struct vf_step_shape *shape, struct vf_step_memory *out,
                                  struct vf_err *err)
{
    *out = (struct vf_step_memory){0};
    enum vf_code code = count_values(program, placement, worker, shape->sync, out, err);
    if (code)
        return code;
    for (uint32_t i = 0; i < program->op_count; i++)
        out->kv_layers +=
            placement->op_worker[i] == worker && program->ops[i].kind == VF_OP_ATTENTION;
    struct sizes s = {false};
    size_buffers(&s, config, shape, placement->head_worker == worker, out);
    size_kv(&s, config, shape, out);
    for (int i = 0; i < VF_SCRATCH_COUNT; i++)
        out->scratch_bytes += mul(&s, buffer_count(out, i), out->bytes[i]);
    if (s.too_large)
        return vf_err_set(err, VF_ERR_LIMIT,
                          "steps of %u columns, %u rows and %u sequences of %u positions need more "
                          "memory than can be addressed",
                          shape->columns_max, shape->rows_max, shape->sequences, shape->context);
    return VF_OK;
}
