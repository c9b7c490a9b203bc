/* The conversion: check the whole checkpoint against the config, then stream every tensor. */
#include "convert/convert.h"

#include "common/format/layout.h"
#include "common/format/model_writer.h"
#include "common/log.h"
#include "common/util.h"
#include "convert/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Columns of one stripe read at once: 128 rows of them are 16 MiB of f32. */
#define BLOCK_COLS        32768u
#define BLOCK_WEIGHTS     ((size_t)VF_TILE_ROWS * BLOCK_COLS)
#define COMPARE_BYTES     (1u << 20)
#define TENSOR_NAME_BYTES 256u

struct conversion {
    const struct vf_convert_params *params;
    struct vf_config config;
    struct vf_tensor_spec *specs; /* without experts */
    size_t spec_count;
    struct vf_checkpoint *checkpoint;
    char *tokenizer;
    size_t tokenizer_bytes;
    struct vf_model_writer *writer;
    uint8_t *raw;                     /* a block as the checkpoint has it */
    float *values;                    /* the same as f32 */
    uint64_t bytes_done, bytes_total; /* of the checkpoint */
};

typedef enum vf_code tensor_fn(struct conversion *c, const struct vf_tensor_spec *spec,
                               struct vf_err *err);

/* Calls fn for every tensor of the model; a layer's experts come right after the layer. */
static enum vf_code for_each_expert(struct conversion *c, uint32_t layer, tensor_fn *fn,
                                    struct vf_err *err)
{
    uint32_t d = c->config.hidden_size, fe = c->config.expert_ffn_size;
    const struct {
        enum vf_tensor_kind kind;
        uint32_t rows, cols;
    } parts[] = {{VF_T_EXPERT_GATE, fe, d}, {VF_T_EXPERT_UP, fe, d}, {VF_T_EXPERT_DOWN, d, fe}};
    enum vf_code code = VF_OK;
    for (uint32_t e = 0; e < c->config.expert_count && !code; e++) {
        for (size_t p = 0; p < VF_ARRAY_LEN(parts) && !code; p++) {
            struct vf_tensor_spec spec = {
                .id = {.kind = parts[p].kind, .layer = layer, .expert = e},
                .rows = parts[p].rows,
                .cols = parts[p].cols,
            };
            code = fn(c, &spec, err);
        }
    }
    return code;
}

static enum vf_code for_each_tensor(struct conversion *c, tensor_fn *fn, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    uint32_t layer = VF_LAYER_NONE;
    for (size_t i = 0; i < c->spec_count && !code; i++) {
        const struct vf_tensor_spec *spec = &c->specs[i];
        if (layer != VF_LAYER_NONE && spec->id.layer != layer)
            code = for_each_expert(c, layer, fn, err);
        layer = spec->id.layer;
        if (!code)
            code = fn(c, spec, err);
    }
    return code;
}

/* ---- before anything is written ---- */

static char *join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s", dir, name);
    return path;
}

static enum vf_code load_config(struct conversion *c, struct vf_err *err)
{
    char *path = join(c->params->dir, "config.json");
    if (!path)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", c->params->dir);
    enum vf_code code = vf_config_load(path, &c->config, err);
    free(path);
    if (!code)
        code = vf_tensors_list(&c->config, false, &c->specs, &c->spec_count, err);
    return code;
}

/* A model without a tokenizer is driven by token ids. The text is embedded as it is; here it only
 * has to be JSON. */
static enum vf_code load_tokenizer(struct conversion *c, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    json_t *parsed = NULL;
    char *path = join(c->params->dir, "tokenizer.json");
    if (!path)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", c->params->dir);
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        vf_info("%s has no tokenizer.json: the model will take token ids only", c->params->dir);
        goto out;
    }
    code = vf_read_file(path, VF_TOKENIZER_BYTES_MAX, &c->tokenizer, &c->tokenizer_bytes, err);
    if (!code)
        code = vf_json_parse(c->tokenizer, c->tokenizer_bytes, path, &parsed, err);
    if (!code && !json_is_object(parsed))
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: must be a JSON object", path);
out:
    json_decref(parsed);
    free(path);
    return code;
}

/* "[4, 8]" */
static void format_shape(const uint64_t *shape, size_t rank, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (size_t i = 0; i < rank && n + 24 < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(buf + n, size - n, "]");
}

static enum vf_code check_shape(const struct vf_checkpoint_tensor *t,
                                const struct vf_tensor_spec *spec, const char *name,
                                struct vf_err *err)
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
                      vf_safetensors_path(t->file), name, found, allowed);
}

