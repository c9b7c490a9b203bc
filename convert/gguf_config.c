/* From GGUF metadata to a config: read with their own names and ranges, then put into the keys of
 * a config.json and parsed as one, so that one place decides what a config means. */
#include "convert/gguf_source.h"

#include "common/base/util.h"
#include "common/format/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_BYTES 96u
#define EOS_MAX   3u

struct reader {
    const struct vf_gguf *g;
    const struct vf_gguf_arch *arch;
    json_t *obj;
    bool no_memory;
    struct vf_err *err;
};

/* Keys of an architecture that are read here or that change nothing. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_gating_func",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "tensor_data_layout",
    "pooling_type",
};

static const char *key_of(const struct reader *r, const char *suffix, char *buf)
{
    snprintf(buf, KEY_BYTES, "%s.%s", r->arch->name, suffix);
    return buf;
}

static enum vf_code refuse(const struct reader *r, const char *suffix, const char *found,
                           const char *allowed)
{
    char key[KEY_BYTES];
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                      "%s: metadata key \"%s\": found %s, allowed for %s: %s", vf_gguf_path(r->g),
                      key_of(r, suffix, key), found, r->arch->name, allowed);
}

static enum vf_code get_uint(const struct reader *r, const char *suffix, bool required,
                             uint64_t min, uint64_t max, uint64_t *out)
{
    char key[KEY_BYTES];
    return vf_gguf_get_uint(r->g, (struct vf_gguf_field){key_of(r, suffix, key), required}, min,
                            max, out, r->err);
}

/* The key must be absent or have the one value that this program computes with. */
static enum vf_code expect_uint(const struct reader *r, const char *suffix, uint64_t only)
{
    uint64_t found = only;
    enum vf_code code = get_uint(r, suffix, false, 0, UINT64_MAX, &found);
    if (code || found == only)
        return code;
    char a[24], b[24];
    snprintf(a, sizeof a, "%" PRIu64, found);
    snprintf(b, sizeof b, "%" PRIu64, only);
    return refuse(r, suffix, a, b);
}

static enum vf_code expect_bool(const struct reader *r, const char *suffix, bool only)
{
    char key[KEY_BYTES];
    bool found = only;
    enum vf_code code = vf_gguf_get_bool(
        r->g, (struct vf_gguf_field){key_of(r, suffix, key), false}, &found, r->err);
    if (code || found == only)
        return code;
    return refuse(r, suffix, found ? "true" : "false", only ? "true" : "false");
}

/* A factor that must be 1; 0 stands for none. */
static enum vf_code expect_one(const struct reader *r, const char *suffix)
{
    char key[KEY_BYTES], text[32];
    double found = 1.0;
    enum vf_code code = vf_gguf_get_real(
        r->g, (struct vf_gguf_field){key_of(r, suffix, key), false}, -1e30, 1e30, &found, r->err);
    if (code || found == 1.0 || found == 0.0)
        return code;
    snprintf(text, sizeof text, "%.9g", found);
    return refuse(r, suffix, text, "1");
}

/* ---- into the object ---- */

static void put(struct reader *r, const char *key, json_t *value)
{
    if (!value || json_object_set_new(r->obj, key, value) != 0)
        r->no_memory = true;
}

static enum vf_code copy_uint(struct reader *r, const char *suffix, uint64_t min, uint64_t max,
                              const char *key, uint64_t *out)
{
    enum vf_code code = get_uint(r, suffix, true, min, max, out);
    if (!code)
        put(r, key, json_integer((json_int_t)*out));
    return code;
}

/* ---- the groups of keys ---- */

