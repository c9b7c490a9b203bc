/* How GGUF files hold the models that this program knows: architectures, tensor names, row order.
 * Shared by whoever reads and writes such files.
 */
#ifndef VF_COMMON_FORMAT_GGUF_MODEL_H
#define VF_COMMON_FORMAT_GGUF_MODEL_H

#include "common/model/tensors.h"

struct vf_gguf_arch {
    const char *name;           /* general.architecture, and the prefix of its keys */
    const char *model_type;     /* of a config.json; NULL: always has experts */
    const char *moe_model_type; /* with experts; NULL: never has any */
    enum vf_qk_norm qk_norm;    /* what the architecture's name alone says */
    bool attention_bias;
    bool norm_topk_prob;
    bool own_expert_size; /* expert_feed_forward_length; else feed_forward_length is theirs */
    bool neighbour_pairs; /* rotary pairs are neighbouring rows of q and k, not hd/2 apart */
};

/* NULL-terminated by name. */
extern const struct vf_gguf_arch vf_gguf_archs[];
const struct vf_gguf_arch *vf_gguf_arch_find(const char *name);
/* The architecture that computes what the config says, NULL when there is none. */
const struct vf_gguf_arch *vf_gguf_arch_of(const struct vf_config *config);
/* "llama, qwen2, ...", for messages. Returns buf. */
const char *vf_gguf_arch_names(char *buf, size_t size);

/* "blk.3.attn_q.weight"; an expert's matrix has its layer's, which holds them all. Returns buf. */
const char *vf_gguf_tensor_name(struct vf_tensor_id id, char *buf, size_t size);
/* The row of the file's matrix that is row `row` of the model's. */
uint32_t vf_gguf_row(const struct vf_gguf_arch *arch, const struct vf_config *config,
                     enum vf_tensor_kind kind, uint32_t row);
/* Whether that isn't the same row for every row. */
bool vf_gguf_is_reordered(const struct vf_gguf_arch *arch, enum vf_tensor_kind kind);

#endif
