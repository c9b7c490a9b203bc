/* Loads the model, compiles and places its program and adds up bytes. */
#include "coordinator/plan/plan_model.h"

#include "common/base/util.h"
#include "common/format/layout.h"
#include "common/machine/bandwidth.h"

#include <stdlib.h>
#include <string.h>

const char *vf_plan_part_name(enum vf_plan_part part)
{
    static const char *const names[VF_PART_COUNT] = {"embedding", "norms",   "attention", "dense",
                                                     "router",    "experts", "head"};
    return names[part];
}

enum vf_plan_part vf_plan_op_part(enum vf_op_kind kind)
{
    switch (kind) {
    case VF_OP_EMBED:
        return VF_PART_EMBEDDING;
    case VF_OP_ATTENTION:
        return VF_PART_ATTENTION;
    case VF_OP_DENSE:
        return VF_PART_DENSE;
    case VF_OP_ROUTE:
        return VF_PART_ROUTER;
    case VF_OP_EXPERTS:
        return VF_PART_EXPERTS;
    case VF_OP_HEAD:
        return VF_PART_HEAD;
    default:
        return VF_PART_NORMS; /* sums and fetches read no weights */
    }
}

static enum vf_plan_part tensor_part(enum vf_tensor_kind kind)
{
    switch (kind) {
    case VF_T_EMBED:
        return VF_PART_EMBEDDING;
    case VF_T_HEAD:
        return VF_PART_HEAD;
    case VF_T_FINAL_NORM:
    case VF_T_ATTN_NORM:
    case VF_T_FFN_NORM:
        return VF_PART_NORMS;
    case VF_T_GATE:
    case VF_T_UP:
    case VF_T_DOWN:
    case VF_T_HIDDEN_COUPLING:
    case VF_T_OUTPUT_COUPLING:
        return VF_PART_DENSE;
    case VF_T_ROUTER:
        return VF_PART_ROUTER;
    case VF_T_EXPERT_GATE:
    case VF_T_EXPERT_UP:
    case VF_T_EXPERT_DOWN:
    case VF_T_MOE_HIDDEN_COUPLING:
    case VF_T_MOE_OUTPUT_COUPLING:
        return VF_PART_EXPERTS;
    default:
        return VF_PART_ATTENTION;
    }
}

uint64_t vf_plan_sum(const uint64_t part_bytes[VF_PART_COUNT])
{
    uint64_t sum = 0;
    for (int i = 0; i < VF_PART_COUNT; i++)
        sum += part_bytes[i];
    return sum;
}

uint64_t vf_plan_value_bytes(const struct vf_plan *plan, vf_value v)
{
    const struct vf_config *c = plan->config;
    if (!plan->program.values[v].is_route)
        return (uint64_t)c->hidden_size * c->flow_count * sizeof(float);
    /* an index and a weight for each chosen expert */
    return (c->expert_top_k + (uint64_t)(c->flow_count - 1) * c->expert_top_k_aux) *
           (sizeof(uint32_t) + sizeof(float));
}

double vf_plan_token_ms(const struct vf_plan *plan, double bytes)
{
    return bytes / (plan->bandwidth_gb_s * 1e6);
}

static enum vf_code load_model(struct vf_plan *p, struct vf_err *err)
{
    struct vf_matrix embed;
    struct vf_tensor_id id = {.kind = VF_T_EMBED, .layer = VF_LAYER_NONE};
    p->source = p->options.settings.model;
    enum vf_code code = vf_model_file_open(p->source, &p->file, err);
    if (code)
        return code;
    p->config = vf_model_file_config(p->file);
    if (!vf_model_file_matrix(p->file, id, &embed))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: embed: missing", p->source);
    p->quant = embed.quant;
    p->quant_name = vf_model_file_quant_name(p->file);
    return VF_OK;
}

static enum vf_code load(struct vf_plan *p, struct vf_err *err)
{
    if (!p->options.config)
        return load_model(p, err);
    p->source = p->options.config;
    p->quant = p->options.quant;
    p->quant_name = vf_quant_name(p->quant);
    p->config = &p->own_config;
    if (!p->options.config_text)
        return vf_config_load(p->options.config, &p->own_config, err);
    json_t *obj;
    enum vf_code code =
        vf_json_parse(p->options.config_text, strlen(p->options.config_text), p->source, &obj, err);
    if (code)
        return code;
    code = vf_config_parse(obj, p->source, &p->own_config, err);
    json_decref(obj);
    return code;
}