static enum vf_code take_tensor(struct conversion *c, const struct vf_tensor_spec *spec,
                                const struct vf_checkpoint_tensor **out, struct vf_err *err)
{
    char name[TENSOR_NAME_BYTES];
    if (!vf_tensor_checkpoint_name(&c->config, spec->id, name, sizeof name))
        return vf_err_set(err, VF_ERR_INTERNAL, "a tensor name exceeds %u bytes",
                          TENSOR_NAME_BYTES);
    *out = vf_checkpoint_take(c->checkpoint, name);
    if (!*out)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" is missing, must be [%u, %u]",
                          c->params->dir, name, spec->rows, spec->cols);
    return VF_OK;
}

static enum vf_code check_tensor(struct conversion *c, const struct vf_tensor_spec *spec,
                                 struct vf_err *err)
{
    const struct vf_checkpoint_tensor *t = NULL;
    enum vf_code code = take_tensor(c, spec, &t, err);
    if (code)
        return code;
    code = check_shape(t, spec, t->entry->name, err);
    if (code)
        return code;
    enum vf_dtype dtype = t->entry->dtype;
    if (dtype != VF_DTYPE_F32 && dtype != VF_DTYPE_F16 && dtype != VF_DTYPE_BF16)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: tensor \"%s\" has dtype %s, must be F32, F16 or BF16",
                          vf_safetensors_path(t->file), t->entry->name, vf_dtype_name(dtype));
    c->bytes_total += t->entry->bytes;
    return VF_OK;
}

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
static enum vf_code take_tied_head(struct conversion *c, struct vf_err *err)
{
    char name[TENSOR_NAME_BYTES] = "";
    const struct vf_tensor_id head = {.kind = VF_T_HEAD, .layer = VF_LAYER_NONE};
    const struct vf_tensor_spec embed = {.id = {.kind = VF_T_EMBED, .layer = VF_LAYER_NONE}};
    const struct vf_checkpoint_tensor *h = NULL, *e = NULL;
    if (!c->config.tie_embeddings)
        return VF_OK;
    if (vf_tensor_checkpoint_name(&c->config, head, name, sizeof name))
        h = vf_checkpoint_take(c->checkpoint, name);
    if (!h)
        return VF_OK;
    bool same = false;
    enum vf_code code = take_tensor(c, &embed, &e, err);
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
static void take_ignorable(struct conversion *c)
{
    size_t count;
    const struct vf_checkpoint_tensor *t;
    while ((t = vf_checkpoint_leftover(c->checkpoint, &count)) &&
           ends_with(t->entry->name, "rotary_emb.inv_freq"))
        vf_checkpoint_take(c->checkpoint, t->entry->name);
}

static enum vf_code check_tensors(struct conversion *c, struct vf_err *err)
{
    enum vf_code code = for_each_tensor(c, check_tensor, err);
    if (!code)
        code = take_tied_head(c, err);
    if (code)
        return code;
    take_ignorable(c);
    size_t count = 0;
    char name[VF_NAME_PRINTABLE_BYTES];
    const struct vf_checkpoint_tensor *t = vf_checkpoint_leftover(c->checkpoint, &count);
    if (t)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: tensor \"%s\" isn't one of a %s model with this config (%zu such "
                          "tensors)",
                          vf_safetensors_path(t->file),
                          vf_name_printable(t->entry->name, name, sizeof name),
                          c->config.model_type, count);
    return VF_OK;
}

