/* Compiles a config into the layer program.
 *
 * The builder appends operations and values; each combine style is one function that says what
 * MODEL.md section 2 says, in the same order. Nothing else in the system knows the styles.
 */
#include "common/model/program.h"

#include "common/base/util.h"
#include "common/model/tensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A mixture of experts that has been routed but whose output isn't due yet. */
struct pending {
    vf_value activation, route;
};

struct builder {
    const struct vf_config *c;
    struct vf_program *p;
    uint32_t op_cap, input_cap, value_cap;
    uint32_t step;           /* effective layer being emitted */
    struct pending *pending; /* [effective_layers] */
    vf_value *layer_in;      /* [effective_layers] what entered each layer so far */
    bool no_memory;          /* sticky; checked once at the end */
};

#define SUM_INPUTS_MAX (VF_LAYERS_MAX + 4u) /* every expert output can be due at the last layer */

/* The inputs of one SUM; absent terms are skipped, as a model without that part drops it. */
struct terms {
    vf_value v[SUM_INPUTS_MAX];
    uint32_t count;
};

static bool grow(struct builder *b, void **array, uint32_t count, uint32_t *cap, size_t item)
{
    if (b->no_memory)
        return false;
    if (count < *cap)
        return true;
    uint32_t new_cap = *cap ? *cap * 2 : 64;
    void *p = realloc(*array, new_cap * item);
    if (!p) {
        b->no_memory = true;
        return false;
    }
    *array = p;
    *cap = new_cap;
    return true;
}

static vf_value add_value(struct builder *b, bool is_route, const char *fmt, va_list args)
{
    struct vf_program *p = b->p;
    if (!grow(b, (void **)&p->values, p->value_count, &b->value_cap, sizeof *p->values))
        return 0;
    struct vf_program_value *v = &p->values[p->value_count];
    memset(v, 0, sizeof *v);
    vsnprintf(v->name, sizeof v->name, fmt, args);
    v->is_route = is_route;
    v->producer = v->last_use = p->op_count;
    return p->value_count++;
}

static void add_input(struct builder *b, vf_value v)
{
    struct vf_program *p = b->p;
    if (!grow(b, (void **)&p->inputs, p->input_count, &b->input_cap, sizeof *p->inputs))
        return;
    VF_ASSERT(v < p->value_count);
    p->inputs[p->input_count++] = v;
    p->values[v].last_use = p->op_count;
}

/* Appends op with its inputs and, unless name is NULL, one output value. */
static vf_value emit(struct builder *b, struct vf_op op, const vf_value *in, uint32_t in_count,
                     const char *name, ...) __attribute__((format(printf, 5, 6)));
static vf_value emit(struct builder *b, struct vf_op op, const vf_value *in, uint32_t in_count,
                     const char *name, ...)
{
    struct vf_program *p = b->p;
    if (!grow(b, (void **)&p->ops, p->op_count, &b->op_cap, sizeof *p->ops))
        return 0;
    op.in_begin = p->input_count;
    op.in_count = in_count;
    for (uint32_t i = 0; i < in_count; i++)
        add_input(b, in[i]);
    op.out = VF_VALUE_NONE;
    if (name) {
        va_list args;
        va_start(args, name);
        op.out = add_value(b, op.kind == VF_OP_ROUTE, name, args);
        va_end(args);
    }
    if (b->no_memory)
        return 0;
    p->ops[p->op_count++] = op;
    return op.out;
}

/* An op of the current step with the weights of its layer. */
static struct vf_op layer_op(const struct builder *b, enum vf_op_kind kind)
{
    return (struct vf_op){
        .kind = kind,
        .layer = vf_config_weight_layer(b->c, b->step),
        .step_layer = b->step,
        .kv = b->step,
        .scale = 1.0f,
        .due_layer = b->step,
    };
}

static struct vf_op model_op(const struct builder *b, enum vf_op_kind kind)
{
    struct vf_op op = layer_op(b, kind);
    op.layer = VF_LAYER_NONE;
    return op;
}

/* ---- the parts of a layer ---- */

