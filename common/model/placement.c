/* Assigns operations to workers and derives the edges between them. */
#include "common/model/placement.h"

#include <stdlib.h>
#include <string.h>

/* ---- bytes of one operation ---- */

static uint64_t attention_bytes(const struct vf_config *c, enum vf_quant quant)
{
    uint64_t d = c->hidden_size, q = (uint64_t)c->head_count * c->head_dim;
    uint64_t kv = (uint64_t)c->kv_head_count * c->head_dim, floats = 0;
    if (c->attention_bias)
        floats += q + 2 * kv;
    if (c->qk_norm == VF_QK_NORM_HEAD)
        floats += 2ull * c->head_dim;
    if (c->qk_norm == VF_QK_NORM_WHOLE)
        floats += q + kv;
    uint64_t own = vf_matrix_bytes(quant, q, d) + vf_matrix_bytes(quant, d, q);
    uint64_t flows = c->flow_count - 1;
    if (c->flow_coupling & VF_COUPLE_QUERY)
        floats += flows * q;
    return own * (c->flow_specific_dense ? 1 + flows : 1) + 2 * vf_matrix_bytes(quant, kv, d) +
           floats * sizeof(float);
}

/* The two or three matrices of a feed-forward block with f hidden units. */
static uint64_t ffn_bytes(const struct vf_config *c, uint64_t f, enum vf_quant quant)
{
    uint64_t in = vf_matrix_bytes(quant, f, c->hidden_size);
    return (c->mlp_gated ? 2 : 1) * in + vf_matrix_bytes(quant, c->hidden_size, f);
}

bool vf_op_reads(const struct vf_op *op, const struct vf_tensor_id *id, bool tied)
{
    switch (id->kind) {
    case VF_T_EMBED:
        return op->kind == VF_OP_EMBED || (tied && id->flow == 0 && op->kind == VF_OP_HEAD);
    case VF_T_HEAD:
        return op->kind == VF_OP_HEAD;
    case VF_T_FINAL_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_FINAL;
    case VF_T_ATTN_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_ATTN && op->layer == id->layer;
    case VF_T_FFN_NORM:
        return op->kind == VF_OP_NORM && op->norm == VF_NORM_FFN && op->layer == id->layer;
    case VF_T_GATE:
    case VF_T_UP:
    case VF_T_DOWN:
    case VF_T_HIDDEN_COUPLING:
    case VF_T_OUTPUT_COUPLING:
        return op->kind == VF_OP_DENSE && op->layer == id->layer;
    case VF_T_ROUTER:
        return op->kind == VF_OP_ROUTE && op->layer == id->layer;
    case VF_T_MOE_HIDDEN_COUPLING:
    case VF_T_MOE_OUTPUT_COUPLING:
        return op->kind == VF_OP_EXPERTS && op->layer == id->layer;
    default:
        return op->kind == VF_OP_ATTENTION && op->layer == id->layer;
    }
}

/* Couplings of the auxiliary flows into an FFN of hidden size f. */
static uint64_t ffn_coupling_bytes(const struct vf_config *c, uint64_t f)
{
    uint64_t floats = (c->flow_coupling & VF_COUPLE_HIDDEN ? f : 0) +
                      (c->flow_coupling & VF_COUPLE_OUTPUT ? c->hidden_size : 0);
    return (c->flow_count - 1) * floats * sizeof(float);
}

uint32_t vf_experts_per_token(const struct vf_config *c)
{
    if (c->expert_count == 0 || c->flow_count == 1)
        return c->expert_top_k;
    if (c->flow_router == VF_ROUTER_REPLAY) /* all flows take the head of one ranking */
        return c->expert_top_k > c->expert_top_k_aux ? c->expert_top_k : c->expert_top_k_aux;
    uint64_t most = c->expert_top_k + (c->flow_count - 1ull) * c->expert_top_k_aux;
    return most < c->expert_count ? (uint32_t)most : c->expert_count;
}

uint64_t vf_op_weight_bytes(const struct vf_config *c, const struct vf_op *op, enum vf_quant quant)
{
    switch (op->kind) {
    case VF_OP_EMBED: /* one row: its share of the records that hold 16 */
        return c->flow_count *
               ((uint64_t)vf_col_groups(c->hidden_size) * vf_record_bytes(quant) / VF_RECORD_ROWS);
    case VF_OP_NORM:
        return (uint64_t)c->hidden_size * sizeof(float);
    case VF_OP_ATTENTION:
        return attention_bytes(c, quant);
    case VF_OP_DENSE:
        return ffn_bytes(c, c->ffn_size, quant) * (c->flow_specific_dense ? c->flow_count : 1) +
               ffn_coupling_bytes(c, c->ffn_size);
    case VF_OP_ROUTE:
        return vf_matrix_bytes(VF_QUANT_F32, c->expert_count, c->hidden_size);
    case VF_OP_EXPERTS:
        return vf_experts_per_token(c) * ffn_bytes(c, c->expert_ffn_size, quant) +
               ffn_coupling_bytes(c, c->expert_ffn_size);
    case VF_OP_HEAD:
        return vf_matrix_bytes(quant, c->vocab_size, c->hidden_size);
    default:
        return 0;
    }
}

