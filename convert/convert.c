/* The conversion: check everything that the source has against the config, then stream every
 * tensor.
 */
#include "convert/convert.h"

#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/format/model_writer.h"
#include "convert/source.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* Columns of one stripe read at once: 128 rows of them are 16 MiB of f32. */
#define BLOCK_COLS    32768u
#define BLOCK_WEIGHTS ((size_t)VF_TILE_ROWS * BLOCK_COLS)

#define QUANT_NONE UINT8_MAX

struct conversion {
    const struct vf_convert_params *params;
    struct vf_source *source;
    const struct vf_config *config; /* the source's */
    struct vf_tensor_spec *specs;   /* without experts */
    size_t spec_count;
    uint8_t *quants; /* enum vf_quant by layer and kind, see quant_slot; QUANT_NONE: not yet */
    struct vf_model_writer *writer;
    uint8_t *raw;                     /* a block as the source has it */
    float *values;                    /* the same as f32 */
    uint64_t bytes_done, bytes_total; /* of the source */
};

typedef enum vf_code tensor_fn(struct conversion *c, const struct vf_tensor_spec *spec,
                               struct vf_err *err);

/* Calls fn for every tensor of the model; a layer's experts come right after the layer. */
static enum vf_code for_each_expert(struct conversion *c, uint32_t layer, tensor_fn *fn,
                                    struct vf_err *err)
{
    uint32_t d = c->config->hidden_size, fe = c->config->expert_ffn_size;
    const struct {
        enum vf_tensor_kind kind;
        uint32_t rows, cols;
    } parts[] = {{VF_T_EXPERT_GATE, fe, d}, {VF_T_EXPERT_UP, fe, d}, {VF_T_EXPERT_DOWN, d, fe}};
    enum vf_code code = VF_OK;
    for (uint32_t e = 0; e < c->config->expert_count && !code; e++) {
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

static bool is_checkpoint_file(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".json") == 0 || strcmp(dot, ".jinja") == 0 ||
                   strcmp(dot, ".safetensors") == 0);
}

static enum vf_code check_not_output(const struct conversion *c, const struct stat *out,
                                     const char *input, struct vf_err *err)
{
    struct stat in;
    if (stat(input, &in) != 0 || in.st_dev != out->st_dev || in.st_ino != out->st_ino)
        return VF_OK;
    return vf_err_set(err, VF_ERR_USAGE,
                      "-o %s would replace %s, which is read: choose another name",
                      c->params->output, input);
}

/* The output must not be what is read, under whatever name. */
static enum vf_code check_output(const struct conversion *c, struct vf_err *err)
{
    struct stat out;
    const char *input = c->params->input;
    if (stat(c->params->output, &out) != 0)
        return VF_OK;
    DIR *dir = opendir(input);
    if (!dir)
        return check_not_output(c, &out, input, err);
    enum vf_code code = VF_OK;
    char path[PATH_MAX];
    for (struct dirent *e; !code && (e = readdir(dir)) != NULL;)
        if (is_checkpoint_file(e->d_name) &&
            snprintf(path, sizeof path, "%s/%s", input, e->d_name) < (int)sizeof path)
            code = check_not_output(c, &out, path, err);
    closedir(dir);
    return code;
}

static enum vf_code list_tensors(struct conversion *c, struct vf_err *err)
{
    enum vf_code code = vf_tensors_list(c->config, false, &c->specs, &c->spec_count, err);
    size_t slots = ((size_t)c->config->layer_count + 1) * VF_T_KIND_COUNT;
    c->quants = malloc(slots);
    if (!c->quants)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", c->params->input);
    memset(c->quants, QUANT_NONE, slots);
    return code;
}

/* Flows share a layer's slot, as a directory's matrices are all stored alike; so do a model's
 * experts, whose records have one layout. */
static size_t quant_slot(struct vf_tensor_id id)
{
    size_t row =
        id.layer == VF_LAYER_NONE || vf_tensor_is_expert(id.kind) ? 0 : (size_t)id.layer + 1;
    return row * VF_T_KIND_COUNT + id.kind;
}

static enum vf_quant quant_of(void *ctx, struct vf_tensor_id id)
{
    const struct conversion *c = ctx;
    return c->quants[quant_slot(id)];
}

static bool is_quantised(enum vf_source_type type)
{
    return type == VF_SOURCE_Q8 || type == VF_SOURCE_Q4;
}

/* How a matrix will be stored. What is quantised already is never quantised again. */
static enum vf_code choose_quant(struct conversion *c, const struct vf_source_tensor *t,
                                 enum vf_quant *quant, struct vf_err *err)
{
    int wish = c->params->quant;
    *quant = vf_source_quant(t->type);
    if (is_quantised(t->type) && wish >= 0 && wish != (int)*quant)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: tensor \"%s\" is %s already, --quant %s would round it a second "
                          "time; without --quant it is kept",
                          t->path, t->name, vf_quant_name(*quant), vf_quant_name(wish));
    if (wish >= 0)
        *quant = wish;
    else if (!c->source->keeps_types)
        *quant = VF_QUANT_Q4;
    return VF_OK;
}

