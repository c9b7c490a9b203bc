/* The layer program against the recurrences of MODEL.md section 2, written out here directly.
 *
 * Attention, FFNs, router and experts are stand-ins: random maps of a small vector, different for
 * every layer (and, for attention, KV cache), with F(0) = 0. An interpreter runs the program with
 * them; the recurrence runs with the same maps; both must agree for every style and delay.
 */
#include "model_test.h"

#include "common/model/program.h"
#include "common/model/tensors.h"

#include <math.h>

#define D          5
#define LAYERS_MAX 64
#define SQRT_HALF  ((double)(float)M_SQRT1_2) /* the factor is an f32 */
#define MODELS     400

struct vec {
    double x[D];
};

/* ---- the stand-ins ---- */

struct world {
    double attention[LAYERS_MAX][D][D], kv_bias[LAYERS_MAX][D];
    double dense[LAYERS_MAX][D][D], router[LAYERS_MAX][D][D], experts[LAYERS_MAX][D][D];
    double attn_norm[LAYERS_MAX][D], ffn_norm[LAYERS_MAX][D];
    struct vec embedding;
};

static void fill(struct rng *r, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_unit(r);
}

static void make_world(struct rng *r, struct world *w)
{
    fill(r, (double *)w, sizeof *w / sizeof(double));
}

static struct vec zero(void)
{
    return (struct vec){{0}};
}

static struct vec add(struct vec a, struct vec b)
{
    for (int i = 0; i < D; i++)
        a.x[i] += b.x[i];
    return a;
}

static struct vec scale(struct vec a, double s)
{
    for (int i = 0; i < D; i++)
        a.x[i] *= s;
    return a;
}

static struct vec map(const double m[D][D], struct vec v)
{
    struct vec out = zero();
    for (int i = 0; i < D; i++)
        for (int k = 0; k < D; k++)
            out.x[i] += m[i][k] * v.x[k];
    for (int i = 0; i < D; i++)
        out.x[i] = tanh(out.x[i]);
    return out;
}

static struct vec norm(const double weight[D], struct vec v)
{
    double mean = 1e-6;
    for (int i = 0; i < D; i++)
        mean += v.x[i] * v.x[i] / D;
    for (int i = 0; i < D; i++)
        v.x[i] *= weight[i] / sqrt(mean);
    return v;
}

static struct vec attend(const struct world *w, uint32_t layer, uint32_t kv, struct vec y)
{
    struct vec m = map(w->attention[layer], y);
    for (int i = 0; i < D; i++)
        m.x[i] += w->kv_bias[kv][i];
    return m;
}

static struct vec route(const struct world *w, uint32_t layer, struct vec y)
{
    return map(w->router[layer], y);
}

static struct vec run_experts(const struct world *w, uint32_t layer, struct vec y, struct vec r)
{
    return map(w->experts[layer], add(y, scale(r, 3.0)));
}

/* ---- MODEL.md section 2, in its own words ---- */

struct model {
    const struct vf_config *c;
    const struct world *w;
};

static struct vec m(const struct model *s, uint32_t l, uint32_t kv, struct vec u)
{
    return attend(s->w, l, kv, norm(s->w->attn_norm[l], u));
}

static struct vec N(const struct model *s, uint32_t l, struct vec u) {
    return norm(s->w->ffn_norm[l], u);
}

static struct vec
F(const struct model *s, uint32_t l, struct vec y) {
    return s->c->ffn_size ? map(s->w->dense[l], y) : zero();
}

static struct vec
M(const struct model *s, uint32_t l, struct vec y) {
    return s->c->expert_count ? run_experts(s->w, l, y, route(s->w, l, y)) : zero();
}

/* x[max(l - da, 0)].in, what attention of layer l reads. */
static struct vec
attention_in(const struct model *s, const struct vec *ins, int l)
{
    int from = l - (int)s->c->attention_delay;
    return ins[from > 0 ? from : 0];
}

static struct vec reference_delayed_sum(const struct model *s)
{
    struct vec ins[LAYERS_MAX], out[LAYERS_MAX], e[LAYERS_MAX], in = s->w->embedding;
    int layers = (int)s->c->layer_count, dd = (int)s->c->dense_delay, de = (int)s->c->expert_delay;
    for (int l = 0; l < layers; l++) {
        uint32_t u = (uint32_t)l;
        ins[l] = in;
        struct vec mid = add(in, m(s, u, u, attention_in(s, ins, l)));
        struct vec dense_in = dd == 0 ? mid : l >= dd ? out[l - dd] : zero();
        struct vec f = F(s, u, N(s, u, dense_in));
        e[l] = M(s, u, N(s, u, mid));
        out[l] = add(mid, f);
        for (int j = 0; j <= l; j++) {
            int due = j + de < layers - 1 ? j + de : layers - 1;
            if (due == l)
                out[l] = add(out[l], e[j]);
        }
        in = out[l];
    }
    return in;
}

