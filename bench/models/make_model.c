/* Writes random weights of a named geometry straight to a model file, so that big shapes need no
 * checkpoint. Weights have the variance 1 / columns that keeps activations in range; each row's
 * stream depends on the seed and its place alone, so .vflow, .cflow and .gguf of one seed hold the
 * same weights. Memory holds one stripe of rows, whatever the model's size.
 */
#include "bench/command.h"
#include "bench/models/random_weights.h"
#include "bench/models/routing.h"

#include "bench/bench.h"
#include "bench/models/gguf_model_writer.h"
#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/format/model_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_GGUF 2 /* behind enum vf_file_format */

/* Where weights go (one of the two writers), and what makes them. */
struct sink {
    struct vf_model_writer *model;
    struct vf_gguf_model_writer *gguf;
    enum vf_quant quant;
    uint64_t seed;
    const struct vf_config *config;
    struct bench_routing *routing; /* or NULL */
    float *rows;                   /* one stripe of the widest matrix */
    uint8_t *groups;               /* likewise */
};

static enum vf_code put_rows(const struct sink *s, struct vf_tensor_id id, uint32_t row_begin,
                             uint32_t row_count, struct vf_err *err)
{
    return s->gguf ? vf_gguf_model_writer_put(s->gguf, id, row_begin, row_count, s->rows, err)
                   : vf_model_writer_put(s->model, id, row_begin, row_count, s->rows, err);
}

static enum vf_code put_groups(const struct sink *s, const struct vf_tensor_spec *spec,
                               uint32_t row_begin, uint32_t row_count, struct vf_err *err)
{
    return s->gguf ? vf_gguf_model_writer_put_groups(s->gguf, spec->id, row_begin, row_count,
                                                     s->groups, err)
                   : vf_model_writer_put_groups(s->model, spec->id, row_begin, row_count, 0,
                                                spec->cols, s->groups, err);
}

static bool is_norm(enum vf_tensor_kind kind)
{
    return kind == VF_T_FINAL_NORM || kind == VF_T_ATTN_NORM || kind == VF_T_FFN_NORM ||
           kind == VF_T_Q_NORM || kind == VF_T_K_NORM;
}

/* Near 1 for norms, near 0 for the others; exactly that with routing. */
static enum vf_code put_vector(const struct sink *s, const struct vf_tensor_spec *spec,
                               struct vf_err *err)
{
    struct bench_random r = bench_random_row(s->seed, spec->id, 0);
    float middle = is_norm(spec->id.kind) && !s->config->norm_weight_offset ? 1.0f : 0.0f;
    for (uint32_t i = 0; i < spec->cols; i++)
        s->rows[i] = middle + (s->routing ? 0.0f : 0.1f * bench_random_uniform(&r));
    return put_rows(s, spec->id, 0, 1, err);
}

/* The groups of n rows of a matrix from row begin on. */
static void make_groups(const struct sink *s, const struct vf_tensor_spec *spec, uint32_t begin,
                        uint32_t n)
{
    float deviation = sqrtf(1.0f / (float)spec->cols);
    size_t row_bytes = (size_t)vf_col_groups(spec->cols) * vf_group_bytes(VF_QUANT_Q4);
    for (uint32_t i = 0; i < n; i++) {
        struct vf_tensor_id id = spec->id;
        uint32_t row = begin + i;
        float gain = 1.0f;
        if (s->routing) {
            gain = bench_routing_gain(s->routing, id, row);
            bench_routing_source(s->routing, &id, &row);
        }
        struct bench_random r = bench_random_row(s->seed, id, row);
        bench_random_groups(&r, vf_col_groups(spec->cols) * VF_RECORD_COLS, gain * deviation,
                            s->groups + i * row_bytes);
    }
}

/* Those groups as rows of numbers, without the last one's padding. */
static void expand_rows(const struct sink *s, const struct vf_tensor_spec *spec, uint32_t n)
{
    size_t row_bytes = (size_t)vf_col_groups(spec->cols) * vf_group_bytes(VF_QUANT_Q4);
    for (uint32_t i = 0; i < n; i++)
        bench_expand_groups(s->groups + i * row_bytes, spec->cols,
                            s->rows + (size_t)i * spec->cols);
}

