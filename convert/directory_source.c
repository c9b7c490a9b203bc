/* A checkpoint directory as a source: config.json, *.safetensors, tokenizer.json, and the smaller
 * files beside them. */
#include "convert/source.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/format/layout.h"
#include "convert/chat_source.h"
#include "convert/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMPARE_BYTES     (1u << 20)
#define TENSOR_NAME_BYTES 256u

struct directory {
    struct vf_source source;
    const char *path; /* the checkpoint's */
    struct vf_checkpoint *checkpoint;
};

/* ---- config and tokenizer ---- */

static enum vf_code load_config(struct directory *d, struct vf_err *err)
{
    char *path = vf_path_join(d->path, "config.json");
    if (!path)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", d->path);
    enum vf_code code = vf_config_load(path, &d->source.config, err);
    free(path);
    return code;
}

/* A model without a tokenizer is driven by token ids. The text is embedded as it is. */
static enum vf_code load_tokenizer(struct directory *d, struct vf_err *err)
{
    struct vf_source *s = &d->source;
    enum vf_code code = VF_OK;
    char *path = vf_path_join(d->path, "tokenizer.json");
    if (!path)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", d->path);
    if (!vf_name_exists(path)) {
        vf_info("%s has no tokenizer.json: the model will take token ids only", d->path);
        goto out;
    }
    code = vf_read_file(path, VF_TOKENIZER_BYTES_MAX, &s->tokenizer, &s->tokenizer_bytes, err);
    if (!code)
        code = vf_source_check_tokenizer(s, path, err);
out:
    free(path);
    return code;
}

/* ---- finding tensors ---- */

/* "[4, 8]" */
static void format_shape(const uint64_t *shape, size_t rank, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (size_t i = 0; i < rank && n + 24 < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(buf + n, size - n, "]");
}

static enum vf_code check_shape(const struct vf_checkpoint_tensor *t,
                                const struct vf_tensor_spec *spec, struct vf_err *err)
{
    const uint64_t want[2] = {spec->rows, spec->cols};
    const uint64_t *shape = spec->is_vector ? want + 1 : want;
    size_t rank = spec->is_vector ? 1 : 2;
    if (t->entry->rank == rank && memcmp(t->entry->shape, shape, rank * sizeof *shape) == 0)
        return VF_OK;
    char found[160], allowed[64];
    format_shape(t->entry->shape, t->entry->rank, found, sizeof found);
    format_shape(shape, rank, allowed, sizeof allowed);
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" has shape %s, must be %s",
                      vf_safetensors_path(t->file), t->entry->name, found, allowed);
}

static enum vf_code take(struct directory *d, const struct vf_tensor_spec *spec,
                         const struct vf_checkpoint_tensor **out, struct vf_err *err)
{
    char name[TENSOR_NAME_BYTES];
    if (!vf_tensor_checkpoint_name(&d->source.config, spec->id, name, sizeof name))
        return vf_err_set(err, VF_ERR_INTERNAL, "a tensor name exceeds %u bytes",
                          TENSOR_NAME_BYTES);
    *out = vf_checkpoint_take(d->checkpoint, name);
    if (!*out)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" is missing, must be [%u, %u]",
                          d->path, name, spec->rows, spec->cols);
    return VF_OK;
}

static enum vf_code read_type(const struct vf_checkpoint_tensor *t, enum vf_source_type *type,
                              struct vf_err *err)
{
    switch (t->entry->dtype) {
    case VF_DTYPE_F32:
        *type = VF_SOURCE_F32;
        return VF_OK;
    case VF_DTYPE_F16:
        *type = VF_SOURCE_F16;
        return VF_OK;
    case VF_DTYPE_BF16:
        *type = VF_SOURCE_BF16;
        return VF_OK;
    default:
        return vf_err_set(
            err, VF_ERR_UNSUPPORTED, "%s: tensor \"%s\" has dtype %s, must be F32, F16 or BF16",
            vf_safetensors_path(t->file), t->entry->name, vf_dtype_name(t->entry->dtype));
    }
}

static enum vf_code find(struct vf_source *s, const struct vf_tensor_spec *spec,
                         struct vf_source_tensor *out, struct vf_err *err)
{
    struct directory *d = (struct directory *)s;
    const struct vf_checkpoint_tensor *t = NULL;
    enum vf_code code = take(d, spec, &t, err);
    if (!code)
        code = check_shape(t, spec, err);
    if (!code)
        code = read_type(t, &out->type, err);
    if (code)
        return code;
    out->path = vf_safetensors_path(t->file);
    out->name = t->entry->name;
    out->bytes = t->entry->bytes;
    out->handle = t;
    return VF_OK;
}

/* ---- what is left over ---- */