static struct vec reference_async_experts(const struct model *s)
{
    struct vec ins[LAYERS_MAX], out[LAYERS_MAX], e[LAYERS_MAX], in = s->w->embedding;
    int layers = (int)s->c->layer_count, dd = (int)s->c->dense_delay, de = (int)s->c->expert_delay;
    for (int l = 0; l < layers; l++) {
        uint32_t u = (uint32_t)l;
        for (int j = 0; j < l; j++)
            if (j + de == l && de >= 1)
                in = add(in, e[j]);
        ins[l] = in;
        struct vec r = N(s, u, in);
        struct vec f = dd == 0 ? F(s, u, r) : F(s, u, l >= dd ? N(s, u, out[l - dd]) : zero());
        e[l] = M(s, u, r);
        out[l] = add(add(in, m(s, u, u, attention_in(s, ins, l))), f);
        if (de == 0)
            out[l] = add(out[l], e[l]);
        in = out[l];
    }
    for (int j = 0; j < layers; j++)
        if (j + de > layers - 1 && de >= 1)
            in = add(in, e[j]);
    return in;
}

static struct vec reference_parallel_sqrt2(const struct model *s)
{
    struct vec x = s->w->embedding;
    for (uint32_t l = 0; l < s->c->layer_count; l++) {
        struct vec mid = add(x, m(s, l, l, x)), y = N(s, l, mid);
        x = add(mid, scale(add(F(s, l, y), M(s, l, y)), SQRT_HALF));
    }
    return x;
}

static struct vec reference_decoupled_streams(const struct model *s)
{
    struct vec a = s->w->embedding, st = a;
    for (uint32_t l = 0; l < s->c->layer_count; l++) {
        a = add(a, m(s, l, l, a));
        st = add(st, F(s, l, N(s, l, st)));
        if ((l + 1) % s->c->merge_interval == 0)
            a = st = scale(add(a, st), 0.5);
    }
    return scale(add(a, st), 0.5);
}

static struct vec reference_pipeline_registers(const struct model *s)
{
    struct vec a = s->w->embedding, t = a;
    for (uint32_t l = 0; l < s->c->layer_count; l++) {
        struct vec f = F(s, l, N(s, l, t));
        a = add(a, m(s, l, l, a));
        t = add(a, f);
    }
    return t;
}

static struct vec reference_fixed_point(const struct model *s)
{
    struct vec x = s->w->embedding;
    uint32_t kv = 0;
    for (uint32_t b = 0; b < s->c->layer_count; b++) {
        struct vec x0 = x;
        for (uint32_t i = 0; i < s->c->fixed_point_iterations; i++) {
            struct vec g = m(s, b, kv++, x);
            x = add(add(x0, g), F(s, b, N(s, b, add(x, g))));
        }
    }
    return x;
}

static struct vec reference(const struct model *s)
{
    switch (s->c->style) {
    case VF_STYLE_PARALLEL_SQRT2:
        return reference_parallel_sqrt2(s);
    case VF_STYLE_ASYNC_EXPERTS:
        return reference_async_experts(s);
    case VF_STYLE_DECOUPLED_STREAMS:
        return reference_decoupled_streams(s);
    case VF_STYLE_PIPELINE_REGISTERS:
        return reference_pipeline_registers(s);
    case VF_STYLE_FIXED_POINT:
        return reference_fixed_point(s);
    default:
        return reference_delayed_sum(s);
    }
}

/* ---- the interpreter ---- */

static struct vec run_op(const struct world *w, const struct vf_program *p, const struct vf_op *op,
                         const struct vec *values)
{
    const vf_value *in = vf_op_inputs(p, op);
    struct vec sum;
    switch (op->kind) {
    case VF_OP_EMBED:
        return w->embedding;
    case VF_OP_NORM:
        if (op->norm == VF_NORM_FINAL)
            return values[in[0]];
        return norm(op->norm == VF_NORM_ATTN ? w->attn_norm[op->layer] : w->ffn_norm[op->layer],
                    values[in[0]]);
    case VF_OP_ATTENTION:
        return attend(w, op->layer, op->kv, values[in[0]]);
    case VF_OP_DENSE:
        return map(w->dense[op->layer], values[in[0]]);
    case VF_OP_ROUTE:
        return route(w, op->layer, values[in[0]]);
    case VF_OP_EXPERTS:
        return run_experts(w, op->layer, values[in[0]], values[in[1]]);
    case VF_OP_SUM:
        sum = values[in[0]];
        for (uint32_t k = 1; k < op->in_count; k++)
            sum = add(sum, values[in[k]]);
        return scale(sum, (double)op->scale);
    default:
        return zero();
    }
}

