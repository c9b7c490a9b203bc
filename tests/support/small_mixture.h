/* A small model file with experts, random weights and one delay, for tests in C. */
#ifndef VF_TESTS_SUPPORT_SMALL_MIXTURE_H
#define VF_TESTS_SUPPORT_SMALL_MIXTURE_H

#include "common/base/json.h"
#include "common/format/model_writer.h"
#include "common/model/config.h"
#include "common/model/tensors.h"

#include <stdlib.h>
#include <string.h>

static inline enum vf_code write_random_tensor(struct vf_model_writer *w,
                                               const struct vf_tensor_spec *spec, uint32_t *state,
                                               struct vf_err *err)
{
    size_t n = (size_t)spec->rows * spec->cols;
    float *values = malloc(n * sizeof *values);
    if (!values)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu weights", n);
    for (size_t j = 0; j < n; j++) {
        *state = *state * 1664525u + 1013904223u;
        values[j] = (float)(*state >> 8) / (float)(1 << 23) - 1.0f;
    }
    enum vf_code code = vf_model_writer_put(w, spec->id, 0, spec->rows, values, err);
    free(values);
    return code;
}

/* Three layers of five experts, two a token. */
static inline enum vf_code write_small_mixture(const char *path, struct vf_err *err)
{
    static const char text[] =
        "{\"model_type\": \"pipeline_native\", \"combine_style\": \"delayed_sum\","
        " \"dense_delay\": 1, \"expert_delay\": 1, \"hidden_size\": 64, \"num_hidden_layers\": 3,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32,"
        " \"intermediate_size\": 96, \"num_experts\": 5,"
        " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"vocab_size\": 160,"
        " \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0,"
        " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}";
    json_t *json;
    struct vf_config config;
    struct vf_tensor_spec *specs = NULL;
    struct vf_model_writer *w = NULL;
    size_t count = 0;
    uint32_t state = 21;
    enum vf_code code = vf_json_parse(text, strlen(text), "config", &json, err);
    if (code != VF_OK)
        return code;
    code = vf_config_parse(json, "config", &config, err);
    json_decref(json);
    if (code != VF_OK)
        return code;
    struct vf_model_writer_params p = {
        .path = path, .format = VF_FORMAT_VFLOW, .quant = VF_QUANT_Q4, .config = &config};
    code = vf_model_writer_create(&p, &w, err);
    if (code == VF_OK)
        code = vf_tensors_list(&config, true, &specs, &count, err);
    for (size_t i = 0; i < count && code == VF_OK; i++)
        code = write_random_tensor(w, &specs[i], &state, err);
    if (code == VF_OK)
        code = vf_model_writer_finish(w, err);
    vf_model_writer_destroy(w);
    free(specs);
    vf_config_deinit(&config);
    return code;
}

#endif
