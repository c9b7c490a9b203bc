/* The guesses of a step are kept per layer as a byte for each expert, a bit for each number of
 * layers ahead, until the layer's own routing tells which were right.
 *
 * The weights of a guess are the next layer's router and norm: a small matrix, read once more. What
 * the source has already, or is reading, it doesn't order again.
 */
#include "stage_worker/speculate.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "stage_worker/internal.h"

#include <stdlib.h>
#include <string.h>

/* A layer to guess for from a fetch operation. */
struct target {
    const struct vf_op *fetch; /* the layer's own; NULL: none */
};

struct speculation {
    struct vf_speculation_gate gate;
    struct vf_speculation_stats stats;
    struct target *targets;  /* [op_count, VF_SPECULATE_REACH], the nearest first */
    vf_value *residuals;     /* [op_count]: of a fetch, what its layer routed on before the norm */
    uint8_t *guessed;        /* [layer_count, expert_count]: bit r: r + 1 layers before */
    uint8_t *guessed_layers; /* [layer_count]: the same, whether there was a guess */
    bool running;            /* the step at hand speculates */
    bool counting;           /* ... or could have */
};

/* ---- what can be guessed ----------------------------------------------------------------------
 */

/* The experts are wanted in the layer that chooses them, here. */
static bool is_undelayed_fetch(const struct vf_executor *ex, uint32_t op_idx)
{
    const struct vf_op *op = &ex->p.program->ops[op_idx];
    return op->kind == VF_OP_FETCH && is_mine(ex, op_idx) && op->due_layer == op->step_layer;
}

/* Whether a value still has its buffer when the fetch runs: it is sent or read behind it. */
static bool outlives(const struct vf_executor *ex, vf_value v, uint32_t fetch)
{
    const struct vf_program *p = ex->p.program;
    for (uint32_t i = 0; i < p->op_count; i++)
        for (uint32_t k = 0; k < p->ops[i].in_count; k++)
            if (is_mine(ex, i) && ex->slot[i] > ex->slot[fetch] &&
                vf_op_inputs(p, &p->ops[i])[k] == v)
                return true;
    return false;
}

static const struct vf_op *producer(const struct vf_program *p, vf_value v)
{
    return &p->ops[p->values[v].producer];
}

/* The residual behind fetch <- route <- norm; VF_VALUE_NONE when it isn't at hand any more. */
static vf_value residual_of(const struct vf_executor *ex, uint32_t fetch)
{
    const struct vf_program *p = ex->p.program;
    const struct vf_op *route = producer(p, vf_op_inputs(p, &p->ops[fetch])[0]);
    const struct vf_op *norm = producer(p, vf_op_inputs(p, route)[0]);
    if (norm->kind != VF_OP_NORM)
        return VF_VALUE_NONE;
    vf_value residual = vf_op_inputs(p, norm)[0];
    return outlives(ex, residual, fetch) ? residual : VF_VALUE_NONE;
}

static bool list_targets(struct vf_executor *ex)
{
    const struct vf_program *p = ex->p.program;
    struct speculation *s = ex->speculation;
    bool any = false;
    for (uint32_t i = 0; i < p->op_count; i++) {
        s->residuals[i] = is_undelayed_fetch(ex, i) ? residual_of(ex, i) : VF_VALUE_NONE;
        if (s->residuals[i] == VF_VALUE_NONE)
            continue;
        struct target *targets = s->targets + (size_t)i * VF_SPECULATE_REACH;
        for (uint32_t k = i + 1; k < p->op_count; k++) {
            uint32_t ahead = p->ops[k].step_layer - p->ops[i].step_layer;
            if (ahead < 1 || ahead > VF_SPECULATE_REACH || !is_undelayed_fetch(ex, k))
                continue;
            targets[ahead - 1].fetch = &p->ops[k];
            any = true;
        }
    }
    return any;
}

enum vf_code speculation_create(struct vf_executor *ex, struct vf_err *err)
{
    if (ex->p.speculate == VF_SPECULATE_OFF || ex->config->expert_count == 0)
        return VF_OK;
    const struct vf_config *c = ex->config;
    uint32_t ops = ex->p.program->op_count;
    struct speculation *s = ex->speculation = calloc(1, sizeof *s);
    if (s) {
        s->targets = calloc((size_t)ops * VF_SPECULATE_REACH, sizeof *s->targets);
        s->residuals = calloc(ops, sizeof *s->residuals);
        s->guessed = calloc(c->layer_count, c->expert_count);
        s->guessed_layers = calloc(c->layer_count, 1);
    }
    if (!s || !s->targets || !s->residuals || !s->guessed || !s->guessed_layers)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for guesses of experts");
    vf_speculation_gate_init(&s->gate, ex->p.speculate);
    if (!list_targets(ex))
        speculation_destroy(ex);
    return VF_OK;
}