static vf_value emit_norm(struct builder *b, enum vf_norm_kind norm, vf_value x, const char *suffix)
{
    struct vf_op op = layer_op(b, VF_OP_NORM);
    op.norm = norm;
    return emit(b, op, &x, 1, "x%u.%s", b->step, suffix);
}

/* m(l, x) of MODEL.md: attention of the normed x with this step's own KV cache. */
static vf_value emit_attention(struct builder *b, vf_value x)
{
    vf_value y = emit_norm(b, VF_NORM_ATTN, x, "attn_norm");
    return emit(b, layer_op(b, VF_OP_ATTENTION), &y, 1, "m%u", b->step);
}

/* m(l, x[max(l - da, 0)].in), where x is x[l].in. */
static vf_value emit_delayed_attention(struct builder *b, vf_value x)
{
    uint32_t l = b->step, da = b->c->attention_delay;
    b->layer_in[l] = x;
    return emit_attention(b, b->layer_in[l > da ? l - da : 0]);
}

static vf_value emit_dense(struct builder *b, vf_value y)
{
    return emit(b, layer_op(b, VF_OP_DENSE), &y, 1, "f%u", b->step);
}

/* F(N(x[l-dd].out)), or nothing where the delay reaches before the first layer: a zero input
 * gives a zero output, and its weights need not be read. */
static vf_value emit_delayed_dense(struct builder *b)
{
    uint32_t dd = b->c->dense_delay;
    if (!b->c->ffn_size || b->step < dd)
        return VF_VALUE_NONE;
    vf_value u = b->p->layer_out[b->step - dd];
    return emit_dense(b, emit_norm(b, VF_NORM_FFN, u, "dense_norm"));
}

/* Routes y at this step; its experts' output is consumed at effective layer due. The fetch
 * order follows at once, so the read has the whole window. */
static void emit_route(struct builder *b, vf_value y, uint32_t due)
{
    struct vf_op op = layer_op(b, VF_OP_ROUTE);
    op.due_layer = due;
    vf_value route = emit(b, op, &y, 1, "r%u", b->step);
    op.kind = VF_OP_FETCH;
    emit(b, op, &route, 1, NULL);
    b->pending[b->step] = (struct pending){.activation = y, .route = route};
}

/* e[j]: emitted by its consumer, owned by layer j. */
static vf_value emit_experts(struct builder *b, uint32_t j, uint32_t due)
{
    struct vf_op op = layer_op(b, VF_OP_EXPERTS);
    op.layer = vf_config_weight_layer(b->c, j);
    op.step_layer = op.kv = j;
    op.due_layer = due;
    vf_value in[2] = {b->pending[j].activation, b->pending[j].route};
    return emit(b, op, in, 2, "e%u", j);
}

static void add_term(struct terms *t, vf_value v)
{
    if (v == VF_VALUE_NONE)
        return;
    VF_ASSERT(t->count < SUM_INPUTS_MAX);
    t->v[t->count++] = v;
}

/* ((a + b) + ...) * scale; a single unscaled term is that value itself. */
static vf_value emit_sum(struct builder *b, const struct terms *t, float scale, const char *name)
{
    if (t->count == 1 && scale == 1.0f)
        return t->v[0];
    struct vf_op op = layer_op(b, VF_OP_SUM);
    op.scale = scale;
    return emit(b, op, t->v, t->count, "x%u.%s", b->step, name);
}

static vf_value emit_add(struct builder *b, vf_value x, vf_value y, const char *name)
{
    struct vf_op op = layer_op(b, VF_OP_SUM);
    return emit(b, op, (vf_value[]){x, y}, 2, "x%u.%s", b->step, name);
}

/* ---- the styles: each takes the embedding and returns what the head reads ---- */