static uint64_t tensor_bytes(const struct vf_tensor_spec *s, enum vf_quant quant)
{
    if (s->is_vector)
        return (uint64_t)s->cols * sizeof(float);
    return vf_matrix_bytes(s->id.kind == VF_T_ROUTER ? VF_QUANT_F32 : quant, s->rows, s->cols);
}

/* A file says what it stores; a config alone is counted as the converter would store it. */
static void add_stored_of_file(struct vf_plan *p)
{
    for (size_t i = 0; i < vf_model_file_tensor_count(p->file); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(p->file, i);
        p->stored_bytes[tensor_part(t.spec.id.kind)] += t.bytes;
    }
    p->expert_record_bytes =
        p->config->expert_count ? vf_model_file_expert_layout(p->file).bytes : 0;
}

static enum vf_code add_stored_of_config(struct vf_plan *p, struct vf_err *err)
{
    struct vf_tensor_spec *specs;
    size_t count;
    enum vf_code code = vf_tensors_list(p->config, false, &specs, &count, err);
    if (code)
        return code;
    for (size_t i = 0; i < count; i++)
        p->stored_bytes[tensor_part(specs[i].id.kind)] += tensor_bytes(&specs[i], p->quant);
    free(specs);
    struct vf_expert_parts parts;
    vf_expert_parts_init(p->config, p->quant, &parts);
    p->expert_record_bytes = parts.layout.bytes;
    return VF_OK;
}

static enum vf_code add_stored(struct vf_plan *p, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (p->file)
        add_stored_of_file(p);
    else
        code = add_stored_of_config(p, err);
    p->stored_bytes[VF_PART_EXPERTS] +=
        (uint64_t)p->config->layer_count * p->config->expert_count * p->expert_record_bytes;
    return code;
}

static bool alloc_timeline(struct vf_plan_timeline *t, uint32_t ops)
{
    t->start = calloc(ops, sizeof *t->start);
    t->finish = calloc(ops, sizeof *t->finish);
    return t->start && t->finish;
}

/* One array each for the cost and the resource of every op, refilled for every schedule. */
static void run_schedules(struct vf_plan *p, double *cost, uint32_t *resource, double *scratch_a,
                          double *scratch_b)
{
    double busy[VF_STAGE_WORKERS_MAX];
    const struct vf_program *g = &p->program;
    for (uint32_t i = 0; i < g->op_count; i++)
        cost[i] = (double)p->op_bytes[i];
    p->placed.total =
        vf_program_schedule(g, cost, NULL, p->shape.placement.op_worker, busy,
                            p->shape.placement.worker_count, p->placed.start, p->placed.finish);
    for (uint32_t i = 0; i < g->op_count; i++) {
        enum vf_lane lane = vf_op_lane(g->ops[i].kind);
        resource[i] = lane == VF_LANE_NONE ? VF_RESOURCE_NONE : (uint32_t)lane;
    }
    p->lanes.total = vf_program_schedule(g, cost, NULL, resource, busy, VF_LANE_COUNT,
                                         p->lanes.start, p->lanes.finish);
    for (uint32_t i = 0; i < g->op_count; i++)
        cost[i] = vf_op_half_bytes(p->config, &g->ops[i]);
    p->half_lanes =
        vf_program_schedule(g, cost, NULL, resource, busy, VF_LANE_COUNT, scratch_a, scratch_b);
    memset(resource, 0xff, g->op_count * sizeof *resource);
    p->half_unlimited = vf_program_schedule(g, cost, NULL, resource, busy, 0, scratch_a, scratch_b);
}

static enum vf_code schedule(struct vf_plan *p, struct vf_err *err)
{
    uint32_t n = p->program.op_count;
    double *cost = calloc(n, sizeof *cost), *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    uint32_t *resource = calloc(n, sizeof *resource);
    bool whole =
        cost && a && b && resource && alloc_timeline(&p->placed, n) && alloc_timeline(&p->lanes, n);
    if (whole)
        run_schedules(p, cost, resource, a, b);
    free(cost);
    free(a);
    free(b);
    free(resource);
    return whole ? VF_OK
                 : vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for a timeline of %u ops", n);
}