static enum vf_code read_arch(struct reader *r)
{
    const char *name = NULL, *type = "model";
    char names[128], printable[VF_NAME_PRINTABLE_BYTES];
    enum vf_code code = vf_gguf_get_string(
        r->g, (struct vf_gguf_field){"general.architecture", true}, &name, r->err);
    if (!code)
        code =
            vf_gguf_get_string(r->g, (struct vf_gguf_field){"general.type", false}, &type, r->err);
    if (code)
        return code;
    if (strcmp(type, "model") != 0)
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: metadata key \"general.type\": found \"%s\", allowed: model",
                          vf_gguf_path(r->g), vf_name_printable(type, printable, sizeof printable));
    r->arch = vf_gguf_arch_find(name);
    if (r->arch)
        return VF_OK;
    return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                      "%s: metadata key \"general.architecture\": found \"%s\", allowed: %s",
                      vf_gguf_path(r->g), vf_name_printable(name, printable, sizeof printable),
                      vf_gguf_arch_names(names, sizeof names));
}

static bool is_known(const char *suffix)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(known_keys); i++)
        if (strcmp(known_keys[i], suffix) == 0)
            return true;
    return false;
}

static enum vf_code check_keys(const struct reader *r)
{
    size_t n = strlen(r->arch->name);
    for (size_t i = 0; i < vf_gguf_key_count(r->g); i++) {
        const char *key = vf_gguf_key(r->g, i);
        char printable[VF_NAME_PRINTABLE_BYTES];
        if (strncmp(key, r->arch->name, n) == 0 && key[n] == '.' && !is_known(key + n + 1))
            return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                              "%s: metadata key \"%s\" isn't known for %s and might change the "
                              "mathematics",
                              vf_gguf_path(r->g),
                              vf_name_printable(key, printable, sizeof printable), r->arch->name);
    }
    uint64_t parts = 1;
    enum vf_code code = vf_gguf_get_uint(r->g, (struct vf_gguf_field){"split.count", false}, 0,
                                         UINT16_MAX, &parts, r->err);
    if (!code && parts > 1)
        code = vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: metadata key \"split.count\": found %" PRIu64
                          ", allowed: 1 (join the parts into one file first)",
                          vf_gguf_path(r->g), parts);
    return code;
}

static enum vf_code read_vocab(struct reader *r)
{
    const struct vf_gguf_tensor *t = vf_gguf_find(r->g, "token_embd.weight");
    if (!t)
        return vf_err_set(r->err, VF_ERR_CORRUPT, "%s: tensor \"token_embd.weight\" is missing",
                          vf_gguf_path(r->g));
    if (t->rank != 2 || t->dims[1] >= VF_VOCAB_MAX)
        return vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: tensor \"token_embd.weight\" has %u dimensions and %" PRIu64
                          " rows, must have 2 and fewer than %u",
                          vf_gguf_path(r->g), t->rank, t->dims[1], VF_VOCAB_MAX);
    put(r, "vocab_size", json_integer((json_int_t)t->dims[1]));
    put(r, "tie_word_embeddings", json_boolean(!vf_gguf_find(r->g, "output.weight")));
    uint64_t said = t->dims[1];
    enum vf_code code = get_uint(r, "vocab_size", false, 0, UINT64_MAX, &said);
    if (!code && said != t->dims[1])
        code = vf_err_set(r->err, VF_ERR_CORRUPT,
                          "%s: metadata key \"%s.vocab_size\": found %" PRIu64
                          ", tensor \"token_embd.weight\" has %" PRIu64 " rows",
                          vf_gguf_path(r->g), r->arch->name, said, t->dims[1]);
    return code;
}

static enum vf_code read_heads(struct reader *r, uint64_t hidden)
{
    uint64_t heads = 0, kv, key_length;
    enum vf_code code =
        copy_uint(r, "attention.head_count", 1, VF_HEADS_MAX, "num_attention_heads", &heads);
    if (code)
        return code;
    kv = heads;
    key_length = hidden / heads;
    if ((code = get_uint(r, "attention.head_count_kv", false, 1, VF_HEADS_MAX, &kv)) ||
        (code = get_uint(r, "attention.key_length", false, 1, VF_HEAD_DIM_MAX, &key_length)) ||
        (code = expect_uint(r, "attention.value_length", key_length)) ||
        (code = expect_uint(r, "rope.dimension_count", key_length)))
        return code;
    put(r, "num_key_value_heads", json_integer((json_int_t)kv));
    put(r, "head_dim", json_integer((json_int_t)key_length));
    return VF_OK;
}

