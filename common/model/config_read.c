/* Single fields of a config.json, the model types, and the keys that a type may carry.
 *
 * Hugging Face writes many keys that mean nothing here, so its types may carry unknown ones. A
 * pipeline_native config may not: a mistyped delay would silently be another model.
 */
#include "common/model/config_read.h"

#include "common/base/util.h"

#include <stdio.h>
#include <string.h>

static const struct vf_config_type types[] = {
    {"pipeline_native", VF_TYPE_NATIVE | VF_TYPE_WINDOW, VF_QK_NORM_NONE, 1e4},
    {"llama", 0, VF_QK_NORM_NONE, 1e4},
    {"mistral", VF_TYPE_WINDOW, VF_QK_NORM_NONE, 1e4},
    {"qwen2", VF_TYPE_BIAS | VF_TYPE_WINDOW_SWITCH, VF_QK_NORM_NONE, 1e4},
    {"qwen3", VF_TYPE_WINDOW_SWITCH, VF_QK_NORM_HEAD, 1e4},
    {"qwen3_moe", VF_TYPE_MOE | VF_TYPE_EXPERT_SIZE_OWN | VF_TYPE_TOPK_RAW, VF_QK_NORM_HEAD, 1e4},
    {"mixtral", VF_TYPE_MOE | VF_TYPE_WINDOW, VF_QK_NORM_NONE, 1e6},
    {"olmoe", VF_TYPE_MOE | VF_TYPE_TOPK_RAW, VF_QK_NORM_WHOLE, 1e4},
};

/* Every key that a pipeline_native config may carry and that means something. */
static const char *const native_keys[] = {
    "model_type",
    "source_model_type",
    "combine_style",
    "attention_delay",
    "dense_delay",
    "expert_delay",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rmsnorm_weight_offset",
    "rope_theta",
    "rope_type",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "hidden_act",
    "mlp_gated",
    "qk_norm",
    "v_norm",
    "attention_bias",
    "attn_scale",
    "sliding_window",
    "layer_types",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "tie_word_embeddings",
    "merge_interval",
    "fixed_point_iterations",
    "bos_token_id",
    "eos_token_id",
    "num_flows",
    "num_experts_per_tok_aux",
    "flow_router",
    "flow_readout",
    "flow_coupling",
    "flow_specific_dense",
};

/* Hugging Face's housekeeping: says nothing about the mathematics. */
static const char *const housekeeping_keys[] = {
    "architectures",        "auto_map",
    "torch_dtype",          "dtype",
    "transformers_version", "use_cache",
    "initializer_range",    "attention_dropout",
    "hidden_dropout",       "pad_token_id",
    "unk_token_id",         "output_router_logits",
    "router_aux_loss_coef", "pretraining_tp",
    "is_decoder",           "return_dict",
    "output_attentions",    "output_hidden_states",
};

struct vf_json_field vf_config_field(const struct vf_config_reader *r, const char *key,
                                     bool required)
{
    return (struct vf_json_field){.where = r->where, .key = key, .required = required};
}

enum vf_code vf_config_read_u32(struct vf_config_reader *r, const char *key, bool required,
                                uint32_t min, uint32_t max, uint32_t *out, bool *found)
{
    int64_t v = *out;
    enum vf_code code =
        vf_json_get_int(r->obj, vf_config_field(r, key, required), min, max, &v, found, r->err);
    if (code == VF_OK)
        *out = (uint32_t)v;
    return code;
}

enum vf_code vf_config_read_float(struct vf_config_reader *r, const char *key, double min,
                                  double max, float *out)
{
    double v = (double)*out;
    enum vf_code code =
        vf_json_get_real(r->obj, vf_config_field(r, key, false), min, max, &v, NULL, r->err);
    if (code == VF_OK)
        *out = (float)v;
    return code;
}

enum vf_code vf_config_read_bool(struct vf_config_reader *r, const char *key, bool *out)
{
    return vf_json_get_bool(r->obj, vf_config_field(r, key, false), out, NULL, r->err);
}

