/* Checks a mapped model file once, at open, and copies its tables first.
 *
 * Checks run from the outside in: header, sections, checksums of the tables, embedded config,
 * then each table against that config. Nothing is believed before its own check has passed, and
 * no size from the file is used in arithmetic before it is bounded by the file's size.
 */
#include "common/base/util.h"
#include "common/format/chat.h"
#include "common/format/model_file_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- header and sections ---- */

static enum vf_code check_field(const struct vf_model_file *f, const char *field, uint64_t found,
                                uint64_t allowed, struct vf_err *err)
{
    if (found == allowed)
        return VF_OK;
    return bad(f, "header field %s is %" PRIu64 ", must be %" PRIu64, field, found, allowed);
}

static enum vf_code check_magic(struct vf_model_file *f, struct vf_err *err)
{
    if (memcmp(f->header.magic, vf_file_magic[VF_FORMAT_VFLOW], VF_FILE_MAGIC_BYTES) == 0)
        f->format = VF_FORMAT_VFLOW;
    else if (memcmp(f->header.magic, vf_file_magic[VF_FORMAT_CFLOW], VF_FILE_MAGIC_BYTES) == 0)
        f->format = VF_FORMAT_CFLOW;
    else
        return bad(f, "not a model file: it must begin with VFLOW or CFLOW and three zero bytes");
    return VF_OK;
}

static enum vf_code check_header(struct vf_model_file *f, struct vf_err *err)
{
    const struct vf_disk_header *h = &f->header;
    enum vf_code code = check_magic(f, err);
    if (code)
        return code;
    if (h->version != VF_FILE_VERSION)
        return vf_model_bad(f, VF_ERR_UNSUPPORTED, err,
                            "file version is %u, this program reads version %u", h->version,
                            VF_FILE_VERSION);
    uint64_t sum = XXH3_64bits(h, offsetof(struct vf_disk_header, xxh3));
    if (sum != h->xxh3)
        return bad(f, "header checksum is %016" PRIx64 ", its bytes give %016" PRIx64,
                   (uint64_t)h->xxh3, sum);
    const struct {
        const char *name;
        uint64_t found, allowed;
    } fields[] = {
        {"header_bytes", h->header_bytes, VF_FILE_HEADER_BYTES},
        {"file_bytes", h->file_bytes, f->bytes},
        {"tile_rows", h->tile_rows, VF_TILE_ROWS},
        {"tile_cols", h->tile_cols, VF_TILE_COLS},
        {"record_rows", h->record_rows, VF_RECORD_ROWS},
        {"record_cols", h->record_cols, VF_RECORD_COLS},
        {"section_count", h->section_count, VF_SECTION_COUNT},
        {"reserved", h->reserved1, 0},
    };
    for (size_t i = 0; i < VF_ARRAY_LEN(fields) && !code; i++)
        code = check_field(f, fields[i].name, fields[i].found, fields[i].allowed, err);
    if (code)
        return code;
    if (h->quant > VF_QUANT_MIXED)
        return bad(f, "header field quant is %u, must be at most %u", h->quant, VF_QUANT_MIXED);
    for (int part = 0; part < 3; part++) {
        unsigned most = h->quant == VF_QUANT_MIXED ? VF_QUANT_COUNT - 1 : 0;
        if (h->expert_quant[part] > most)
            return bad(f, "header field expert_quant[%d] is %u, must be at most %u", part,
                       h->expert_quant[part], most);
    }
    if (!vf_all_zero(h->reserved2, sizeof h->reserved2))
        return bad(f, "a reserved header byte isn't zero");
    return VF_OK;
}

