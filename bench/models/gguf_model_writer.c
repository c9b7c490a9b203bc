#include "bench/models/gguf_model_writer.h"

#include "bench/models/gguf_writer.h"
#include "common/base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 96u
/* <unk>, <s>, </s> and a token for each byte. */
#define BYTE_TOKENS_BEGIN 3u
#define BYTE_TOKENS_END   259u
#define TOKEN_BYTES       24u /* of the longest text that is made up here */

struct place {
    size_t tensor; /* the writer's number */
    enum vf_ggml_type type;
    uint32_t rows, cols;
    bool present;
};

struct vf_gguf_model_writer {
    struct vf_gguf_writer *file;
    const struct vf_config *config;
    const struct vf_gguf_arch *arch;
    struct place *places; /* by layer and kind */
    uint8_t *encoded;     /* one row */
};

static struct place *place_of(const struct vf_gguf_model_writer *w, struct vf_tensor_id id)
{
    size_t row = id.layer == VF_LAYER_NONE ? 0 : (size_t)id.layer + 1;
    return &w->places[row * VF_T_KIND_COUNT + id.kind];
}

/* ---- metadata ---- */

static void put_u32(struct vf_gguf_model_writer *w, const char *suffix, uint32_t v)
{
    char key[NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", w->arch->name, suffix);
    vf_gguf_writer_put_u32(w->file, key, v);
}

static void put_f32(struct vf_gguf_model_writer *w, const char *suffix, float v)
{
    char key[NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", w->arch->name, suffix);
    vf_gguf_writer_put_f32(w->file, key, v);
}

static void put_geometry(struct vf_gguf_model_writer *w)
{
    const struct vf_config *c = w->config;
    put_u32(w, "block_count", c->layer_count);
    put_u32(w, "context_length", c->context_max);
    put_u32(w, "embedding_length", c->hidden_size);
    put_u32(w, "vocab_size", c->vocab_size);
    put_u32(w, "attention.head_count", c->head_count);
    put_u32(w, "attention.head_count_kv", c->kv_head_count);
    put_u32(w, "attention.key_length", c->head_dim);
    put_u32(w, "attention.value_length", c->head_dim);
    put_u32(w, "rope.dimension_count", c->head_dim);
    put_f32(w, "rope.freq_base", (float)c->rope_theta);
    put_f32(w, "attention.layer_norm_rms_epsilon", c->norm_eps);
    if (!c->expert_count) {
        put_u32(w, "feed_forward_length", c->ffn_size);
        return;
    }
    put_u32(w, "feed_forward_length", c->expert_ffn_size);
    put_u32(w, "expert_feed_forward_length", c->expert_ffn_size);
    put_u32(w, "expert_count", c->expert_count);
    put_u32(w, "expert_used_count", c->expert_top_k);
}

static void name_token(uint32_t id, char *text)
{
    static const char *const specials[BYTE_TOKENS_BEGIN] = {"<unk>", "<s>", "</s>"};
    if (id < BYTE_TOKENS_BEGIN)
        snprintf(text, TOKEN_BYTES, "%s", specials[id]);
    else if (id < BYTE_TOKENS_END)
        snprintf(text, TOKEN_BYTES, "<0x%02X>", id - BYTE_TOKENS_BEGIN);
    else
        snprintf(text, TOKEN_BYTES, "<unused%u>", id);
}

/* Token types of the format: 2 unknown, 3 control, 6 byte, 5 unused. */
static int32_t token_type(uint32_t id)
{
    return id == 0 ? 2 : id < BYTE_TOKENS_BEGIN ? 3 : id < BYTE_TOKENS_END ? 6 : 5;
}

static enum vf_code put_vocabulary(struct vf_gguf_model_writer *w, struct vf_err *err)
{
    size_t n = w->config->vocab_size;
    char *texts = malloc(n * TOKEN_BYTES);
    const char **tokens = malloc(n * sizeof *tokens);
    float *scores = calloc(n, sizeof *scores);
    int32_t *types = malloc(n * sizeof *types);
    bool good = texts && tokens && scores && types;
    for (uint32_t id = 0; good && id < n; id++) {
        tokens[id] = texts + (size_t)id * TOKEN_BYTES;
        name_token(id, texts + (size_t)id * TOKEN_BYTES);
        types[id] = token_type(id);
    }
    if (good) {
        vf_gguf_writer_put_string(w->file, "tokenizer.ggml.model", "llama");
        vf_gguf_writer_put_strings(w->file, "tokenizer.ggml.tokens", tokens, n);
        vf_gguf_writer_put_f32s(w->file, "tokenizer.ggml.scores", scores, n);
        vf_gguf_writer_put_i32s(w->file, "tokenizer.ggml.token_type", types, n);
        vf_gguf_writer_put_u32(w->file, "tokenizer.ggml.unknown_token_id", 0);
        vf_gguf_writer_put_u32(w->file, "tokenizer.ggml.bos_token_id", 1);
        vf_gguf_writer_put_u32(w->file, "tokenizer.ggml.eos_token_id", 2);
    }
    free(texts);
    free(tokens);
    free(scores);
    free(types);
    return good ? VF_OK
                : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a vocabulary of %zu tokens", n);
}

static enum vf_code put_metadata(struct vf_gguf_model_writer *w, enum vf_quant quant,
                                 struct vf_err *err)
{
    /* general.file_type: what most matrices are. */
    static const uint32_t file_types[VF_QUANT_COUNT] = {
        [VF_QUANT_F32] = 0, [VF_QUANT_F16] = 1, [VF_QUANT_Q8] = 7, [VF_QUANT_Q4] = 2};
    vf_gguf_writer_put_string(w->file, "general.architecture", w->arch->name);
    vf_gguf_writer_put_u32(w->file, "general.quantization_version", 2);
    vf_gguf_writer_put_u32(w->file, "general.file_type", file_types[quant]);
    put_geometry(w);
    if (w->config->vocab_size >= BYTE_TOKENS_END)
        return put_vocabulary(w, err);
    vf_gguf_writer_put_string(w->file, "tokenizer.ggml.model", "no_vocab");
    return VF_OK;
}

/* ---- tensors ---- */

static enum vf_ggml_type ggml_type(enum vf_quant quant)
{
    return quant == VF_QUANT_Q4    ? VF_GGML_Q4_0
           : quant == VF_QUANT_Q8  ? VF_GGML_Q8_0
           : quant == VF_QUANT_F16 ? VF_GGML_F16
                                   : VF_GGML_F32;
}

/* Experts share their layer's tensor: the first one adds it. */
static enum vf_code add_tensor(struct vf_gguf_model_writer *w, const struct vf_tensor_spec *spec,
                               enum vf_quant quant, struct vf_err *err)
{
    struct place *p = place_of(w, spec->id);
    bool f32 = spec->is_vector || spec->id.kind == VF_T_ROUTER;
    bool expert = vf_tensor_is_expert(spec->id.kind);
    char name[NAME_BYTES];
    if (p->present)
        return VF_OK;
    *p = (struct place){.type = f32 ? VF_GGML_F32 : ggml_type(quant),
                        .rows = spec->rows,
                        .cols = spec->cols,
                        .present = true};
    vf_gguf_tensor_name(spec->id, name, sizeof name);
    bool grouped = p->type == VF_GGML_Q4_0 || p->type == VF_GGML_Q8_0;
    if (grouped && spec->cols % VF_RECORD_COLS)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "tensor \"%s\" has rows of %u weights, %s needs a multiple of %u", name,
                          spec->cols, vf_ggml_type_name(p->type), VF_RECORD_COLS);
    const uint64_t dims[3] = {spec->cols, spec->rows, w->config->expert_count};
    p->tensor = vf_gguf_writer_add_tensor(w->file, name, p->type, dims,
                                          expert            ? 3
                                          : spec->is_vector ? 1
                                                            : 2);
    return VF_OK;
}

static enum vf_code add_tensors(struct vf_gguf_model_writer *w, enum vf_quant quant,
                                struct vf_err *err)
{
    struct vf_tensor_spec *specs = NULL;
    size_t count = 0;
    uint32_t widest = 0;
    enum vf_code code = vf_tensors_list(w->config, true, &specs, &count, err);
    if (code)
        return code;
    w->places = calloc(((size_t)w->config->layer_count + 1) * VF_T_KIND_COUNT, sizeof *w->places);
    for (size_t i = 0; i < count; i++)
        widest = specs[i].cols > widest ? specs[i].cols : widest;
    w->encoded = malloc((size_t)widest * sizeof(float));
    if (!w->places || !w->encoded)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for rows of %u columns", widest);
    for (size_t i = 0; i < count && !code; i++)
        code = add_tensor(w, &specs[i], quant, err);
    free(specs);
    return code;
}

/* ---- create, put, finish ---- */

enum vf_code vf_gguf_model_writer_create(const char *path, const struct vf_config *config,
                                         enum vf_quant quant, struct vf_gguf_model_writer **out,
                                         struct vf_err *err)
{
    char names[128];
    struct vf_gguf_model_writer *w = calloc(1, sizeof *w);
    if (!w)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    w->config = config;
    w->arch = vf_gguf_arch_of(config);
    enum vf_code code = VF_OK;
    if (!w->arch)
        code = vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: no architecture that is written as GGUF (%s) computes this config",
                          path, vf_gguf_arch_names(names, sizeof names));
    if (!code)
        code = vf_gguf_writer_create(path, &w->file, err);
    if (!code)
        code = put_metadata(w, quant, err);
    if (!code)
        code = add_tensors(w, quant, err);
    if (!code)
        code = vf_gguf_writer_begin_data(w->file, err);
    if (code) {
        vf_gguf_model_writer_destroy(w);
        return code;
    }
    *out = w;
    return VF_OK;
}

