/* The plan as a table for people, the answer first. MB is 2^20 bytes, as the pipeline-native report
 * counts. */
#include "coordinator/plan/plan_model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MIB 1048576.0

/* 8339939328 -> "8,339,939,328" */
static const char *grouped(uint64_t v, char buf[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, v), out = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            buf[out++] = ',';
        buf[out++] = digits[i];
    }
    buf[out] = '\0';
    return buf;
}

static void print_geometry(const struct vf_plan *p, FILE *out)
{
    const struct vf_config *c = p->config;
    char buf[32];
    uint32_t layers = vf_config_effective_layers(c);
    fprintf(out, "\ntype             %s, %s, delays: attention %u, dense %u, experts %u\n",
            c->model_type, vf_style_name(c->style), c->attention_delay, c->dense_delay,
            c->expert_delay);
    fprintf(out, "hidden           %u, vocabulary %u%s, context %u\n", c->hidden_size,
            c->vocab_size, c->tie_embeddings ? " (head tied)" : "", c->context_max);
    fprintf(out, "layers           %u", c->layer_count);
    if (layers != c->layer_count)
        fprintf(out, " x %u iterations = %u", c->fixed_point_iterations, layers);
    fprintf(out, "\nattention        %u heads, %u key/value heads, head dimension %u\n",
            c->head_count, c->kv_head_count, c->head_dim);
    if (c->ffn_size)
        fprintf(out, "dense FFN        %u, %s\n", c->ffn_size, vf_activation_name(c->activation));
    if (c->expert_count)
        fprintf(out, "experts          %u x %u, top %u, %s\n", c->expert_count, c->expert_ffn_size,
                c->expert_top_k, vf_activation_name(c->activation));
    if (c->flow_count > 1)
        fprintf(out, "flows            %u\n", c->flow_count);
    fprintf(out, "KV cache         %s bytes a position (f16)\n",
            grouped(4ull * layers * c->kv_head_count * c->head_dim, buf));
}

static double half_bytes_of_part(const struct vf_plan *p, enum vf_plan_part part)
{
    double layers = vf_config_effective_layers(p->config);
    switch (part) {
    case VF_PART_ATTENTION:
        return layers * p->closed.attention;
    case VF_PART_DENSE:
        return layers * p->closed.dense;
    case VF_PART_EXPERTS:
        return layers * p->closed.experts;
    default:
        return 0.0;
    }
}

static void print_bytes(const struct vf_plan *p, FILE *out)
{
    char stored[32], token[32];
    fprintf(out,
            "\nweights (%s)           in the file      read for a token    MB/token    "
            "at 0.5 bytes a weight\n",
            p->quant_name);
    for (int i = 0; i < VF_PART_COUNT; i++) {
        if (!p->stored_bytes[i] && !p->token_bytes[i])
            continue;
        double half = half_bytes_of_part(p, (enum vf_plan_part)i);
        fprintf(out, "  %-12s %20s %20s %11.2f", vf_plan_part_name((enum vf_plan_part)i),
                grouped(p->stored_bytes[i], stored), grouped(p->token_bytes[i], token),
                (double)p->token_bytes[i] / MIB);
        if (half > 0.0)
            fprintf(out, " %11.2f MB/token", half / MIB);
        fprintf(out, "\n");
    }
    uint64_t all = vf_plan_sum(p->token_bytes);
    fprintf(out, "  %-12s %20s %20s %11.2f\n", "total",
            grouped(vf_plan_sum(p->stored_bytes), stored), grouped(all, token), (double)all / MIB);
}

