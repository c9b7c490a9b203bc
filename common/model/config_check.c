/* What a config's values mean together, and what Hugging Face's modelling code would do with them
 * that this program doesn't: refused by name.
 */
#include "common/model/config_read.h"

#include "common/base/util.h"

#include <string.h>

#define PARAMS_MAX (1ull << 48) /* keeps every byte count, padding included, below 2^63 */

static enum vf_code refuse_true(struct vf_config_reader *r, const char *key)
{
    bool on = false;
    enum vf_code code = vf_config_read_bool(r, key, &on);
    if (code == VF_OK && on)
        code = vf_err_set(r->err, VF_ERR_UNSUPPORTED, "%s: %s: found true, allowed for %s: false",
                          r->where, key, r->type->name);
    return code;
}

static enum vf_code refuse_present(struct vf_config_reader *r, const char *key)
{
    const json_t *v = vf_config_get_value(r, key);
    if (!v)
        return VF_OK;
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED, "%s: %s: found %s, allowed: null or absent",
                      r->where, key, vf_config_json_kind(v));
}

static enum vf_code check_all_moe(struct vf_config_reader *r)
{
    uint32_t step = 1;
    enum vf_code code =
        vf_config_read_u32(r, "decoder_sparse_step", false, 0, INT32_MAX, &step, NULL);
    if (code != VF_OK)
        return code;
    if (step != 1)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: decoder_sparse_step: found %u, allowed: 1 (experts in every layer)",
                          r->where, step);
    const json_t *dense = vf_config_get_value(r, "mlp_only_layers");
    if (dense && !json_is_array(dense))
        return vf_config_refuse_kind(r, "mlp_only_layers", dense, "an empty array");
    if (json_array_size(dense))
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: mlp_only_layers: found %zu layers, allowed: none (experts in every "
                          "layer)",
                          r->where, json_array_size(dense));
    return VF_OK;
}

enum vf_code vf_config_check_hugging_face(struct vf_config_reader *r)
{
    enum vf_code code;
    if (!(r->type->flags & VF_TYPE_BIAS) && (code = refuse_true(r, "attention_bias")))
        return code;
    if ((code = refuse_true(r, "mlp_bias")) || (code = refuse_present(r, "clip_qkv")) ||
        (code = refuse_present(r, "quantization_config")))
        return code;
    return strcmp(r->type->name, "qwen3_moe") == 0 ? check_all_moe(r) : VF_OK;
}

/* ---- the combination as a whole ---- */

static enum vf_code check_heads(const struct vf_config_reader *r)
{
    const struct vf_config *c = r->c;
    if (c->kv_head_count > c->head_count || c->head_count % c->kv_head_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: num_key_value_heads: found %u, allowed: a divisor of "
                          "num_attention_heads, %u",
                          r->where, c->kv_head_count, c->head_count);
    if (c->head_dim % 2)
        return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: head_dim: found %u, allowed: even numbers",
                          r->where, c->head_dim);
    return VF_OK;
}

static enum vf_code check_experts(const struct vf_config_reader *r)
{
    const struct vf_config *c = r->c;
    if (!c->ffn_size && !c->expert_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: intermediate_size and num_experts are both 0: a layer needs a dense "
                          "FFN, experts or both",
                          r->where);
    if (c->expert_top_k > c->expert_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: num_experts_per_tok: found %u, allowed: 1 to num_experts = %u",
                          r->where, c->expert_top_k, c->expert_count);
    if (c->expert_top_k_aux > c->expert_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: num_experts_per_tok_aux: found %u, allowed: 1 to num_experts = %u",
                          r->where, c->expert_top_k_aux, c->expert_count);
    if (c->expert_count && !c->mlp_gated)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: mlp_gated: found false, allowed with num_experts %u: true", r->where,
                          c->expert_count);
    if ((uint64_t)c->layer_count * c->expert_count > VF_EXPERTS_TOTAL_MAX)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: num_experts %u in num_hidden_layers %u: allowed: %u in all",
                          r->where, c->expert_count, c->layer_count, VF_EXPERTS_TOTAL_MAX);
    return VF_OK;
}

static enum vf_code refuse_for_style(const struct vf_config_reader *r, const char *key,
                                     uint32_t found)
{
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED, "%s: %s: found %u, allowed for %s: 0", r->where,
                      key, found, vf_style_name(r->c->style));
}

static enum vf_code check_style(const struct vf_config_reader *r)
{
    const struct vf_config *c = r->c;
    bool delays = c->style == VF_STYLE_DELAYED_SUM || c->style == VF_STYLE_ASYNC_EXPERTS;
    bool experts = delays || c->style == VF_STYLE_PARALLEL_SQRT2;
    if (!delays && c->attention_delay)
        return refuse_for_style(r, "attention_delay", c->attention_delay);
    if (!delays && c->dense_delay)
        return refuse_for_style(r, "dense_delay", c->dense_delay);
    if (!delays && c->expert_delay)
        return refuse_for_style(r, "expert_delay", c->expert_delay);
    if (!experts && c->expert_count)
        return refuse_for_style(r, "num_experts", c->expert_count);
    if (c->style != VF_STYLE_DECOUPLED_STREAMS && c->merge_interval)
        return refuse_for_style(r, "merge_interval", c->merge_interval);
    if (c->style != VF_STYLE_FIXED_POINT && c->fixed_point_iterations)
        return refuse_for_style(r, "fixed_point_iterations", c->fixed_point_iterations);
    uint64_t effective = (uint64_t)c->layer_count * vf_max_u64(c->fixed_point_iterations, 1);
    if (effective > VF_LAYERS_MAX)
        return vf_err_set(
            r->err, VF_ERR_CORRUPT,
            "%s: num_hidden_layers %u x fixed_point_iterations %u: allowed: at most %u", r->where,
            c->layer_count, c->fixed_point_iterations, VF_LAYERS_MAX);
    return VF_OK;
}

static enum vf_code check_size(const struct vf_config_reader *r)
{
    uint64_t params = vf_config_param_count(r->c);
    if (params > PARAMS_MAX)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: the sizes together give %s%llu parameters, allowed: at most %llu",
                          r->where, params == UINT64_MAX ? "more than " : "",
                          (unsigned long long)params, (unsigned long long)PARAMS_MAX);
    return VF_OK;
}

/* Keys that say something of auxiliary flows, where there are none: num_flows was forgotten. */
static enum vf_code check_flows(const struct vf_config_reader *r)
{
    const struct vf_config *c = r->c;
    if (c->flow_count > 1)
        return VF_OK;
    const char *key = c->flow_readout == VF_READOUT_AUXILIARY ? "flow_readout auxiliary"
                      : c->flow_coupling                      ? "flow_coupling"
                      : c->flow_specific_dense                ? "flow_specific_dense"
                                                              : NULL;
    if (!key)
        return VF_OK;
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                      "%s: %s: found with num_flows 1, allowed with num_flows of at least 2",
                      r->where, key);
}

enum vf_code vf_config_check_whole(const struct vf_config_reader *r)
{
    enum vf_code code;
    if ((code = check_heads(r)) || (code = check_experts(r)) || (code = check_style(r)) ||
        (code = check_flows(r)))
        return code;
    return check_size(r);
}