void speculation_destroy(struct vf_executor *ex)
{
    struct speculation *s = ex->speculation;
    if (!s)
        return;
    free(s->targets);
    free(s->residuals);
    free(s->guessed);
    free(s->guessed_layers);
    free(s);
    ex->speculation = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------
 */

void speculation_begin_step(struct vf_executor *ex)
{
    struct speculation *s = ex->speculation;
    if (!s)
        return;
    s->counting = ex->n_col <= VF_SPECULATE_COLUMNS_MAX;
    s->running = s->counting && vf_speculation_gate_next(&s->gate);
    memset(s->guessed_layers, 0, ex->config->layer_count); /* of a step that failed */
}

void speculation_end_step(struct vf_executor *ex, uint64_t own_ns)
{
    struct speculation *s = ex->speculation;
    if (!s || !s->counting)
        return;
    s->stats.steps++;
    s->stats.steps_speculated += s->running;
    vf_speculation_gate_done(&s->gate, ex->n_col, own_ns);
}

/* ---- counting ---------------------------------------------------------------------------------
 */

/* What was guessed for this layer against the n experts that it chose, in ex->refs. */
static void count_guesses(struct vf_executor *ex, uint32_t layer, uint32_t n)
{
    struct speculation *s = ex->speculation;
    uint8_t *guessed = s->guessed + (size_t)layer * ex->config->expert_count;
    for (uint32_t r = 0; r < VF_SPECULATE_REACH; r++) {
        if (!(s->guessed_layers[layer] >> r & 1))
            continue;
        struct vf_guess_counts *counts = &s->stats.ahead[r];
        for (uint32_t e = 0; e < ex->config->expert_count; e++)
            counts->guessed += guessed[e] >> r & 1;
        for (uint32_t i = 0; i < n; i++)
            counts->right += guessed[ex->refs[i].expert] >> r & 1;
        counts->chosen += n;
    }
    s->guessed_layers[layer] = 0;
}

/* ---- guessing ---------------------------------------------------------------------------------
 */

/* Auxiliary flows that replay flow 0's ranking choose nothing of their own. */
static bool replays(const struct vf_executor *ex)
{
    return ex->config->flow_router == VF_ROUTER_REPLAY;
}

static uint32_t guess_columns(const struct vf_executor *ex)
{
    return replays(ex) ? ex->n_primary : ex->n_col;
}

static uint32_t guess_count(const struct vf_executor *ex, uint32_t column)
{
    const struct vf_config *c = ex->config;
    if (ex->columns[column].flow > 0)
        return c->expert_top_k_aux;
    return replays(ex) && ex->n_col > ex->n_primary ? top_k_max(c) : c->expert_top_k;
}

/* The layer's router on the residual under the layer's norm, into ex->router_logits. */
static void guess_logits(struct vf_executor *ex, uint32_t layer, vf_value residual, uint32_t n_col)
{
    const struct vf_config *c = ex->config;
    const struct layer_weights *w = &ex->layers[layer];
    for (size_t col = 0; col < n_col; col++)
        ex->p.kernels->rmsnorm(value_data(ex, residual) + col * ex->stride, w->ffn_norm,
                               c->norm_weight_offset ? 1.0f : 0.0f, c->norm_eps, c->hidden_size,
                               ex->pair_in + col * ex->stride);
    struct matmul mm = {
        .m = w->router,
        .acts = {.x = ex->pair_in, .n_col = n_col, .cols = c->hidden_size, .stride = ex->stride},
        .y = ex->router_logits,
        .y_stride = c->expert_count,
        .exact_f32 = true};
    add_matmul(ex, &mm);
    run_region(ex);
}

/* Makes the guesses of all columns ex->refs, best ranks first; returns how many. */
static uint32_t collect_guesses(struct vf_executor *ex, uint32_t layer, uint32_t bit,
                                uint32_t n_col)
{
    const struct vf_config *c = ex->config;
    uint8_t *guessed = ex->speculation->guessed + (size_t)layer * c->expert_count;
    uint32_t chosen[VF_SPECULATE_COLUMNS_MAX][VF_EXPERTS_TOP_MAX], n = 0;
    for (uint32_t e = 0; e < c->expert_count; e++)
        guessed[e] &= (uint8_t)~bit;
    for (uint32_t col = 0; col < n_col; col++)
        select_top_k(ex->router_logits + (size_t)col * c->expert_count, c->expert_count,
                     guess_count(ex, col), chosen[col]);
    for (uint32_t rank = 0; rank < top_k_max(c); rank++)
        for (uint32_t col = 0; col < n_col; col++) {
            if (rank >= guess_count(ex, col) || (guessed[chosen[col][rank]] & bit))
                continue;
            guessed[chosen[col][rank]] |= (uint8_t)bit;
            ex->refs[n++] = (struct vf_expert_ref){layer, chosen[col][rank]};
        }
    return n;
}

static void guess(struct vf_executor *ex, const struct vf_op *fetch, vf_value residual,
                  uint32_t ahead)
{
    struct vf_expert_source *source = ex->p.experts;
    uint32_t n_col = guess_columns(ex);
    guess_logits(ex, fetch->layer, residual, n_col);
    uint32_t n = collect_guesses(ex, fetch->layer, 1u << (ahead - 1), n_col);
    source->ops->fetch(source, ex->refs, n, deadline_rank(ex, fetch), VF_FETCH_SPECULATIVE);
    ex->speculation->guessed_layers[fetch->layer] |= (uint8_t)(1u << (ahead - 1));
}

void speculation_after_fetch(struct vf_executor *ex, const struct vf_op *op, uint32_t n)
{
    struct speculation *s = ex->speculation;
    if (!s || !s->running)
        return;
    uint64_t began = vf_now_ns();
    size_t at = (size_t)(op - ex->p.program->ops);
    count_guesses(ex, op->layer, n);
    for (uint32_t r = 0; r < VF_SPECULATE_REACH; r++)
        if (s->targets[at * VF_SPECULATE_REACH + r].fetch)
            guess(ex, s->targets[at * VF_SPECULATE_REACH + r].fetch, s->residuals[at], r + 1);
    s->stats.guess_ns += vf_now_ns() - began;
}

bool vf_executor_speculates(const struct vf_executor *ex)
{
    return ex->speculation;
}

void vf_executor_speculation(const struct vf_executor *ex, struct vf_speculation_stats *out)
{
    const struct speculation *s = ex->speculation;
    *out = s ? s->stats : (struct vf_speculation_stats){0};
    if (!s)
        return;
    out->on = vf_speculation_gate_next(&s->gate);
    out->probes = s->gate.probes;
    out->gain = s->gate.gain_share;
}
