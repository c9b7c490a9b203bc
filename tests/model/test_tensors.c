/* The tensor list against real checkpoints: every name and shape, none missing, none extra. */
#include "model_test.h"

#include "common/base/util.h"
#include "common/model/tensors.h"

/* The JSON header of a safetensors file. */
static json_t *read_header(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint64_t size = 0;
    json_t *o = NULL;
    if (f && fread(&size, 8, 1, f) == 1 && size < (64u << 20)) {
        char *text = malloc(size + 1);
        if (text && fread(text, 1, size, f) == size)
            o = json_loadb(text, size, 0, NULL);
        free(text);
    }
    if (f)
        fclose(f);
    json_object_del(o, "__metadata__");
    return o;
}

static uint64_t header_params(const json_t *header)
{
    const char *name;
    json_t *t;
    uint64_t sum = 0;
    json_object_foreach((json_t *)header, name, t)
    {
        uint64_t n = 1;
        const json_t *shape = json_object_get(t, "shape");
        for (size_t i = 0; i < json_array_size(shape); i++)
            n *= (uint64_t)json_integer_value(json_array_get(shape, i));
        sum += n;
    }
    return sum;
}

static bool shape_matches(const json_t *tensor, const struct vf_tensor_spec *s)
{
    const json_t *shape = json_object_get(tensor, "shape");
    uint64_t last = (uint64_t)json_integer_value(json_array_get(shape, json_array_size(shape) - 1));
    if (s->is_vector)
        return json_array_size(shape) == 1 && last == s->cols && s->rows == 1;
    return json_array_size(shape) == 2 && last == s->cols &&
           (uint64_t)json_integer_value(json_array_get(shape, 0)) == s->rows;
}

/* How many specs have a tensor of their name and shape in the header; complains of the others. */
static size_t count_matches(const struct vf_config *c, const json_t *header,
                            const struct vf_tensor_spec *specs, size_t count)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        char name[160];
        bool fits = vf_tensor_checkpoint_name(c, specs[i].id, name, sizeof name);
        const json_t *t = json_object_get(header, name);
        if (fits && t && shape_matches(t, &specs[i]))
            found++;
        else
            note("%s [%u, %u]: not in the checkpoint", name, specs[i].rows, specs[i].cols);
    }
    return found;
}

static char *join(const char *dir, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        abort();
    return path;
}

static void test_checkpoint(const char *dir)
{
    char *config = join(dir, "config.json"), *weights = join(dir, "model.safetensors");
    struct vf_config c;
    struct vf_err err = {0};
    struct vf_tensor_spec *specs = NULL;
    size_t count = 0;
    enum vf_code code = vf_config_load(config, &c, &err);
    json_t *header = read_header(weights);
    if (code == VF_OK)
        code = vf_tensors_list(&c, true, &specs, &count, &err);
    size_t found = code == VF_OK ? count_matches(&c, header, specs, count) : 0;
    ok(code == VF_OK && found == count && json_object_size(header) == count,
       "%s: %zu tensors by name and shape, %zu in the checkpoint", dir, count,
       json_object_size(header));
    ok(code == VF_OK && vf_config_param_count(&c) == header_params(header), "%llu parameters",
       (unsigned long long)header_params(header));
    free(specs);
    free(config);
    free(weights);
    json_decref(header);
    vf_config_deinit(&c);
}

struct name_case {
    const char *config;
    struct vf_tensor_id id;
    const char *name;
};

#define MOE_KEYS                                                                                   \
    "\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4,"                        \
    "\"intermediate_size\":160,\"vocab_size\":300,\"num_experts\":8,\"num_experts_per_tok\":2,"    \
    "\"moe_intermediate_size\":16}"
static const char mixtral[] = "{\"model_type\":\"mixtral\"," MOE_KEYS;
static const char olmoe[] = "{\"model_type\":\"olmoe\"," MOE_KEYS;
static const char qwen3_moe[] = "{\"model_type\":\"qwen3_moe\"," MOE_KEYS;
static const char qwen2[] = "{\"model_type\":\"qwen2\"," MOE_KEYS;