void vf_gguf_model_writer_destroy(struct vf_gguf_model_writer *w)
{
    if (!w)
        return;
    vf_gguf_writer_destroy(w->file);
    free(w->places);
    free(w->encoded);
    free(w);
}

static const void *encode_row(struct vf_gguf_model_writer *w, const struct place *p,
                              const float *row)
{
    uint16_t *half = (void *)w->encoded;
    switch (p->type) {
    case VF_GGML_Q4_0:
        vf_tile_quantise_row(VF_QUANT_Q4, p->cols, row, w->encoded);
        break;
    case VF_GGML_Q8_0:
        vf_tile_quantise_row(VF_QUANT_Q8, p->cols, row, w->encoded);
        break;
    case VF_GGML_F16:
        for (uint32_t i = 0; i < p->cols; i++)
            half[i] = vf_f32_to_f16(row[i]);
        break;
    default:
        return row;
    }
    return w->encoded;
}

enum vf_code vf_gguf_model_writer_put(struct vf_gguf_model_writer *w, struct vf_tensor_id id,
                                      uint32_t row_begin, uint32_t row_count, const float *rows,
                                      struct vf_err *err)
{
    const struct place *p = place_of(w, id);
    VF_ASSERT(p->present && row_begin + row_count <= p->rows);
    uint64_t row_bytes = vf_ggml_row_bytes(p->type, p->cols);
    enum vf_code code = VF_OK;
    for (uint32_t r = 0; r < row_count && !code; r++) {
        uint64_t row = vf_gguf_row(w->arch, w->config, id.kind, row_begin + r);
        row += (uint64_t)id.expert * p->rows;
        code = vf_gguf_writer_write(w->file, p->tensor, row * row_bytes,
                                    encode_row(w, p, rows + (size_t)r * p->cols), row_bytes, err);
    }
    return code;
}

