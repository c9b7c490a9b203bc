/* The tensor list of a config and the names that checkpoints give them.
 *
 * One walk over the model emits every tensor; the same walk counts first, so the list is
 * allocated once. Names follow MODEL.md section 5 and Hugging Face's modelling code.
 */
#include "common/model/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts when specs is NULL. */
struct list {
    const struct vf_config *c;
    struct vf_tensor_spec *specs;
    size_t count;
    uint32_t layer, flow, expert; /* of the tensors being added */
};

static void add(struct list *l, enum vf_tensor_kind kind, uint32_t rows, uint32_t cols)
{
    if (l->specs)
        l->specs[l->count] = (struct vf_tensor_spec){
            .id = {.kind = kind, .layer = l->layer, .flow = l->flow, .expert = l->expert},
            .rows = rows,
            .cols = cols,
        };
    l->count++;
}

static void add_vector(struct list *l, enum vf_tensor_kind kind, uint32_t cols)
{
    add(l, kind, 1, cols);
    if (l->specs)
        l->specs[l->count - 1].is_vector = true;
}

static void add_embeddings(struct list *l)
{
    l->layer = VF_LAYER_NONE;
    for (l->flow = 0; l->flow < l->c->flow_count; l->flow++)
        add(l, VF_T_EMBED, l->c->vocab_size, l->c->hidden_size);
    l->flow = 0;
}

static void add_attention(struct list *l)
{
    const struct vf_config *c = l->c;
    uint32_t d = c->hidden_size, q = c->head_count * c->head_dim;
    uint32_t kv = c->kv_head_count * c->head_dim;
    add_vector(l, VF_T_ATTN_NORM, d);
    add(l, VF_T_Q, q, d);
    add(l, VF_T_K, kv, d);
    add(l, VF_T_V, kv, d);
    if (c->attention_bias) {
        add_vector(l, VF_T_Q_BIAS, q);
        add_vector(l, VF_T_K_BIAS, kv);
        add_vector(l, VF_T_V_BIAS, kv);
    }
    if (c->qk_norm != VF_QK_NORM_NONE) {
        bool whole = c->qk_norm == VF_QK_NORM_WHOLE;
        add_vector(l, VF_T_Q_NORM, whole ? q : c->head_dim);
        add_vector(l, VF_T_K_NORM, whole ? kv : c->head_dim);
    }
    add(l, VF_T_O, d, q);
    for (l->flow = 1; l->flow < c->flow_count; l->flow++) {
        if (c->flow_coupling & VF_COUPLE_QUERY)
            add_vector(l, VF_T_QUERY_COUPLING, q);
        if (c->flow_specific_dense) {
            add(l, VF_T_Q, q, d);
            add(l, VF_T_O, d, q);
        }
    }
    l->flow = 0;
}

static void add_dense_matrices(struct list *l)
{
    uint32_t d = l->c->hidden_size, f = l->c->ffn_size;
    if (l->c->mlp_gated)
        add(l, VF_T_GATE, f, d);
    add(l, VF_T_UP, f, d);
    add(l, VF_T_DOWN, d, f);
}

static void add_dense(struct list *l)
{
    const struct vf_config *c = l->c;
    add_dense_matrices(l);
    for (l->flow = 1; l->flow < c->flow_count; l->flow++) {
        if (c->flow_coupling & VF_COUPLE_HIDDEN)
            add_vector(l, VF_T_HIDDEN_COUPLING, c->ffn_size);
        if (c->flow_coupling & VF_COUPLE_OUTPUT)
            add_vector(l, VF_T_OUTPUT_COUPLING, c->hidden_size);
        if (c->flow_specific_dense)
            add_dense_matrices(l);
    }
    l->flow = 0;
}