static enum vf_code put_matrix(const struct sink *s, const struct vf_tensor_spec *spec,
                               struct vf_err *err)
{
    bool made = s->routing && bench_routing_makes(spec->id);
    bool as_groups = s->quant == VF_QUANT_Q4 && spec->id.kind != VF_T_ROUTER &&
                     spec->cols % VF_RECORD_COLS == 0 && !made;
    enum vf_code code = VF_OK;
    for (uint32_t begin = 0; begin < spec->rows && code == VF_OK; begin += VF_TILE_ROWS) {
        uint32_t n = (uint32_t)vf_min_u64(spec->rows - begin, VF_TILE_ROWS);
        if (!made)
            make_groups(s, spec, begin, n);
        if (as_groups) {
            code = put_groups(s, spec, begin, n, err);
            continue;
        }
        if (!made)
            expand_rows(s, spec, n);
        for (uint32_t i = 0; made && i < n; i++)
            bench_routing_row(s->routing, spec->id, begin + i, s->rows + (size_t)i * spec->cols);
        code = put_rows(s, spec->id, begin, n, err);
    }
    return code;
}

static enum vf_code allocate(struct sink *s, const struct vf_tensor_spec *specs, size_t count,
                             struct vf_err *err)
{
    uint32_t widest = 0;
    for (size_t i = 0; i < count; i++)
        widest = specs[i].cols > widest ? specs[i].cols : widest;
    size_t padded = (size_t)vf_col_groups(widest) * VF_RECORD_COLS;
    s->rows = malloc(padded * VF_TILE_ROWS * sizeof *s->rows);
    s->groups = malloc(padded / VF_RECORD_COLS * vf_group_bytes(VF_QUANT_Q4) * VF_TILE_ROWS);
    return s->rows && s->groups
               ? VF_OK
               : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for rows of %u columns", widest);
}

static enum vf_code put_all(struct sink *s, struct vf_err *err)
{
    struct vf_tensor_spec *specs;
    size_t count;
    enum vf_code code = vf_tensors_list(s->config, true, &specs, &count, err);
    if (code != VF_OK)
        return code;
    code = allocate(s, specs, count, err);
    for (size_t i = 0; code == VF_OK && i < count; i++) {
        code = specs[i].is_vector ? put_vector(s, &specs[i], err) : put_matrix(s, &specs[i], err);
        vf_progress("make-model", VF_PROGRESS_ITEMS, i + 1, count);
    }
    free(s->rows);
    free(s->groups);
    free(specs);
    return code;
}

static enum vf_code write_model(struct sink *s, const char *path, int format, struct vf_err *err)
{
    struct vf_model_writer_params params = {.path = path,
                                            .format = (enum vf_file_format)format,
                                            .quant = s->quant,
                                            .config = s->config};
    enum vf_code code = format == FORMAT_GGUF
                            ? vf_gguf_model_writer_create(path, s->config, s->quant, &s->gguf, err)
                            : vf_model_writer_create(&params, &s->model, err);
    if (code == VF_OK)
        code = put_all(s, err);
    if (code == VF_OK)
        code = s->gguf ? vf_gguf_model_writer_finish(s->gguf, err)
                       : vf_model_writer_finish(s->model, err);
    vf_model_writer_destroy(s->model);
    vf_gguf_model_writer_destroy(s->gguf);
    return code;
}

enum vf_code bench_write_model(const struct vf_config *config, const char *path, int format,
                               int quant, const char *routing, uint64_t seed, struct vf_err *err)
{
    struct bench_routing r = {0};
    struct sink s = {.quant = (enum vf_quant)quant,
                     .seed = seed,
                     .config = config,
                     .routing = routing ? &r : NULL};
    enum vf_code code = routing ? bench_routing_init(&r, routing, config, seed, err) : VF_OK;
    if (code == VF_OK)
        code = write_model(&s, path, format, err);
    bench_routing_deinit(&r);
    return code;
}

