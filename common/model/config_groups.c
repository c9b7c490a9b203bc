/* The keys of a config.json, group by group: geometry, FFN and experts, attention, rope, style,
 * flows, tokens. A key that is absent leaves the default of set_defaults in place.
 */
#include "common/model/config_read.h"

#include "common/base/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EOS_MAX (sizeof((struct vf_config *)0)->eos_tokens / sizeof(uint32_t))

static const char *const rope_names[] = {"default", "proportional", NULL};
static const char *const router_names[] = {"replay", "independent", NULL};
static const char *const readout_names[] = {"mixture", "auxiliary", "primary", NULL};
static const char *const coupling_names[] = {"query", "mlp_hidden", "mlp_output", NULL};
static const char *const layer_type_names[] = {"full_attention", "sliding_attention", NULL};

static void set_defaults(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    c->style = VF_STYLE_DELAYED_SUM;
    c->norm_topk_prob = !(r->type->flags & VF_TYPE_TOPK_RAW);
    c->context_max = 2048;
    c->norm_eps = 1e-6f;
    c->rope_theta = r->type->rope_theta;
    c->partial_rotary_factor = 1.0;
    c->activation = VF_ACT_SILU;
    c->mlp_gated = true;
    c->qk_norm = r->type->qk_norm;
    c->attention_bias = r->type->flags & VF_TYPE_BIAS;
    c->bos_token = -1;
    c->flow_count = 1;
}

static enum vf_code read_geometry(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    bool found = false;
    if ((code =
             vf_config_read_u32(r, "hidden_size", true, 1, VF_HIDDEN_MAX, &c->hidden_size, NULL)) ||
        (code = vf_config_read_u32(r, "num_hidden_layers", true, 1, VF_LAYERS_MAX, &c->layer_count,
                                   NULL)) ||
        (code = vf_config_read_u32(r, "num_attention_heads", true, 1, VF_HEADS_MAX, &c->head_count,
                                   NULL)) ||
        (code = vf_config_read_u32(r, "vocab_size", true, 1, VF_VOCAB_MAX, &c->vocab_size, NULL)) ||
        (code = vf_config_read_u32(r, "max_position_embeddings", false, 1, VF_CONTEXT_MAX,
                                   &c->context_max, NULL)))
        return code;
    c->kv_head_count = c->head_count;
    if ((code = vf_config_read_u32(r, "num_key_value_heads", false, 1, VF_HEADS_MAX,
                                   &c->kv_head_count, NULL)) ||
        (code = vf_config_read_u32(r, "head_dim", false, 1, VF_HEAD_DIM_MAX, &c->head_dim, &found)))
        return code;
    if (found)
        return VF_OK;
    uint32_t hd = c->hidden_size / c->head_count;
    if (c->hidden_size % c->head_count || hd < 1 || hd > VF_HEAD_DIM_MAX)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: head_dim is absent, and hidden_size %u / num_attention_heads %u is "
                          "not a whole number from 1 to %u",
                          r->where, c->hidden_size, c->head_count, VF_HEAD_DIM_MAX);
    c->head_dim = hd;
    return VF_OK;
}

/* Mixtral says num_local_experts, the others num_experts; both are read, and must agree. */
static enum vf_code read_expert_count(struct vf_config_reader *r, bool *found)
{
    struct vf_config *c = r->c;
    uint32_t local = 0, min = r->type->flags & VF_TYPE_MOE ? 1 : 0;
    bool has_local = false;
    enum vf_code code =
        vf_config_read_u32(r, "num_experts", false, min, VF_EXPERTS_MAX, &c->expert_count, found);
    if (code != VF_OK || !(r->type->flags & VF_TYPE_MOE))
        return code;
    code = vf_config_read_u32(r, "num_local_experts", false, 1, VF_EXPERTS_MAX, &local, &has_local);
    if (code != VF_OK)
        return code;
    if (!*found && !has_local)
        return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: %s: missing", r->where,
                          strcmp(r->type->name, "mixtral") ? "num_experts" : "num_local_experts");
    if (*found && has_local && local != c->expert_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: num_local_experts: found %u, allowed: the same as num_experts, %u",
                          r->where, local, c->expert_count);
    if (has_local)
        c->expert_count = local;
    *found = true;
    return VF_OK;
}

