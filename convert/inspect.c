/* Gathers numbers from the opened file's tables and prints them. Tiles can be millions, so the
 * JSON is written member by member and the tiles one by one.
 */
#include "convert/inspect.h"

#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/format/layout.h"
#include "common/format/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bad checksums that are kept with their text; beyond, they're only counted. */
#define BAD_TEXTS_MAX 1000u

struct stream_sum {
    uint64_t tensors, bytes;
};

struct verdict {
    uint64_t checked, bad;
    json_t *texts;
    struct vf_err first;
};

struct inspection {
    const struct vf_model_file *f;
    const struct vf_config *config;
    const struct vf_inspect_options *options;
    struct stream_sum streams[VF_STREAM_COUNT];
    uint64_t experts;
    size_t tokenizer_bytes;
    struct verdict verdict;
    FILE *out;
};

static const char *const stream_names[VF_STREAM_COUNT] = {
    [VF_STREAM_EMBEDDING] = "embedding", [VF_STREAM_ATTENTION] = "attention",
    [VF_STREAM_DENSE] = "dense",         [VF_STREAM_ROUTER] = "router",
    [VF_STREAM_EXPERTS] = "experts",     [VF_STREAM_HEAD] = "head",
    [VF_STREAM_VECTORS] = "vectors",
};

static const char *format_name(const struct vf_model_file *f)
{
    return vf_model_file_format(f) == VF_FORMAT_CFLOW ? "cflow" : "vflow";
}

static void sum_streams(struct inspection *in)
{
    for (size_t i = 0; i < vf_model_file_tensor_count(in->f); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(in->f, i);
        struct stream_sum *s = &in->streams[vf_tensor_stream(t.spec.id.kind, t.spec.is_vector)];
        s->tensors++;
        s->bytes += t.bytes;
    }
    in->experts = (uint64_t)in->config->layer_count * in->config->expert_count;
    in->streams[VF_STREAM_EXPERTS] = (struct stream_sum){
        in->experts * 3, in->experts * vf_model_file_expert_layout(in->f).bytes};
}

/* ---- verify ---- */

static void judge(struct verdict *v, enum vf_code code, const struct vf_err *err)
{
    v->checked++;
    if (!code)
        return;
    if (!v->bad++)
        v->first = *err;
    if (v->bad <= BAD_TEXTS_MAX)
        json_array_append_new(v->texts, json_string(err->text));
}

static void verify(struct inspection *in)
{
    struct verdict *v = &in->verdict;
    struct vf_err err = {0};
    uint64_t done = 0, total = 0;
    for (int s = 0; s < VF_STREAM_COUNT; s++)
        total += in->streams[s].bytes;
    for (size_t i = 0; i < vf_model_file_tensor_count(in->f); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(in->f, i);
        judge(v, vf_model_file_verify_tensor(in->f, t.spec.id, &err), &err);
        done += t.bytes;
        vf_progress("verify", VF_PROGRESS_BYTES, done, total);
    }
    for (uint64_t i = 0; i < in->experts; i++) {
        uint32_t layer = (uint32_t)(i / in->config->expert_count);
        uint32_t expert = (uint32_t)(i % in->config->expert_count);
        const uint8_t *data = vf_model_file_expert_data(in->f, layer, expert);
        judge(v, vf_model_file_verify_expert(in->f, layer, expert, data, &err), &err);
        done += vf_model_file_expert_layout(in->f).bytes;
        vf_progress("verify", VF_PROGRESS_BYTES, done, total);
    }
    judge(v, vf_model_file_verify_tiles(in->f, &err), &err);
    judge(v, vf_model_file_verify_padding(in->f, &err), &err);
}

/* ---- tiles ---- */

typedef void tile_fn(struct inspection *in, const char *label, const struct vf_tile_view *tile,
                     bool first);