static enum vf_code check_section(struct vf_model_file *f, enum vf_section_kind kind, uint64_t *end,
                                  struct vf_err *err)
{
    const struct vf_disk_section *s = &f->header.sections[kind - 1];
    const char *name = vf_section_name(kind);
    if (s->kind != kind || s->reserved)
        return bad(f, "section %u has kind %u and reserved word %u, must be %u and 0", kind - 1,
                   s->kind, s->reserved, kind);
    uint64_t begin = vf_round_up(*end, vf_section_align(kind));
    if (s->offset != begin || begin > f->bytes)
        return bad(
            f, "section %s begins at %" PRIu64 ", must begin at %" PRIu64 " of %" PRIu64 " bytes",
            name, (uint64_t)s->offset, begin, f->bytes);
    if (s->bytes > f->bytes - begin)
        return bad(f, "section %s has %" PRIu64 " bytes, the file has %" PRIu64 " from its begin",
                   name, (uint64_t)s->bytes, f->bytes - begin);
    bool in_parts = kind == VF_SECTION_STREAM || kind == VF_SECTION_BANK;
    if (in_parts && s->xxh3)
        return bad(f, "section %s has a checksum of its own, must be 0", name);
    if (!in_parts && kind != VF_SECTION_TILES && XXH3_64bits(f->map + begin, s->bytes) != s->xxh3)
        return bad(f, "section %s: its bytes don't give the stored checksum %016" PRIx64, name,
                   (uint64_t)s->xxh3);
    if (!vf_all_zero(f->map + *end, begin - *end))
        return bad(f, "a padding byte before section %s isn't zero", name);
    f->sections[kind] = (struct vf_file_range){begin, s->bytes};
    *end = begin + s->bytes;
    return VF_OK;
}

static enum vf_code check_sections(struct vf_model_file *f, struct vf_err *err)
{
    uint64_t end = VF_FILE_HEADER_BYTES;
    for (unsigned kind = 1; kind <= VF_SECTION_COUNT; kind++) {
        enum vf_code code = check_section(f, kind, &end, err);
        if (code)
            return code;
    }
    if (end != f->bytes)
        return bad(f, "the last section ends at %" PRIu64 ", the file at %" PRIu64, end, f->bytes);
    return VF_OK;
}

/* A copy of a section whose size is known to be right; the caller frees. */
static enum vf_code copy_section(const struct vf_model_file *f, enum vf_section_kind kind,
                                 void **out, struct vf_err *err)
{
    struct vf_file_range s = f->sections[kind];
    *out = malloc(s.bytes ? s.bytes : 1);
    if (!*out)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory for %" PRIu64 " bytes of tables",
                            s.bytes);
    memcpy(*out, f->map + s.offset, s.bytes);
    if (XXH3_64bits(*out, s.bytes) == f->header.sections[kind - 1].xxh3)
        return VF_OK;
    return bad(f, "section %s changed while it was read", vf_section_name(kind));
}

/* ---- config and tokenizer ---- */

/* It isn't the config parser's: a checkpoint's config.json must not have it. */
static enum vf_code take_chat(struct vf_model_file *f, json_t *obj, const char *where,
                              struct vf_err *err)
{
    json_t *chat = json_object_get(obj, "chat");
    if (!chat)
        return VF_OK;
    f->chat = json_incref(chat);
    json_object_del(obj, "chat");
    return vf_chat_check(chat, where, err);
}

static enum vf_code load_config(struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_CONFIG];
    if (s.bytes > VF_CONFIG_BYTES_MAX)
        return bad(f, "embedded config has %" PRIu64 " bytes, at most %u are allowed", s.bytes,
                   VF_CONFIG_BYTES_MAX);
    char where[256];
    snprintf(where, sizeof where, "%s: embedded config", f->path);
    json_t *obj = NULL;
    void *text = NULL;
    enum vf_code code = copy_section(f, VF_SECTION_CONFIG, &text, err);
    if (!code)
        code = vf_json_parse(text, s.bytes, where, &obj, err);
    free(text);
    if (!code)
        code = take_chat(f, obj, where, err);
    if (!code)
        code = vf_config_parse(obj, where, &f->config, err);
    f->has_config = !code;
    json_decref(obj);
    return code;
}

static enum vf_code check_tokenizer(struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_TOKENIZER];
    if (s.bytes > VF_TOKENIZER_BYTES_MAX)
        return bad(f, "embedded tokenizer has %" PRIu64 " bytes, at most %u are allowed", s.bytes,
                   VF_TOKENIZER_BYTES_MAX);
    if (!vf_utf8_valid((const char *)f->map + s.offset, s.bytes))
        return bad(f, "embedded tokenizer isn't valid UTF-8");
    return VF_OK;
}

/* ---- tensor table ---- */