enum vf_code vf_gguf_model_writer_put_groups(struct vf_gguf_model_writer *w, struct vf_tensor_id id,
                                             uint32_t row_begin, uint32_t row_count,
                                             const uint8_t *groups, struct vf_err *err)
{
    const struct place *p = place_of(w, id);
    VF_ASSERT(p->present && row_begin + row_count <= p->rows);
    VF_ASSERT(p->type == VF_GGML_Q4_0 || p->type == VF_GGML_Q8_0);
    uint64_t row_bytes = vf_ggml_row_bytes(p->type, p->cols);
    uint64_t expert_begin = (uint64_t)id.expert * p->rows;
    if (!vf_gguf_is_reordered(w->arch, id.kind))
        return vf_gguf_writer_write(w->file, p->tensor, (expert_begin + row_begin) * row_bytes,
                                    groups, row_count * row_bytes, err);
    enum vf_code code = VF_OK;
    for (uint32_t r = 0; r < row_count && !code; r++) {
        uint64_t row = expert_begin + vf_gguf_row(w->arch, w->config, id.kind, row_begin + r);
        code = vf_gguf_writer_write(w->file, p->tensor, row * row_bytes, groups + r * row_bytes,
                                    row_bytes, err);
    }
    return code;
}

enum vf_code vf_gguf_model_writer_finish(struct vf_gguf_model_writer *w, struct vf_err *err)
{
    return vf_gguf_writer_finish(w->file, err);
}
