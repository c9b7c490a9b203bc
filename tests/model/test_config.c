/* Configs that parse, configs that are refused by name, and the canonical form's round trip. */
#include "model_test.h"

#include "common/base/util.h"

#include <math.h>

static const char native_base[] =
    "{\"model_type\":\"pipeline_native\",\"combine_style\":\"delayed_sum\",\"dense_delay\":1,"
    "\"expert_delay\":2,\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":160,\"num_experts\":8,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":96,\"vocab_size\":300,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"hidden_act\":\"gelu\",\"eos_token_id\":2}";
static const char dense_base[] =
    "{\"model_type\":\"pipeline_native\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300}";
static const char llama_base[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300,"
    "\"architectures\":[\"LlamaForCausalLM\"],\"anything\":{\"else\":1}}";
static const char mixtral_base[] =
    "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300,"
    "\"num_local_experts\":8,\"num_experts_per_tok\":2}";
static const char qwen3_moe_base[] =
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300,\"num_experts\":8,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"decoder_sparse_step\":1,"
    "\"mlp_only_layers\":[],\"head_dim\":32}";
static const char qwen2_base[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300,"
    "\"sliding_window\":128,\"use_sliding_window\":false,\"max_window_layers\":4}";
static const char olmoe_base[] =
    "{\"model_type\":\"olmoe\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"intermediate_size\":160,\"vocab_size\":300,\"num_experts\":8,"
    "\"num_experts_per_tok\":2,\"clip_qkv\":null}";

/* base with patch's keys set over it; a key listed in "-" is removed. */
static json_t *patched(const char *base, const char *patch)
{
    struct vf_err err = {0};
    json_t *o = NULL, *p = NULL;
    if (vf_json_parse(base, strlen(base), "base", &o, &err) != VF_OK ||
        vf_json_parse(patch, strlen(patch), "patch", &p, &err) != VF_OK) {
        printf("Bail out! %s\n", err.text);
        _exit(1);
    }
    const char *removed = json_string_value(json_object_get(p, "-"));
    if (removed)
        json_object_del(o, removed);
    json_object_del(p, "-");
    json_object_update(o, p);
    json_decref(p);
    return o;
}

static enum vf_code parse_patched(const char *base, const char *patch, struct vf_config *c,
                                  struct vf_err *err)
{
    json_t *o = patched(base, patch);
    enum vf_code code = vf_config_parse(o, "dir/config.json", c, err);
    json_decref(o);
    return code;
}

struct bad_case {
    const char *base, *patch;
    enum vf_code code;
    const char *field;  /* the message names it */
    const char *detail; /* found or allowed, as the message has it; NULL: any */
};

#define BAD VF_ERR_CORRUPT
#define NOT VF_ERR_UNSUPPORTED
static const struct bad_case bad_cases[] = {
    /* type and range */
    {native_base, "{\"hidden_size\":1e300}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":-64}", BAD, "hidden_size", "-64"},
    {native_base, "{\"hidden_size\":0}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":\"64\"}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":64.5}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":9223372036854775807}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":4294967360}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":[64]}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":true}", BAD, "hidden_size", NULL},
    {native_base, "{\"hidden_size\":null}", BAD, "hidden_size", NULL},
    {native_base, "{\"-\":\"hidden_size\"}", BAD, "hidden_size", NULL},
    {native_base, "{\"-\":\"num_hidden_layers\"}", BAD, "num_hidden_layers", NULL},
    {native_base, "{\"-\":\"num_attention_heads\"}", BAD, "num_attention_heads", NULL},
    {native_base, "{\"-\":\"vocab_size\"}", BAD, "vocab_size", NULL},
    {native_base, "{\"-\":\"intermediate_size\"}", BAD, "intermediate_size", NULL},
    {native_base, "{\"-\":\"model_type\"}", BAD, "model_type", NULL},
    {native_base, "{\"model_type\":7}", BAD, "model_type", NULL},
    {native_base, "{\"num_hidden_layers\":4097}", BAD, "num_hidden_layers", "4096"},
    {native_base, "{\"num_attention_heads\":100000}", BAD, "num_attention_heads", NULL},
    {native_base, "{\"head_dim\":2048}", BAD, "head_dim", NULL},
    {native_base, "{\"intermediate_size\":100000000}", BAD, "intermediate_size", NULL},
    {native_base, "{\"num_experts\":65536}", BAD, "num_experts", NULL},
    {native_base, "{\"vocab_size\":4294967296}", BAD, "vocab_size", NULL},
    {native_base, "{\"max_position_embeddings\":0}", BAD, "max_position_embeddings", NULL},
    {native_base, "{\"rms_norm_eps\":0}", BAD, "rms_norm_eps", NULL},
    {native_base, "{\"rms_norm_eps\":-1e-6}", BAD, "rms_norm_eps", NULL},
    {native_base, "{\"rms_norm_eps\":\"1e-6\"}", BAD, "rms_norm_eps", NULL},
    {native_base, "{\"rope_theta\":0.5}", BAD, "rope_theta", NULL},
    {native_base, "{\"rope_theta\":1e300}", BAD, "rope_theta", NULL},
    {native_base, "{\"dense_delay\":-1}", BAD, "dense_delay", "-1"},
    {native_base, "{\"dense_delay\":1.5}", BAD, "dense_delay", NULL},
    {native_base, "{\"sliding_window\":0}", BAD, "sliding_window", NULL},
    {native_base, "{\"sliding_window\":false}", BAD, "sliding_window", NULL},
    {native_base, "{\"attn_logit_softcapping\":-1}", BAD, "attn_logit_softcapping", NULL},
    {native_base, "{\"final_logit_softcapping\":\"x\"}", BAD, "final_logit_softcapping", NULL},
    {native_base, "{\"mlp_gated\":1}", BAD, "mlp_gated", NULL},
    {native_base, "{\"v_norm\":\"yes\"}", BAD, "v_norm", NULL},
    {native_base, "{\"rmsnorm_weight_offset\":2}", BAD, "rmsnorm_weight_offset", NULL},
    {native_base, "{\"num_flows\":0}", BAD, "num_flows", NULL},
    {native_base, "{\"num_flows\":9}", BAD, "num_flows", "8"},
    /* combinations */
    {native_base, "{\"num_key_value_heads\":3}", BAD, "num_key_value_heads", "found 3"},
    {native_base, "{\"num_key_value_heads\":8}", BAD, "num_key_value_heads", "found 8"},
    {native_base, "{\"head_dim\":15}", BAD, "head_dim", NULL},
    {dense_base, "{\"num_attention_heads\":5}", BAD, "head_dim", NULL},
    {native_base, "{\"partial_rotary_factor\":0.3}", BAD, "partial_rotary_factor", NULL},
    {native_base, "{\"partial_rotary_factor\":0.1875}", BAD, "partial_rotary_factor", "3 dim"},
    {native_base, "{\"partial_rotary_factor\":1.5}", BAD, "partial_rotary_factor", NULL},
    {native_base, "{\"num_experts_per_tok\":9}", BAD, "num_experts_per_tok", "found 9"},
    {native_base, "{\"num_experts_per_tok\":0}", BAD, "num_experts_per_tok", NULL},
    {native_base, "{\"-\":\"num_experts_per_tok\"}", BAD, "num_experts_per_tok", NULL},
    {native_base, "{\"-\":\"moe_intermediate_size\"}", BAD, "moe_intermediate_size", NULL},
    {native_base, "{\"num_experts_per_tok_aux\":9}", BAD, "num_experts_per_tok_aux", "found 9"},
    {native_base, "{\"-\":\"num_experts\"}", BAD, "num_experts", "missing"},
    {native_base, "{\"intermediate_size\":0,\"num_experts\":0}", BAD, "intermediate_size", NULL},
    {dense_base, "{\"intermediate_size\":0}", BAD, "num_experts", NULL},
    {native_base, "{\"mlp_gated\":false}", NOT, "mlp_gated", NULL},
    {native_base, "{\"combine_style\":\"decoupled_streams\",\"merge_interval\":2}", NOT,
     "dense_delay", "decoupled_streams"},
    {native_base, "{\"combine_style\":\"pipeline_registers\",\"dense_delay\":0,\"expert_delay\":0}",
     NOT, "num_experts", "pipeline_registers"},
    {native_base, "{\"combine_style\":\"parallel_sqrt2\",\"dense_delay\":0}", NOT, "expert_delay",
     "parallel_sqrt2"},
    {dense_base,
     "{\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":2,"
     "\"dense_delay\":1}",
     NOT, "dense_delay", "fixed_point"},
    {dense_base, "{\"combine_style\":\"fixed_point\"}", BAD, "fixed_point_iterations", NULL},
    {dense_base, "{\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":0}", BAD,
     "fixed_point_iterations", NULL},
    {dense_base, "{\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":4096}", BAD,
     "fixed_point_iterations", "4096"},
    {dense_base, "{\"combine_style\":\"decoupled_streams\"}", BAD, "merge_interval", NULL},
    {dense_base, "{\"combine_style\":\"decoupled_streams\",\"merge_interval\":0}", BAD,
     "merge_interval", NULL},
    {dense_base, "{\"merge_interval\":3}", NOT, "merge_interval", "delayed_sum"},
    {dense_base, "{\"fixed_point_iterations\":3}", NOT, "fixed_point_iterations", "delayed_sum"},
    {dense_base,
     "{\"hidden_size\":1048576,\"intermediate_size\":4194304,"
     "\"num_hidden_layers\":4096,\"head_dim\":64}",
     NOT, "parameters", NULL},
    {native_base, "{\"num_experts\":65535,\"num_hidden_layers\":64}", NOT, "num_experts", NULL},
    /* lists */
    {native_base, "{\"layer_types\":[\"full_attention\"]}", BAD, "layer_types", NULL},
    {native_base, "{\"layer_types\":\"full_attention\"}", BAD, "layer_types", NULL},
    {dense_base, "{\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}", BAD,
     "layer_types", "sliding_window"},
    {dense_base, "{\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}", NOT,
     "layer_types[0]", "linear_attention"},
    {dense_base, "{\"num_hidden_layers\":1,\"layer_types\":[3]}", BAD, "layer_types[0]", NULL},
    {native_base, "{\"eos_token_id\":300}", BAD, "eos_token_id", "299"},
    {native_base, "{\"eos_token_id\":[1,-2]}", BAD, "eos_token_id", "-2"},
    {native_base, "{\"eos_token_id\":\"2\"}", BAD, "eos_token_id", NULL},
    {native_base, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", NOT,
     "eos_token_id", "17"},
    {native_base, "{\"bos_token_id\":1000}", BAD, "bos_token_id", NULL},
    {native_base, "{\"bos_token_id\":[1]}", BAD, "bos_token_id", NULL},
    {native_base, "{\"flow_coupling\":\"query\"}", BAD, "flow_coupling", NULL},
    {native_base, "{\"flow_coupling\":[\"query\",\"query\"]}", BAD, "flow_coupling", "twice"},
    {native_base, "{\"flow_coupling\":[\"key\"]}", NOT, "flow_coupling", "key"},
    /* words */
    {native_base, "{\"combine_style\":\"delayed\"}", NOT, "combine_style", "delayed"},
    {native_base, "{\"combine_style\":1}", BAD, "combine_style", NULL},
    {native_base, "{\"hidden_act\":\"tanh\"}", NOT, "hidden_act", "tanh"},
    {native_base, "{\"rope_type\":\"yarn\"}", NOT, "rope_type", "yarn"},
    {native_base, "{\"qk_norm\":\"half\"}", NOT, "qk_norm", "half"},
    {native_base, "{\"qk_norm\":1}", BAD, "qk_norm", NULL},
    {native_base, "{\"flow_router\":\"random\"}", NOT, "flow_router", "random"},
    {native_base, "{\"flow_readout\":\"max\"}", NOT, "flow_readout", "max"},
    {native_base, "{\"flow_readout\":\"auxiliary\"}", NOT, "flow_readout", "num_flows 1"},
    {native_base, "{\"flow_coupling\":[\"query\"]}", NOT, "flow_coupling", "num_flows 1"},
    {native_base, "{\"flow_specific_dense\":true}", NOT, "flow_specific_dense", "num_flows 1"},
    {native_base, "{\"dense_dealy\":1}", NOT, "dense_dealy", NULL},
    {native_base, "{\"num_local_experts\":8}", NOT, "num_local_experts", NULL},
    {native_base, "{\"source_model_type\":\"gpt2\"}", NOT, "source_model_type", "gpt2"},
    {native_base, "{\"model_type\":\"gpt2\"}", NOT, "model_type", "gpt2"},
    /* Hugging Face's own types */
    {llama_base, "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", NOT, "rope_scaling",
     "llama3"},
    {llama_base, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NOT, "rope_scaling",
     "linear"},
    {llama_base, "{\"rope_scaling\":\"yarn\"}", BAD, "rope_scaling", NULL},
    {llama_base, "{\"rope_scaling\":{\"rope_type\":7}}", BAD, "rope_scaling", NULL},
    {llama_base, "{\"rope_parameters\":{\"rope_type\":\"yarn\"}}", NOT, "rope_parameters", "yarn"},
    {llama_base, "{\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[1]}}", NOT,
     "rope_parameters", "mrope_section"},
    {llama_base, "{\"rope_parameters\":{\"rope_theta\":-1}}", BAD, "rope_theta", NULL},
    {llama_base, "{\"attention_bias\":true}", NOT, "attention_bias", NULL},
    {llama_base, "{\"mlp_bias\":true}", NOT, "mlp_bias", NULL},
    {llama_base, "{\"partial_rotary_factor\":0.5}", NOT, "partial_rotary_factor", NULL},
    {llama_base, "{\"intermediate_size\":0}", BAD, "intermediate_size", NULL},
    {llama_base, "{\"quantization_config\":{\"quant_method\":\"gptq\"}}", NOT,
     "quantization_config", NULL},
    {mixtral_base, "{\"-\":\"num_local_experts\"}", BAD, "num_local_experts", "missing"},
    {mixtral_base, "{\"num_experts\":4}", BAD, "num_local_experts", "found 8"},
    {mixtral_base, "{\"num_local_experts\":0}", BAD, "num_local_experts", NULL},
    {qwen3_moe_base, "{\"decoder_sparse_step\":2}", NOT, "decoder_sparse_step", "found 2"},
    {qwen3_moe_base, "{\"mlp_only_layers\":[0]}", NOT, "mlp_only_layers", NULL},
    {qwen3_moe_base, "{\"mlp_only_layers\":0}", BAD, "mlp_only_layers", NULL},
    {qwen3_moe_base, "{\"use_sliding_window\":true,\"sliding_window\":8}", NOT,
     "use_sliding_window", NULL},
    {qwen2_base, "{\"use_sliding_window\":true,\"sliding_window\":null}", BAD, "sliding_window",
     NULL},
    {qwen2_base, "{\"use_sliding_window\":1}", BAD, "use_sliding_window", NULL},
    {olmoe_base, "{\"clip_qkv\":8.0}", NOT, "clip_qkv", NULL},
};