static void add_moe(struct list *l, bool with_experts)
{
    const struct vf_config *c = l->c;
    uint32_t d = c->hidden_size, f = c->expert_ffn_size;
    add(l, VF_T_ROUTER, c->expert_count, d);
    for (l->flow = 1; l->flow < c->flow_count; l->flow++) {
        if (c->flow_coupling & VF_COUPLE_HIDDEN)
            add_vector(l, VF_T_MOE_HIDDEN_COUPLING, f);
        if (c->flow_coupling & VF_COUPLE_OUTPUT)
            add_vector(l, VF_T_MOE_OUTPUT_COUPLING, d);
    }
    l->flow = 0;
    for (l->expert = 0; with_experts && l->expert < c->expert_count; l->expert++) {
        if (c->mlp_gated)
            add(l, VF_T_EXPERT_GATE, f, d);
        add(l, VF_T_EXPERT_UP, f, d);
        add(l, VF_T_EXPERT_DOWN, d, f);
    }
    l->expert = 0;
}

static void walk(struct list *l, bool with_experts)
{
    const struct vf_config *c = l->c;
    add_embeddings(l);
    for (l->layer = 0; l->layer < c->layer_count; l->layer++) {
        add_attention(l);
        add_vector(l, VF_T_FFN_NORM, c->hidden_size);
        if (c->ffn_size)
            add_dense(l);
        if (c->expert_count)
            add_moe(l, with_experts);
    }
    l->layer = VF_LAYER_NONE;
    add_vector(l, VF_T_FINAL_NORM, c->hidden_size);
    if (!c->tie_embeddings)
        add(l, VF_T_HEAD, c->vocab_size, c->hidden_size);
}

enum vf_code vf_tensors_list(const struct vf_config *config, bool with_experts,
                             struct vf_tensor_spec **specs, size_t *count, struct vf_err *err)
{
    struct list l = {.c = config};
    walk(&l, with_experts);
    *count = l.count;
    *specs = calloc(l.count, sizeof **specs);
    if (!*specs)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "out of memory for a list of %zu tensors",
                          l.count);
    l.specs = *specs;
    l.count = 0;
    walk(&l, with_experts);
    return VF_OK;
}

bool vf_tensor_is_expert(enum vf_tensor_kind kind)
{
    return kind == VF_T_EXPERT_GATE || kind == VF_T_EXPERT_UP || kind == VF_T_EXPERT_DOWN;
}

const char *vf_tensor_kind_name(enum vf_tensor_kind kind)
{
    static const char *const names[VF_T_KIND_COUNT] = {
        [VF_T_EMBED] = "embed",
        [VF_T_HEAD] = "head",
        [VF_T_FINAL_NORM] = "final_norm",
        [VF_T_ATTN_NORM] = "attn_norm",
        [VF_T_FFN_NORM] = "ffn_norm",
        [VF_T_Q] = "q_proj",
        [VF_T_K] = "k_proj",
        [VF_T_V] = "v_proj",
        [VF_T_O] = "o_proj",
        [VF_T_Q_BIAS] = "q_bias",
        [VF_T_K_BIAS] = "k_bias",
        [VF_T_V_BIAS] = "v_bias",
        [VF_T_Q_NORM] = "q_norm",
        [VF_T_K_NORM] = "k_norm",
        [VF_T_GATE] = "gate_proj",
        [VF_T_UP] = "up_proj",
        [VF_T_DOWN] = "down_proj",
        [VF_T_ROUTER] = "router",
        [VF_T_EXPERT_GATE] = "expert_gate_proj",
        [VF_T_EXPERT_UP] = "expert_up_proj",
        [VF_T_EXPERT_DOWN] = "expert_down_proj",
        [VF_T_QUERY_COUPLING] = "query_coupling",
        [VF_T_HIDDEN_COUPLING] = "mlp_hidden_coupling",
        [VF_T_OUTPUT_COUPLING] = "mlp_output_coupling",
        [VF_T_MOE_HIDDEN_COUPLING] = "moe_hidden_coupling",
        [VF_T_MOE_OUTPUT_COUPLING] = "moe_output_coupling",
    };
    return (unsigned)kind < VF_T_KIND_COUNT ? names[kind] : "unknown";
}