static void print_critical_path(const struct vf_plan *p, FILE *out)
{
    const struct vf_critical_path *c = &p->closed;
    fprintf(out, "\ncritical path (0.5 bytes a weight, MB = 2^20)\n");
    fprintf(out, "  a layer        attention %.2f, dense %.2f, experts %.2f MB\n",
            c->attention / MIB, c->dense / MIB, c->experts / MIB);
    fprintf(out, "  serial         %8.2f MB/token  every stream of every layer, back to back\n",
            c->serial / MIB);
    fprintf(out, "  naive          %8.2f MB/token  longest stream of each layer\n", c->naive / MIB);
    fprintf(out, "  critical       %8.2f MB/token  with the delays: naive / critical = %.2f\n",
            c->critical / MIB, c->critical > 0.0 ? c->naive / c->critical : 1.0);
    fprintf(out, "  this program   %8.2f MB/token  three streams side by side, inputs waited for\n",
            p->half_lanes / MIB);
    fprintf(out, "                 %8.2f MB/token  any number of streams, inputs waited for\n",
            p->half_unlimited / MIB);
}

static void print_placement(const struct vf_plan *p, FILE *out)
{
    char buf[32];
    const struct vf_placement *pl = &p->shape.placement;
    fprintf(out, "\nplacement        %s, %u stage worker%s, %u I/O worker%s\n",
            vf_run_settings_word("placement", (int)p->shape.settings.placement), pl->worker_count,
            pl->worker_count == 1 ? "" : "s", p->shape.settings.io_workers,
            p->shape.settings.io_workers == 1 ? "" : "s");
    for (uint32_t w = 0; w < pl->worker_count; w++)
        fprintf(out, "  worker %-2u      %s bytes a token%s\n", w, grouped(p->worker_bytes[w], buf),
                w == pl->head_worker ? ", head" : "");
    if (p->config->expert_count) {
        uint64_t reads =
            (uint64_t)vf_config_effective_layers(p->config) * vf_experts_per_token(p->config);
        char bytes[32];
        fprintf(out,
                "  experts        %" PRIu64 " reads a token of %s bytes each (%s in all) when none "
                "is cached\n",
                reads, grouped(p->expert_record_bytes, buf),
                grouped(reads * p->expert_record_bytes, bytes));
    }
}

static void print_op(const struct vf_plan *p, uint32_t i, FILE *out)
{
    const struct vf_program *g = &p->program;
    const struct vf_op *op = &g->ops[i];
    char layer[16] = "-", buf[32], list[160] = "";
    if (op->layer != VF_LAYER_NONE)
        snprintf(layer, sizeof layer, "%u", op->layer);
    for (uint32_t k = 0; k < op->in_count; k++) {
        size_t n = strlen(list);
        if (n + 32 > sizeof list) {
            snprintf(list + n, sizeof list - n, " ... %u in all", op->in_count);
            break;
        }
        snprintf(list + n, sizeof list - n, "%s%s", k ? " " : "",
                 g->values[vf_op_inputs(g, op)[k]].name);
    }
    fprintf(out, "  %5u %6u  %-9s %5s %15s  %s%s%s", i, p->shape.placement.op_worker[i],
            vf_op_kind_name(op->kind), layer, grouped(p->op_bytes[i], buf), list,
            op->out == VF_VALUE_NONE ? "" : " -> ",
            op->out == VF_VALUE_NONE ? "" : g->values[op->out].name);
    if (op->kind == VF_OP_FETCH || op->kind == VF_OP_EXPERTS)
        fprintf(out, "  (due at %u)", op->due_layer);
    if (op->scale != 1.0f)
        fprintf(out, "  (x %.6g)", (double)op->scale);
    fprintf(out, "\n");
}

static void print_program(const struct vf_plan *p, FILE *out)
{
    fprintf(out, "\nprogram\n  index worker  op        layer           bytes  inputs -> output\n");
    for (uint32_t i = 0; i < p->program.op_count; i++)
        print_op(p, i, out);
}