static const struct name_case name_cases[] = {
    {mixtral, {VF_T_ROUTER, 3, 0, 0}, "model.layers.3.block_sparse_moe.gate.weight"},
    {mixtral, {VF_T_EXPERT_GATE, 3, 0, 7}, "model.layers.3.block_sparse_moe.experts.7.w1.weight"},
    {mixtral, {VF_T_EXPERT_DOWN, 3, 0, 7}, "model.layers.3.block_sparse_moe.experts.7.w2.weight"},
    {mixtral, {VF_T_EXPERT_UP, 3, 0, 7}, "model.layers.3.block_sparse_moe.experts.7.w3.weight"},
    {olmoe, {VF_T_ROUTER, 0, 0, 0}, "model.layers.0.mlp.gate.weight"},
    {olmoe, {VF_T_Q_NORM, 5, 0, 0}, "model.layers.5.self_attn.q_norm.weight"},
    {olmoe, {VF_T_EXPERT_UP, 0, 0, 1}, "model.layers.0.mlp.experts.1.up_proj.weight"},
    {qwen3_moe, {VF_T_EXPERT_DOWN, 2, 0, 6}, "model.layers.2.mlp.experts.6.down_proj.weight"},
    {qwen2, {VF_T_K_BIAS, 2, 0, 0}, "model.layers.2.self_attn.k_proj.bias"},
    {qwen2, {VF_T_GATE, 2, 0, 0}, "model.layers.2.mlp.gate_proj.weight"},
    {qwen2, {VF_T_FINAL_NORM, VF_LAYER_NONE, 0, 0}, "model.norm.weight"},
    {qwen2, {VF_T_EMBED, VF_LAYER_NONE, 2, 0}, "model.embed_tokens_aux.2.weight"},
};

static void test_names(void)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(name_cases); i++) {
        struct vf_config c;
        char name[160] = "", tight[160];
        parse_good(name_cases[i].config, &c);
        bool fits = vf_tensor_checkpoint_name(&c, name_cases[i].id, name, sizeof name);
        size_t n = strlen(name_cases[i].name);
        bool exact = vf_tensor_checkpoint_name(&c, name_cases[i].id, tight, n + 1);
        bool small = vf_tensor_checkpoint_name(&c, name_cases[i].id, tight, n);
        ok(fits && exact && !small && strcmp(name, name_cases[i].name) == 0, "%s", name);
    }
}

static uint64_t list_params(const struct vf_config *c, bool with_experts, size_t *count)
{
    struct vf_tensor_spec *specs;
    struct vf_err err = {0};
    uint64_t sum = 0;
    if (vf_tensors_list(c, with_experts, &specs, count, &err) != VF_OK)
        return 0;
    for (size_t i = 0; i < *count; i++)
        sum += (uint64_t)specs[i].rows * specs[i].cols;
    free(specs);
    return sum;
}

/* The count's formula against the list, over random models of every kind. */
static void test_counts(void)
{
    struct rng r = {.state = 11};
    bool same = true, bank = true;
    for (int i = 0; i < 300; i++) {
        struct vf_config c;
        size_t with, without;
        random_config(&r, (enum vf_style)(i % VF_STYLE_COUNT), &c);
        c.flow_count = 1 + rng_below(&r, 3);
        c.flow_coupling = rng_below(&r, 8);
        c.flow_specific_dense = rng_below(&r, 2);
        c.attention_bias = rng_below(&r, 2);
        c.tie_embeddings = rng_below(&r, 2);
        c.qk_norm = (enum vf_qk_norm)rng_below(&r, 3);
        same &= list_params(&c, true, &with) == vf_config_param_count(&c);
        list_params(&c, false, &without);
        bank &= with - without == (size_t)3 * c.layer_count * c.expert_count;
        vf_config_deinit(&c);
    }
    ok(same, "the parameter count is the sum over the list, 300 random models");
    ok(bank, "the list without experts lacks exactly theirs");
}

static void test_kind_names(void)
{
    bool distinct = true;
    for (int a = 0; a < VF_T_KIND_COUNT; a++)
        for (int b = 0; b < a; b++)
            distinct &= strcmp(vf_tensor_kind_name((enum vf_tensor_kind)a),
                               vf_tensor_kind_name((enum vf_tensor_kind)b)) != 0;
    ok(distinct, "kind names are distinct");
}

/* Every checkpoint folder of the test data; the caller frees the paths. */
static int list_checkpoints(const char *data, char *dirs[64])
{
    static const char *const folders[] = {"golden", "models"};
    static char names[32][256];
    int n = 0;
    for (size_t f = 0; f < VF_ARRAY_LEN(folders); f++) {
        char *folder = join(data, folders[f]);
        int count = list_names(folder, names, 32);
        for (int i = 0; i < count; i++)
            if (!strchr(names[i], '.')) /* a README is no checkpoint */
                dirs[n++] = join(folder, names[i]);
        free(folder);
    }
    return n;
}

int main(void)
{
    char *dirs[64];
    int n = list_checkpoints(data_dir(), dirs);
    plan((int)VF_ARRAY_LEN(name_cases) + 3 + 2 * n + 1);
    ok(n > 20, "%d checkpoints are there", n);
    test_names();
    test_counts();
    test_kind_names();
    for (int i = 0; i < n; i++) {
        test_checkpoint(dirs[i]);
        free(dirs[i]);
    }
    return 0;
}