static void test_bad(void)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(bad_cases); i++) {
        const struct bad_case *b = &bad_cases[i];
        struct vf_config c;
        struct vf_err err = {0};
        enum vf_code code = parse_patched(b->base, b->patch, &c, &err);
        bool named = strstr(err.text, b->field) && strstr(err.text, "dir/config.json") &&
                     (!b->detail || strstr(err.text, b->detail));
        bool pass = code == b->code && err.code == code && named && !c.layer_sliding;
        ok(pass, "refused: %s", b->patch);
        if (!pass || i % 16 == 0)
            note("code %d: %s", code, err.text);
        if (code == VF_OK)
            vf_config_deinit(&c);
    }
}

/* Everything but the pointer, to the bit (parse clears the struct first), then the array. */
static bool same_config(const struct vf_config *a, const struct vf_config *b)
{
    struct vf_config x = *a, y = *b;
    x.layer_sliding = y.layer_sliding = NULL;
    if (memcmp(&x, &y, sizeof x) != 0 || !a->layer_sliding != !b->layer_sliding)
        return false;
    return !a->layer_sliding || memcmp(a->layer_sliding, b->layer_sliding, a->layer_count) == 0;
}

/* Through text, as a model file stores it. */
static bool round_trips(const struct vf_config *c)
{
    json_t *o = vf_config_to_json(c);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    struct vf_config back;
    struct vf_err err = {0};
    bool same = false;
    if (text && parse_text(text, &back, &err) == VF_OK) {
        same = same_config(c, &back);
        vf_config_deinit(&back);
    } else {
        note("round trip: %s", err.text);
    }
    free(text);
    json_decref(o);
    return same;
}