/* Fills f->index from the table; kinds, layers and flows out of range and doubles are refused. */
static enum vf_code build_index(struct vf_model_file *f, struct vf_err *err)
{
    size_t slots = ((size_t)f->config.layer_count + 1) * f->config.flow_count * VF_T_KIND_COUNT;
    f->index = malloc(slots * sizeof *f->index);
    if (!f->index)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory for an index of %zu tensors",
                            slots);
    memset(f->index, 0xff, slots * sizeof *f->index);
    for (size_t i = 0; i < f->tensor_count; i++) {
        const struct vf_disk_tensor *t = &f->tensors[i];
        bool layer_ok = t->layer == VF_LAYER_NONE || t->layer < f->config.layer_count;
        if (t->kind >= VF_T_KIND_COUNT || !layer_ok || t->flow >= f->config.flow_count)
            return bad(f,
                       "tensor table entry %zu: kind %u, layer %u, flow %u, must be below %u, "
                       "%u, %u",
                       i, t->kind, t->layer, t->flow, (unsigned)VF_T_KIND_COUNT,
                       f->config.layer_count, f->config.flow_count);
        uint32_t *slot = &f->index[vf_model_index_slot(f, t->kind, t->layer, t->flow)];
        char label[VF_TENSOR_LABEL_BYTES];
        if (*slot != VF_ENTRY_NONE)
            return bad(f, "tensor table lists %s twice",
                       vf_tensor_label(vf_model_entry_id(t), label, sizeof label));
        *slot = (uint32_t)i;
    }
    return VF_OK;
}

/* One table entry against what the config says it must be. */
static enum vf_code check_entry(const struct vf_model_file *f, const struct vf_tensor_spec *spec,
                                struct vf_err *err)
{
    char label[VF_TENSOR_LABEL_BYTES];
    vf_tensor_label(spec->id, label, sizeof label);
    uint32_t i = vf_model_find_entry(f, spec->id);
    if (i == VF_ENTRY_NONE)
        return bad(f, "tensor table lacks %s", label);
    const struct vf_disk_tensor *t = &f->tensors[i];
    if (t->rows != spec->rows || t->cols != spec->cols)
        return bad(f, "tensor %s is [%u, %u], must be [%u, %u]", label, t->rows, t->cols,
                   spec->rows, spec->cols);
    bool f32 = spec->is_vector || spec->id.kind == VF_T_ROUTER;
    unsigned quant = f32 ? VF_QUANT_F32 : f->header.quant;
    if (quant == VF_QUANT_MIXED && t->quant < VF_QUANT_COUNT)
        quant = t->quant;
    unsigned flags = spec->is_vector ? VF_TENSOR_FLAG_VECTOR : 0;
    if (t->quant != quant || t->flags != flags || t->reserved)
        return bad(f, "tensor %s has quant %u, flags %u, reserved word %u, must be %u, %u, 0",
                   label, t->quant, t->flags, t->reserved, quant, flags);
    uint64_t bytes =
        spec->is_vector ? (uint64_t)t->cols * 4 : vf_matrix_bytes(t->quant, t->rows, t->cols);
    if (t->bytes != bytes)
        return bad(f, "tensor %s has %" PRIu64 " bytes, must have %" PRIu64, label,
                   (uint64_t)t->bytes, bytes);
    struct vf_file_range s = f->sections[spec->is_vector ? VF_SECTION_VECTORS : VF_SECTION_STREAM];
    if (t->offset % VF_FILE_ALIGN || t->offset < s.offset || t->offset - s.offset > s.bytes ||
        t->bytes > s.bytes - (t->offset - s.offset))
        return bad(f,
                   "tensor %s lies at %" PRIu64 " with %" PRIu64 " bytes, must lie within %" PRIu64
                   " to %" PRIu64 " at a multiple of %u",
                   label, (uint64_t)t->offset, bytes, s.offset, s.offset + s.bytes, VF_FILE_ALIGN);
    return VF_OK;
}