static void for_each_tile(struct inspection *in, tile_fn *fn)
{
    char label[VF_TENSOR_LABEL_BYTES];
    bool first = true;
    for (size_t i = 0; i < vf_model_file_tensor_count(in->f); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(in->f, i);
        vf_tensor_label(t.spec.id, label, sizeof label);
        for (uint64_t k = 0; k < vf_model_file_tile_count(in->f, i); k++, first = false) {
            struct vf_tile_view tile = vf_model_file_tile(in->f, i, k);
            fn(in, label, &tile, first);
        }
    }
    for (uint64_t i = 0; i < in->experts; i++) {
        struct vf_tensor_id id = {.layer = (uint32_t)(i / in->config->expert_count),
                                  .expert = (uint32_t)(i % in->config->expert_count)};
        for (int part = 0; part < 3; part++) {
            id.kind = VF_T_EXPERT_GATE + part;
            vf_tensor_label(id, label, sizeof label);
            uint64_t count = vf_model_file_expert_tile_count(in->f, part);
            for (uint64_t k = 0; k < count; k++, first = false) {
                struct vf_tile_view tile =
                    vf_model_file_expert_tile(in->f, id.layer, id.expert, part, k);
                fn(in, label, &tile, first);
            }
        }
    }
}

static void print_tile_text(struct inspection *in, const char *label, const struct vf_tile_view *t,
                            bool first)
{
    if (first)
        fprintf(in->out, "\ntiles\n  %-34s %10s %8s %9s %14s %8s  %s\n", "tensor", "row", "column",
                "covers", "offset", "bytes", "xxh3");
    fprintf(in->out, "  %-34s %10u %8u %4u x %-3u %13" PRIu64 " %8" PRIu64 "  %08x\n", label,
            t->row, t->col, t->rows, t->cols, t->offset, t->bytes, t->xxh3_low);
}

static void print_tile_json(struct inspection *in, const char *label, const struct vf_tile_view *t,
                            bool first)
{
    fprintf(in->out,
            "%s\n    {\"tensor\": \"%s\", \"row\": %u, \"col\": %u, \"rows\": %u, \"cols\": %u, "
            "\"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"xxh3_low\": \"%08x\"}",
            first ? "" : ",", label, t->row, t->col, t->rows, t->cols, t->offset, t->bytes,
            t->xxh3_low);
}

/* ---- text ---- */

static void print_geometry(const struct inspection *in)
{
    const struct vf_config *c = in->config;
    FILE *out = in->out;
    fprintf(out, "%s: %s version %u, %" PRIu64 " bytes, fingerprint %016" PRIx64 "\n\n",
            vf_model_file_path(in->f), format_name(in->f), VF_FILE_VERSION,
            vf_model_file_bytes(in->f), vf_model_file_fingerprint(in->f));
    fprintf(out, "  %-12s %s, delays: attention %u, dense %u, experts %u\n", "style",
            vf_style_name(c->style), c->attention_delay, c->dense_delay, c->expert_delay);
    fprintf(out, "  %-12s %" PRIu64 ", matrices as %s\n", "parameters", vf_config_param_count(c),
            vf_model_file_quant_name(in->f));
    fprintf(out, "  %-12s %u, hidden size %u\n", "layers", c->layer_count, c->hidden_size);
    fprintf(out, "  %-12s %u heads and %u KV heads of %u", "attention", c->head_count,
            c->kv_head_count, c->head_dim);
    if (c->sliding_window)
        fprintf(out, ", window %u", c->sliding_window);
    fprintf(out, "\n  %-12s ", "dense FFN");
    if (c->ffn_size)
        fprintf(out, "%u, %s%s\n", c->ffn_size, vf_activation_name(c->activation),
                c->mlp_gated ? ", gated" : "");
    else
        fprintf(out, "none\n");
    fprintf(out, "  %-12s ", "experts");
    if (c->expert_count)
        fprintf(out, "%u a layer, top %u, size %u\n", c->expert_count, c->expert_top_k,
                c->expert_ffn_size);
    else
        fprintf(out, "none\n");
    fprintf(out, "  %-12s %u tokens%s, context %u\n", "vocabulary", c->vocab_size,
            c->tie_embeddings ? ", head tied to the embedding" : "", c->context_max);
    fprintf(out, "  %-12s %u\n", "flows", c->flow_count);
    if (in->tokenizer_bytes)
        fprintf(out, "  %-12s %zu bytes\n", "tokenizer", in->tokenizer_bytes);
    else
        fprintf(out, "  %-12s none\n", "tokenizer");
}