static enum vf_code same_bytes(const struct vf_checkpoint_tensor *a,
                               const struct vf_checkpoint_tensor *b, bool *same, struct vf_err *err)
{
    *same = a->entry->dtype == b->entry->dtype && a->entry->bytes == b->entry->bytes;
    uint8_t *buf = malloc(2 * COMPARE_BYTES);
    if (!buf)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to compare two tensors");
    enum vf_code code = VF_OK;
    for (uint64_t at = 0; at < a->entry->bytes && *same && !code; at += COMPARE_BYTES) {
        size_t n = (size_t)vf_min_u64(COMPARE_BYTES, a->entry->bytes - at);
        code = vf_safetensors_read(a->file, a->entry, at, buf, n, err);
        if (!code)
            code = vf_safetensors_read(b->file, b->entry, at, buf + COMPARE_BYTES, n, err);
        *same = !code && memcmp(buf, buf + COMPARE_BYTES, n) == 0;
    }
    free(buf);
    return code;
}

/* Some checkpoints of tied models store the embedding a second time as the head. */
static enum vf_code take_tied_head(struct directory *d, struct vf_err *err)
{
    char name[TENSOR_NAME_BYTES] = "";
    const struct vf_tensor_id head = {.kind = VF_T_HEAD, .layer = VF_LAYER_NONE};
    const struct vf_tensor_spec embed = {.id = {.kind = VF_T_EMBED, .layer = VF_LAYER_NONE}};
    const struct vf_checkpoint_tensor *h = NULL, *e = NULL;
    if (!d->source.config.tie_embeddings)
        return VF_OK;
    if (vf_tensor_checkpoint_name(&d->source.config, head, name, sizeof name))
        h = vf_checkpoint_take(d->checkpoint, name);
    if (!h)
        return VF_OK;
    bool same = false;
    enum vf_code code = take(d, &embed, &e, err);
    if (!code)
        code = same_bytes(h, e, &same, err);
    if (!code && !same)
        code = vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: tensor \"%s\" differs from the embedding, though "
                          "tie_word_embeddings is true",
                          vf_safetensors_path(h->file), name);
    if (!code)
        vf_info("%s: ignored, the model's embedding is its head", name);
    return code;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/* Old checkpoints store the rotary frequencies, which follow from the config. */
static void take_ignorable(struct directory *d)
{
    size_t count;
    const struct vf_checkpoint_tensor *t;
    while ((t = vf_checkpoint_leftover(d->checkpoint, &count)) &&
           ends_with(t->entry->name, "rotary_emb.inv_freq"))
        vf_checkpoint_take(d->checkpoint, t->entry->name);
}

static enum vf_code check_rest(struct vf_source *s, struct vf_err *err)
{
    struct directory *d = (struct directory *)s;
    enum vf_code code = take_tied_head(d, err);
    if (code)
        return code;
    take_ignorable(d);
    size_t count = 0;
    char name[VF_NAME_PRINTABLE_BYTES];
    const struct vf_checkpoint_tensor *t = vf_checkpoint_leftover(d->checkpoint, &count);
    if (t)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: tensor \"%s\" isn't one of a %s model with this config (%zu such "
                          "tensors)",
                          vf_safetensors_path(t->file),
                          vf_name_printable(t->entry->name, name, sizeof name),
                          s->config.model_type, count);
    return VF_OK;
}

/* ---- reading ---- */

/* Whole rows lie behind each other and take one read. */
static enum vf_code read_block(struct vf_source *s, const struct vf_tensor_spec *spec,
                               const struct vf_source_tensor *tensor, struct vf_source_block b,
                               uint8_t *out, struct vf_err *err)
{
    (void)s;
    const struct vf_checkpoint_tensor *t = tensor->handle;
    uint64_t item = vf_dtype_bits(t->entry->dtype) / 8;
    uint32_t runs = b.col_count == spec->cols ? 1 : b.row_count;
    size_t run_bytes = (size_t)b.row_count * b.col_count / runs * item;
    enum vf_code code = VF_OK;
    for (uint32_t r = 0; r < runs && !code; r++)
        code = vf_safetensors_read(t->file, t->entry,
                                   (((uint64_t)b.row + r) * spec->cols + b.col) * item,
                                   out + r * run_bytes, run_bytes, err);
    return code;
}

/* ---- open and close ---- */

static void close_directory(struct vf_source *s)
{
    struct directory *d = (struct directory *)s;
    vf_checkpoint_close(d->checkpoint);
    free(d);
}

enum vf_code vf_directory_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                                      struct vf_err *err)
{
    static const struct vf_source_ops ops = {find, check_rest, read_block, close_directory};
    struct directory *d = calloc(1, sizeof *d);
    if (!d)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    d->source.ops = &ops;
    d->path = path;
    enum vf_code code = load_config(d, err);
    if (!code)
        code = vf_directory_read_generation(path, &d->source.config, err);
    if (!code && with_tokenizer)
        code = load_tokenizer(d, err);
    if (!code && with_tokenizer)
        code = vf_directory_read_chat(path, &d->source.chat, err);
    if (!code)
        code = vf_checkpoint_open(path, &d->checkpoint, err);
    if (code) {
        vf_source_close(&d->source);
        return code;
    }
    *out = &d->source;
    return VF_OK;
}
