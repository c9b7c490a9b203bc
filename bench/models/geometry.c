/* Geometries of the papers and of well-known models, as the config.json that describes them. */
#include "bench/bench.h"

#include <string.h>

const struct bench_geometry bench_geometries[] = {
    {"arch2_4_8k_4l",
     "{\"model_type\":\"pipeline_native\",\"combine_style\":\"delayed_sum\",\"dense_delay\":1,"
     "\"expert_delay\":2,\"hidden_size\":8192,\"num_hidden_layers\":4,\"num_attention_heads\":64,"
     "\"intermediate_size\":32768,\"num_experts\":8,\"num_experts_per_tok\":2,"
     "\"moe_intermediate_size\":4096,\"vocab_size\":50257,\"hidden_act\":\"gelu\"}"},
    {"arch2_4_512_6l",
     "{\"model_type\":\"pipeline_native\",\"combine_style\":\"delayed_sum\",\"dense_delay\":1,"
     "\"expert_delay\":2,\"hidden_size\":512,\"num_hidden_layers\":6,\"num_attention_heads\":8,"
     "\"intermediate_size\":2048,\"num_experts\":8,\"num_experts_per_tok\":2,"
     "\"moe_intermediate_size\":512,\"vocab_size\":50257,\"hidden_act\":\"gelu\"}"},
    {"overlap_24l", /* for vflow-bench overlap: of a token's weights, a fortieth are experts */
     "{\"model_type\":\"pipeline_native\",\"combine_style\":\"delayed_sum\",\"dense_delay\":1,"
     "\"expert_delay\":2,\"hidden_size\":1024,\"num_hidden_layers\":24,\"num_attention_heads\":16,"
     "\"intermediate_size\":16384,\"num_experts\":16,\"num_experts_per_tok\":2,"
     "\"moe_intermediate_size\":256,\"vocab_size\":8192,\"hidden_act\":\"gelu\"}"},
    {"dense-1b",
     "{\"model_type\":\"pipeline_native\",\"hidden_size\":2048,\"num_hidden_layers\":22,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":5632,"
     "\"vocab_size\":32000,\"hidden_act\":\"silu\"}"},
    {"dense-1b-dual",
     "{\"model_type\":\"pipeline_native\",\"hidden_size\":2048,\"num_hidden_layers\":22,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":5632,"
     "\"vocab_size\":32000,\"hidden_act\":\"silu\",\"num_flows\":2,"
     "\"flow_coupling\":[\"query\",\"mlp_hidden\",\"mlp_output\"]}"},
    {"dense-3b",
     "{\"model_type\":\"pipeline_native\",\"hidden_size\":3072,\"num_hidden_layers\":26,"
     "\"num_attention_heads\":24,\"num_key_value_heads\":8,\"intermediate_size\":8192,"
     "\"vocab_size\":32000,\"hidden_act\":\"silu\"}"},
    {"dense-3b-dual",
     "{\"model_type\":\"pipeline_native\",\"hidden_size\":3072,\"num_hidden_layers\":26,"
     "\"num_attention_heads\":24,\"num_key_value_heads\":8,\"intermediate_size\":8192,"
     "\"vocab_size\":32000,\"hidden_act\":\"silu\",\"num_flows\":2,"
     "\"flow_coupling\":[\"query\",\"mlp_hidden\",\"mlp_output\"]}"},
    {"olmoe-1b-7b",
     "{\"model_type\":\"olmoe\",\"hidden_size\":2048,\"num_hidden_layers\":16,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"intermediate_size\":1024,"
     "\"num_experts\":64,\"num_experts_per_tok\":8,\"norm_topk_prob\":false,\"vocab_size\":50304,"
     "\"hidden_act\":\"silu\",\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
     "\"rope_theta\":10000.0,\"tie_word_embeddings\":false}"},
    {"qwen3-30b-a3b",
     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"num_hidden_layers\":48,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"intermediate_size\":6144,\"moe_intermediate_size\":768,\"num_experts\":128,"
     "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
     "\"mlp_only_layers\":[],\"vocab_size\":151936,\"hidden_act\":\"silu\","
     "\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,"
     "\"tie_word_embeddings\":false}"},
    {NULL, NULL},
};

enum vf_code bench_geometry_config(const char *name, struct vf_config *out, struct vf_err *err)
{
    char known[256] = "";
    for (const struct bench_geometry *g = bench_geometries; g->name; g++) {
        if (strcmp(g->name, name) == 0) {
            json_t *obj;
            enum vf_code code = vf_json_parse(g->config, strlen(g->config), name, &obj, err);
            if (code != VF_OK)
                return code;
            code = vf_config_parse(obj, name, out, err);
            json_decref(obj);
            return code;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", g->name);
    }
    return vf_err_set(err, VF_ERR_USAGE, "--like: '%s' found, allowed: %s", name, known);
}