int vf_config_find_name(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static void join_names(const char *const *names, char *buf, size_t size)
{
    buf[0] = '\0';
    for (int i = 0; names[i]; i++)
        snprintf(buf + strlen(buf), size - strlen(buf), "%s%s", i ? ", " : "", names[i]);
}

/* A string out of a list; a missing key leaves *out as it was. */
enum vf_code vf_config_read_name(struct vf_config_reader *r, const char *key,
                                 const char *const *names, int *out)
{
    const char *s = NULL;
    enum vf_code code =
        vf_json_get_string(r->obj, vf_config_field(r, key, false), &s, NULL, r->err);
    if (code != VF_OK || !s)
        return code;
    int i = vf_config_find_name(names, s);
    if (i < 0) {
        char allowed[256];
        join_names(names, allowed, sizeof allowed);
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED, "%s: %s: found \"%.60s\", allowed: %s",
                          r->where, key, s, allowed);
    }
    *out = i;
    return VF_OK;
}

const json_t *vf_config_get_value(const struct vf_config_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->obj, key);
    return json_is_null(v) ? NULL : v;
}

const char *vf_config_json_kind(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return vf_json_not_finite(v) ? vf_json_not_finite(v) : "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

enum vf_code vf_config_refuse_kind(const struct vf_config_reader *r, const char *key,
                                   const json_t *v, const char *allowed)
{
    return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: %s: found %s, allowed: %s", r->where, key,
                      vf_config_json_kind(v), allowed);
}

static bool known_key(const char *key)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(native_keys); i++)
        if (strcmp(native_keys[i], key) == 0)
            return true;
    for (size_t i = 0; i < VF_ARRAY_LEN(housekeeping_keys); i++)
        if (strcmp(housekeeping_keys[i], key) == 0)
            return true;
    return key[0] == '_';
}

static enum vf_code check_native_keys(struct vf_config_reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->obj, key, value)
    {
        if (!known_key(key))
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: unknown key \"%.80s\" for model_type pipeline_native "
                              "(docs/MODELS.md lists the allowed ones)",
                              r->where, key);
    }
    return VF_OK;
}

/* Keys that would make a Hugging Face type another model: read for pipeline_native only, and too
 * telling to be ignored elsewhere. */
static const char *const native_only_keys[] = {
    "combine_style",
    "attention_delay",
    "dense_delay",
    "expert_delay",
    "merge_interval",
    "num_flows",
    "fixed_point_iterations",
    "flow_router",
    "flow_readout",
    "num_experts_per_tok_aux",
    "flow_specific_dense",
    "flow_coupling",
    "mlp_gated",
    "v_norm",
    "qk_norm",
    "embedding_scale",
    "attn_scale",
    "rmsnorm_weight_offset",
};

static enum vf_code check_foreign_keys(struct vf_config_reader *r, const char *type)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(native_only_keys); i++) {
        const json_t *v = json_object_get(r->obj, native_only_keys[i]);
        if (v && !json_is_null(v))
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: %s: found with model_type %s, allowed with pipeline_native only",
                              r->where, native_only_keys[i], type);
    }
    return VF_OK;
}

static const struct vf_config_type *find_type(const char *name)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

static enum vf_code refuse_type(const struct vf_config_reader *r, const char *key,
                                const char *found)
{
    char allowed[200] = "";
    for (size_t i = 0; i < VF_ARRAY_LEN(types); i++)
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s", i ? ", " : "",
                 types[i].name);
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED, "%s: %s: found \"%.60s\", allowed: %s", r->where,
                      key, found, allowed);
}

enum vf_code vf_config_read_type(struct vf_config_reader *r)
{
    const char *name = NULL;
    enum vf_code code =
        vf_json_get_string(r->obj, vf_config_field(r, "model_type", true), &name, NULL, r->err);
    if (code != VF_OK)
        return code;
    r->type = find_type(name);
    if (!r->type)
        return refuse_type(r, "model_type", name);
    if (!(r->type->flags & VF_TYPE_NATIVE)) {
        code = check_foreign_keys(r, name);
        if (code != VF_OK)
            return code;
    } else {
        code = check_native_keys(r);
        if (code != VF_OK)
            return code;
        code = vf_json_get_string(r->obj, vf_config_field(r, "source_model_type", false), &name,
                                  NULL, r->err);
        if (code != VF_OK)
            return code;
        if (!find_type(name))
            return refuse_type(r, "source_model_type", name);
    }
    snprintf(r->c->model_type, sizeof r->c->model_type, "%s", name);
    return VF_OK;
}
