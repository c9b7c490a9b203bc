#include "convert/source.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum vf_code vf_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                            struct vf_err *err)
{
    struct stat s;
    bool exists = stat(path, &s) == 0;
    if (exists && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s is %s, must be a checkpoint directory or a file",
                          path, vf_file_kind(s.st_mode));
    return exists && S_ISREG(s.st_mode) ? vf_gguf_source_open(path, with_tokenizer, out, err)
                                        : vf_directory_source_open(path, with_tokenizer, out, err);
}

enum vf_code vf_source_check_tokenizer(const struct vf_source *s, const char *where,
                                       struct vf_err *err)
{
    struct vf_tokenizer *t = NULL;
    enum vf_code code = vf_tokenizer_create(s->tokenizer, s->tokenizer_bytes, where, &t, err);
    if (code == VF_ERR_CORRUPT || code == VF_ERR_UNSUPPORTED)
        vf_err_append(err, "; --no-tokenizer converts without it, for token ids only");
    if (code)
        return code;
    if (vf_tokenizer_cuts_or_pads(t))
        vf_warn("%s: truncation and padding are ignored, a text is never cut or filled up", where);
    if (vf_tokenizer_vocab_size(t) > s->config.vocab_size)
        vf_warn(
            "%s: it has ids up to %u, the model's vocabulary ends at %u: a text with the others "
            "will be refused",
            where, vf_tokenizer_vocab_size(t) - 1, s->config.vocab_size - 1);
    vf_tokenizer_destroy(t);
    return VF_OK;
}

void vf_source_close(struct vf_source *s)
{
    if (!s)
        return;
    vf_config_deinit(&s->config);
    json_decref(s->chat);
    free(s->tokenizer);
    s->ops->close(s);
}

uint64_t vf_source_bytes(enum vf_source_type type, uint64_t n)
{
    switch (type) {
    case VF_SOURCE_F32:
        return n * 4;
    case VF_SOURCE_F16:
    case VF_SOURCE_BF16:
        return n * 2;
    default:
        return n / VF_RECORD_COLS * vf_group_bytes(vf_source_quant(type));
    }
}

enum vf_quant vf_source_quant(enum vf_source_type type)
{
    static const enum vf_quant quants[] = {
        [VF_SOURCE_F32] = VF_QUANT_F32,  [VF_SOURCE_F16] = VF_QUANT_F16,
        [VF_SOURCE_BF16] = VF_QUANT_F32, [VF_SOURCE_Q8] = VF_QUANT_Q8,
        [VF_SOURCE_Q4] = VF_QUANT_Q4,
    };
    return quants[type];
}

static void group_to_f32(enum vf_source_type type, const uint8_t *group, float *out)
{
    uint16_t half;
    memcpy(&half, group, sizeof half);
    float scale = vf_f16_to_f32(half);
    for (unsigned i = 0; i < VF_RECORD_COLS && type == VF_SOURCE_Q8; i++)
        out[i] = scale * (float)(int8_t)group[2 + i];
    for (unsigned i = 0; i < VF_RECORD_COLS / 2 && type == VF_SOURCE_Q4; i++) {
        out[i] = scale * (float)((int)(group[2 + i] & 15u) - 8);
        out[i + 16] = scale * (float)((int)(group[2 + i] >> 4) - 8);
    }
}

void vf_source_to_f32(enum vf_source_type type, const uint8_t *raw, size_t n, float *out)
{
    const uint16_t *half = (const void *)raw;
    switch (type) {
    case VF_SOURCE_F32:
        memcpy(out, raw, n * sizeof *out);
        break;
    case VF_SOURCE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = vf_f16_to_f32(half[i]);
        break;
    case VF_SOURCE_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = vf_bf16_to_f32(half[i]);
        break;
    default:
        for (size_t i = 0; i < n; i += VF_RECORD_COLS)
            group_to_f32(type, raw + vf_source_bytes(type, i), out + i);
    }
}