/* Tile numbers run through the table without gaps. */
static enum vf_code check_tile_ranges(struct vf_model_file *f, struct vf_err *err)
{
    uint64_t next = 0;
    for (size_t i = 0; i < f->tensor_count; i++) {
        const struct vf_disk_tensor *t = &f->tensors[i];
        bool vector = vf_model_entry_is_vector(t);
        uint64_t count = vector ? 0 : vf_tile_count(t->rows, t->cols);
        uint64_t begin = vector ? 0 : next;
        char label[VF_TENSOR_LABEL_BYTES];
        if (t->tile_begin != begin || t->tile_count != count)
            return bad(f,
                       "tensor %s has tiles %" PRIu64 " + %" PRIu64 ", must have %" PRIu64
                       " + %" PRIu64,
                       vf_tensor_label(vf_model_entry_id(t), label, sizeof label),
                       (uint64_t)t->tile_begin, (uint64_t)t->tile_count, begin, count);
        next += count;
    }
    f->expert_tile_begin = next;
    uint64_t experts = (uint64_t)f->config.layer_count * f->config.expert_count, tiles, bytes;
    if (!vf_mul_u64(experts, f->expert.tile_count, &tiles) || !vf_add_u64(tiles, next, &tiles) ||
        !vf_mul_u64(tiles, sizeof(struct vf_disk_tile), &bytes))
        return bad(f, "the embedded config's tile count overflows");
    enum vf_code code = check_field(f, "tile_count", f->header.tile_count, tiles, err);
    if (!code && f->sections[VF_SECTION_TILES].bytes != bytes)
        code = bad(f, "section tile directory has %" PRIu64 " bytes, must have %" PRIu64,
                   f->sections[VF_SECTION_TILES].bytes, bytes);
    return code;
}

static enum vf_code check_tensors(struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_TENSORS];
    struct vf_tensor_spec *specs = NULL;
    size_t count = 0;
    enum vf_code code = vf_tensors_list(&f->config, false, &specs, &count, err);
    if (code) {
        vf_err_prepend(err, "%s: ", f->path);
        goto out;
    }
    if (s.bytes != count * sizeof *f->tensors) {
        code = bad(f, "tensor table has %" PRIu64 " bytes, %zu tensors need %zu", s.bytes, count,
                   count * sizeof *f->tensors);
        goto out;
    }
    f->tensor_count = count;
    code = copy_section(f, VF_SECTION_TENSORS, (void **)&f->tensors, err);
    if (!code)
        code = build_index(f, err);
    for (size_t i = 0; i < count && !code; i++)
        code = check_entry(f, &specs[i], err);
    if (!code)
        code = check_tile_ranges(f, err);
out:
    free(specs);
    return code;
}

/* ---- group table ---- */

static enum vf_code check_group(const struct vf_model_file *f, size_t i, uint32_t begin,
                                struct vf_err *err)
{
    const struct vf_disk_group *g = &f->groups[i];
    uint32_t end = f->format == VF_FORMAT_CFLOW ? begin + 1 : f->config.layer_count;
    if (g->layer_begin != begin || g->layer_end <= begin || g->layer_end > end)
        return bad(f, "group %zu has layers %u to %u, must begin at %u and end from %u to %u", i,
                   g->layer_begin, g->layer_end, begin, begin + 1, end);
    if (g->sliding > 1 || g->reserved)
        return bad(f, "group %zu has sliding %u and reserved word %u, must be 0 or 1 and 0", i,
                   g->sliding, g->reserved);
    for (uint32_t layer = begin; layer < g->layer_end; layer++)
        if (vf_config_layer_slides(&f->config, layer) != (bool)g->sliding)
            return bad(f, "group %zu says sliding %u, layer %u of the embedded config differs", i,
                       g->sliding, layer);
    struct vf_file_range s = f->sections[VF_SECTION_STREAM];
    const struct vf_file_range ranges[2] = {{g->attn_offset, g->attn_bytes},
                                            {g->dense_offset, g->dense_bytes}};
    for (int r = 0; r < 2; r++) {
        uint64_t into = ranges[r].offset - s.offset;
        if (ranges[r].offset % VF_STREAM_ALIGN || ranges[r].offset < s.offset || into > s.bytes ||
            ranges[r].bytes > s.bytes - into)
            return bad(f,
                       "group %zu: its %s stream lies at %" PRIu64 " with %" PRIu64
                       " bytes, must lie within %" PRIu64 " to %" PRIu64 " at a multiple of %u",
                       i, r ? "dense" : "attention", ranges[r].offset, ranges[r].bytes, s.offset,
                       s.offset + s.bytes, VF_STREAM_ALIGN);
    }
    return VF_OK;
}