/* ---- pipeline: contiguous groups of effective layers ---- */

/* How many groups a greedy walk from the left needs when none may exceed cap. */
static uint32_t groups_needed(const uint64_t *cost, uint32_t layers, uint64_t cap)
{
    uint32_t groups = 1;
    uint64_t sum = 0;
    for (uint32_t l = 0; l < layers; l++) {
        if (cost[l] > cap)
            return UINT32_MAX;
        if (sum + cost[l] > cap) {
            groups++;
            sum = 0;
        }
        sum += cost[l];
    }
    return groups;
}

static uint64_t smallest_cap(const uint64_t *cost, uint32_t layers, uint32_t workers)
{
    uint64_t low = 0, high = 0;
    for (uint32_t l = 0; l < layers; l++)
        high += cost[l];
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (groups_needed(cost, layers, mid) <= workers)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Fills owner[layer]. Groups fill up to the cap from the left, but leave a layer for each worker
 * still to come. */
static void split_layers(const uint64_t *cost, uint32_t layers, uint32_t workers, uint32_t *owner)
{
    uint64_t cap = smallest_cap(cost, layers, workers), sum = 0;
    uint32_t worker = 0;
    for (uint32_t l = 0; l < layers; l++) {
        bool full = sum + cost[l] > cap;
        bool others_starve = layers - l < workers - worker;
        if (l > 0 && (full || others_starve)) {
            worker++;
            sum = 0;
        }
        owner[l] = worker;
        sum += cost[l];
    }
}

/* Weight bytes of one token by effective layer, as if all matrices were q4: where a file mixes
 * types, the layers mix them alike. */
static uint64_t *layer_costs(const struct vf_config *config, const struct vf_program *p)
{
    uint64_t *cost = calloc(p->effective_layers, sizeof *cost);
    for (uint32_t i = 0; cost && i < p->op_count; i++)
        cost[p->ops[i].step_layer] += vf_op_weight_bytes(config, &p->ops[i], VF_QUANT_Q4);
    return cost;
}

/* ---- edges ---- */

/* Appends value v's edges: one per worker that reads it and didn't make it. first_use[w] is the
 * first reading op there. */
static uint32_t emit_edges(const struct vf_program *p, const struct vf_placement *pl, vf_value v,
                           const uint32_t *first_use, struct vf_edge *edges)
{
    uint32_t n = 0, producer = p->values[v].producer;
    for (uint32_t w = 0; w < pl->worker_count; w++) {
        if (first_use[w] == UINT32_MAX || w == pl->op_worker[producer])
            continue;
        if (edges)
            edges[n] = (struct vf_edge){.value = v,
                                        .from = pl->op_worker[producer],
                                        .to = w,
                                        .send_after = producer,
                                        .recv_before = first_use[w]};
        n++;
    }
    return n;
}

/* first_use[value * workers + worker]: the first op on that worker that reads the value. */
static uint32_t *find_first_uses(const struct vf_program *p, const struct vf_placement *pl)
{
    size_t cells = (size_t)p->value_count * pl->worker_count;
    uint32_t *first = malloc(cells * sizeof *first);
    if (!first)
        return NULL;
    memset(first, 0xff, cells * sizeof *first);
    for (uint32_t i = p->op_count; i-- > 0;) {
        const struct vf_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->in_count; k++)
            first[(size_t)vf_op_inputs(p, op)[k] * pl->worker_count + pl->op_worker[i]] = i;
    }
    return first;
}

static bool derive_edges(const struct vf_program *p, struct vf_placement *pl)
{
    uint32_t *first = find_first_uses(p, pl);
    if (!first)
        return false;
    for (vf_value v = 0; v < p->value_count; v++)
        pl->edge_count += emit_edges(p, pl, v, first + (size_t)v * pl->worker_count, NULL);
    pl->edges = calloc(pl->edge_count + 1u, sizeof *pl->edges);
    uint32_t n = 0;
    for (vf_value v = 0; pl->edges && v < p->value_count; v++)
        n += emit_edges(p, pl, v, first + (size_t)v * pl->worker_count, pl->edges + n);
    free(first);
    return pl->edges != NULL;
}

/* ---- making one ---- */

static enum vf_code no_memory(const struct vf_program *p, struct vf_placement *out,
                              struct vf_err *err)
{
    vf_placement_deinit(out);
    return vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for the placement of %u operations",
                      p->op_count);
}