static enum vf_code check_space(const struct conversion *c, struct vf_err *err)
{
    uint64_t need = vf_model_writer_total_bytes(c->writer);
    char *copy = strdup(c->params->output);
    if (!copy)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", c->params->output);
    struct statvfs fs;
    int rc = statvfs(dirname(copy), &fs);
    free(copy);
    if (rc != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: asking for free space", c->params->output);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes < need)
        return vf_err_set(err, VF_ERR_IO,
                          "%s: needs %" PRIu64 " bytes, its file system has %" PRIu64 " free",
                          c->params->output, need, free_bytes);
    return VF_OK;
}

/* ---- streaming ---- */

static void to_f32(enum vf_dtype dtype, const uint8_t *raw, size_t n, float *out)
{
    const uint16_t *half = (const void *)raw;
    switch (dtype) {
    case VF_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = vf_f16_to_f32(half[i]);
        break;
    case VF_DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = vf_bf16_to_f32(half[i]);
        break;
    default:
        memcpy(out, raw, n * sizeof *out);
    }
}

/* One block of a stripe into c->values. Whole rows lie behind each other and take one read. */
static enum vf_code read_block(struct conversion *c, const struct vf_checkpoint_tensor *t,
                               uint32_t cols, uint32_t row, uint32_t row_count, uint32_t col,
                               uint32_t col_count, struct vf_err *err)
{
    uint64_t item = vf_dtype_bits(t->entry->dtype) / 8;
    uint32_t runs = col_count == cols ? 1 : row_count;
    size_t run_bytes = (size_t)row_count * col_count / runs * item;
    enum vf_code code = VF_OK;
    for (uint32_t r = 0; r < runs && !code; r++)
        code = vf_safetensors_read(t->file, t->entry, (((uint64_t)row + r) * cols + col) * item,
                                   c->raw + r * run_bytes, run_bytes, err);
    if (!code)
        to_f32(t->entry->dtype, c->raw, (size_t)row_count * col_count, c->values);
    return code;
}

static enum vf_code convert_block(struct conversion *c, const struct vf_tensor_spec *spec,
                                  const struct vf_checkpoint_tensor *t, uint32_t row,
                                  uint32_t row_count, uint32_t col, uint32_t col_count,
                                  struct vf_err *err)
{
    if (c->params->cancel && *c->params->cancel)
        return vf_err_set(err, VF_ERR_CANCELLED, "%s: cancelled, nothing written",
                          c->params->output);
    enum vf_code code = read_block(c, t, spec->cols, row, row_count, col, col_count, err);
    if (!code && (code = vf_model_writer_put_block(c->writer, spec->id, row, row_count, col,
                                                   col_count, c->values, err)))
        vf_err_prepend(err, "%s: ", vf_safetensors_path(t->file));
    c->bytes_done += (uint64_t)row_count * col_count * vf_dtype_bits(t->entry->dtype) / 8;
    vf_progress("convert", c->bytes_done, c->bytes_total);
    return code;
}

static enum vf_code convert_tensor(struct conversion *c, const struct vf_tensor_spec *spec,
                                   struct vf_err *err)
{
    const struct vf_checkpoint_tensor *t = NULL;
    enum vf_code code = take_tensor(c, spec, &t, err);
    /* A vector goes in one piece; a config's limits keep it below one block. */
    uint32_t step = spec->is_vector ? spec->cols : BLOCK_COLS;
    for (uint32_t row = 0; row < spec->rows && !code; row += VF_TILE_ROWS) {
        uint32_t rows = (uint32_t)vf_min_u64(VF_TILE_ROWS, spec->rows - row);
        for (uint32_t col = 0; col < spec->cols && !code; col += step) {
            uint32_t cols = (uint32_t)vf_min_u64(step, spec->cols - col);
            code = convert_block(c, spec, t, row, rows, col, cols, err);
        }
    }
    return code;
}

static enum vf_code write_model(struct conversion *c, struct vf_convert_result *result,
                                struct vf_err *err)
{
    const struct vf_model_writer_params params = {
        .path = c->params->output,
        .format = c->params->format,
        .quant = c->params->quant,
        .config = &c->config,
        .tokenizer = c->tokenizer,
        .tokenizer_bytes = c->tokenizer_bytes,
    };
    enum vf_code code = vf_model_writer_create(&params, &c->writer, err);
    if (!code)
        code = check_space(c, err);
    c->raw = malloc(BLOCK_WEIGHTS * sizeof(float));
    c->values = malloc(BLOCK_WEIGHTS * sizeof(float));
    if (!code && (!c->raw || !c->values))
        code =
            vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for blocks of %zu weights", BLOCK_WEIGHTS);
    if (!code)
        code = for_each_tensor(c, convert_tensor, err);
    if (!code)
        code = vf_model_writer_finish(c->writer, err);
    *result = (struct vf_convert_result){
        .params = vf_config_param_count(&c->config),
        .file_bytes = code ? 0 : vf_model_writer_total_bytes(c->writer),
    };
    return code;
}

enum vf_code vf_convert_run(const struct vf_convert_params *params,
                            struct vf_convert_result *result, struct vf_err *err)
{
    struct conversion c = {.params = params};
    enum vf_code code = load_config(&c, err);
    if (code)
        goto out;
    code = load_tokenizer(&c, err);
    if (!code)
        code = vf_checkpoint_open(params->dir, &c.checkpoint, err);
    if (!code)
        code = check_tensors(&c, err);
    if (!code)
        code = write_model(&c, result, err);
out:
    vf_model_writer_destroy(c.writer);
    vf_checkpoint_close(c.checkpoint);
    vf_config_deinit(&c.config);
    free(c.specs);
    free(c.tokenizer);
    free(c.raw);
    free(c.values);
    return code;
}