static void print_chat(const struct inspection *in)
{
    static const char *const ends[][2] = {{"bos_token", "begins"}, {"eos_token", "ends"}};
    const json_t *chat = vf_model_file_chat(in->f), *text = json_object_get(chat, "template");
    const char *name;
    json_t *ignored;
    char printable[VF_NAME_PRINTABLE_BYTES];
    if (!chat)
        return;
    fprintf(in->out, "  %-12s %zu bytes", "chat template", json_string_length(text));
    json_object_foreach(json_object_get(chat, "templates"), name, ignored)
        fprintf(in->out, ", %s", vf_name_printable(name, printable, sizeof printable));
    for (size_t i = 0; i < VF_ARRAY_LEN(ends); i++) {
        text = json_object_get(chat, ends[i][0]);
        if (json_is_string(text))
            fprintf(in->out, ", %s with %s", ends[i][1],
                    vf_name_printable(json_string_value(text), printable, sizeof printable));
    }
    fprintf(in->out, "\n");
}

static void print_streams(const struct inspection *in)
{
    uint64_t tensors = 0, bytes = 0;
    fprintf(in->out, "\n  %-12s %10s %16s\n", "stream", "tensors", "bytes");
    for (int s = 0; s < VF_STREAM_COUNT; s++) {
        fprintf(in->out, "  %-12s %10" PRIu64 " %16" PRIu64 "\n", stream_names[s],
                in->streams[s].tensors, in->streams[s].bytes);
        tensors += in->streams[s].tensors;
        bytes += in->streams[s].bytes;
    }
    fprintf(in->out, "  %-12s %10" PRIu64 " %16" PRIu64 "\n", "all", tensors, bytes);
}

static void print_groups(const struct inspection *in)
{
    fprintf(in->out, "\n  %-12s %-9s %16s %14s %16s %14s\n", "group", "attention", "offset",
            "bytes", "dense offset", "bytes");
    for (size_t i = 0; i < vf_model_file_group_count(in->f); i++) {
        struct vf_group_view g = vf_model_file_group(in->f, i);
        char layers[32];
        snprintf(layers, sizeof layers, "%u to %u", g.layer_begin, g.layer_end - 1);
        fprintf(in->out, "  %-12s %-9s %16" PRIu64 " %14" PRIu64 " %16" PRIu64 " %14" PRIu64 "\n",
                layers, vf_config_layer_slides(in->config, g.layer_begin) ? "sliding" : "full",
                g.attn_offset, g.attn_bytes, g.dense_offset, g.dense_bytes);
    }
}

static void print_tensors(const struct inspection *in)
{
    fprintf(in->out, "\n  %-34s %10s %8s %-5s %14s %14s  %s\n", "tensor", "rows", "cols", "type",
            "offset", "bytes", "xxh3");
    for (size_t i = 0; i < vf_model_file_tensor_count(in->f); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(in->f, i);
        char label[VF_TENSOR_LABEL_BYTES];
        fprintf(in->out, "  %-34s %10u %8u %-5s %14" PRIu64 " %14" PRIu64 "  %016" PRIx64 "\n",
                vf_tensor_label(t.spec.id, label, sizeof label), t.spec.rows, t.spec.cols,
                vf_quant_name(t.quant), t.offset, t.bytes, t.xxh3);
    }
    if (!in->experts)
        return;
    struct vf_expert_layout e = vf_model_file_expert_layout(in->f);
    fprintf(in->out,
            "\n  %" PRIu64 " expert records of %" PRIu64 " bytes: gate at %" PRIu64
            ", up at %" PRIu64 ", down at %" PRIu64 "\n",
            in->experts, e.bytes, e.gate_offset, e.up_offset, e.down_offset);
}

