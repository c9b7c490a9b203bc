/* The guesses of a step are kept per layer as a byte for each expert, a bit for each number of
 * layers ahead, until the layer's own routing tells which were right.
 *
 * The weights of a guess are the next layer's router and norm: a small matrix, read once more. What
 * the source has already, or is reading, it doesn't order again.
 */
#include "stage_worker/speculate.h"

#include "common/base/clock.h"
#include "stage_worker/route.h"
#include "stage_worker/weights.h"

#include <stdlib.h>
#include <string.h>

/* A layer to guess for from a fetch operation. */
struct guess_target {
    const struct vf_op *fetch; /* the layer's own; NULL: none */
};

/* ---- what can be guessed ----------------------------------------------------------------------
 */

/* The experts are wanted in the layer that chooses them, here. */
static bool is_undelayed_fetch(const struct core *core, uint32_t op_idx)
{
    const struct vf_op *op = &core->p.program->ops[op_idx];
    return op->kind == VF_OP_FETCH && core->p.placement->op_worker[op_idx] == core->p.worker &&
           op->due_layer == op->step_layer;
}

static const struct vf_op *producer(const struct vf_program *p, vf_value v)
{
    return &p->ops[p->values[v].producer];
}

/* The residual behind fetch <- route <- norm; VF_VALUE_NONE when it isn't at hand any more: nobody
 * reads it behind the fetch. */
static vf_value residual_of(const struct core *core, uint32_t fetch)
{
    const struct vf_program *p = core->p.program;
    const struct vf_op *route = producer(p, vf_op_inputs(p, &p->ops[fetch])[0]);
    const struct vf_op *norm = producer(p, vf_op_inputs(p, route)[0]);
    if (norm->kind != VF_OP_NORM)
        return VF_VALUE_NONE;
    vf_value residual = vf_op_inputs(p, norm)[0];
    return core->part.spans[residual].end > core->part.slot[fetch] ? residual : VF_VALUE_NONE;
}

static bool list_targets(struct speculation *s)
{
    const struct core *core = s->core;
    const struct vf_program *p = core->p.program;
    bool any = false;
    for (uint32_t i = 0; i < p->op_count; i++) {
        s->residuals[i] = is_undelayed_fetch(core, i) ? residual_of(core, i) : VF_VALUE_NONE;
        if (s->residuals[i] == VF_VALUE_NONE)
            continue;
        struct guess_target *targets = s->targets + (size_t)i * VF_SPECULATE_REACH;
        for (uint32_t k = i + 1; k < p->op_count; k++) {
            uint32_t ahead = p->ops[k].step_layer - p->ops[i].step_layer;
            if (ahead < 1 || ahead > VF_SPECULATE_REACH || !is_undelayed_fetch(core, k))
                continue;
            targets[ahead - 1].fetch = &p->ops[k];
            any = true;
        }
    }
    return any;
}

enum vf_code speculation_init(struct speculation *s, struct core *core, struct vf_err *err)
{
    uint32_t ops = core->p.program->op_count, layers = core->config->layer_count;
    s->core = core;
    if (core->p.speculate == VF_SPECULATE_OFF)
        return VF_OK;
    s->space = core->space.guess;
    s->refs = s->space.refs;
    s->targets = calloc((size_t)ops * VF_SPECULATE_REACH, sizeof *s->targets);
    s->residuals = calloc(ops, sizeof *s->residuals);
    s->layers = calloc(layers, sizeof *s->layers);
    if (!s->targets || !s->residuals || !s->layers)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for guesses of experts");
    for (uint32_t l = 0; l < layers; l++) {
        s->layers[l].router = weights_matrix(core->p.file, VF_T_ROUTER, l, 0);
        s->layers[l].norm = weights_vector(core->p.file, VF_T_FFN_NORM, l, 0);
    }
    vf_speculation_gate_init(&s->gate, core->p.speculate);
    s->any = list_targets(s);
    return VF_OK;
}

void speculation_deinit(struct speculation *s)
{
    free(s->targets);
    free(s->residuals);
    free(s->layers);
}

/* ---- steps ------------------------------------------------------------------------------------
 */

void speculation_begin_step(struct speculation *s)
{
    if (!s->any)
        return;
    s->counting = s->core->step.n_col <= VF_SPECULATE_COLUMNS_MAX;
    s->running = s->counting && vf_speculation_gate_next(&s->gate);
    memset(s->space.by_layer, 0, s->core->config->layer_count); /* of a step that failed */
}

void speculation_end_step(struct speculation *s, uint64_t own_ns)
{
    if (!s->any || !s->counting)
        return;
    s->stats.steps++;
    s->stats.steps_speculated += s->running;
    vf_speculation_gate_done(&s->gate, s->core->step.n_col, own_ns);
}

/* ---- counting ---------------------------------------------------------------------------------
 */

