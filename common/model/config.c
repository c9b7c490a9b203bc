/* Parses a config.json in steps that other files own, and answers what follows from a config.
 *
 * The type decides which keys there are (config_read.c), the keys fill the struct over its
 * defaults (config_groups.c), and the combination is checked as a whole (config_check.c), so that
 * every later reader may rely on it.
 */
#include "common/model/config.h"

#include "common/base/util.h"
#include "common/model/config_read.h"

#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (16u << 20) /* a config.json is a few KB; the cap bounds a hostile one */

const char *const vf_style_names[VF_STYLE_COUNT + 1] = {
    "parallel_sqrt2",    "delayed_sum",        "async_experts",
    "decoupled_streams", "pipeline_registers", "fixed_point",
};
const char *const vf_activation_names[VF_ACT_COUNT + 1] = {"silu", "gelu", "gelu_pytorch_tanh",
                                                           "relu2"};

const char *vf_style_name(enum vf_style style)
{
    return (unsigned)style < VF_STYLE_COUNT ? vf_style_names[style] : "unknown";
}

const char *vf_activation_name(enum vf_activation act)
{
    return (unsigned)act < VF_ACT_COUNT ? vf_activation_names[act] : "unknown";
}

static enum vf_code read_all(struct vf_config_reader *r)
{
    enum vf_code code;
    if ((code = vf_config_read_type(r)) || (code = vf_config_read_groups(r)))
        return code;
    if (!(r->type->flags & VF_TYPE_NATIVE) && (code = vf_config_check_hugging_face(r)))
        return code;
    return vf_config_check_whole(r);
}

enum vf_code vf_config_parse(const json_t *obj, const char *where, struct vf_config *config,
                             struct vf_err *err)
{
    memset(config, 0, sizeof *config);
    if (!json_is_object(obj))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: found %s, allowed: a JSON object", where,
                          vf_config_json_kind(obj));
    struct vf_config_reader r = {.obj = obj, .where = where, .c = config, .err = err};
    enum vf_code code = read_all(&r);
    if (code != VF_OK)
        vf_config_deinit(config);
    return code;
}

enum vf_code vf_config_load(const char *path, struct vf_config *config, struct vf_err *err)
{
    memset(config, 0, sizeof *config);
    json_t *obj = NULL;
    enum vf_code code = vf_json_load_python(path, CONFIG_BYTES_MAX, &obj, err);
    if (code != VF_OK)
        return code;
    code = vf_config_parse(obj, path, config, err);
    json_decref(obj);
    return code;
}

void vf_config_deinit(struct vf_config *config)
{
    if (!config)
        return;
    free(config->layer_sliding);
    config->layer_sliding = NULL;
}

/* ---- derived numbers ---- */

/* Adds a * b, saturating at UINT64_MAX, which vf_config_parse refuses. */
static void add_product(uint64_t *sum, uint64_t a, uint64_t b)
{
    uint64_t product;
    if (!vf_mul_u64(a, b, &product) || !vf_add_u64(*sum, product, sum))
        *sum = UINT64_MAX;
}

static uint64_t attention_params(const struct vf_config *c)
{
    uint64_t d = c->hidden_size, q = (uint64_t)c->head_count * c->head_dim;
    uint64_t kv = (uint64_t)c->kv_head_count * c->head_dim;
    uint64_t n = 2 * d * q + 2 * d * kv;
    if (c->attention_bias)
        n += q + 2 * kv;
    if (c->qk_norm == VF_QK_NORM_HEAD)
        n += 2 * c->head_dim;
    if (c->qk_norm == VF_QK_NORM_WHOLE)
        n += q + kv;
    return n;
}

/* What one auxiliary flow owns in one layer. */
static uint64_t flow_params(const struct vf_config *c)
{
    uint64_t d = c->hidden_size, q = (uint64_t)c->head_count * c->head_dim, n = 0;
    if (c->flow_coupling & VF_COUPLE_QUERY)
        n += q;
    if (c->flow_coupling & VF_COUPLE_HIDDEN)
        n += (uint64_t)c->ffn_size + c->expert_ffn_size;
    if (c->flow_coupling & VF_COUPLE_OUTPUT)
        n += (c->ffn_size ? d : 0) + (c->expert_count ? d : 0);
    if (c->flow_specific_dense)
        n += 2 * d * q + (c->mlp_gated ? 3 : 2) * d * c->ffn_size;
    return n;
}

uint64_t vf_config_param_count(const struct vf_config *c)
{
    uint64_t d = c->hidden_size, layer = 2 * d, total = 0;
    layer += attention_params(c);
    layer += (c->mlp_gated ? 3 : 2) * d * c->ffn_size;
    add_product(&layer, c->expert_count, d + 3 * d * c->expert_ffn_size);
    add_product(&layer, c->flow_count - 1, flow_params(c));
    add_product(&total, c->layer_count, layer);
    add_product(&total, (uint64_t)c->flow_count + !c->tie_embeddings, d * c->vocab_size);
    add_product(&total, 1, d);
    return total;
}

uint64_t vf_config_active_param_count(const struct vf_config *c, uint32_t chosen)
{
    uint64_t expert = 3ull * c->hidden_size * c->expert_ffn_size;
    return vf_config_param_count(c) -
           (uint64_t)c->layer_count * (c->expert_count - chosen) * expert;
}

uint32_t vf_config_effective_layers(const struct vf_config *c)
{
    return c->style == VF_STYLE_FIXED_POINT ? c->layer_count * c->fixed_point_iterations
                                            : c->layer_count;
}

uint32_t vf_config_weight_layer(const struct vf_config *c, uint32_t effective_layer)
{
    return c->style == VF_STYLE_FIXED_POINT ? effective_layer / c->fixed_point_iterations
                                            : effective_layer;
}

bool vf_config_layer_slides(const struct vf_config *c, uint32_t weight_layer)
{
    if (!c->sliding_window)
        return false;
    return c->layer_sliding ? c->layer_sliding[weight_layer] : true;
}