struct good_case {
    const char *base, *patch;
};

static const struct good_case good_cases[] = {
    {native_base, "{}"},
    {native_base, "{\"num_key_value_heads\":null,\"head_dim\":null,\"eos_token_id\":null}"},
    {native_base, "{\"qk_norm\":true,\"v_norm\":true,\"attention_bias\":true}"},
    {native_base, "{\"qk_norm\":\"whole\",\"attn_scale\":0.1,\"rmsnorm_weight_offset\":1}"},
    {native_base, "{\"rmsnorm_weight_offset\":true,\"rms_norm_eps\":1.23456789e-5}"},
    {native_base, "{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25}"},
    {native_base, "{\"sliding_window\":5}"},
    {native_base, "{\"sliding_window\":5,\"layer_types\":[\"sliding_attention\","
                  "\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
                  "\"sliding_attention\"]}"},
    {native_base, "{\"attn_logit_softcapping\":50.1,\"final_logit_softcapping\":30}"},
    {native_base, "{\"num_flows\":3,\"num_experts_per_tok_aux\":4,\"flow_readout\":\"primary\","
                  "\"flow_router\":\"independent\",\"flow_coupling\":[\"mlp_output\"],"
                  "\"flow_specific_dense\":true}"},
    {native_base, "{\"torch_dtype\":\"float32\",\"architectures\":[\"X\"],\"_name_or_path\":\"x\","
                  "\"transformers_version\":\"4\",\"use_cache\":true,\"attention_dropout\":0.0}"},
    {native_base, "{\"dense_delay\":100,\"expert_delay\":4096}"},
    {native_base, "{\"rope_scaling\":null,\"merge_interval\":null,\"layer_types\":null}"},
    {native_base, "{\"combine_style\":\"async_experts\",\"norm_topk_prob\":false}"},
    {dense_base, "{\"mlp_gated\":false,\"hidden_act\":\"relu2\",\"tie_word_embeddings\":true}"},
    {dense_base, "{\"num_experts\":0,\"num_experts_per_tok\":2,\"moe_intermediate_size\":4}"},
    {dense_base, "{\"combine_style\":\"decoupled_streams\",\"merge_interval\":100}"},
    {dense_base, "{\"combine_style\":\"pipeline_registers\",\"embedding_scale\":true}"},
    {dense_base, "{\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":3}"},
    {llama_base, "{}"},
    {llama_base, "{\"rope_scaling\":{\"rope_type\":\"default\"},\"eos_token_id\":[1,2,3]}"},
    {llama_base, "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}"},
    {llama_base, "{\"attention_bias\":false,\"mlp_bias\":false,\"hidden_act\":\"silu\"}"},
    {mixtral_base, "{\"sliding_window\":64}"},
    {qwen3_moe_base, "{\"use_sliding_window\":false,\"norm_topk_prob\":true}"},
    {qwen2_base, "{}"},
    {qwen2_base, "{\"use_sliding_window\":true}"},
    {olmoe_base, "{}"},
};

