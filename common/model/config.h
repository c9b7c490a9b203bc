/* A model's configuration: one struct for every architecture, read from a Hugging Face
 * config.json (MODEL.md section 5) or from the copy embedded in a model file.
 *
 * vf_config_parse() accepts the known model types, fills every default and refuses, by name,
 * what isn't supported: unknown values, combinations a style doesn't define, rope_scaling of an
 * unknown kind. A parsed config is internally consistent; later code doesn't check again.
 */
#ifndef VF_COMMON_MODEL_CONFIG_H
#define VF_COMMON_MODEL_CONFIG_H

#include "common/base/err.h"
#include "common/base/json.h"

#include <stdbool.h>
#include <stdint.h>

/* Sizes beyond these are refused; they bound every later product of two of them. */
#define VF_LAYERS_MAX        4096u
#define VF_HIDDEN_MAX        (1u << 20)
#define VF_FFN_MAX           (1u << 22)
#define VF_EXPERTS_MAX       65535u
#define VF_EXPERTS_TOTAL_MAX (1u << 20) /* over all layers: bounds every tensor list */
#define VF_EXPERTS_TOP_MAX   256u
#define VF_VOCAB_MAX         (1u << 31)
#define VF_HEADS_MAX         4096u
#define VF_HEAD_DIM_MAX      1024u
#define VF_FLOWS_MAX         8u
#define VF_CONTEXT_MAX       (1u << 24)

enum vf_style { /* numbers as in the papers' headers */
                VF_STYLE_PARALLEL_SQRT2 = 0,
                VF_STYLE_DELAYED_SUM = 1,
                VF_STYLE_ASYNC_EXPERTS = 2,
                VF_STYLE_DECOUPLED_STREAMS = 3,
                VF_STYLE_PIPELINE_REGISTERS = 4,
                VF_STYLE_FIXED_POINT = 5,
                VF_STYLE_COUNT
};

enum vf_activation { VF_ACT_SILU, VF_ACT_GELU, VF_ACT_GELU_TANH, VF_ACT_RELU2, VF_ACT_COUNT };
enum vf_qk_norm { VF_QK_NORM_NONE, VF_QK_NORM_HEAD, VF_QK_NORM_WHOLE /* olmoe */ };
enum vf_rope_kind { VF_ROPE_DEFAULT, VF_ROPE_PROPORTIONAL };
enum vf_router_kind { VF_ROUTER_REPLAY, VF_ROUTER_INDEPENDENT };
enum vf_readout { VF_READOUT_MIXTURE, VF_READOUT_AUXILIARY, VF_READOUT_PRIMARY };
enum vf_coupling { VF_COUPLE_QUERY = 1, VF_COUPLE_HIDDEN = 2, VF_COUPLE_OUTPUT = 4 };

struct vf_config {
    char model_type[32]; /* as in the checkpoint's config.json; decides the tensors' names */
    enum vf_style style;
    uint32_t attention_delay, dense_delay, expert_delay;
    uint32_t hidden_size;      /* d */
    uint32_t layer_count;      /* L; weight blocks for fixed_point */
    uint32_t head_count;       /* Hq */
    uint32_t kv_head_count;    /* Hkv */
    uint32_t head_dim;         /* hd */
    uint32_t ffn_size;         /* F; 0: no dense FFN */
    uint32_t expert_count;     /* E; 0: no experts */
    uint32_t expert_top_k;     /* k, flow 0 */
    uint32_t expert_top_k_aux; /* k_j of flows >= 1 */
    uint32_t expert_ffn_size;  /* Fe */
    bool norm_topk_prob;
    uint32_t vocab_size;  /* V */
    uint32_t context_max; /* max_position_embeddings */
    float norm_eps;
    bool norm_weight_offset; /* add one to stored norm weights */
    double rope_theta;
    enum vf_rope_kind rope_kind;
    double partial_rotary_factor; /* (0, 1] */
    enum vf_activation activation;
    bool mlp_gated;
    enum vf_qk_norm qk_norm;
    bool v_norm;
    bool attention_bias;     /* q/k/v biases (Qwen2) */
    uint32_t sliding_window; /* 0: none */
    uint8_t *layer_sliding;  /* [layer_count] 1: this layer slides; NULL: all slide iff window */
    float attn_scale;        /* 1/sqrt(hd) unless overridden */
    float attn_softcap;      /* 0: none */
    float final_softcap;     /* 0: none */
    bool embedding_scale;
    bool tie_embeddings;
    uint32_t merge_interval;         /* decoupled_streams */
    uint32_t fixed_point_iterations; /* fixed_point */
    int64_t bos_token;               /* -1: none */
    uint32_t eos_tokens[16];
    uint32_t eos_count;
    uint32_t flow_count; /* n >= 1 */
    enum vf_router_kind flow_router;
    enum vf_readout flow_readout;
    uint32_t flow_coupling; /* bits of enum vf_coupling */
    bool flow_specific_dense;
};

/* obj is a parsed config.json; where names it in messages. On success the caller owns
 * config->layer_sliding (vf_config_deinit). */
enum vf_code vf_config_parse(const json_t *obj, const char *where, struct vf_config *config,
                             struct vf_err *err);
enum vf_code vf_config_load(const char *path, struct vf_config *config, struct vf_err *err);
void vf_config_deinit(struct vf_config *config);
/* Replaces a checked config's bos and eos tokens by the bos_token_id and eos_token_id that obj, a
 * parsed generation_config.json, has; those that it lacks stay. */
enum vf_code vf_config_take_tokens(const json_t *obj, const char *where, struct vf_config *config,
                                   struct vf_err *err);

/* The canonical form: a pipeline_native config (with the keys attention_bias, qk_norm "whole",
 * attn_scale, rmsnorm_weight_offset, source_model_type beside MODEL.md's) that vf_config_parse
 * reads back to the same struct. This is what model files embed. New reference; NULL when out of
 * memory. */
json_t *vf_config_to_json(const struct vf_config *config);

/* Exact number of stored parameters (tied embeddings once). */
uint64_t vf_config_param_count(const struct vf_config *config);
/* Those that one token uses, as publishers count them: all but the experts that it doesn't choose.
 * Embedding and head count whole. `chosen` distinct experts of a layer (vf_experts_per_token). */
uint64_t vf_config_active_param_count(const struct vf_config *config, uint32_t chosen);

/* Executed layers: layer_count, times the iterations for fixed_point. Each has its own KV cache. */
uint32_t vf_config_effective_layers(const struct vf_config *config);
/* The weight layer an effective layer uses. */
uint32_t vf_config_weight_layer(const struct vf_config *config, uint32_t effective_layer);
bool vf_config_layer_slides(const struct vf_config *config, uint32_t weight_layer);

const char *vf_style_name(enum vf_style style); /* "delayed_sum", ... */
const char *vf_activation_name(enum vf_activation act);

#endif
