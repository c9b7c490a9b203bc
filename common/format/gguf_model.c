#include "common/format/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct vf_gguf_arch vf_gguf_archs[] = {
    {.name = "llama",
     .model_type = "llama",
     .moe_model_type = "mixtral",
     .norm_topk_prob = true,
     .neighbour_pairs = true},
    {.name = "qwen2", .model_type = "qwen2", .attention_bias = true},
    {.name = "qwen3", .model_type = "qwen3", .qk_norm = VF_QK_NORM_HEAD},
    {.name = "qwen3moe",
     .moe_model_type = "qwen3_moe",
     .qk_norm = VF_QK_NORM_HEAD,
     .norm_topk_prob = true,
     .own_expert_size = true},
    {.name = "olmoe", .moe_model_type = "olmoe", .qk_norm = VF_QK_NORM_WHOLE},
    {.name = NULL},
};

const struct vf_gguf_arch *vf_gguf_arch_find(const char *name)
{
    for (const struct vf_gguf_arch *a = vf_gguf_archs; a->name; a++)
        if (strcmp(a->name, name) == 0)
            return a;
    return NULL;
}

/* Everything that a GGUF file of these architectures can't say has its plain value. */
static bool is_plain(const struct vf_config *c)
{
    return c->style == VF_STYLE_DELAYED_SUM && !c->attention_delay && !c->dense_delay &&
           !c->expert_delay && c->flow_count == 1 && c->activation == VF_ACT_SILU && c->mlp_gated &&
           !c->v_norm && !c->sliding_window && c->attn_softcap == 0.0f &&
           c->final_softcap == 0.0f && !c->embedding_scale && !c->norm_weight_offset &&
           c->rope_kind == VF_ROPE_DEFAULT && c->partial_rotary_factor == 1.0 &&
           !(c->ffn_size && c->expert_count) && c->attn_scale == (float)(1.0 / sqrt(c->head_dim)) &&
           c->rope_theta == (double)(float)c->rope_theta;
}

const struct vf_gguf_arch *vf_gguf_arch_of(const struct vf_config *c)
{
    for (const struct vf_gguf_arch *a = vf_gguf_archs; a->name && is_plain(c); a++) {
        const char *type = c->expert_count ? a->moe_model_type : a->model_type;
        bool same = c->qk_norm == a->qk_norm && c->attention_bias == a->attention_bias &&
                    (!c->expert_count || c->norm_topk_prob == a->norm_topk_prob);
        if (type && same)
            return a;
    }
    return NULL;
}

const char *vf_gguf_arch_names(char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = 0;
    for (const struct vf_gguf_arch *a = vf_gguf_archs; a->name && n < size; a++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", a->name);
    return buf;
}

static const char *const layer_names[VF_T_KIND_COUNT] = {
    [VF_T_ATTN_NORM] = "attn_norm.weight",
    [VF_T_FFN_NORM] = "ffn_norm.weight",
    [VF_T_Q] = "attn_q.weight",
    [VF_T_K] = "attn_k.weight",
    [VF_T_V] = "attn_v.weight",
    [VF_T_O] = "attn_output.weight",
    [VF_T_Q_BIAS] = "attn_q.bias",
    [VF_T_K_BIAS] = "attn_k.bias",
    [VF_T_V_BIAS] = "attn_v.bias",
    [VF_T_Q_NORM] = "attn_q_norm.weight",
    [VF_T_K_NORM] = "attn_k_norm.weight",
    [VF_T_GATE] = "ffn_gate.weight",
    [VF_T_UP] = "ffn_up.weight",
    [VF_T_DOWN] = "ffn_down.weight",
    [VF_T_ROUTER] = "ffn_gate_inp.weight",
    [VF_T_EXPERT_GATE] = "ffn_gate_exps.weight",
    [VF_T_EXPERT_UP] = "ffn_up_exps.weight",
    [VF_T_EXPERT_DOWN] = "ffn_down_exps.weight",
};

const char *vf_gguf_tensor_name(struct vf_tensor_id id, char *buf, size_t size)
{
    const char *name = id.kind == VF_T_EMBED  ? "token_embd.weight"
                       : id.kind == VF_T_HEAD ? "output.weight"
                                              : "output_norm.weight";
    if (id.layer == VF_LAYER_NONE) {
        snprintf(buf, size, "%s", name);
        return buf;
    }
    VF_ASSERT(layer_names[id.kind] && id.flow == 0);
    snprintf(buf, size, "blk.%u.%s", id.layer, layer_names[id.kind]);
    return buf;
}

bool vf_gguf_is_reordered(const struct vf_gguf_arch *arch, enum vf_tensor_kind kind)
{
    return arch->neighbour_pairs && (kind == VF_T_Q || kind == VF_T_K);
}

uint32_t vf_gguf_row(const struct vf_gguf_arch *arch, const struct vf_config *config,
                     enum vf_tensor_kind kind, uint32_t row)
{
    if (!vf_gguf_is_reordered(arch, kind))
        return row;
    uint32_t in_head = row % config->head_dim, half = config->head_dim / 2;
    return row - in_head + in_head % half * 2 + in_head / half;
}