static void test_good(void)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(good_cases); i++) {
        struct vf_config c;
        struct vf_err err = {0};
        enum vf_code code = parse_patched(good_cases[i].base, good_cases[i].patch, &c, &err);
        ok(code == VF_OK && round_trips(&c), "%s", good_cases[i].patch);
        if (code != VF_OK)
            note("%s", err.text);
        else
            vf_config_deinit(&c);
    }
}

static void load_patched(const char *base, const char *patch, struct vf_config *c)
{
    struct vf_err err = {0};
    if (parse_patched(base, patch, c, &err) != VF_OK) {
        printf("Bail out! %s\n", err.text);
        _exit(1);
    }
}

static void test_defaults(void)
{
    struct vf_config c;
    load_patched(dense_base, "{}", &c);
    ok(c.style == VF_STYLE_DELAYED_SUM && c.dense_delay == 0 && c.expert_delay == 0,
       "style and delays default to the ordinary transformer");
    ok(c.kv_head_count == 4 && c.head_dim == 16 && c.rope_theta == 1e4 &&
           c.partial_rotary_factor == 1.0 && c.norm_eps == 1e-6f,
       "geometry defaults");
    ok(c.mlp_gated && c.norm_topk_prob && !c.tie_embeddings && !c.v_norm && !c.embedding_scale &&
           c.qk_norm == VF_QK_NORM_NONE && c.activation == VF_ACT_SILU,
       "flag defaults");
    ok(c.attn_scale == 0.25f && c.attn_softcap == 0.0f && c.final_softcap == 0.0f &&
           c.sliding_window == 0 && c.flow_count == 1 && c.bos_token == -1 && c.eos_count == 0,
       "number defaults");
    load_patched(native_base, "{\"num_flows\":2}", &c);
    ok(c.expert_top_k_aux == 2 && c.flow_router == VF_ROUTER_REPLAY &&
           c.flow_readout == VF_READOUT_MIXTURE && c.flow_coupling == 0,
       "flow defaults");
}