static enum vf_code note_quant(struct conversion *c, const struct vf_tensor_spec *spec,
                               const struct vf_source_tensor *t, struct vf_err *err)
{
    enum vf_quant quant = VF_QUANT_F32;
    bool f32 = spec->is_vector || spec->id.kind == VF_T_ROUTER;
    enum vf_code code = f32 ? VF_OK : choose_quant(c, t, &quant, err);
    if (code)
        return code;
    uint8_t *slot = &c->quants[quant_slot(spec->id)];
    if (*slot != QUANT_NONE && *slot != quant)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: tensor \"%s\" would be stored as %s, those of other layers as %s: "
                          "all experts of a model must be stored alike",
                          t->path, t->name, vf_quant_name(quant), vf_quant_name(*slot));
    *slot = (uint8_t)quant;
    return VF_OK;
}

static enum vf_code check_tensor(struct conversion *c, const struct vf_tensor_spec *spec,
                                 struct vf_err *err)
{
    struct vf_source_tensor t;
    enum vf_code code = c->source->ops->find(c->source, spec, &t, err);
    if (!code)
        code = note_quant(c, spec, &t, err);
    if (!code)
        c->bytes_total += t.bytes;
    return code;
}

static enum vf_code check_tensors(struct conversion *c, struct vf_err *err)
{
    enum vf_code code = for_each_tensor(c, check_tensor, err);
    return code ? code : c->source->ops->check_rest(c->source, err);
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

static enum vf_code convert_block(struct conversion *c, const struct vf_tensor_spec *spec,
                                  const struct vf_source_tensor *t, struct vf_source_block b,
                                  struct vf_err *err)
{
    if (c->params->cancel && *c->params->cancel)
        return vf_err_set(err, VF_ERR_CANCELLED, "%s: cancelled, nothing written",
                          c->params->output);
    size_t n = (size_t)b.row_count * b.col_count;
    enum vf_code code = c->source->ops->read(c->source, spec, t, b, c->raw, err);
    if (code)
        return code;
    if (is_quantised(t->type) && quant_of(c, spec->id) == vf_source_quant(t->type)) {
        code = vf_model_writer_put_groups(c->writer, spec->id, b.row, b.row_count, b.col,
                                          b.col_count, c->raw, err);
    } else {
        vf_source_to_f32(t->type, c->raw, n, c->values);
        code = vf_model_writer_put_block(c->writer, spec->id, b.row, b.row_count, b.col,
                                         b.col_count, c->values, err);
    }
    if (code)
        vf_err_prepend(err, "%s: ", t->path);
    c->bytes_done += vf_source_bytes(t->type, n);
    vf_progress("convert", VF_PROGRESS_BYTES, c->bytes_done, c->bytes_total);
    return code;
}

static enum vf_code convert_tensor(struct conversion *c, const struct vf_tensor_spec *spec,
                                   struct vf_err *err)
{
    struct vf_source_tensor t;
    enum vf_code code = c->source->ops->find(c->source, spec, &t, err);
    /* A vector goes in one piece; a config's limits keep it below one block. */
    uint32_t step = spec->is_vector ? spec->cols : BLOCK_COLS;
    for (uint32_t row = 0; row < spec->rows && !code; row += VF_TILE_ROWS) {
        struct vf_source_block b = {
            .row = row, .row_count = (uint32_t)vf_min_u64(VF_TILE_ROWS, spec->rows - row)};
        for (b.col = 0; b.col < spec->cols && !code; b.col += step) {
            b.col_count = (uint32_t)vf_min_u64(step, spec->cols - b.col);
            code = convert_block(c, spec, &t, b, err);
        }
    }
    return code;
}

/* The quantisation that all matrices share, or "mixed". */
static const char *common_quant(const struct conversion *c)
{
    int common = -1;
    for (size_t i = 0; i < ((size_t)c->config->layer_count + 1) * VF_T_KIND_COUNT; i++) {
        enum vf_tensor_kind kind = i % VF_T_KIND_COUNT;
        bool matrix = kind == VF_T_EMBED || kind == VF_T_HEAD ||
                      (kind >= VF_T_Q && kind <= VF_T_O) ||
                      (kind >= VF_T_GATE && kind <= VF_T_DOWN) || vf_tensor_is_expert(kind);
        if (!matrix || c->quants[i] == QUANT_NONE)
            continue;
        if (common >= 0 && common != c->quants[i])
            return "mixed";
        common = c->quants[i];
    }
    return vf_quant_name(common);
}

static enum vf_code write_model(struct conversion *c, struct vf_convert_result *result,
                                struct vf_err *err)
{
    const struct vf_model_writer_params params = {
        .path = c->params->output,
        .format = c->params->format,
        .quant_of = quant_of,
        .quant_ctx = c,
        .config = c->config,
        .chat = c->source->chat,
        .tokenizer = c->source->tokenizer,
        .tokenizer_bytes = c->source->tokenizer_bytes,
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
        .params = vf_config_param_count(c->config),
        .file_bytes = code ? 0 : vf_model_writer_total_bytes(c->writer),
        .quant = common_quant(c),
    };
    return code;
}

enum vf_code vf_convert_run(const struct vf_convert_params *params,
                            struct vf_convert_result *result, struct vf_err *err)
{
    struct conversion c = {.params = params};
    enum vf_code code = check_output(&c, err);
    if (!code)
        code = vf_source_open(params->input, !params->no_tokenizer, &c.source, err);
    if (code)
        return code;
    c.config = &c.source->config;
    code = list_tensors(&c, err);
    if (!code)
        code = check_tensors(&c, err);
    if (!code)
        code = write_model(&c, result, err);
    vf_model_writer_destroy(c.writer);
    vf_source_close(c.source);
    free(c.specs);
    free(c.quants);
    free(c.raw);
    free(c.values);
    return code;
}