/* Runs every op in order and returns what the head reads. */
static struct vec interpret(const struct world *w, const struct vf_program *p)
{
    struct vec *values = calloc(p->value_count, sizeof *values), result = zero();
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct vf_op *op = &p->ops[i];
        if (op->kind == VF_OP_HEAD)
            result = values[vf_op_inputs(p, op)[0]];
        else if (op->out != VF_VALUE_NONE)
            values[op->out] = run_op(w, p, op, values);
    }
    free(values);
    return result;
}

/* Largest difference; NaN counts as far away. */
static double distance(struct vec a, struct vec b)
{
    double most = 0.0;
    for (int i = 0; i < D; i++) {
        double diff = fabs(a.x[i] - b.x[i]);
        if (!(diff <= most))
            most = isnan(diff) ? INFINITY : diff;
    }
    return most;
}

/* ---- structure ---- */

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            note("op %u: %s", i, #cond);                                                           \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* Inputs of the right number and sort exist before the op runs; outputs are written once. */
static bool check_values(const struct vf_program *p)
{
    uint32_t written = 0;
    static const uint32_t inputs[VF_OP_KIND_COUNT] = {
        [VF_OP_NORM] = 1,  [VF_OP_ATTENTION] = 1, [VF_OP_DENSE] = 1, [VF_OP_ROUTE] = 1,
        [VF_OP_FETCH] = 1, [VF_OP_EXPERTS] = 2,   [VF_OP_HEAD] = 1};
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct vf_op *op = &p->ops[i];
        CHECK(op->in_begin + op->in_count <= p->input_count);
        CHECK(op->kind == VF_OP_SUM ? op->in_count >= 1 : op->in_count == inputs[op->kind]);
        for (uint32_t k = 0; k < op->in_count; k++) {
            vf_value v = vf_op_inputs(p, op)[k];
            bool wants_route = op->kind == VF_OP_FETCH || (op->kind == VF_OP_EXPERTS && k == 1);
            CHECK(v < p->value_count && p->values[v].producer < i && p->values[v].last_use >= i);
            CHECK(p->values[v].is_route == wants_route);
        }
        bool silent = op->kind == VF_OP_FETCH || op->kind == VF_OP_HEAD;
        CHECK(silent == (op->out == VF_VALUE_NONE));
        if (!silent) {
            CHECK(op->out == written && p->values[op->out].producer == i);
            CHECK(p->values[op->out].last_use > i);
            CHECK(p->values[op->out].name[0]);
            written++;
        }
    }
    return written == p->value_count;
}

static uint32_t due_of(const struct vf_config *c, uint32_t layer)
{
    uint64_t due = (uint64_t)layer + c->expert_delay;
    return due < c->layer_count ? (uint32_t)due : c->layer_count - 1;
}

/* Fetch follows route; experts stand right before the sum that reads them; layers and KV. */
static bool check_order(const struct vf_config *c, const struct vf_program *p)
{
    uint32_t kv = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct vf_op *op = &p->ops[i];
        CHECK(op->step_layer < p->effective_layers);
        if (op->layer != VF_LAYER_NONE)
            CHECK(op->layer == vf_config_weight_layer(c, op->step_layer));
        if (op->kind == VF_OP_ROUTE) {
            CHECK(i + 1 < p->op_count && op[1].kind == VF_OP_FETCH);
            CHECK(vf_op_inputs(p, &op[1])[0] == op->out && op[1].layer == op->layer);
            CHECK(op->due_layer == due_of(c, op->layer) && op[1].due_layer == op->due_layer);
        }
        if (op->kind == VF_OP_EXPERTS) {
            uint32_t reader = p->values[op->out].last_use;
            CHECK(p->ops[reader].kind == VF_OP_SUM && op->due_layer == due_of(c, op->layer));
            CHECK(p->ops[reader].step_layer == op->due_layer);
            for (uint32_t k = i; k < reader; k++)
                CHECK(p->ops[k].kind == VF_OP_EXPERTS);
        }
        if (op->kind == VF_OP_ATTENTION)
            CHECK(op->kv == kv++ && op->kv == op->step_layer);
    }
    uint32_t i = p->op_count - 1;
    CHECK(p->ops[i].kind == VF_OP_HEAD && p->ops[i].layer == VF_LAYER_NONE);
    CHECK(p->ops[i - 1].kind == VF_OP_NORM && p->ops[i - 1].norm == VF_NORM_FINAL);
    CHECK(p->ops[0].kind == VF_OP_EMBED && kv == p->effective_layers);
    return true;
}