/* The same sizes as another architecture that GGUF knows: its norms, biases and routing. */
static enum vf_code apply_arch(struct vf_config *c, const char *name, struct vf_err *err)
{
    char names[128];
    const struct vf_gguf_arch *arch = vf_gguf_arch_find(name);
    if (!arch)
        return vf_err_set(err, VF_ERR_USAGE, "--arch: found '%s', allowed: %s", name,
                          vf_gguf_arch_names(names, sizeof names));
    const char *type = c->expert_count ? arch->moe_model_type : arch->model_type;
    c->qk_norm = arch->qk_norm;
    c->attention_bias = arch->attention_bias;
    c->norm_topk_prob = c->expert_count ? arch->norm_topk_prob : true;
    if (!type || vf_gguf_arch_of(c) != arch)
        return vf_err_set(err, VF_ERR_USAGE, "--arch: %s can't have this geometry", name);
    snprintf(c->model_type, sizeof c->model_type, "%s", type);
    return VF_OK;
}

struct make_options {
    const char *like, *config, *out, *arch, *routing;
    int format, quant;
    int64_t seed;
};

static enum vf_code make_model(void *options, struct bench_report *r, struct vf_err *err)
{
    (void)r;
    const struct make_options *o = options;
    struct vf_config config = {0};
    if (!o->like == !o->config || !o->out)
        return vf_err_set(err, VF_ERR_USAGE, "one of --like and --config, and -o are needed");
    enum vf_code code = o->like ? bench_geometry_config(o->like, &config, err)
                                : vf_config_load(o->config, &config, err);
    if (code == VF_OK && o->arch)
        code = apply_arch(&config, o->arch, err);
    if (code == VF_OK)
        code = bench_write_model(&config, o->out, o->format, o->quant, o->routing,
                                 (uint64_t)o->seed, err);
    vf_config_deinit(&config);
    return code;
}

static const char *const formats[] = {"vflow", "cflow", "gguf", NULL};
static const char *const quants[] = {"f32", "f16", "q8", "q4", NULL};

static const struct make_options defaults = {
    .format = VF_FORMAT_VFLOW, .quant = VF_QUANT_Q4, .seed = 1};
static const struct bench_option options[] = {
    BENCH_OPTION(struct make_options, like, .name = "like", .type = VF_OPT_STRING,
                 .metavar = "NAME", .help = "a named geometry"),
    BENCH_OPTION(struct make_options, config, .name = "config", .type = VF_OPT_STRING,
                 .metavar = "FILE", .help = "the geometry of a config.json instead"),
    BENCH_OPTION(struct make_options, out, .name = "output", .short_name = 'o',
                 .type = VF_OPT_STRING, .metavar = "FILE", .help = "the model file to write"),
    BENCH_OPTION(struct make_options, format, .name = "format", .type = VF_OPT_CHOICE,
                 .choices = formats,
                 .help = "vflow, cflow, or gguf for other engines: the same weights (vflow)"),
    BENCH_OPTION(
        struct make_options, arch, .name = "arch", .type = VF_OPT_STRING, .metavar = "NAME",
        .help = "the same sizes as an architecture of GGUF: llama, qwen2, qwen3, qwen3moe, olmoe"),
    BENCH_OPTION(struct make_options, quant, .name = "quant", .type = VF_OPT_CHOICE,
                 .choices = quants, .help = "of every matrix (q4)"),
    BENCH_OPTION(struct make_options, routing, .name = "routing", .type = VF_OPT_STRING,
                 .metavar = "KIND",
                 .help = "which experts tokens choose: realistic, flat (all alike), or A,B,R, the "
                         "shares of popularity and persistence and the latter's coefficient from "
                         "token to token (plain random weights)"),
    BENCH_WIDE_OPTION(struct make_options, seed, .name = "seed", .type = VF_OPT_INT, .metavar = "N",
                      .min = 0, .max = 9e15, .help = "of the random weights (1)"),
};
const struct bench_command bench_make_model = {
    .name = "make-model",
    .what = "write a model of random weights of a named geometry",
    .usage = "(--like NAME | --config FILE) -o FILE",
    .summary = "Writes a model of random weights, for measurements that need a geometry but no "
               "checkpoint.",
    BENCH_OPTIONS(options, defaults),
    .plain = true,
    .run = make_model};
