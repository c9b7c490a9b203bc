/* The bank of a model file. */
#include "common/expert_bank.h"

static struct vf_expert_extent model_extent(const void *ctx, uint32_t layer, uint32_t expert)
{
    return vf_model_file_expert(ctx, layer, expert);
}

enum vf_code vf_expert_bank_from_model(const struct vf_model_file *f, struct vf_expert_bank *out,
                                       struct vf_err *err)
{
    const struct vf_config *config = vf_model_file_config(f);
    if (config->expert_count == 0)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: the model has no experts",
                          vf_model_file_path(f));
    *out = (struct vf_expert_bank){
        .path = vf_model_file_path(f),
        .fingerprint = vf_model_file_fingerprint(f),
        .file_bytes = vf_model_file_bytes(f),
        .layer_count = config->layer_count,
        .expert_count = config->expert_count,
        .record_bytes = vf_model_file_expert_layout(f).bytes,
        .extent = model_extent,
        .ctx = f,
    };
    return VF_OK;
}
