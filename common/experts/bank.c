/* The bank of a model file. */
#include "common/experts/bank.h"

#include "common/base/util.h"

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
    struct vf_expert_layout layout = vf_model_file_expert_layout(f);
    *out = (struct vf_expert_bank){
        .path = vf_model_file_path(f),
        .files = {vf_model_file_path(f)},
        .file_count = 1,
        .fingerprint = vf_model_file_fingerprint(f),
        .file_bytes = vf_model_file_bytes(f),
        .layer_count = config->layer_count,
        .expert_count = config->expert_count,
        .record_bytes = layout.bytes,
        .front_bytes = layout.down_offset,
        .extent = model_extent,
        .ctx = f,
    };
    return VF_OK;
}

/* Records go round the files. */
bool vf_expert_bank_next(const struct vf_expert_bank *b, uint32_t layer, uint32_t expert,
                         uint32_t *next)
{
    *next = expert + b->file_count;
    if (*next >= b->expert_count)
        return false;
    struct vf_expert_extent x = b->extent(b->ctx, layer, expert);
    struct vf_expert_extent y = b->extent(b->ctx, layer, *next);
    return y.file == x.file && y.offset == x.offset + x.bytes;
}

void vf_expert_bank_range(const struct vf_expert_bank *b, uint32_t file, uint64_t *offset,
                          uint64_t *bytes)
{
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t layer = 0; layer < b->layer_count; layer++)
        for (uint32_t expert = 0; expert < b->expert_count; expert++) {
            struct vf_expert_extent x = b->extent(b->ctx, layer, expert);
            if (x.file != file)
                continue;
            begin = vf_min_u64(begin, x.offset);
            end = vf_max_u64(end, x.offset + x.bytes);
        }
    *offset = end ? begin : 0;
    *bytes = end ? end - begin : 0;
}