static void print_verdict(const struct inspection *in)
{
    const struct verdict *v = &in->verdict;
    fprintf(in->out, "\nverify: %" PRIu64 " checks, %" PRIu64 " bad\n", v->checked, v->bad);
    for (size_t i = 0; i < json_array_size(v->texts); i++)
        fprintf(in->out, "  %s\n", json_string_value(json_array_get(v->texts, i)));
}

static void print_text(struct inspection *in)
{
    print_geometry(in);
    print_chat(in);
    print_streams(in);
    print_groups(in);
    print_tensors(in);
    if (in->options->tiles)
        for_each_tile(in, print_tile_text);
    if (in->options->verify)
        print_verdict(in);
}

/* ---- JSON ---- */

/* Takes the reference; NULL (no memory while building it) makes the whole print fail. */
static bool put_member(struct inspection *in, const char *key, json_t *value)
{
    if (!value)
        return false;
    fprintf(in->out, ",\n  \"%s\": ", key);
    int rc = json_dumpf(value, in->out, JSON_ENCODE_ANY);
    json_decref(value);
    return rc == 0;
}

static json_t *hex(uint64_t v)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    return json_string(text);
}

static json_t *chat_json(const struct inspection *in)
{
    const json_t *chat = vf_model_file_chat(in->f);
    return chat ? json_deep_copy(chat) : json_null();
}

static json_t *streams_json(const struct inspection *in)
{
    json_t *o = json_object();
    for (int s = 0; s < VF_STREAM_COUNT; s++)
        json_object_set_new(o, stream_names[s],
                            json_pack("{s:I, s:I}", "tensors", (json_int_t)in->streams[s].tensors,
                                      "bytes", (json_int_t)in->streams[s].bytes));
    return o;
}

static json_t *groups_json(const struct inspection *in)
{
    json_t *a = json_array();
    for (size_t i = 0; i < vf_model_file_group_count(in->f); i++) {
        struct vf_group_view g = vf_model_file_group(in->f, i);
        json_array_append_new(
            a, json_pack("{s:I, s:I, s:b, s:I, s:I, s:I, s:I}", "layer_begin",
                         (json_int_t)g.layer_begin, "layer_end", (json_int_t)g.layer_end, "sliding",
                         vf_config_layer_slides(in->config, g.layer_begin), "attn_offset",
                         (json_int_t)g.attn_offset, "attn_bytes", (json_int_t)g.attn_bytes,
                         "dense_offset", (json_int_t)g.dense_offset, "dense_bytes",
                         (json_int_t)g.dense_bytes));
    }
    return a;
}

static json_t *tensor_json(const struct vf_tensor_entry_view *t)
{
    char label[VF_TENSOR_LABEL_BYTES];
    json_t *layer = t->spec.id.layer == VF_LAYER_NONE ? json_null()
                                                      : json_integer((json_int_t)t->spec.id.layer);
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:o}", "name",
                     vf_tensor_label(t->spec.id, label, sizeof label), "kind",
                     vf_tensor_kind_name(t->spec.id.kind), "layer", layer, "flow",
                     (json_int_t)t->spec.id.flow, "rows", (json_int_t)t->spec.rows, "cols",
                     (json_int_t)t->spec.cols, "quant", vf_quant_name(t->quant), "stream",
                     stream_names[vf_tensor_stream(t->spec.id.kind, t->spec.is_vector)], "offset",
                     (json_int_t)t->offset, "bytes", (json_int_t)t->bytes, "xxh3", hex(t->xxh3));
}