static enum vf_code read_ffn(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    unsigned flags = r->type->flags;
    enum vf_code code;
    bool own_size = flags & (VF_TYPE_NATIVE | VF_TYPE_EXPERT_SIZE_OWN);
    bool has_count = false, has_k = false, has_size = false;
    uint32_t min = flags & VF_TYPE_NATIVE ? 0 : 1;
    if ((code = vf_config_read_u32(r, "intermediate_size", !(flags & VF_TYPE_EXPERT_SIZE_OWN), min,
                                   VF_FFN_MAX, &c->ffn_size, NULL)))
        return code;
    if (!(flags & (VF_TYPE_NATIVE | VF_TYPE_MOE)))
        return VF_OK;
    if ((code = read_expert_count(r, &has_count)) ||
        (code =
             vf_config_read_u32(r, "num_experts_per_tok", c->expert_count > 0, c->expert_count > 0,
                                VF_EXPERTS_TOP_MAX, &c->expert_top_k, &has_k)))
        return code;
    c->expert_top_k_aux = c->expert_top_k;
    if ((code = vf_config_read_bool(r, "norm_topk_prob", &c->norm_topk_prob)))
        return code;
    if (!own_size)
        c->expert_ffn_size = c->ffn_size;
    else if ((code = vf_config_read_u32(r, "moe_intermediate_size", c->expert_count > 0,
                                        c->expert_count > 0, VF_FFN_MAX, &c->expert_ffn_size,
                                        &has_size)))
        return code;
    if (flags & VF_TYPE_MOE)
        c->ffn_size = 0;
    if (c->expert_count)
        return VF_OK;
    if (!has_count && (c->expert_top_k || c->expert_ffn_size))
        return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: num_experts: missing, but %s is given",
                          r->where,
                          c->expert_top_k ? "num_experts_per_tok" : "moe_intermediate_size");
    c->expert_top_k = c->expert_top_k_aux = c->expert_ffn_size = 0;
    return VF_OK;
}

/* rope_scaling, or rope_parameters of newer Hugging Face files: only the default kind. */
static enum vf_code read_rope_object(struct vf_config_reader *r, const char *key)
{
    const json_t *o = vf_config_get_value(r, key), *value;
    if (!o)
        return VF_OK;
    if (!json_is_object(o))
        return vf_config_refuse_kind(r, key, o, "null or an object");
    const char *name;
    json_object_foreach((json_t *)o, name, value)
    {
        bool is_kind = strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0;
        if (is_kind && !json_is_string(value))
            return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: %s.%s: found %s, allowed: a string",
                              r->where, key, name, vf_config_json_kind(value));
        if (is_kind && strcmp(json_string_value(value), "default") != 0)
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: %s.%s: found \"%.60s\", allowed: \"default\", or %s null",
                              r->where, key, name, json_string_value(value), key);
    }
    json_object_foreach((json_t *)o, name, value)
    {
        if (strcmp(name, "rope_type") && strcmp(name, "type") && strcmp(name, "rope_theta") &&
            strcmp(name, "partial_rotary_factor"))
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: %s: unknown key \"%.60s\", allowed: rope_type, rope_theta, "
                              "partial_rotary_factor",
                              r->where, key, name);
    }
    struct vf_config_reader inner = *r;
    char where[600];
    snprintf(where, sizeof where, "%s: %s", r->where, key);
    inner.obj = o;
    inner.where = where;
    struct vf_config *c = r->c;
    enum vf_code code = vf_json_get_real(o, vf_config_field(&inner, "rope_theta", false), 1.0, 1e15,
                                         &c->rope_theta, NULL, r->err);
    if (code != VF_OK)
        return code;
    return vf_json_get_real(o, vf_config_field(&inner, "partial_rotary_factor", false), 1e-6, 1.0,
                            &c->partial_rotary_factor, NULL, r->err);
}

static enum vf_code check_rotary(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    if (!(r->type->flags & VF_TYPE_NATIVE) && c->partial_rotary_factor != 1.0)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: partial_rotary_factor: found %g, allowed for %s: 1", r->where,
                          c->partial_rotary_factor, r->type->name);
    double dims = c->partial_rotary_factor * c->head_dim, whole = rint(dims);
    if (fabs(dims - whole) > 1e-6 || whole < 2 || fmod(whole, 2.0) != 0.0)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: partial_rotary_factor %g of head_dim %u rotates %g dimensions, "
                          "allowed: an even whole number from 2",
                          r->where, c->partial_rotary_factor, c->head_dim, dims);
    return VF_OK;
}