/* What was guessed for this layer against the n experts that it chose. */
static void count_guesses(struct speculation *s, uint32_t layer, const struct vf_expert_ref *refs,
                          uint32_t n)
{
    uint8_t *guessed = s->space.guessed + (size_t)layer * s->core->config->expert_count;
    for (uint32_t r = 0; r < VF_SPECULATE_REACH; r++) {
        if (!(s->space.by_layer[layer] >> r & 1))
            continue;
        struct vf_guess_counts *counts = &s->stats.ahead[r];
        for (uint32_t e = 0; e < s->core->config->expert_count; e++)
            counts->guessed += guessed[e] >> r & 1;
        for (uint32_t i = 0; i < n; i++)
            counts->right += guessed[refs[i].expert] >> r & 1;
        counts->chosen += n;
    }
    s->space.by_layer[layer] = 0;
}

/* ---- guessing ---------------------------------------------------------------------------------
 */

/* Auxiliary flows that replay flow 0's ranking choose nothing of their own. */
static bool replays(const struct speculation *s)
{
    return s->core->config->flow_router == VF_ROUTER_REPLAY;
}

static uint32_t guess_columns(const struct speculation *s)
{
    return replays(s) ? s->core->step.n_primary : s->core->step.n_col;
}

static uint32_t guess_count(const struct speculation *s, uint32_t column)
{
    const struct vf_config *c = s->core->config;
    if (s->core->step.columns[column].flow > 0)
        return c->expert_top_k_aux;
    return replays(s) && s->core->step.n_col > s->core->step.n_primary ? vf_experts_top_max(c)
                                                                       : c->expert_top_k;
}

/* The layer's router on the residual under the layer's norm, into the space of guesses. */
static void guess_logits(struct speculation *s, uint32_t layer, vf_value residual, uint32_t n_col)
{
    const struct vf_config *c = s->core->config;
    const struct guess_weights *w = &s->layers[layer];
    for (size_t col = 0; col < n_col; col++)
        s->core->kernels->rmsnorm(value_in(s->core, residual) + col * s->core->stride, w->norm,
                                  c->norm_weight_offset ? 1.0f : 0.0f, c->norm_eps, c->hidden_size,
                                  s->space.normed + col * s->core->stride);
    struct matmul mm = {.m = w->router,
                        .acts = {.x = s->space.normed,
                                 .n_col = n_col,
                                 .cols = c->hidden_size,
                                 .stride = s->core->stride},
                        .y = s->space.logits,
                        .y_stride = c->expert_count,
                        .exact_f32 = true};
    work_add_matmul(&s->core->work, &mm);
    work_run(&s->core->work);
}

/* Makes the guesses of all columns refs, best ranks first; returns how many. */
static uint32_t collect_guesses(struct speculation *s, uint32_t layer, uint32_t bit, uint32_t n_col)
{
    const struct vf_config *c = s->core->config;
    uint8_t *guessed = s->space.guessed + (size_t)layer * c->expert_count;
    uint32_t chosen[VF_SPECULATE_COLUMNS_MAX][VF_EXPERTS_TOP_MAX], n = 0;
    for (uint32_t e = 0; e < c->expert_count; e++)
        guessed[e] &= (uint8_t)~bit;
    for (uint32_t col = 0; col < n_col; col++)
        select_top_k(s->space.logits + (size_t)col * c->expert_count, c->expert_count,
                     guess_count(s, col), chosen[col]);
    for (uint32_t rank = 0; rank < vf_experts_top_max(c); rank++)
        for (uint32_t col = 0; col < n_col; col++) {
            if (rank >= guess_count(s, col) || (guessed[chosen[col][rank]] & bit))
                continue;
            guessed[chosen[col][rank]] |= (uint8_t)bit;
            s->refs[n++] = (struct vf_expert_ref){layer, chosen[col][rank]};
        }
    return n;
}

static void guess(struct speculation *s, const struct vf_op *fetch, vf_value residual,
                  uint32_t ahead)
{
    struct vf_expert_source *source = s->core->p.experts;
    uint32_t n_col = guess_columns(s);
    guess_logits(s, fetch->layer, residual, n_col);
    uint32_t n = collect_guesses(s, fetch->layer, 1u << (ahead - 1), n_col);
    source->ops->fetch(source, s->refs, n, deadline_rank(s->core, fetch), VF_FETCH_SPECULATIVE);
    s->space.by_layer[fetch->layer] |= (uint8_t)(1u << (ahead - 1));
}

void speculation_after_fetch(struct speculation *s, const struct vf_op *op,
                             const struct vf_expert_ref *refs, uint32_t n)
{
    if (!s->any || !s->running)
        return;
    uint64_t began = vf_now_ns();
    size_t at = (size_t)(op - s->core->p.program->ops);
    count_guesses(s, op->layer, refs, n);
    for (uint32_t r = 0; r < VF_SPECULATE_REACH; r++)
        if (s->targets[at * VF_SPECULATE_REACH + r].fetch)
            guess(s, s->targets[at * VF_SPECULATE_REACH + r].fetch, s->residuals[at], r + 1);
    s->stats.guess_ns += vf_now_ns() - began;
}

void speculation_stats(const struct speculation *s, struct vf_speculation_stats *out)
{
    *out = s->stats;
    if (!s->any)
        return;
    out->on = vf_speculation_gate_next(&s->gate);
    out->probes = s->gate.probes;
    out->gain = s->gate.gain_share;
}