static vf_value compile_delayed_sum(struct builder *b, vf_value x, struct terms *t)
{
    const struct vf_config *c = b->c;
    uint32_t last = b->p->effective_layers - 1, de = c->expert_delay;
    for (b->step = 0; b->step <= last; b->step++) {
        uint32_t l = b->step;
        vf_value mid = emit_add(b, x, emit_delayed_attention(b, x), "mid");
        bool norm_mid = c->expert_count || c->dense_delay == 0;
        vf_value r = norm_mid ? emit_norm(b, VF_NORM_FFN, mid, "ffn_norm") : VF_VALUE_NONE;
        if (c->expert_count)
            emit_route(b, r, (uint32_t)vf_min_u64((uint64_t)l + de, last));
        t->count = 0;
        add_term(t, mid);
        if (c->dense_delay)
            add_term(t, emit_delayed_dense(b));
        else if (c->ffn_size)
            add_term(t, emit_dense(b, r));
        /* due here: j + de = l, and at the last layer also every later one */
        for (uint32_t j = l >= de ? l - de : 0; c->expert_count && j <= l; j++)
            if (vf_min_u64((uint64_t)j + de, last) == l)
                add_term(t, emit_experts(b, j, l));
        b->p->layer_out[l] = x = emit_sum(b, t, 1.0f, "out");
    }
    return x;
}

static vf_value compile_async_experts(struct builder *b, vf_value x, struct terms *t)
{
    const struct vf_config *c = b->c;
    uint32_t last = b->p->effective_layers - 1, de = c->expert_delay;
    for (b->step = 0; b->step <= last; b->step++) {
        uint32_t l = b->step;
        if (c->expert_count && de >= 1 && l >= de)
            x = emit_add(b, x, emit_experts(b, l - de, l), "in");
        bool norm_in = c->expert_count || c->dense_delay == 0;
        vf_value r = norm_in ? emit_norm(b, VF_NORM_FFN, x, "ffn_norm") : VF_VALUE_NONE;
        if (c->expert_count)
            emit_route(b, r, (uint32_t)vf_min_u64((uint64_t)l + de, last));
        t->count = 0;
        add_term(t, x);
        add_term(t, emit_delayed_attention(b, x));
        if (c->dense_delay)
            add_term(t, emit_delayed_dense(b));
        else if (c->ffn_size)
            add_term(t, emit_dense(b, r));
        if (c->expert_count && de == 0)
            add_term(t, emit_experts(b, l, l));
        b->p->layer_out[l] = x = emit_sum(b, t, 1.0f, "out");
    }
    b->step = last;
    if (!c->expert_count || de == 0)
        return x;
    t->count = 0;
    add_term(t, x);
    for (uint32_t j = last >= de ? last - de + 1 : 0; j <= last; j++)
        add_term(t, emit_experts(b, j, last));
    return emit_sum(b, t, 1.0f, "final");
}

static vf_value compile_parallel_sqrt2(struct builder *b, vf_value x, struct terms *t)
{
    const struct vf_config *c = b->c;
    for (b->step = 0; b->step < b->p->effective_layers; b->step++) {
        vf_value mid = emit_add(b, x, emit_attention(b, x), "mid");
        vf_value y = emit_norm(b, VF_NORM_FFN, mid, "ffn_norm");
        if (c->expert_count)
            emit_route(b, y, b->step);
        t->count = 0;
        if (c->ffn_size)
            add_term(t, emit_dense(b, y));
        if (c->expert_count)
            add_term(t, emit_experts(b, b->step, b->step));
        vf_value h = emit_sum(b, t, 0.70710678118654752f, "ffn");
        b->p->layer_out[b->step] = x = emit_add(b, mid, h, "out");
    }
    return x;
}

static vf_value emit_average(struct builder *b, vf_value a, vf_value s, struct terms *t)
{
    t->count = 0;
    add_term(t, a);
    add_term(t, s);
    return emit_sum(b, t, 0.5f, "merged");
}

static vf_value compile_decoupled_streams(struct builder *b, vf_value x, struct terms *t)
{
    uint32_t layers = b->p->effective_layers;
    vf_value a = x, s = x;
    for (b->step = 0; b->step < layers; b->step++) {
        vf_value f = emit_dense(b, emit_norm(b, VF_NORM_FFN, s, "ffn_norm"));
        a = emit_add(b, a, emit_attention(b, a), "attn");
        s = emit_add(b, s, f, "dense");
        if ((b->step + 1) % b->c->merge_interval == 0)
            a = s = emit_average(b, a, s, t);
        b->p->layer_out[b->step] = a;
    }
    b->step = layers - 1;
    /* merged at the last layer: the average of two equal values is that value to the bit */
    return a == s ? a : emit_average(b, a, s, t);
}