/* Everything that follows from op_worker. */
static enum vf_code complete(const struct vf_program *p, struct vf_placement *pl,
                             struct vf_err *err)
{
    for (uint32_t i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == VF_OP_HEAD)
            pl->head_worker = pl->op_worker[i];
    return derive_edges(p, pl) ? VF_OK : no_memory(p, pl, err);
}

static enum vf_code alloc_workers(const struct vf_program *p, uint32_t worker_count,
                                  struct vf_placement *out, struct vf_err *err)
{
    *out = (struct vf_placement){.worker_count = worker_count};
    out->op_worker = calloc(p->op_count, sizeof *out->op_worker);
    return out->op_worker ? VF_OK : no_memory(p, out, err);
}

static enum vf_code make_pipeline(const struct vf_config *config, const struct vf_program *p,
                                  struct vf_placement *out, struct vf_err *err)
{
    uint32_t layers = p->effective_layers;
    uint64_t *cost = layer_costs(config, p);
    uint32_t *owner = calloc(layers, sizeof *owner);
    bool whole = cost && owner;
    if (whole)
        split_layers(cost, layers, out->worker_count, owner);
    for (uint32_t i = 0; whole && i < p->op_count; i++)
        out->op_worker[i] = owner[p->ops[i].step_layer];
    free(cost);
    free(owner);
    return whole ? VF_OK : no_memory(p, out, err);
}

enum vf_code vf_placement_make(enum vf_placement_kind kind, const struct vf_config *config,
                               const struct vf_program *p, uint32_t worker_count,
                               struct vf_placement *out, struct vf_err *err)
{
    *out = (struct vf_placement){0};
    VF_ASSERT(kind == VF_PLACEMENT_PIPELINE);
    uint32_t layers = p->effective_layers;
    uint32_t most = layers < VF_STAGE_WORKERS_MAX ? layers : VF_STAGE_WORKERS_MAX;
    if (worker_count < 1 || worker_count > most)
        return vf_err_set(err, VF_ERR_USAGE,
                          "stage workers: found %u, allowed for a pipeline of %u layers: 1 to %u",
                          worker_count, layers, most);
    enum vf_code code = alloc_workers(p, worker_count, out, err);
    if (!code)
        code = make_pipeline(config, p, out, err);
    return code ? code : complete(p, out, err);
}

/* ---- receiving one ---- */

/* Mailboxes carry residuals; a routing decision stays where it was made. */
static enum vf_code check_routes(const struct vf_program *p, const uint32_t *op_worker,
                                 struct vf_err *err)
{
    for (uint32_t i = 0; i < p->op_count; i++)
        for (uint32_t k = 0; k < p->ops[i].in_count; k++) {
            const struct vf_program_value *v = &p->values[vf_op_inputs(p, &p->ops[i])[k]];
            if (v->is_route && op_worker[v->producer] != op_worker[i])
                return vf_err_set(err, VF_ERR_PROTOCOL,
                                  "placement: operation %u on worker %u found, allowed: worker %u, "
                                  "which makes its routing decision",
                                  i, op_worker[i], op_worker[v->producer]);
        }
    return VF_OK;
}

static enum vf_code check_workers(const struct vf_program *p, uint32_t worker_count,
                                  const uint32_t *op_worker, size_t count, struct vf_err *err)
{
    bool used[VF_STAGE_WORKERS_MAX] = {false};
    if (worker_count < 1 || worker_count > VF_STAGE_WORKERS_MAX)
        return vf_err_set(err, VF_ERR_PROTOCOL, "placement: %u workers found, allowed: 1 to %u",
                          worker_count, VF_STAGE_WORKERS_MAX);
    if (count != p->op_count)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "placement: workers of %zu operations found, allowed: of the program's "
                          "%u",
                          count, p->op_count);
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (op_worker[i] >= worker_count)
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "placement: operation %u on worker %u found, allowed: 0 to %u", i,
                              op_worker[i], worker_count - 1);
        used[op_worker[i]] = true;
    }
    for (uint32_t w = 0; w < worker_count; w++)
        if (!used[w])
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "placement: nothing for worker %u found, allowed: an operation for "
                              "each of %u",
                              w, worker_count);
    return check_routes(p, op_worker, err);
}

enum vf_code vf_placement_from(const struct vf_program *p, uint32_t worker_count,
                               const uint32_t *op_worker, size_t count, struct vf_placement *out,
                               struct vf_err *err)
{
    *out = (struct vf_placement){0};
    enum vf_code code = check_workers(p, worker_count, op_worker, count, err);
    if (!code)
        code = alloc_workers(p, worker_count, out, err);
    if (code)
        return code;
    memcpy(out->op_worker, op_worker, count * sizeof *op_worker);
    return complete(p, out, err);
}

void vf_placement_deinit(struct vf_placement *pl)
{
    if (!pl)
        return;
    free(pl->op_worker);
    free(pl->edges);
    memset(pl, 0, sizeof *pl);
}