/* What follows "model.layers.{l}." or, for a flow's own, "model.layers.{l}.flow.{j}.". */
static const char *layer_suffix(enum vf_tensor_kind kind)
{
    static const char *const suffixes[VF_T_KIND_COUNT] = {
        [VF_T_ATTN_NORM] = "input_layernorm.weight",
        [VF_T_FFN_NORM] = "post_attention_layernorm.weight",
        [VF_T_Q] = "self_attn.q_proj.weight",
        [VF_T_K] = "self_attn.k_proj.weight",
        [VF_T_V] = "self_attn.v_proj.weight",
        [VF_T_O] = "self_attn.o_proj.weight",
        [VF_T_Q_BIAS] = "self_attn.q_proj.bias",
        [VF_T_K_BIAS] = "self_attn.k_proj.bias",
        [VF_T_V_BIAS] = "self_attn.v_proj.bias",
        [VF_T_Q_NORM] = "self_attn.q_norm.weight",
        [VF_T_K_NORM] = "self_attn.k_norm.weight",
        [VF_T_GATE] = "mlp.gate_proj.weight",
        [VF_T_UP] = "mlp.up_proj.weight",
        [VF_T_DOWN] = "mlp.down_proj.weight",
        [VF_T_QUERY_COUPLING] = "query_coupling",
        [VF_T_HIDDEN_COUPLING] = "mlp_hidden_coupling",
        [VF_T_OUTPUT_COUPLING] = "mlp_output_coupling",
        [VF_T_MOE_HIDDEN_COUPLING] = "moe_hidden_coupling",
        [VF_T_MOE_OUTPUT_COUPLING] = "moe_output_coupling",
    };
    return suffixes[kind];
}

/* How a model type calls its mixture of experts. */
struct moe_names {
    const char *model_type, *router, *experts, *gate, *up, *down;
};

static const struct moe_names *find_moe_names(const char *model_type)
{
    static const struct moe_names names[] = {
        {"mixtral", "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"},
        {"qwen3_moe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
        {"olmoe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
        {NULL, "moe.router", "moe.experts", "gate_proj", "up_proj", "down_proj"},
    };
    const struct moe_names *n = names;
    while (n->model_type && strcmp(n->model_type, model_type) != 0)
        n++;
    return n;
}

static int format_expert(const struct moe_names *names, struct vf_tensor_id id, char *buf,
                         size_t size)
{
    const char *matrix = id.kind == VF_T_EXPERT_GATE ? names->gate
                         : id.kind == VF_T_EXPERT_UP ? names->up
                                                     : names->down;
    return snprintf(buf, size, "model.layers.%u.%s.%u.%s.weight", id.layer, names->experts,
                    id.expert, matrix);
}

static int format_name(const struct vf_config *c, struct vf_tensor_id id, char *buf, size_t size)
{
    switch (id.kind) {
    case VF_T_EMBED:
        return id.flow ? snprintf(buf, size, "model.embed_tokens_aux.%u.weight", id.flow)
                       : snprintf(buf, size, "model.embed_tokens.weight");
    case VF_T_HEAD:
        return snprintf(buf, size, "lm_head.weight");
    case VF_T_FINAL_NORM:
        return snprintf(buf, size, "model.norm.weight");
    case VF_T_ROUTER:
        return snprintf(buf, size, "model.layers.%u.%s.weight", id.layer,
                        find_moe_names(c->model_type)->router);
    case VF_T_EXPERT_GATE:
    case VF_T_EXPERT_UP:
    case VF_T_EXPERT_DOWN:
        return format_expert(find_moe_names(c->model_type), id, buf, size);
    default:
        break;
    }
    const char *suffix = layer_suffix(id.kind);
    return id.flow ? snprintf(buf, size, "model.layers.%u.flow.%u.%s", id.layer, id.flow, suffix)
                   : snprintf(buf, size, "model.layers.%u.%s", id.layer, suffix);
}

bool vf_tensor_checkpoint_name(const struct vf_config *config, struct vf_tensor_id id, char *buf,
                               size_t size)
{
    VF_ASSERT((unsigned)id.kind < VF_T_KIND_COUNT);
    int n = format_name(config, id, buf, size);
    return n >= 0 && (size_t)n < size;
}