static void test_types(void)
{
    struct vf_config c;
    load_patched(mixtral_base, "{}", &c);
    ok(c.expert_count == 8 && c.expert_top_k == 2 && c.ffn_size == 0 && c.expert_ffn_size == 160 &&
           c.norm_topk_prob && c.rope_theta == 1e6,
       "mixtral's keys");
    load_patched(olmoe_base, "{}", &c);
    ok(c.qk_norm == VF_QK_NORM_WHOLE && c.expert_ffn_size == 160 && !c.norm_topk_prob,
       "olmoe norms the whole projection and doesn't renormalise");
    load_patched(qwen3_moe_base, "{\"norm_topk_prob\":true}", &c);
    ok(c.qk_norm == VF_QK_NORM_HEAD && c.expert_ffn_size == 48 && c.ffn_size == 0 &&
           c.head_dim == 32 && c.norm_topk_prob,
       "qwen3_moe's keys");
    load_patched(qwen2_base, "{}", &c);
    ok(c.attention_bias && c.sliding_window == 0, "qwen2 has biases; its window is off by default");
    load_patched(qwen2_base, "{\"use_sliding_window\":true}", &c);
    bool right = c.sliding_window == 128;
    for (uint32_t l = 0; l < 6; l++)
        right &= vf_config_layer_slides(&c, l) == (l >= 4);
    ok(right, "qwen2's window starts at max_window_layers");
    vf_config_deinit(&c);
    load_patched(mixtral_base, "{\"sliding_window\":64}", &c);
    ok(vf_config_layer_slides(&c, 0) && vf_config_layer_slides(&c, 5),
       "without layer_types a window slides everywhere");
    load_patched(dense_base, "{\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":3}",
                 &c);
    ok(vf_config_effective_layers(&c) == 18 && vf_config_weight_layer(&c, 0) == 0 &&
           vf_config_weight_layer(&c, 2) == 0 && vf_config_weight_layer(&c, 3) == 1 &&
           vf_config_weight_layer(&c, 17) == 5,
       "fixed_point: 6 blocks x 3 iterations");
}

