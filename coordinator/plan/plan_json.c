/* The plan as JSON. Keys are stable: new ones may come, none changes its meaning
 * (docs/MODELS.md lists them). */
#include "common/base/json.h"
#include "coordinator/plan/plan_model.h"

#include <errno.h>
#include <math.h>

#define MIB 1048576.0

/* Adds a key and remembers in *bad that one couldn't be. */
static void put(json_t *o, const char *key, json_t *value, int *bad)
{
    *bad |= json_object_set_new(o, key, value);
}

static json_t *geometry(const struct vf_plan *p, int *bad)
{
    const struct vf_config *c = p->config;
    json_t *o = json_object();
    put(o, "hidden_size", json_integer(c->hidden_size), bad);
    put(o, "num_hidden_layers", json_integer(c->layer_count), bad);
    put(o, "effective_layers", json_integer(vf_config_effective_layers(c)), bad);
    put(o, "num_attention_heads", json_integer(c->head_count), bad);
    put(o, "num_key_value_heads", json_integer(c->kv_head_count), bad);
    put(o, "head_dim", json_integer(c->head_dim), bad);
    put(o, "intermediate_size", json_integer(c->ffn_size), bad);
    put(o, "num_experts", json_integer(c->expert_count), bad);
    put(o, "num_experts_per_tok", json_integer(c->expert_top_k), bad);
    put(o, "moe_intermediate_size", json_integer(c->expert_ffn_size), bad);
    put(o, "vocab_size", json_integer(c->vocab_size), bad);
    put(o, "max_position_embeddings", json_integer(c->context_max), bad);
    put(o, "tie_word_embeddings", json_boolean(c->tie_embeddings), bad);
    put(o, "num_flows", json_integer(c->flow_count), bad);
    return o;
}

static json_t *parts(const uint64_t bytes[VF_PART_COUNT], int *bad)
{
    json_t *o = json_object();
    for (int i = 0; i < VF_PART_COUNT; i++)
        put(o, vf_plan_part_name((enum vf_plan_part)i), json_integer((json_int_t)bytes[i]), bad);
    put(o, "total", json_integer((json_int_t)vf_plan_sum(bytes)), bad);
    return o;
}

static json_t *critical_path(const struct vf_plan *p, int *bad)
{
    const struct vf_critical_path *c = &p->closed;
    json_t *o = json_object();
    put(o, "bytes_per_weight", json_real(0.5), bad);
    put(o, "attention_mb_per_layer", json_real(c->attention / MIB), bad);
    put(o, "dense_mb_per_layer", json_real(c->dense / MIB), bad);
    put(o, "experts_mb_per_layer", json_real(c->experts / MIB), bad);
    put(o, "serial_mb_per_token", json_real(c->serial / MIB), bad);
    put(o, "naive_mb_per_token", json_real(c->naive / MIB), bad);
    put(o, "critical_mb_per_token", json_real(c->critical / MIB), bad);
    put(o, "program_three_streams_mb_per_token", json_real(p->half_lanes / MIB), bad);
    put(o, "program_unlimited_mb_per_token", json_real(p->half_unlimited / MIB), bad);
    return o;
}

static json_t *placement(const struct vf_plan *p, int *bad)
{
    json_t *o = json_object(), *bytes = json_array(), *threads = json_array();
    put(o, "kind", json_string(vf_run_settings_word("placement", (int)p->shape.settings.placement)),
        bad);
    put(o, "stage_workers", json_integer(p->shape.placement.worker_count), bad);
    put(o, "io_workers", json_integer(p->shape.settings.io_workers), bad);
    put(o, "head_worker", json_integer(p->shape.placement.head_worker), bad);
    for (uint32_t w = 0; w < p->shape.placement.worker_count; w++)
        *bad |= json_array_append_new(bytes, json_integer((json_int_t)p->worker_bytes[w]));
    for (uint32_t w = 0; w < p->shape.placement.worker_count; w++)
        *bad |= json_array_append_new(threads, json_integer(p->shape.threads[w]));
    put(o, "worker_bytes_per_token", bytes, bad);
    put(o, "worker_threads", threads, bad);
    put(o, "expert_record_bytes", json_integer((json_int_t)p->expert_record_bytes), bad);
    return o;
}

static json_t *input_names(const struct vf_program *g, const struct vf_op *op, int *bad)
{
    json_t *list = json_array();
    for (uint32_t k = 0; k < op->in_count; k++) {
        const char *name = g->values[vf_op_inputs(g, op)[k]].name;
        *bad |= json_array_append_new(list, json_string(name));
    }
    return list;
}

static json_t *program_op(const struct vf_plan *p, uint32_t i, int *bad)
{
    const struct vf_program *g = &p->program;
    const struct vf_op *op = &g->ops[i];
    json_t *o = json_object();
    put(o, "index", json_integer(i), bad);
    put(o, "worker", json_integer(p->shape.placement.op_worker[i]), bad);
    put(o, "op", json_string(vf_op_kind_name(op->kind)), bad);
    put(o, "layer", op->layer == VF_LAYER_NONE ? json_null() : json_integer(op->layer), bad);
    put(o, "step_layer", json_integer(op->step_layer), bad);
    put(o, "due_layer", json_integer(op->due_layer), bad);
    put(o, "inputs", input_names(g, op, bad), bad);
    put(o, "output", op->out == VF_VALUE_NONE ? json_null() : json_string(g->values[op->out].name),
        bad);
    put(o, "scale", json_real((double)op->scale), bad);
    put(o, "bytes", json_integer((json_int_t)p->op_bytes[i]), bad);
    put(o, "start_bytes", json_real(p->placed.start[i]), bad);
    return o;
}

