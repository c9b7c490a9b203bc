/* A GGUF file as a source. Its tensors' types are kept; rows of q and k that the file has in the
 * order of neighbouring rotary pairs are read in the model's order; an expert's matrices are slices
 * of its layer's. */
#include "convert/gguf_source.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/format/safetensors.h"
#include "convert/chat_source.h"
#include "convert/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 96u

struct gguf_source {
    struct vf_source source;
    struct vf_gguf *gguf;
    const struct vf_gguf_arch *arch;
    bool *found; /* [tensor_count] */
};

/* ---- finding tensors ---- */

/* "[64, 32, 4]": rows last, as ggml writes shapes. */
static const char *format_dims(const uint64_t *dims, uint32_t rank, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (uint32_t d = 0; d < rank && n + 24 < size; d++)
        n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, d ? ", " : "", dims[d]);
    snprintf(buf + n, size - n, "]");
    return buf;
}

static enum vf_code check_dims(const struct gguf_source *g, const struct vf_gguf_tensor *t,
                               const struct vf_tensor_spec *spec, struct vf_err *err)
{
    const uint64_t want[3] = {spec->cols, spec->rows, g->source.config.expert_count};
    uint32_t rank = vf_tensor_is_expert(spec->id.kind) ? 3 : spec->is_vector ? 1 : 2;
    if (t->rank == rank && memcmp(t->dims, want, rank * sizeof *want) == 0)
        return VF_OK;
    char found[112], allowed[96];
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" has shape %s, must be %s",
                      vf_gguf_path(g->gguf), t->name,
                      format_dims(t->dims, t->rank, found, sizeof found),
                      format_dims(want, rank, allowed, sizeof allowed));
}

static enum vf_source_type source_type(enum vf_ggml_type type)
{
    return type == VF_GGML_F32    ? VF_SOURCE_F32
           : type == VF_GGML_F16  ? VF_SOURCE_F16
           : type == VF_GGML_BF16 ? VF_SOURCE_BF16
           : type == VF_GGML_Q8_0 ? VF_SOURCE_Q8
                                  : VF_SOURCE_Q4;
}

static enum vf_code find(struct vf_source *s, const struct vf_tensor_spec *spec,
                         struct vf_source_tensor *out, struct vf_err *err)
{
    struct gguf_source *g = (struct gguf_source *)s;
    char name[NAME_BYTES];
    vf_gguf_tensor_name(spec->id, name, sizeof name);
    const struct vf_gguf_tensor *t = vf_gguf_find(g->gguf, name);
    if (!t)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" is missing",
                          vf_gguf_path(g->gguf), name);
    enum vf_code code = check_dims(g, t, spec, err);
    if (code)
        return code;
    g->found[t - vf_gguf_tensor(g->gguf, 0)] = true;
    *out = (struct vf_source_tensor){
        .type = source_type(t->type),
        .path = vf_gguf_path(g->gguf),
        .name = t->name,
        .bytes = (uint64_t)spec->rows * vf_ggml_row_bytes(t->type, spec->cols),
        .handle = t,
    };
    return VF_OK;
}

static enum vf_code check_rest(struct vf_source *s, struct vf_err *err)
{
    struct gguf_source *g = (struct gguf_source *)s;
    const struct vf_gguf_tensor *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < vf_gguf_tensor_count(g->gguf); i++) {
        if (g->found[i])
            continue;
        first = first ? first : vf_gguf_tensor(g->gguf, i);
        count++;
    }
    char name[VF_NAME_PRINTABLE_BYTES];
    if (first)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: tensor \"%s\" isn't one of a %s model with these metadata (%zu such "
                          "tensors)",
                          vf_gguf_path(g->gguf), vf_name_printable(first->name, name, sizeof name),
                          g->arch->name, count);
    return VF_OK;
}

/* ---- reading ---- */

/* Whole rows in the file's order lie behind each other and take one read. */
static enum vf_code read_block(struct vf_source *s, const struct vf_tensor_spec *spec,
                               const struct vf_source_tensor *tensor, struct vf_source_block b,
                               uint8_t *out, struct vf_err *err)
{
    struct gguf_source *g = (struct gguf_source *)s;
    const struct vf_gguf_tensor *t = tensor->handle;
    uint64_t row_bytes = vf_ggml_row_bytes(t->type, t->dims[0]);
    uint64_t into = vf_ggml_row_bytes(t->type, b.col);
    size_t part = vf_ggml_row_bytes(t->type, b.col_count);
    uint64_t base = row_bytes * spec->rows * spec->id.expert;
    enum vf_code code = VF_OK;
    if (b.col_count == spec->cols && !vf_gguf_is_reordered(g->arch, spec->id.kind))
        return vf_gguf_read(g->gguf, t, base + row_bytes * b.row, out, part * b.row_count, err);
    for (uint32_t r = 0; r < b.row_count && !code; r++) {
        uint32_t row = vf_gguf_row(g->arch, &s->config, spec->id.kind, b.row + r);
        code = vf_gguf_read(g->gguf, t, base + row_bytes * row + into, out + r * part, part, err);
    }
    return code;
}

/* ---- open and close ---- */

static void close_gguf(struct vf_source *s)
{
    struct gguf_source *g = (struct gguf_source *)s;
    vf_gguf_close(g->gguf);
    free(g->found);
    free(g);
}

static enum vf_code load_tokenizer(struct gguf_source *g, const char *path, struct vf_err *err)
{
    struct vf_source *s = &g->source;
    enum vf_code code = vf_gguf_read_tokenizer(g->gguf, s->config.vocab_size, &s->tokenizer,
                                               &s->tokenizer_bytes, err);
    if (code == VF_ERR_CORRUPT || code == VF_ERR_UNSUPPORTED)
        vf_err_append(err, "; --no-tokenizer converts without it, for token ids only");
    if (code)
        return code;
    if (s->tokenizer)
        return vf_source_check_tokenizer(s, path, err);
    vf_info("%s has no tokenizer: the model will take token ids only", path);
    return VF_OK;
}

static enum vf_code load(struct gguf_source *g, const char *path, bool with_tokenizer,
                         struct vf_err *err)
{
    struct vf_source *s = &g->source;
    enum vf_code code = vf_gguf_open(path, &g->gguf, err);
    if (!code)
        code = vf_gguf_read_config(g->gguf, &g->arch, &s->config, err);
    if (!code && with_tokenizer)
        code = load_tokenizer(g, path, err);
    if (!code && with_tokenizer)
        code = vf_gguf_read_chat(g->gguf, &s->config, &s->chat, err);
    if (code)
        return code;
    g->found = calloc(vf_gguf_tensor_count(g->gguf) + 1, sizeof *g->found);
    return g->found ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
}

enum vf_code vf_gguf_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                                 struct vf_err *err)
{
    static const struct vf_source_ops ops = {find, check_rest, read_block, close_gguf};
    struct gguf_source *g = calloc(1, sizeof *g);
    if (!g)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    g->source.ops = &ops;
    g->source.keeps_types = true;
    enum vf_code code = load(g, path, with_tokenizer, err);
    if (code) {
        vf_source_close(&g->source);
        return code;
    }
    *out = &g->source;
    return VF_OK;
}