static enum vf_code read_rope(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    int kind = VF_ROPE_DEFAULT;
    if ((code = vf_json_get_real(r->obj, vf_config_field(r, "rope_theta", false), 1.0, 1e15,
                                 &c->rope_theta, NULL, r->err)) ||
        (code = vf_json_get_real(r->obj, vf_config_field(r, "partial_rotary_factor", false), 1e-6,
                                 1.0, &c->partial_rotary_factor, NULL, r->err)) ||
        (code = read_rope_object(r, "rope_scaling")) ||
        (code = read_rope_object(r, "rope_parameters")))
        return code;
    if (r->type->flags & VF_TYPE_NATIVE &&
        (code = vf_config_read_name(r, "rope_type", rope_names, &kind)))
        return code;
    c->rope_kind = (enum vf_rope_kind)kind;
    return check_rotary(r);
}

/* true, false, or "head" / "whole" for what is normed. */
static enum vf_code read_qk_norm(struct vf_config_reader *r)
{
    const json_t *v = vf_config_get_value(r, "qk_norm");
    if (json_is_string(v)) {
        static const char *const names[] = {"none", "head", "whole", NULL};
        int kind = 0;
        enum vf_code code = vf_config_read_name(r, "qk_norm", names, &kind);
        r->c->qk_norm = (enum vf_qk_norm)kind;
        return code;
    }
    bool on = false;
    enum vf_code code = vf_config_read_bool(r, "qk_norm", &on);
    r->c->qk_norm = on ? VF_QK_NORM_HEAD : VF_QK_NORM_NONE;
    return code;
}

/* 0, 1, true or false. */
static enum vf_code read_norm_offset(struct vf_config_reader *r)
{
    const json_t *v = vf_config_get_value(r, "rmsnorm_weight_offset");
    if (json_is_boolean(v)) {
        r->c->norm_weight_offset = json_is_true(v);
        return VF_OK;
    }
    uint32_t offset = 0;
    enum vf_code code = vf_config_read_u32(r, "rmsnorm_weight_offset", false, 0, 1, &offset, NULL);
    r->c->norm_weight_offset = offset;
    return code;
}

/* The per-layer list says which layers slide. Without a window there is nothing to choose. */
static enum vf_code read_layer_types(struct vf_config_reader *r, const json_t *list)
{
    struct vf_config *c = r->c;
    if (!json_is_array(list) || json_array_size(list) != c->layer_count)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: layer_types: found %s of %zu, allowed: null or an array of "
                          "num_hidden_layers = %u names",
                          r->where, vf_config_json_kind(list), json_array_size(list),
                          c->layer_count);
    c->layer_sliding = calloc(c->layer_count, 1);
    if (!c->layer_sliding)
        return vf_err_set(r->err, VF_ERR_NO_MEMORY, "out of memory for layer_types");
    bool any = false;
    for (uint32_t l = 0; l < c->layer_count; l++) {
        const json_t *v = json_array_get(list, l);
        if (!json_is_string(v))
            return vf_err_set(r->err, VF_ERR_CORRUPT,
                              "%s: layer_types[%u]: found %s, allowed: a string", r->where, l,
                              vf_config_json_kind(v));
        int kind = vf_config_find_name(layer_type_names, json_string_value(v));
        if (kind < 0)
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: layer_types[%u]: found \"%.60s\", allowed: full_attention, "
                              "sliding_attention",
                              r->where, l, json_string_value(v));
        c->layer_sliding[l] = (uint8_t)kind;
        any |= kind;
    }
    if (any && !c->sliding_window)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: layer_types names sliding_attention, but sliding_window is missing",
                          r->where);
    if (!c->sliding_window) {
        free(c->layer_sliding);
        c->layer_sliding = NULL;
    }
    return VF_OK;
}