/* The 8.34B model of the pipeline-native report. */
static void test_param_count(void)
{
    struct vf_config c;
    parse_good("{\"model_type\":\"pipeline_native\",\"dense_delay\":1,\"expert_delay\":2,"
               "\"hidden_size\":8192,\"num_hidden_layers\":4,\"num_attention_heads\":64,"
               "\"intermediate_size\":32768,\"num_experts\":8,\"num_experts_per_tok\":2,"
               "\"moe_intermediate_size\":4096,\"vocab_size\":50257}",
               &c);
    note("%llu parameters", (unsigned long long)vf_config_param_count(&c));
    ok(vf_config_param_count(&c) == 8339939328ull, "8,339,939,328 parameters");
}

struct published {
    const char *file;
    uint64_t params;    /* 0: refused */
    const char *reason; /* in the message */
};

/* Totals as published with the models, or the reason why one can't run. */
static const struct published published[] = {
    {"DeepSeek-V3.json", 0, "deepseek_v3"},
    {"Llama-3.2-1B-Instruct.json", 0, "llama3"},
    {"Meta-Llama-3.1-8B.json", 0, "llama3"},
    {"Mistral-7B-Instruct-v0.3.json", 7248023552ull, NULL},
    {"Mixtral-8x7B-v0.1.json", 46702792704ull, NULL},
    {"OLMoE-1B-7B.assembled.json", 6919161856ull, NULL},
    {"Qwen2.5-7B-Instruct.json", 7615616512ull, NULL},
    {"Qwen3-0.6B.json", 596049920ull, NULL},
    {"Qwen3-235B-A22B.json", 235093634560ull, NULL},
    {"Qwen3-30B-A3B.json", 30532122624ull, NULL},
    {"Qwen3-8B.json", 8190735360ull, NULL},
    {"gemma-4-26B-A4B.json", 0, "gemma4"},
    {"gpt-oss-120b.json", 0, "gpt_oss"},
};

