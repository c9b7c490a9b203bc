/* Which tensors a model has, in one enumeration that the converter, the file format, the
 * executor and the inspector share. A tensor is named by (kind, layer, flow, expert).
 *
 * Matrices are quantised tiles [rows = out, cols = in]; vectors are plain f32 [cols], rows = 1.
 */
#ifndef VF_COMMON_MODEL_TENSORS_H
#define VF_COMMON_MODEL_TENSORS_H

#include "common/model/config.h"

#include <stddef.h>

enum vf_tensor_kind {                 /* stored in files: numbers never change */
                      VF_T_EMBED = 0, /* [V, d]; flow j >= 1: its own table */
                      VF_T_HEAD = 1,  /* [V, d]; absent when tied */
                      VF_T_FINAL_NORM = 2,
                      VF_T_ATTN_NORM = 3,
                      VF_T_FFN_NORM = 4,
                      VF_T_Q = 5, /* [Hq*hd, d]; flow j >= 1 with flow_specific_dense */
                      VF_T_K = 6, /* [Hkv*hd, d] */
                      VF_T_V = 7,
                      VF_T_O = 8, /* [d, Hq*hd]; flow j >= 1 with flow_specific_dense */
                      VF_T_Q_BIAS = 9,
                      VF_T_K_BIAS = 10,
                      VF_T_V_BIAS = 11,
                      VF_T_Q_NORM = 12, /* [hd], or the whole projection for olmoe */
                      VF_T_K_NORM = 13,
                      VF_T_GATE = 14,                /* [F, d]; absent when ungated */
                      VF_T_UP = 15,                  /* [F, d] */
                      VF_T_DOWN = 16,                /* [d, F] */
                      VF_T_ROUTER = 17,              /* [E, d], always f32 */
                      VF_T_EXPERT_GATE = 18,         /* [Fe, d] */
                      VF_T_EXPERT_UP = 19,           /* [Fe, d] */
                      VF_T_EXPERT_DOWN = 20,         /* [d, Fe] */
                      VF_T_QUERY_COUPLING = 21,      /* flow j: [Hq*hd] */
                      VF_T_HIDDEN_COUPLING = 22,     /* flow j: [F] */
                      VF_T_OUTPUT_COUPLING = 23,     /* flow j: [d] */
                      VF_T_MOE_HIDDEN_COUPLING = 24, /* flow j: [Fe] */
                      VF_T_MOE_OUTPUT_COUPLING = 25, /* flow j: [d] */
                      VF_T_KIND_COUNT
};

#define VF_LAYER_NONE 0xffffffffu

struct vf_tensor_id {
    enum vf_tensor_kind kind;
    uint32_t layer;  /* weight layer, VF_LAYER_NONE for model-wide tensors */
    uint32_t flow;   /* 0 unless the flow has its own */
    uint32_t expert; /* 0 unless an expert kind */
};

struct vf_tensor_spec {
    struct vf_tensor_id id;
    uint32_t rows, cols; /* vectors: rows = 1 */
    bool is_vector;
};

/* Every tensor of the model in compute order, layer by layer: embeddings, then per layer
 * attention, dense FFN, router, experts 0..E-1, then final norm and head. Heap array, the
 * caller frees; experts are included when with_experts. */
enum vf_code vf_tensors_list(const struct vf_config *config, bool with_experts,
                             struct vf_tensor_spec **specs, size_t *count, struct vf_err *err);

bool vf_tensor_is_expert(enum vf_tensor_kind kind);
/* "q_proj", "router", ...: short stable names for messages and inspect. */
const char *vf_tensor_kind_name(enum vf_tensor_kind kind);
/* The checkpoint's name of a tensor for this config's model_type, as in MODEL.md section 5
 * ("model.layers.3.self_attn.q_proj.weight"). Returns false if buf is too small. */
bool vf_tensor_checkpoint_name(const struct vf_config *config, struct vf_tensor_id id, char *buf,
                               size_t size);

#endif