static json_t *program(const struct vf_plan *p, int *bad)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->program.op_count; i++)
        *bad |= json_array_append_new(list, program_op(p, i, bad));
    return list;
}

static json_t *edges(const struct vf_plan *p, int *bad)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->shape.placement.edge_count; i++) {
        const struct vf_edge *e = &p->shape.placement.edges[i];
        json_t *o = json_object();
        put(o, "value", json_string(p->program.values[e->value].name), bad);
        put(o, "from", json_integer(e->from), bad);
        put(o, "to", json_integer(e->to), bad);
        put(o, "send_after", json_integer(e->send_after), bad);
        put(o, "recv_before", json_integer(e->recv_before), bad);
        put(o, "bytes", json_integer((json_int_t)vf_plan_value_bytes(p, e->value)), bad);
        *bad |= json_array_append_new(list, o);
    }
    return list;
}

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *expected_of_drive(const struct vf_plan *p, int *bad)
{
    const struct vf_plan_drive *d = &p->drive;
    if (!p->shape.budget.stream)
        return json_null();
    json_t *o = json_object();
    put(o, "hit_share", json_real(d->hit_share), bad);
    put(o, "bytes_per_token", json_real(d->token_bytes), bad);
    put(o, "bytes_per_second", d->bytes_per_s > 0 ? json_real(d->bytes_per_s) : json_null(), bad);
    put(o, "source", d->source ? json_string(vf_plan_drive_source(d)) : json_null(), bad);
    put(o, "read_ms", real_or_null(d->read_ms), bad);
    return o;
}

static json_t *expected(const struct vf_plan *p, int *bad)
{
    json_t *o = json_object();
    put(o, "bandwidth_gb_per_s", json_real(p->bandwidth_gb_s), bad);
    put(o, "bandwidth_source", json_string(p->bandwidth_threads ? "measured" : "given"), bad);
    put(o, "bandwidth_threads",
        p->bandwidth_threads ? json_integer(p->bandwidth_threads) : json_null(), bad);
    put(o, "path_bytes", json_real(p->placed.total), bad);
    put(o, "memory_ms", json_real(vf_plan_token_ms(p, p->placed.total)), bad);
    put(o, "drive", expected_of_drive(p, bad), bad);
    put(o, "token_ms", real_or_null(p->token_ms), bad);
    put(o, "tokens_per_s", real_or_null(1e3 / p->token_ms), bad);
    put(o, "three_streams_path_bytes", json_real(p->lanes.total), bad);
    put(o, "three_streams_token_ms", json_real(vf_plan_token_ms(p, p->lanes.total)), bad);
    return o;
}

enum vf_code vf_plan_print_json(const struct vf_plan *p, FILE *out, struct vf_err *err)
{
    int bad = 0;
    const struct vf_config *c = p->config;
    json_t *o = json_object();
    put(o, "source", json_string(p->source), &bad);
    put(o, "model_type", json_string(c->model_type), &bad);
    put(o, "combine_style", json_string(vf_style_name(c->style)), &bad);
    put(o, "attention_delay", json_integer(c->attention_delay), &bad);
    put(o, "dense_delay", json_integer(c->dense_delay), &bad);
    put(o, "expert_delay", json_integer(c->expert_delay), &bad);
    put(o, "parameters", json_integer((json_int_t)p->params), &bad);
    put(o, "active_parameters", json_integer((json_int_t)p->active_params), &bad);
    put(o, "geometry", geometry(p, &bad), &bad);
    put(o, "quant", json_string(p->quant_name), &bad);
    put(o, "stored_bytes", parts(p->stored_bytes, &bad), &bad);
    put(o, "bytes_per_token", parts(p->token_bytes, &bad), &bad);
    put(o, "critical_path", critical_path(p, &bad), &bad);
    put(o, "placement", placement(p, &bad), &bad);
    put(o, "program", program(p, &bad), &bad);
    put(o, "edges", edges(p, &bad), &bad);
    char run[VF_RUN_SHAPE_TEXT];
    if (p->has_memory)
        put(o, "run", json_string(vf_run_shape_text(&p->shape, c, run)), &bad);
    if (p->has_memory)
        put(o, "memory", vf_plan_memory_json(p, &bad), &bad);
    put(o, "drive", vf_plan_drive_json(p, &bad), &bad);
    if (!p->memory_refused.code)
        put(o, "expected", expected(p, &bad), &bad);
    if (bad) {
        json_decref(o);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for the plan as JSON");
    }
    bad = json_dumpf(o, out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    int error = errno;
    json_decref(o);
    if (bad)
        return vf_err_errno(err, VF_ERR_IO, error, "can't write to stdout");
    fputc('\n', out);
    return VF_OK;
}