/* A window as wide as the context slides nowhere. */
static enum vf_code check_window(const struct reader *r, uint64_t context)
{
    uint64_t window = 0;
    char text[24];
    enum vf_code code = get_uint(r, "attention.sliding_window", false, 0, UINT64_MAX, &window);
    if (code || window == 0 || window >= context)
        return code;
    snprintf(text, sizeof text, "%" PRIu64, window);
    return refuse(r, "attention.sliding_window", text, "0 or at least context_length");
}

static enum vf_code read_rope(struct reader *r)
{
    char key[KEY_BYTES], quoted[VF_NAME_PRINTABLE_BYTES];
    const char *scaling = "none";
    double theta = 10000.0, factor = 1.0;
    enum vf_code code =
        vf_gguf_get_real(r->g, (struct vf_gguf_field){key_of(r, "rope.freq_base", key), false}, 1.0,
                         1e15, &theta, r->err);
    if (!code)
        code = vf_gguf_get_string(
            r->g, (struct vf_gguf_field){key_of(r, "rope.scaling.type", key), false}, &scaling,
            r->err);
    if (!code)
        code = vf_gguf_get_real(
            r->g, (struct vf_gguf_field){key_of(r, "rope.scaling.factor", key), false}, -1e30, 1e30,
            &factor, r->err);
    if (code)
        return code;
    bool linear_one = strcmp(scaling, "linear") == 0 && (factor == 1.0 || factor == 0.0);
    if (strcmp(scaling, "none") != 0 && !linear_one)
        return refuse(r, "rope.scaling.type", vf_name_printable(scaling, quoted, sizeof quoted),
                      "none, or linear with factor 1");
    if ((code = expect_one(r, "rope.scaling.factor")) ||
        (code = expect_one(r, "rope.scale_linear")))
        return code;
    put(r, "rope_theta", json_real(theta));
    if (vf_gguf_find(r->g, "rope_freqs.weight"))
        return vf_err_set(r->err, VF_ERR_UNSUPPORTED,
                          "%s: tensor \"rope_freqs.weight\" scales the rotary frequencies, which "
                          "isn't supported",
                          vf_gguf_path(r->g));
    return VF_OK;
}

static enum vf_code read_experts(struct reader *r, uint64_t count)
{
    uint64_t k = 0, size = 0, ffn = 0;
    enum vf_code code =
        copy_uint(r, "expert_used_count", 1, VF_EXPERTS_TOP_MAX, "num_experts_per_tok", &k);
    if (code)
        return code;
    put(r, "num_experts", json_integer((json_int_t)count));
    put(r, "norm_topk_prob", json_boolean(r->arch->norm_topk_prob));
    if (r->arch->own_expert_size) {
        code = copy_uint(r, "expert_feed_forward_length", 1, VF_FFN_MAX, "moe_intermediate_size",
                         &size);
    } else {
        code = copy_uint(r, "feed_forward_length", 1, VF_FFN_MAX, "intermediate_size", &ffn);
        if (!code)
            code = expect_uint(r, "expert_feed_forward_length", ffn);
    }
    if (code || (code = expect_uint(r, "expert_shared_count", 0)) ||
        (code = expect_uint(r, "expert_shared_feed_forward_length", 0)) ||
        (code = expect_uint(r, "leading_dense_block_count", 0)) ||
        (code = expect_uint(r, "expert_gating_func", 1)) ||
        (code = expect_bool(r, "expert_weights_norm", r->arch->norm_topk_prob)))
        return code;
    return expect_one(r, "expert_weights_scale");
}