static json_t *tensors_json(const struct inspection *in)
{
    json_t *a = json_array();
    for (size_t i = 0; i < vf_model_file_tensor_count(in->f); i++) {
        struct vf_tensor_entry_view t = vf_model_file_tensor(in->f, i);
        json_array_append_new(a, tensor_json(&t));
    }
    return a;
}

static json_t *experts_json(const struct inspection *in)
{
    if (!in->experts)
        return json_null();
    struct vf_expert_layout e = vf_model_file_expert_layout(in->f);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "per_layer",
                     (json_int_t)in->config->expert_count, "record_bytes", (json_int_t)e.bytes,
                     "gate_offset", (json_int_t)e.gate_offset, "up_offset", (json_int_t)e.up_offset,
                     "down_offset", (json_int_t)e.down_offset, "first_offset",
                     (json_int_t)vf_model_file_expert(in->f, 0, 0).offset);
}

static bool print_json(struct inspection *in)
{
    fprintf(in->out, "{\n  \"version\": %u", VF_FILE_VERSION);
    bool good =
        put_member(in, "file", json_string(vf_model_file_path(in->f))) &&
        put_member(in, "format", json_string(format_name(in->f))) &&
        put_member(in, "file_bytes", json_integer((json_int_t)vf_model_file_bytes(in->f))) &&
        put_member(in, "fingerprint", hex(vf_model_file_fingerprint(in->f))) &&
        put_member(in, "quant", json_string(vf_model_file_quant_name(in->f))) &&
        put_member(in, "parameters", json_integer((json_int_t)vf_config_param_count(in->config))) &&
        put_member(in, "tokenizer_bytes", json_integer((json_int_t)in->tokenizer_bytes)) &&
        put_member(in, "config", vf_config_to_json(in->config)) &&
        put_member(in, "chat", chat_json(in)) && put_member(in, "streams", streams_json(in)) &&
        put_member(in, "groups", groups_json(in)) && put_member(in, "experts", experts_json(in)) &&
        put_member(in, "tensors", tensors_json(in));
    if (good && in->options->tiles) {
        fprintf(in->out, ",\n  \"tiles\": [");
        for_each_tile(in, print_tile_json);
        fprintf(in->out, "]");
    }
    if (good && in->options->verify)
        good =
            put_member(in, "verify",
                       json_pack("{s:I, s:I, s:O}", "checked", (json_int_t)in->verdict.checked,
                                 "bad", (json_int_t)in->verdict.bad, "texts", in->verdict.texts));
    fprintf(in->out, "\n}\n");
    return good;
}

static enum vf_code print_all(struct inspection *in, struct vf_err *err)
{
    if (in->options->json && !print_json(in) && !ferror(in->out))
        return vf_err_set(err, VF_ERR_NO_MEMORY,
                          "%s: no memory for the JSON output, or the path isn't UTF-8",
                          vf_model_file_path(in->f));
    if (!in->options->json)
        print_text(in);
    enum vf_code code = vf_flush_stdout(err);
    if (code)
        return code;
    if (in->verdict.bad > 1)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s (the first of %" PRIu64 " faults)",
                          in->verdict.first.text, in->verdict.bad);
    if (in->verdict.bad)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s", in->verdict.first.text);
    return VF_OK;
}

enum vf_code vf_inspect_print(const struct vf_model_file *f,
                              const struct vf_inspect_options *options, struct vf_err *err)
{
    struct inspection in = {.f = f,
                            .config = vf_model_file_config(f),
                            .options = options,
                            .out = stdout,
                            .verdict.texts = json_array()};
    if (!in.verdict.texts)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", vf_model_file_path(f));
    vf_model_file_tokenizer(f, &in.tokenizer_bytes);
    sum_streams(&in);
    if (options->verify)
        verify(&in);
    enum vf_code code = vf_model_file_check_unchanged(f, err);
    if (!code)
        code = print_all(&in, err);
    json_decref(in.verdict.texts);
    return code;
}