/* A stage's tensor must lie within its group's stream. layer_group[layer] is its group. */
static enum vf_code check_membership(const struct vf_model_file *f, const uint32_t *layer_group,
                                     const struct vf_disk_tensor *t, struct vf_err *err)
{
    enum vf_stream stream = vf_tensor_stream(t->kind, vf_model_entry_is_vector(t));
    bool attention = stream == VF_STREAM_ATTENTION;
    if (!attention && stream != VF_STREAM_DENSE && stream != VF_STREAM_ROUTER)
        return VF_OK;
    const struct vf_disk_group *g = &f->groups[layer_group[t->layer]];
    uint64_t begin = attention ? g->attn_offset : g->dense_offset;
    uint64_t bytes = attention ? g->attn_bytes : g->dense_bytes;
    char label[VF_TENSOR_LABEL_BYTES];
    if (t->offset < begin || t->offset + t->bytes > begin + bytes)
        return bad(
            f, "tensor %s at %" PRIu64 " lies outside its group's stream, %" PRIu64 " to %" PRIu64,
            vf_tensor_label(vf_model_entry_id(t), label, sizeof label), (uint64_t)t->offset, begin,
            begin + bytes);
    return VF_OK;
}

static enum vf_code check_groups(struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_GROUPS];
    uint32_t layers = f->config.layer_count, next = 0;
    f->group_count = s.bytes / sizeof *f->groups;
    if (s.bytes % sizeof *f->groups || f->group_count > layers)
        return bad(f,
                   "group table has %" PRIu64 " bytes, must have a multiple of %zu for at most "
                   "%u layers",
                   s.bytes, sizeof *f->groups, layers);
    uint32_t *layer_group = calloc(layers, sizeof *layer_group);
    if (!layer_group)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory for %u layers", layers);
    enum vf_code code = copy_section(f, VF_SECTION_GROUPS, (void **)&f->groups, err);
    for (size_t i = 0; i < f->group_count && !code; i++) {
        code = check_group(f, i, next, err);
        for (; !code && next < f->groups[i].layer_end; next++)
            layer_group[next] = (uint32_t)i;
    }
    if (!code && next != layers)
        code = bad(f, "the groups end at layer %u, must end at %u", next, layers);
    for (size_t i = 0; i < f->tensor_count && !code; i++)
        code = check_membership(f, layer_group, &f->tensors[i], err);
    free(layer_group);
    return code;
}

/* ---- experts ---- */

static void init_expert_parts(struct vf_model_file *f)
{
    const struct vf_disk_header *h = &f->header;
    enum vf_quant quant[3];
    for (int part = 0; part < 3; part++)
        quant[part] = h->quant == VF_QUANT_MIXED ? h->expert_quant[part] : h->quant;
    vf_expert_parts_init_mixed(&f->config, quant, &f->expert);
}

static enum vf_code check_expert(const struct vf_model_file *f, uint32_t layer, uint32_t expert,
                                 struct vf_err *err)
{
    struct vf_file_range s =
        f->sections[f->format == VF_FORMAT_VFLOW ? VF_SECTION_BANK : VF_SECTION_STREAM];
    const struct vf_disk_expert *e = &f->experts[(uint64_t)layer * f->config.expert_count + expert];
    if (e->bytes != f->expert.layout.bytes)
        return bad(f, "layer %u expert %u has %" PRIu64 " bytes, must have %" PRIu64, layer, expert,
                   (uint64_t)e->bytes, f->expert.layout.bytes);
    if (e->offset % VF_EXPERT_ALIGN || e->offset < s.offset || e->offset - s.offset > s.bytes ||
        e->bytes > s.bytes - (e->offset - s.offset))
        return bad(f,
                   "layer %u expert %u lies at %" PRIu64 " with %" PRIu64
                   " bytes, must lie within %" PRIu64 " to %" PRIu64 " at a multiple of %u",
                   layer, expert, (uint64_t)e->offset, (uint64_t)e->bytes, s.offset,
                   s.offset + s.bytes, VF_EXPERT_ALIGN);
    return VF_OK;
}

static enum vf_code check_experts(struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_EXPERTS];
    uint64_t count = (uint64_t)f->config.layer_count * f->config.expert_count;
    if (s.bytes != count * sizeof *f->experts)
        return bad(f, "expert index has %" PRIu64 " bytes, %" PRIu64 " experts need %" PRIu64,
                   s.bytes, count, count * sizeof *f->experts);
    enum vf_code code = copy_section(f, VF_SECTION_EXPERTS, (void **)&f->experts, err);
    if (!code)
        code = check_field(f, "expert_bytes", f->header.expert_bytes, f->expert.layout.bytes, err);
    for (uint32_t layer = 0; layer < f->config.layer_count && !code; layer++)
        for (uint32_t e = 0; e < f->config.expert_count && !code; e++)
            code = check_expert(f, layer, e, err);
    return code;
}

