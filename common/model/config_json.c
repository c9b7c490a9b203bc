/* Writes a config in its canonical form, a pipeline_native config.json: every key is there, so
 * that no later default can change what a model file means. */
#include "common/model/config.h"

#include <string.h>

static json_t *real_or_null(float v)
{
    return v != 0.0f ? json_real((double)v) : json_null();
}

static json_t *name_list(uint32_t bits, const char *const *names, int count)
{
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++)
        if (bits & (1u << i) && json_array_append_new(list, json_string(names[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *layer_types(const struct vf_config *c)
{
    if (!c->layer_sliding)
        return json_null();
    json_t *list = json_array();
    for (uint32_t l = 0; list && l < c->layer_count; l++) {
        const char *name = c->layer_sliding[l] ? "sliding_attention" : "full_attention";
        if (json_array_append_new(list, json_string(name))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *eos_tokens(const struct vf_config *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < c->eos_count; i++)
        if (json_array_append_new(list, json_integer(c->eos_tokens[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static int put_geometry(json_t *o, const struct vf_config *c)
{
    int bad = 0;
    bad |= json_object_set_new(o, "model_type", json_string("pipeline_native"));
    if (strcmp(c->model_type, "pipeline_native") != 0)
        bad |= json_object_set_new(o, "source_model_type", json_string(c->model_type));
    bad |= json_object_set_new(o, "combine_style", json_string(vf_style_name(c->style)));
    bad |= json_object_set_new(o, "attention_delay", json_integer(c->attention_delay));
    bad |= json_object_set_new(o, "dense_delay", json_integer(c->dense_delay));
    bad |= json_object_set_new(o, "expert_delay", json_integer(c->expert_delay));
    bad |= json_object_set_new(o, "hidden_size", json_integer(c->hidden_size));
    bad |= json_object_set_new(o, "num_hidden_layers", json_integer(c->layer_count));
    bad |= json_object_set_new(o, "num_attention_heads", json_integer(c->head_count));
    bad |= json_object_set_new(o, "num_key_value_heads", json_integer(c->kv_head_count));
    bad |= json_object_set_new(o, "head_dim", json_integer(c->head_dim));
    bad |= json_object_set_new(o, "intermediate_size", json_integer(c->ffn_size));
    bad |= json_object_set_new(o, "num_experts", json_integer(c->expert_count));
    bad |= json_object_set_new(o, "num_experts_per_tok", json_integer(c->expert_top_k));
    bad |= json_object_set_new(o, "moe_intermediate_size", json_integer(c->expert_ffn_size));
    bad |= json_object_set_new(o, "norm_topk_prob", json_boolean(c->norm_topk_prob));
    bad |= json_object_set_new(o, "vocab_size", json_integer(c->vocab_size));
    bad |= json_object_set_new(o, "max_position_embeddings", json_integer(c->context_max));
    bad |= json_object_set_new(o, "merge_interval", json_integer(c->merge_interval));
    bad |=
        json_object_set_new(o, "fixed_point_iterations", json_integer(c->fixed_point_iterations));
    return bad;
}

static int put_attention(json_t *o, const struct vf_config *c)
{
    static const char *const qk_norms[] = {"none", "head", "whole"};
    const char *rope = c->rope_kind == VF_ROPE_PROPORTIONAL ? "proportional" : "default";
    int bad = 0;
    bad |= json_object_set_new(o, "rope_theta", json_real(c->rope_theta));
    bad |= json_object_set_new(o, "rope_type", json_string(rope));
    bad |= json_object_set_new(o, "partial_rotary_factor", json_real(c->partial_rotary_factor));
    if (c->qk_norm == VF_QK_NORM_WHOLE)
        bad |= json_object_set_new(o, "qk_norm", json_string(qk_norms[c->qk_norm]));
    else
        bad |= json_object_set_new(o, "qk_norm", json_boolean(c->qk_norm != VF_QK_NORM_NONE));
    bad |= json_object_set_new(o, "v_norm", json_boolean(c->v_norm));
    bad |= json_object_set_new(o, "attention_bias", json_boolean(c->attention_bias));
    bad |= json_object_set_new(o, "attn_scale", json_real((double)c->attn_scale));
    bad |= json_object_set_new(o, "sliding_window",
                               c->sliding_window ? json_integer(c->sliding_window) : json_null());
    bad |= json_object_set_new(o, "layer_types", layer_types(c));
    bad |= json_object_set_new(o, "attn_logit_softcapping", real_or_null(c->attn_softcap));
    return bad;
}

static int put_rest(json_t *o, const struct vf_config *c)
{
    static const char *const couplings[] = {"query", "mlp_hidden", "mlp_output"};
    static const char *const readouts[] = {"mixture", "auxiliary", "primary"};
    const char *router = c->flow_router == VF_ROUTER_INDEPENDENT ? "independent" : "replay";
    int bad = 0;
    bad |= json_object_set_new(o, "rms_norm_eps", json_real((double)c->norm_eps));
    bad |= json_object_set_new(o, "rmsnorm_weight_offset", json_integer(c->norm_weight_offset));
    bad |= json_object_set_new(o, "hidden_act", json_string(vf_activation_name(c->activation)));
    bad |= json_object_set_new(o, "mlp_gated", json_boolean(c->mlp_gated));
    bad |= json_object_set_new(o, "final_logit_softcapping", real_or_null(c->final_softcap));
    bad |= json_object_set_new(o, "embedding_scale", json_boolean(c->embedding_scale));
    bad |= json_object_set_new(o, "tie_word_embeddings", json_boolean(c->tie_embeddings));
    bad |= json_object_set_new(o, "bos_token_id",
                               c->bos_token < 0 ? json_null() : json_integer(c->bos_token));
    bad |= json_object_set_new(o, "eos_token_id", eos_tokens(c));
    bad |= json_object_set_new(o, "num_flows", json_integer(c->flow_count));
    bad |= json_object_set_new(o, "num_experts_per_tok_aux", json_integer(c->expert_top_k_aux));
    bad |= json_object_set_new(o, "flow_router", json_string(router));
    bad |= json_object_set_new(o, "flow_readout", json_string(readouts[c->flow_readout]));
    bad |= json_object_set_new(o, "flow_coupling", name_list(c->flow_coupling, couplings, 3));
    bad |= json_object_set_new(o, "flow_specific_dense", json_boolean(c->flow_specific_dense));
    return bad;
}

json_t *vf_config_to_json(const struct vf_config *config)
{
    json_t *o = json_object();
    if (!o)
        return NULL;
    if (put_geometry(o, config) | put_attention(o, config) | put_rest(o, config)) {
        json_decref(o);
        return NULL;
    }
    return o;
}