static void print_edges(const struct vf_plan *p, FILE *out)
{
    fprintf(out, "\nedges between workers\n");
    if (!p->shape.placement.edge_count)
        fprintf(out, "  none\n");
    for (uint32_t i = 0; i < p->shape.placement.edge_count; i++) {
        const struct vf_edge *e = &p->shape.placement.edges[i];
        fprintf(out,
                "  %-14s worker %u -> %u, sent after op %u, needed before op %u, %" PRIu64
                " bytes a token\n",
                p->program.values[e->value].name, e->from, e->to, e->send_after, e->recv_before,
                vf_plan_value_bytes(p, e->value));
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void print_drive(const struct vf_plan *p, FILE *out)
{
    const struct vf_plan_drive *d = &p->drive;
    fprintf(out,
            "drive            %.1f%% of the experts in the cache (as if all were equally likely), "
            "%.2f MB read for a token\n",
            100 * d->hit_share, d->token_bytes / MIB);
    if (!d->source)
        fprintf(out, "                 at a speed that isn't known: --drive-speed SIZE says it\n");
    else
        fprintf(out, "                 at %.3g GB/s (%s): %.3f ms\n", d->bytes_per_s * 1e-9,
                vf_plan_drive_source(d), d->read_ms);
}

/* Reads of memory and of the drive in a row take both times, side by side the longer of them. */
static void print_hidden(const struct vf_plan *p, double memory_ms, FILE *out)
{
    double both = memory_ms + p->drive.read_ms;
    double least = fmin(memory_ms, p->drive.read_ms);
    fprintf(out,
            "                 %.0f%% of the shorter hidden by the longer; without overlap %.3f ms: "
            "%.2f times as long\n",
            least > 0 ? 100 * fmin(fmax(both - p->token_ms, 0) / least, 1) : 0.0, both,
            both / p->token_ms);
}

static void print_speed(const struct vf_plan *p, FILE *out)
{
    double memory_ms = vf_plan_token_ms(p, p->placed.total);
    bool stream = p->shape.budget.stream;
    fprintf(out, "bandwidth        %.2f GB/s, ", p->bandwidth_gb_s);
    if (p->bandwidth_threads)
        fprintf(out, "measured here with %u thread%s", p->bandwidth_threads,
                p->bandwidth_threads == 1 ? "" : "s");
    else
        fprintf(out, "as given");
    fprintf(out, ": %.3f ms to read a token's weights in memory\n", memory_ms);
    if (stream)
        print_drive(p, out);
    if (!isfinite(p->token_ms)) {
        fprintf(out, "token            unknown\n");
        return;
    }
    fprintf(out, "token            %.3f ms, %.2f tokens/s\n", p->token_ms, 1e3 / p->token_ms);
    if (stream && p->drive.read_ms > 0)
        print_hidden(p, memory_ms, out);
}

static void print_answer(const struct vf_plan *p, FILE *out)
{
    char buf[32], need[VF_BYTES_TEXT], allowed[VF_BYTES_TEXT], run[VF_RUN_SHAPE_TEXT];
    fprintf(out, "model            %s\n", p->source);
    fprintf(out, "parameters       %s\n", grouped(p->params, buf));
    if (p->active_params != p->params)
        fprintf(out, "active           %s for a token: all but the experts not chosen\n",
                grouped(p->active_params, buf));
    if (p->has_memory)
        fprintf(out, "memory           %s of %s allowed\nthe run          %s\n",
                vf_bytes_text(p->shape.budget.memory.need, need),
                vf_bytes_text(p->shape.budget.memory.allowed, allowed),
                vf_run_shape_text(&p->shape, p->config, run));
    print_speed(p, out);
}

static void print_lanes(const struct vf_plan *p, FILE *out)
{
    double ms = vf_plan_token_ms(p, p->lanes.total);
    fprintf(out,
            "  in this file   %8.2f MB/token  three streams of %.2f GB/s each, all in memory: %.3f "
            "ms\n",
            p->lanes.total / MIB, p->bandwidth_gb_s, ms);
}

void vf_plan_print_text(const struct vf_plan *p, bool ops, FILE *out)
{
    print_answer(p, out);
    print_geometry(p, out);
    print_placement(p, out);
    print_bytes(p, out);
    print_critical_path(p, out);
    print_lanes(p, out);
    if (p->has_memory)
        vf_plan_print_memory(p, out);
    if (!ops)
        return;
    print_program(p, out);
    print_edges(p, out);
}