static uint32_t count_kind(const struct vf_program *p, enum vf_op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->op_count; i++)
        n += p->ops[i].kind == kind;
    return n;
}

/* Delayed layers whose dense input is the zero vector have no dense op at all. */
static bool check_counts(const struct vf_config *c, const struct vf_program *p)
{
    uint32_t layers = p->effective_layers;
    uint32_t dense = c->dense_delay < layers ? layers - c->dense_delay : 0;
    uint32_t experts = c->expert_count ? layers : 0;
    return count_kind(p, VF_OP_DENSE) == (c->ffn_size ? dense : 0) &&
           count_kind(p, VF_OP_EXPERTS) == experts && count_kind(p, VF_OP_ROUTE) == experts &&
           count_kind(p, VF_OP_ATTENTION) == layers;
}

static void test_style(enum vf_style style)
{
    struct rng r = {.state = 1000 + (uint64_t)style};
    struct world *w = malloc(sizeof *w);
    bool values = true, order = true, counts = true;
    double worst = 0.0;
    for (int i = 0; i < MODELS; i++) {
        struct vf_config c;
        struct vf_program p;
        struct vf_err err = {0};
        random_config(&r, style, &c);
        make_world(&r, w);
        if (vf_program_compile(&c, &p, &err) != VF_OK) {
            note("%s", err.text);
            values = false;
            continue;
        }
        values &= check_values(&p);
        order &= check_order(&c, &p);
        counts &= check_counts(&c, &p);
        struct model s = {.c = &c, .w = w};
        double far = distance(interpret(w, &p), reference(&s));
        if (!(far <= worst))
            worst = far;
        vf_program_deinit(&p);
        vf_config_deinit(&c);
    }
    free(w);
    const char *name = vf_style_name(style);
    ok(values, "%s: every input is made before it's read, every output once", name);
    ok(order, "%s: fetch after route, experts before their sum, layers and KV caches", name);
    ok(counts, "%s: as many dense, experts and attention ops as the delays leave", name);
    note("%d models, largest difference %.3g", MODELS, worst);
    ok(worst < 1e-12, "%s: the program computes MODEL.md's recurrence", name);
}

/* The order of a sum's terms is part of the result's bits. */
static void test_sum_order(void)
{
    struct vf_config c;
    struct vf_program p;
    struct vf_err err = {0};
    parse_good("{\"model_type\":\"pipeline_native\",\"dense_delay\":1,\"expert_delay\":2,"
               "\"hidden_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
               "\"intermediate_size\":64,\"num_experts\":4,\"num_experts_per_tok\":2,"
               "\"moe_intermediate_size\":32,\"vocab_size\":50}",
               &c);
    if (vf_program_compile(&c, &p, &err) != VF_OK)
        note("%s", err.text);
    vf_value out = p.layer_out[3];
    const struct vf_op *op = &p.ops[p.values[out].producer];
    char text[160] = "";
    for (uint32_t k = 0; k < op->in_count; k++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s ", p.values[vf_op_inputs(&p, op)[k]].name);
    }
    ok(strcmp(text, "x3.mid f3 e1 e2 e3 ") == 0, "the last layer sums: %s", text);
    ok(strcmp(p.values[p.layer_out[0]].name, "x0.mid") == 0,
       "a layer with nothing to add leaves its mid value: %s", p.values[p.layer_out[0]].name);
    vf_program_deinit(&p);
}

/* The largest programs that a config allows. */
static void test_large(void)
{
    struct vf_config c;
    struct vf_program p;
    struct vf_err err = {0};
    parse_good("{\"model_type\":\"pipeline_native\",\"expert_delay\":4096,\"hidden_size\":32,"
               "\"num_hidden_layers\":4096,\"num_attention_heads\":4,\"intermediate_size\":0,"
               "\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
               "\"vocab_size\":50}",
               &c);
    enum vf_code code = vf_program_compile(&c, &p, &err);
    ok(code == VF_OK && check_values(&p) && check_order(&c, &p),
       "4096 layers, all due at the last");
    vf_program_deinit(&p);
    vf_program_deinit(NULL);
}

int main(void)
{
    plan(VF_STYLE_COUNT * 4 + 3);
    for (int style = 0; style < VF_STYLE_COUNT; style++)
        test_style((enum vf_style)style);
    test_sum_order();
    test_large();
    return 0;
}
