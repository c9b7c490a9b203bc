/* Writes random weights of a named geometry straight to a model file, so that big shapes need no
 * checkpoint. Weights are uniform with the variance 1 / columns that keeps activations in range;
 * each tensor's stream depends on the seed and its place alone, so .vflow, .cflow and .gguf of one
 * seed hold the same weights.
 */
#include "bench/bench.h"

#include "common/cli.h"
#include "common/format/gguf_model_writer.h"
#include "common/format/model_writer.h"
#include "common/log.h"
#include "common/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_GGUF 2 /* behind enum vf_file_format */

/* Where rows go: one of the two. */
struct sink {
    struct vf_model_writer *model;
    struct vf_gguf_model_writer *gguf;
};

static enum vf_code put_rows(const struct sink *s, struct vf_tensor_id id, uint32_t row_begin,
                             uint32_t row_count, const float *rows, struct vf_err *err)
{
    return s->gguf ? vf_gguf_model_writer_put(s->gguf, id, row_begin, row_count, rows, err)
                   : vf_model_writer_put(s->model, id, row_begin, row_count, rows, err);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* splitmix64; two floats in [-1, 1) from every draw. */
static void fill_uniform(float *out, size_t n, float scale, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 2) {
        uint64_t r = mix(seed += 0x9e3779b97f4a7c15ull);
        out[i] = (float)(int32_t)(r >> 32) * (scale / 2147483648.0f);
        if (i + 1 < n)
            out[i + 1] = (float)(int32_t)r * (scale / 2147483648.0f);
    }
}

static bool is_norm(enum vf_tensor_kind kind)
{
    return kind == VF_T_FINAL_NORM || kind == VF_T_ATTN_NORM || kind == VF_T_FFN_NORM ||
           kind == VF_T_Q_NORM || kind == VF_T_K_NORM;
}

static enum vf_code put_tensor(const struct sink *s, const struct vf_tensor_spec *spec,
                               uint64_t seed, float *rows, struct vf_err *err)
{
    float scale = sqrtf(3.0f / (float)spec->cols);
    uint64_t stream = mix(seed ^ mix(spec->id.kind + 1ull) ^ mix(spec->id.layer + (1ull << 20)) ^
                          mix(spec->id.expert + (1ull << 40)) ^ mix(spec->id.flow + (1ull << 56)));
    for (uint32_t r = 0; r < spec->rows; r += VF_TILE_ROWS) {
        uint32_t n = spec->rows - r < VF_TILE_ROWS ? spec->rows - r : VF_TILE_ROWS;
        fill_uniform(rows, (size_t)n * spec->cols, spec->is_vector ? 0.1f : scale, mix(stream + r));
        for (uint32_t i = 0; is_norm(spec->id.kind) && i < spec->cols; i++)
            rows[i] += 1.0f;
        enum vf_code code = put_rows(s, spec->id, r, n, rows, err);
        if (code != VF_OK)
            return code;
    }
    return VF_OK;
}

static enum vf_code put_all(const struct sink *s, const struct vf_config *config, uint64_t seed,
                            struct vf_err *err)
{
    struct vf_tensor_spec *specs;
    size_t count;
    uint32_t widest = 0;
    enum vf_code code = vf_tensors_list(config, true, &specs, &count, err);
    if (code != VF_OK)
        return code;
    for (size_t i = 0; i < count; i++)
        widest = specs[i].cols > widest ? specs[i].cols : widest;
    float *rows = malloc((size_t)widest * VF_TILE_ROWS * sizeof *rows);
    if (!rows)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for rows of %u columns", widest);
    for (size_t i = 0; code == VF_OK && i < count; i++) {
        code = put_tensor(s, &specs[i], seed, rows, err);
        vf_progress("make-model", i + 1, count);
    }
    free(rows);
    free(specs);
    return code;
}

enum vf_code bench_write_model(const struct vf_config *config, const char *path, int format,
                               int quant, uint64_t seed, struct vf_err *err)
{
    struct vf_model_writer_params params = {.path = path,
                                            .format = (enum vf_file_format)format,
                                            .quant = (enum vf_quant)quant,
                                            .config = config};
    struct sink s = {0};
    bool gguf = format == FORMAT_GGUF;
    enum vf_code code =
        gguf ? vf_gguf_model_writer_create(path, config, (enum vf_quant)quant, &s.gguf, err)
             : vf_model_writer_create(&params, &s.model, err);
    if (code == VF_OK)
        code = put_all(&s, config, seed, err);
    if (code == VF_OK)
        code =
            gguf ? vf_gguf_model_writer_finish(s.gguf, err) : vf_model_writer_finish(s.model, err);
    vf_model_writer_destroy(s.model);
    vf_gguf_model_writer_destroy(s.gguf);
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

int bench_make_model(int argc, char **argv)
{
    static const char *const formats[] = {"vflow", "cflow", "gguf", NULL};
    static const char *const quants[] = {"f32", "f16", "q8", "q4", NULL};
    const char *like = NULL, *config_path = NULL, *out = NULL, *arch = NULL;
    int format = VF_FORMAT_VFLOW, quant = VF_QUANT_Q4;
    int64_t seed = 1;
    const struct vf_opt opts[] = {
        {.name = "like",
         .type = VF_OPT_STRING,
         .value = &like,
         .metavar = "NAME",
         .help = "a named geometry"},
        {.name = "config",
         .type = VF_OPT_STRING,
         .value = &config_path,
         .metavar = "FILE",
         .help = "the geometry of a config.json instead"},
        {.name = "output",
         .short_name = 'o',
         .type = VF_OPT_STRING,
         .value = &out,
         .metavar = "FILE",
         .help = "the model file to write"},
        {.name = "format",
         .type = VF_OPT_CHOICE,
         .value = &format,
         .choices = formats,
         .help = "vflow, cflow, or gguf for other engines: the same weights (vflow)"},
        {.name = "arch",
         .type = VF_OPT_STRING,
         .value = &arch,
         .metavar = "NAME",
         .help = "the same sizes as an architecture of GGUF: llama, qwen2, qwen3, qwen3moe, olmoe"},
        {.name = "quant",
         .type = VF_OPT_CHOICE,
         .value = &quant,
         .choices = quants,
         .help = "of every matrix (q4)"},
        {.name = "seed",
         .type = VF_OPT_INT,
         .value = &seed,
         .metavar = "N",
         .min = 0,
         .max = 9e15,
         .help = "of the random weights (1)"},
    };
    const struct vf_cli cli = {.program = "vflow-bench make-model",
                               .usage = "(--like NAME | --config FILE) -o FILE [options]",
                               .summary = "Writes a model of random weights, for measurements that "
                                          "need a geometry but no checkpoint.",
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts)};
    struct vf_err err = {0};
    struct vf_config config = {0};
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, &err);
    if (code == VF_OK && (!like == !config_path || !out))
        code = vf_err_set(&err, VF_ERR_USAGE, "one of --like and --config, and -o are needed");
    if (code == VF_OK)
        code = like ? bench_geometry_config(like, &config, &err)
                    : vf_config_load(config_path, &config, &err);
    if (code == VF_OK && arch)
        code = apply_arch(&config, arch, &err);
    if (code == VF_OK)
        code = bench_write_model(&config, out, format, quant, (uint64_t)seed, &err);
    vf_config_deinit(&config);
    return code == VF_OK ? 0 : vf_cli_fail(cli.program, &err);
}