/* What an op reads of a file, whose matrices may differ in precision; one token, all flows. */
static uint64_t file_op_bytes(const struct vf_plan *p, const struct vf_op *op)
{
    uint64_t bytes = 0;
    if (op->kind == VF_OP_EMBED || op->kind == VF_OP_NORM)
        return vf_op_weight_bytes(p->config, op, p->quant);
    if (op->kind == VF_OP_EXPERTS) {
        struct vf_matrix m[3];
        vf_expert_matrices(p->file, vf_model_file_expert_data(p->file, 0, 0), &m[0], &m[1], &m[2]);
        for (int i = 0; i < 3; i++)
            bytes +=
                vf_experts_per_token(p->config) * vf_matrix_bytes(m[i].quant, m[i].rows, m[i].cols);
    }
    for (size_t i = 0; i < vf_model_file_tensor_count(p->file); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(p->file, i);
        if (vf_op_reads(op, &t.spec.id, p->config->tie_embeddings))
            bytes += t.bytes;
    }
    return bytes;
}

static enum vf_code add_op_bytes(struct vf_plan *p, struct vf_err *err)
{
    uint32_t n = p->program.op_count;
    p->op_bytes = calloc(n, sizeof *p->op_bytes);
    if (!p->op_bytes)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for %u ops", n);
    for (uint32_t i = 0; i < n; i++) {
        const struct vf_op *op = &p->program.ops[i];
        p->op_bytes[i] =
            p->file ? file_op_bytes(p, op) : vf_op_weight_bytes(p->config, op, p->quant);
        p->token_bytes[vf_plan_op_part(op->kind)] += p->op_bytes[i];
        p->worker_bytes[p->shape.placement.op_worker[i]] += p->op_bytes[i];
    }
    return VF_OK;
}

static enum vf_code find_bandwidth(struct vf_plan *p, struct vf_err *err)
{
    p->bandwidth_gb_s = p->options.bandwidth_gb_s;
    if (p->bandwidth_gb_s > 0.0)
        return VF_OK;
    p->bandwidth_threads =
        p->options.settings.threads
            ? (uint32_t)vf_min_u64(p->options.settings.threads, VF_BANDWIDTH_THREADS_MAX)
            : vf_bandwidth_default_threads();
    return vf_bandwidth_measure(p->bandwidth_threads, &p->bandwidth_gb_s, err);
}

static enum vf_code find_speed(struct vf_plan *p, struct vf_err *err)
{
    enum vf_code code = find_bandwidth(p, err);
    if (code)
        return code;
    p->token_ms = vf_plan_token_ms(p, p->placed.total);
    return p->shape.budget.stream ? vf_plan_add_drive(p, err) : VF_OK;
}

static enum vf_code place(struct vf_plan *p, struct vf_err *err)
{
    const struct vf_shape_model model = vf_plan_shape_model(p);
    return vf_run_shape_place(&p->options.settings, &model, &p->shape, err);
}

enum vf_code vf_plan_build(const struct vf_plan_options *options, struct vf_plan *out,
                           struct vf_err *err)
{
    memset(out, 0, sizeof *out);
    out->options = *options;
    enum vf_code code;
    if ((code = load(out, err)) || (code = vf_program_compile(out->config, &out->program, err)) ||
        (code = place(out, err)) || (code = add_op_bytes(out, err)) ||
        (code = add_stored(out, err)) || (code = schedule(out, err)) ||
        (options->memory && (code = vf_plan_add_memory(out, err))) ||
        (!out->memory_refused.code && (code = find_speed(out, err)))) {
        vf_plan_deinit(out);
        return code;
    }
    out->params = vf_config_param_count(out->config);
    out->active_params =
        vf_config_active_param_count(out->config, vf_experts_per_token(out->config));
    out->closed = vf_critical_path_closed_form(out->config);
    return VF_OK;
}

void vf_plan_deinit(struct vf_plan *p)
{
    if (!p)
        return;
    vf_run_shape_deinit(&p->shape);
    vf_program_deinit(&p->program);
    vf_config_deinit(&p->own_config);
    vf_model_file_close(p->file);
    free(p->op_bytes);
    free(p->placed.start);
    free(p->placed.finish);
    free(p->lanes.start);
    free(p->lanes.finish);
    memset(p, 0, sizeof *p);
}