/* Qwen2 and Qwen3: the layers from max_window_layers on slide. */
static enum vf_code set_window_layers(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    uint32_t first = 28; /* Hugging Face's default */
    enum vf_code code =
        vf_config_read_u32(r, "max_window_layers", false, 0, VF_LAYERS_MAX, &first, NULL);
    if (code != VF_OK)
        return code;
    c->layer_sliding = calloc(c->layer_count, 1);
    if (!c->layer_sliding)
        return vf_err_set(r->err, VF_ERR_NO_MEMORY, "out of memory for layer types");
    for (uint32_t l = first; l < c->layer_count; l++)
        c->layer_sliding[l] = 1;
    return VF_OK;
}

static enum vf_code read_window(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    unsigned flags = r->type->flags;
    enum vf_code code;
    bool on = flags & VF_TYPE_WINDOW;
    if (!(flags & (VF_TYPE_NATIVE | VF_TYPE_WINDOW)) &&
        (code = vf_config_read_bool(r, "use_sliding_window", &on)))
        return code;
    if (on && !(flags & (VF_TYPE_WINDOW | VF_TYPE_WINDOW_SWITCH)))
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: use_sliding_window: found true, allowed for %s: false", r->where,
                          r->type->name);
    if (!(flags & (VF_TYPE_WINDOW | VF_TYPE_WINDOW_SWITCH)))
        return VF_OK;
    bool needs_window = on && flags & VF_TYPE_WINDOW_SWITCH;
    if (on && (code = vf_config_read_u32(r, "sliding_window", needs_window, 1, INT32_MAX,
                                         &c->sliding_window, NULL)))
        return code;
    const json_t *list = vf_config_get_value(r, "layer_types");
    if (list)
        return read_layer_types(r, list);
    return needs_window ? set_window_layers(r) : VF_OK;
}

static enum vf_code read_attention(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    c->attn_scale = (float)(1.0 / sqrt(c->head_dim));
    if ((code = read_window(r)) || (code = read_rope(r)))
        return code;
    if (!(r->type->flags & VF_TYPE_NATIVE))
        return VF_OK;
    if ((code = read_qk_norm(r)) || (code = vf_config_read_bool(r, "v_norm", &c->v_norm)) ||
        (code = vf_config_read_bool(r, "attention_bias", &c->attention_bias)) ||
        (code = vf_config_read_float(r, "attn_scale", 1e-9, 1e9, &c->attn_scale)) ||
        (code = vf_config_read_float(r, "attn_logit_softcapping", 1e-3, 1e9, &c->attn_softcap)))
        return code;
    return VF_OK;
}

static enum vf_code read_common(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    int act = (int)c->activation;
    if ((code = vf_config_read_float(r, "rms_norm_eps", 1e-30, 1.0, &c->norm_eps)) ||
        (code = vf_config_read_name(r, "hidden_act", vf_activation_names, &act)) ||
        (code = vf_config_read_bool(r, "tie_word_embeddings", &c->tie_embeddings)))
        return code;
    c->activation = (enum vf_activation)act;
    if (!(r->type->flags & VF_TYPE_NATIVE))
        return VF_OK;
    if ((code = read_norm_offset(r)) ||
        (code = vf_config_read_bool(r, "mlp_gated", &c->mlp_gated)) ||
        (code = vf_config_read_bool(r, "embedding_scale", &c->embedding_scale)) ||
        (code = vf_config_read_float(r, "final_logit_softcapping", 1e-3, 1e9, &c->final_softcap)))
        return code;
    return VF_OK;
}

static enum vf_code read_style(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    int style = (int)c->style;
    if ((code = vf_config_read_name(r, "combine_style", vf_style_names, &style)))
        return code;
    c->style = (enum vf_style)style;
    bool decoupled = c->style == VF_STYLE_DECOUPLED_STREAMS;
    bool fixed = c->style == VF_STYLE_FIXED_POINT;
    if ((code = vf_config_read_u32(r, "attention_delay", false, 0, VF_LAYERS_MAX,
                                   &c->attention_delay, NULL)) ||
        (code = vf_config_read_u32(r, "dense_delay", false, 0, VF_LAYERS_MAX, &c->dense_delay,
                                   NULL)) ||
        (code = vf_config_read_u32(r, "expert_delay", false, 0, VF_LAYERS_MAX, &c->expert_delay,
                                   NULL)) ||
        (code = vf_config_read_u32(r, "merge_interval", decoupled, decoupled, VF_LAYERS_MAX,
                                   &c->merge_interval, NULL)) ||
        (code = vf_config_read_u32(r, "fixed_point_iterations", fixed, fixed, VF_LAYERS_MAX,
                                   &c->fixed_point_iterations, NULL)))
        return code;
    return VF_OK;
}