static vf_value compile_pipeline_registers(struct builder *b, vf_value x)
{
    vf_value a = x, reg = x;
    for (b->step = 0; b->step < b->p->effective_layers; b->step++) {
        vf_value f = emit_dense(b, emit_norm(b, VF_NORM_FFN, reg, "ffn_norm"));
        a = emit_add(b, a, emit_attention(b, a), "attn");
        b->p->layer_out[b->step] = reg = emit_add(b, a, f, "out");
    }
    return reg;
}

static vf_value compile_fixed_point(struct builder *b, vf_value x, struct terms *t)
{
    vf_value entry = x;
    for (b->step = 0; b->step < b->p->effective_layers; b->step++) {
        if (b->step % b->c->fixed_point_iterations == 0)
            entry = x;
        vf_value g = emit_attention(b, x);
        vf_value u = emit_add(b, x, g, "mid");
        vf_value f = emit_dense(b, emit_norm(b, VF_NORM_FFN, u, "ffn_norm"));
        t->count = 0;
        add_term(t, entry);
        add_term(t, g);
        add_term(t, f);
        b->p->layer_out[b->step] = x = emit_sum(b, t, 1.0f, "out");
    }
    return x;
}

static vf_value compile_style(struct builder *b, vf_value x, struct terms *t)
{
    switch (b->c->style) {
    case VF_STYLE_PARALLEL_SQRT2:
        return compile_parallel_sqrt2(b, x, t);
    case VF_STYLE_ASYNC_EXPERTS:
        return compile_async_experts(b, x, t);
    case VF_STYLE_DECOUPLED_STREAMS:
        return compile_decoupled_streams(b, x, t);
    case VF_STYLE_PIPELINE_REGISTERS:
        return compile_pipeline_registers(b, x);
    case VF_STYLE_FIXED_POINT:
        return compile_fixed_point(b, x, t);
    default:
        VF_ASSERT(b->c->style == VF_STYLE_DELAYED_SUM);
        return compile_delayed_sum(b, x, t);
    }
}

static void compile(struct builder *b, struct terms *t)
{
    vf_value x = emit(b, model_op(b, VF_OP_EMBED), NULL, 0, "embed");
    x = compile_style(b, x, t);
    b->step = b->p->effective_layers - 1;
    struct vf_op norm = model_op(b, VF_OP_NORM);
    norm.norm = VF_NORM_FINAL;
    x = emit(b, norm, &x, 1, "h");
    emit(b, model_op(b, VF_OP_HEAD), &x, 1, NULL);
}

enum vf_code vf_program_compile(const struct vf_config *config, struct vf_program *out,
                                struct vf_err *err)
{
    memset(out, 0, sizeof *out);
    uint32_t layers = vf_config_effective_layers(config);
    struct builder b = {.c = config, .p = out};
    struct terms *t = malloc(sizeof *t);
    b.pending = calloc(layers, sizeof *b.pending);
    b.layer_in = calloc(layers, sizeof *b.layer_in);
    out->layer_out = calloc(layers, sizeof *out->layer_out);
    out->effective_layers = layers;
    b.no_memory = !t || !b.pending || !b.layer_in || !out->layer_out;
    if (!b.no_memory)
        compile(&b, t);
    free(b.pending);
    free(b.layer_in);
    free(t);
    if (!b.no_memory)
        return VF_OK;
    vf_program_deinit(out);
    return vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for the program of %u layers", layers);
}

void vf_program_deinit(struct vf_program *p)
{
    if (!p)
        return;
    free(p->ops);
    free(p->inputs);
    free(p->values);
    free(p->layer_out);
    memset(p, 0, sizeof *p);
}

const char *vf_op_kind_name(enum vf_op_kind kind)
{
    static const char *const names[VF_OP_KIND_COUNT] = {
        "embed", "norm", "attention", "dense", "route", "fetch", "experts", "sum", "head",
    };
    return (unsigned)kind < VF_OP_KIND_COUNT ? names[kind] : "unknown";
}