static void test_published(const char *data)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(published); i++) {
        const struct published *p = &published[i];
        char path[1400];
        snprintf(path, sizeof path, "%s/configs/%s", data, p->file);
        struct vf_config c;
        struct vf_err err = {0};
        enum vf_code code = vf_config_load(path, &c, &err);
        if (p->reason) {
            ok(code == VF_ERR_UNSUPPORTED && strstr(err.text, p->reason), "%s is refused: %s",
               p->file, err.text);
            continue;
        }
        ok(code == VF_OK && vf_config_param_count(&c) == p->params && round_trips(&c),
           "%s: %llu parameters", p->file, (unsigned long long)p->params);
        vf_config_deinit(&c);
    }
}

static void test_checkpoints(const char *data, const char *folder, char names[][256], int n)
{
    for (int i = 0; i < n; i++) {
        char path[1400];
        snprintf(path, sizeof path, "%s/%s/%s/config.json", data, folder, names[i]);
        struct vf_config c;
        struct vf_err err = {0};
        enum vf_code code = vf_config_load(path, &c, &err);
        ok(code == VF_OK && round_trips(&c), "%s/%s", folder, names[i]);
        if (code != VF_OK)
            note("%s", err.text);
        vf_config_deinit(&c);
    }
}

static bool has_configs(const char *data)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/configs", data);
    return access(path, R_OK) == 0;
}

/* Folders only: their README is not a checkpoint. */
static int list_checkpoints(const char *data, const char *folder, char names[][256])
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", data, folder);
    int n = list_names(path, names, 64), kept = 0;
    for (int i = 0; i < n; i++)
        if (!strchr(names[i], '.'))
            memmove(names[kept++], names[i], sizeof names[i]);
    return kept;
}

int main(void)
{
    static char golden[64][256], models[64][256];
    const char *data = data_dir();
    bool has_published = has_configs(data);
    int golden_count = list_checkpoints(data, "golden", golden);
    int model_count = list_checkpoints(data, "models", models);
    int from_data = golden_count + model_count + (has_published ? (int)VF_ARRAY_LEN(published) : 0);
    plan((int)(VF_ARRAY_LEN(bad_cases) + VF_ARRAY_LEN(good_cases)) + 5 + 7 + 1 + 3 + from_data + 1);
    ok(golden_count + model_count > 20, "%d checkpoints are there", golden_count + model_count);
    test_bad();
    test_good();
    test_defaults();
    test_types();
    test_param_count();

    struct vf_config c;
    struct vf_err err = {0};
    json_t *array = json_array();
    ok(vf_config_parse(array, "a.json", &c, &err) == VF_ERR_CORRUPT && strstr(err.text, "a.json"),
       "an array is no config");
    json_decref(array);
    ok(vf_config_load("/nonexistent/config.json", &c, &err) == VF_ERR_NOT_FOUND &&
           strstr(err.text, "/nonexistent/config.json"),
       "a missing file");
    vf_config_deinit(NULL);
    vf_config_deinit(&c);
    ok(1, "deinit accepts NULL and an unread config");
    if (has_published)
        test_published(data);
    else
        note("the small set of test data has no published configs");
    test_checkpoints(data, "golden", golden, golden_count);
    test_checkpoints(data, "models", models, model_count);
    return 0;
}