static enum vf_code read_coupling(struct vf_config_reader *r)
{
    const json_t *list = vf_config_get_value(r, "flow_coupling"), *v;
    if (!list)
        return VF_OK;
    if (!json_is_array(list))
        return vf_config_refuse_kind(r, "flow_coupling", list, "an array of names");
    size_t i;
    json_array_foreach((json_t *)list, i, v)
    {
        if (!json_is_string(v))
            return vf_config_refuse_kind(r, "flow_coupling", v, "query, mlp_hidden, mlp_output");
        int bit = vf_config_find_name(coupling_names, json_string_value(v));
        if (bit < 0)
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: flow_coupling: found \"%.60s\", allowed: query, mlp_hidden, "
                              "mlp_output",
                              r->where, json_string_value(v));
        if (r->c->flow_coupling & (1u << bit))
            return vf_err_set(r->err, VF_ERR_CORRUPT,
                              "%s: flow_coupling: found \"%s\" twice, allowed: once", r->where,
                              json_string_value(v));
        r->c->flow_coupling |= 1u << bit;
    }
    return VF_OK;
}

static enum vf_code read_flows(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    enum vf_code code;
    int router = VF_ROUTER_REPLAY, readout = VF_READOUT_MIXTURE;
    if ((code = vf_config_read_u32(r, "num_flows", false, 1, VF_FLOWS_MAX, &c->flow_count, NULL)) ||
        (code = vf_config_read_u32(r, "num_experts_per_tok_aux", false, c->expert_count > 0,
                                   c->expert_count ? VF_EXPERTS_TOP_MAX : 0, &c->expert_top_k_aux,
                                   NULL)) ||
        (code = vf_config_read_name(r, "flow_router", router_names, &router)) ||
        (code = vf_config_read_name(r, "flow_readout", readout_names, &readout)) ||
        (code = vf_config_read_bool(r, "flow_specific_dense", &c->flow_specific_dense)))
        return code;
    c->flow_router = (enum vf_router_kind)router;
    c->flow_readout = (enum vf_readout)readout;
    return read_coupling(r);
}

static enum vf_code read_token(struct vf_config_reader *r, const char *key, const json_t *v,
                               uint32_t *out)
{
    if (!json_is_integer(v))
        return vf_config_refuse_kind(r, key, v, "an integer, a list of integers or null");
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= (json_int_t)r->c->vocab_size)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: %s: found %" JSON_INTEGER_FORMAT
                          ", allowed: 0 to vocab_size - 1 = %u",
                          r->where, key, id, r->c->vocab_size - 1);
    *out = (uint32_t)id;
    return VF_OK;
}

static enum vf_code read_tokens(struct vf_config_reader *r)
{
    struct vf_config *c = r->c;
    uint32_t bos;
    const json_t *v = vf_config_get_value(r, "bos_token_id");
    if (v) {
        enum vf_code code = read_token(r, "bos_token_id", v, &bos);
        if (code != VF_OK)
            return code;
        c->bos_token = bos;
    }
    v = vf_config_get_value(r, "eos_token_id");
    if (v)
        c->eos_count = 0;
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (n > EOS_MAX)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: eos_token_id: found a list of %zu, allowed: at most %zu", r->where,
                          n, EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        enum vf_code code = read_token(r, "eos_token_id", item, &c->eos_tokens[i]);
        if (code != VF_OK)
            return code;
        c->eos_count++;
    }
    return VF_OK;
}

enum vf_code vf_config_take_tokens(const json_t *obj, const char *where, struct vf_config *config,
                                   struct vf_err *err)
{
    struct vf_config_reader r = {.obj = obj, .where = where, .c = config, .err = err};
    return read_tokens(&r);
}

enum vf_code vf_config_read_groups(struct vf_config_reader *r)
{
    enum vf_code code;
    set_defaults(r);
    if ((code = read_geometry(r)) || (code = read_ffn(r)) || (code = read_attention(r)) ||
        (code = read_common(r)) || (code = read_tokens(r)))
        return code;
    if (!(r->type->flags & VF_TYPE_NATIVE))
        return VF_OK;
    code = read_style(r);
    return code != VF_OK ? code : read_flows(r);
}