static enum vf_code read_ffn(struct reader *r)
{
    uint64_t count = 0, ffn = 0;
    enum vf_code code =
        get_uint(r, "expert_count", !r->arch->model_type, 0, VF_EXPERTS_MAX, &count);
    if (code)
        return code;
    if (count && !r->arch->moe_model_type)
        return expect_uint(r, "expert_count", 0);
    if (!count && !r->arch->model_type)
        return refuse(r, "expert_count", "0", "1 and more");
    put(r, "model_type", json_string(count ? r->arch->moe_model_type : r->arch->model_type));
    if (count)
        return read_experts(r, count);
    return copy_uint(r, "feed_forward_length", 1, VF_FFN_MAX, "intermediate_size", &ffn);
}

static enum vf_code read_geometry(struct reader *r)
{
    uint64_t layers = 0, hidden = 0, context = 0;
    double eps = 0;
    char key[KEY_BYTES];
    enum vf_code code;
    if ((code = copy_uint(r, "block_count", 1, VF_LAYERS_MAX, "num_hidden_layers", &layers)) ||
        (code = copy_uint(r, "embedding_length", 1, VF_HIDDEN_MAX, "hidden_size", &hidden)) ||
        (code = copy_uint(r, "context_length", 1, VF_CONTEXT_MAX, "max_position_embeddings",
                          &context)) ||
        (code = read_heads(r, hidden)) || (code = check_window(r, context)) ||
        (code = expect_bool(r, "attention.causal", true)) ||
        (code = vf_gguf_get_real(
             r->g, (struct vf_gguf_field){key_of(r, "attention.layer_norm_rms_epsilon", key), true},
             1e-30, 1.0, &eps, r->err)))
        return code;
    put(r, "rms_norm_eps", json_real(eps));
    return VF_OK;
}

/* bos, and every token that ends a text: end of sequence, of turn, of message. */
static enum vf_code read_tokens(struct reader *r)
{
    static const char *const ends[EOS_MAX] = {"tokenizer.ggml.eos_token_id",
                                              "tokenizer.ggml.eot_token_id",
                                              "tokenizer.ggml.eom_token_id"};
    uint64_t last = (uint64_t)json_integer_value(json_object_get(r->obj, "vocab_size")) - 1;
    uint64_t bos = UINT64_MAX, seen[EOS_MAX];
    enum vf_code code = vf_gguf_get_uint(
        r->g, (struct vf_gguf_field){"tokenizer.ggml.bos_token_id", false}, 0, last, &bos, r->err);
    if (!code && bos != UINT64_MAX)
        put(r, "bos_token_id", json_integer((json_int_t)bos));
    json_t *list = json_array();
    size_t count = 0;
    for (size_t i = 0; i < EOS_MAX && !code; i++) {
        uint64_t id = UINT64_MAX;
        code = vf_gguf_get_uint(r->g, (struct vf_gguf_field){ends[i], false}, 0, last, &id, r->err);
        bool known = id == UINT64_MAX;
        for (size_t k = 0; k < count; k++)
            known |= seen[k] == id;
        if (code || known)
            continue;
        seen[count++] = id;
        if (json_array_append_new(list, json_integer((json_int_t)id)) != 0)
            r->no_memory = true;
    }
    if (count)
        put(r, "eos_token_id", json_incref(list));
    json_decref(list);
    return code;
}

enum vf_code vf_gguf_read_config(const struct vf_gguf *g, const struct vf_gguf_arch **arch,
                                 struct vf_config *config, struct vf_err *err)
{
    struct reader r = {.g = g, .obj = json_object(), .err = err};
    r.no_memory = !r.obj;
    enum vf_code code = read_arch(&r);
    if (!code)
        code = check_keys(&r);
    if (!code)
        code = read_geometry(&r);
    if (!code)
        code = read_ffn(&r);
    if (!code)
        code = read_rope(&r);
    if (!code)
        code = read_vocab(&r);
    if (!code)
        code = read_tokens(&r);
    if (!code && r.no_memory)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its config", vf_gguf_path(g));
    if (!code)
        code = vf_config_parse(r.obj, vf_gguf_path(g), config, err);
    *arch = r.arch;
    json_decref(r.obj);
    return code;
}