/* ---- overlaps ---- */

int vf_extent_compare(const void *pa, const void *pb)
{
    const struct vf_extent *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Every tensor and expert, by offset. Experts are bounded by the index's bytes in the file. */
enum vf_code vf_model_list_extents(const struct vf_model_file *f, struct vf_extent **out,
                                   size_t *out_count, struct vf_err *err)
{
    size_t experts = (size_t)f->config.layer_count * f->config.expert_count, n = 0;
    size_t count = f->tensor_count + experts;
    struct vf_extent *x = malloc((count ? count : 1) * sizeof *x);
    if (!x)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory to check %zu ranges", count);
    for (size_t i = 0; i < f->tensor_count; i++) {
        const struct vf_disk_tensor *t = &f->tensors[i];
        x[n++] = (struct vf_extent){t->offset, t->offset + t->bytes, vf_model_entry_id(t)};
    }
    for (size_t i = 0; i < experts; i++) {
        const struct vf_disk_expert *e = &f->experts[i];
        x[n++] = (struct vf_extent){e->offset,
                                    e->offset + e->bytes,
                                    {VF_T_EXPERT_GATE, (uint32_t)(i / f->config.expert_count), 0,
                                     (uint32_t)(i % f->config.expert_count)}};
    }
    qsort(x, n, sizeof *x, vf_extent_compare);
    *out = x;
    *out_count = n;
    return VF_OK;
}

static enum vf_code check_overlaps(const struct vf_model_file *f, struct vf_err *err)
{
    struct vf_extent *x = NULL;
    size_t count = 0;
    enum vf_code code = vf_model_list_extents(f, &x, &count, err);
    for (size_t i = 1; i < count && !code; i++) {
        char a[VF_TENSOR_LABEL_BYTES], b[VF_TENSOR_LABEL_BYTES];
        if (x[i].begin < x[i - 1].end)
            code = bad(f, "tensor %s begins at %" PRIu64 ", before %s ends at %" PRIu64,
                       vf_tensor_label(x[i].id, a, sizeof a), x[i].begin,
                       vf_tensor_label(x[i - 1].id, b, sizeof b), x[i - 1].end);
    }
    free(x);
    return code;
}

/* The groups' streams exclude each other; only then does a byte count of one mean anything. */
static enum vf_code check_group_overlaps(const struct vf_model_file *f, struct vf_err *err)
{
    size_t n = f->group_count * 2;
    struct vf_extent *x = malloc((n ? n : 1) * sizeof *x);
    if (!x)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory to check %zu ranges", n);
    for (size_t i = 0; i < f->group_count; i++) {
        const struct vf_disk_group *g = &f->groups[i];
        x[2 * i] = (struct vf_extent){g->attn_offset, g->attn_offset + g->attn_bytes, {0}};
        x[2 * i + 1] = (struct vf_extent){g->dense_offset, g->dense_offset + g->dense_bytes, {0}};
    }
    qsort(x, n, sizeof *x, vf_extent_compare);
    enum vf_code code = VF_OK;
    for (size_t i = 1; i < n && !code; i++)
        if (x[i].begin < x[i - 1].end)
            code = bad(
                f, "group table: a stream begins at %" PRIu64 ", before another ends at %" PRIu64,
                x[i].begin, x[i - 1].end);
    free(x);
    return code;
}

/* ---- all of it ---- */

enum vf_code vf_model_file_check(struct vf_model_file *f, struct vf_err *err)
{
    enum vf_code code = check_header(f, err);
    if (!code)
        code = check_sections(f, err);
    if (!code)
        code = load_config(f, err);
    if (!code)
        code = check_tokenizer(f, err);
    if (code)
        return code;
    init_expert_parts(f);
    code = check_tensors(f, err);
    if (!code)
        code = check_groups(f, err);
    if (!code)
        code = check_experts(f, err);
    if (!code)
        code = check_overlaps(f, err);
    if (!code)
        code = check_group_overlaps(f, err);
    f->tiles = (const void *)(f->map + f->sections[VF_SECTION_TILES].offset);
    return code;
}
