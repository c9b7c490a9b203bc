/* Places every byte of a model file: sections in order, then tensors, groups and experts in the
 * order in which a token reads them. Everything here is arithmetic on a parsed config.
 */
#include "common/format/layout.h"

#include "common/base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char vf_file_magic[2][VF_FILE_MAGIC_BYTES] = {"VFLOW\0\0", "CFLOW\0\0"};

/* Offsets stay far below 2^63, so that rounding up can't wrap and off_t holds them. */
#define FILE_BYTES_MAX (1ull << 62)

const char *vf_section_name(enum vf_section_kind kind)
{
    static const char *const names[VF_SECTION_COUNT + 1] = {
        "",        "config",        "tokenizer",   "tensor table",   "group table", "expert index",
        "vectors", "weight stream", "expert bank", "tile directory",
    };
    return kind >= 1 && kind <= VF_SECTION_COUNT ? names[kind] : "unknown";
}

enum vf_stream vf_tensor_stream(enum vf_tensor_kind kind, bool is_vector)
{
    if (is_vector)
        return VF_STREAM_VECTORS;
    switch (kind) {
    case VF_T_EMBED:
        return VF_STREAM_EMBEDDING;
    case VF_T_HEAD:
        return VF_STREAM_HEAD;
    case VF_T_Q:
    case VF_T_K:
    case VF_T_V:
    case VF_T_O:
        return VF_STREAM_ATTENTION;
    case VF_T_ROUTER:
        return VF_STREAM_ROUTER;
    case VF_T_EXPERT_GATE:
    case VF_T_EXPERT_UP:
    case VF_T_EXPERT_DOWN:
        return VF_STREAM_EXPERTS;
    default:
        return VF_STREAM_DENSE;
    }
}

struct vf_tile_place vf_tile_locate(enum vf_quant quant, uint32_t rows, uint32_t cols, uint64_t i)
{
    uint64_t across = ((uint64_t)cols + VF_TILE_COLS - 1) / VF_TILE_COLS;
    uint64_t stripe = i / across, column = i % across;
    struct vf_tile_place t = {
        .row = (uint32_t)(stripe * VF_TILE_ROWS),
        .col = (uint32_t)(column * VF_TILE_COLS),
    };
    t.rows = (uint32_t)vf_min_u64(VF_TILE_ROWS, (uint64_t)rows - t.row);
    t.cols = (uint32_t)vf_min_u64(VF_TILE_COLS, (uint64_t)cols - t.col);
    uint64_t block = (uint64_t)vf_row_blocks(t.rows) * vf_record_bytes(quant);
    t.offset = vf_matrix_bytes(quant, t.row, cols) + block * vf_col_groups(t.col);
    t.bytes = block * vf_col_groups(t.cols);
    return t;
}

void vf_expert_parts_init(const struct vf_config *config, enum vf_quant quant,
                          struct vf_expert_parts *parts)
{
    vf_expert_parts_init_mixed(config, (const enum vf_quant[]){quant, quant, quant}, parts);
}

void vf_expert_parts_init_mixed(const struct vf_config *config, const enum vf_quant quant[3],
                                struct vf_expert_parts *parts)
{
    memset(parts, 0, sizeof *parts);
    memcpy(parts->layout.quant, quant, sizeof parts->layout.quant);
    if (!config->expert_count)
        return;
    uint32_t d = config->hidden_size, fe = config->expert_ffn_size;
    for (int part = 0; part < 3; part++) {
        parts->rows[part] = part == 2 ? d : fe;
        parts->cols[part] = part == 2 ? fe : d;
    }
    uint64_t at = 0, offset[3];
    for (int part = 0; part < 3; part++) {
        offset[part] = at;
        at += vf_round_up(vf_matrix_bytes(quant[part], parts->rows[part], parts->cols[part]),
                          VF_FILE_ALIGN);
        parts->tiles[part] = vf_tile_count(parts->rows[part], parts->cols[part]);
        parts->tile_count += parts->tiles[part];
    }
    parts->layout.gate_offset = offset[0];
    parts->layout.up_offset = offset[1];
    parts->layout.down_offset = offset[2];
    parts->layout.bytes = vf_round_up(at, VF_EXPERT_ALIGN);
}

uint64_t vf_expert_part_offset(const struct vf_expert_parts *parts, int part)
{
    return part == 0   ? parts->layout.gate_offset
           : part == 1 ? parts->layout.up_offset
                       : parts->layout.down_offset;
}

const char *vf_tensor_label(struct vf_tensor_id id, char *buf, size_t size)
{
    char layer[32] = "", expert[32] = "", flow[32] = "";
    if (id.layer != VF_LAYER_NONE)
        snprintf(layer, sizeof layer, "layer %u ", id.layer);
    if (vf_tensor_is_expert(id.kind))
        snprintf(expert, sizeof expert, "expert %u ", id.expert);
    if (id.flow)
        snprintf(flow, sizeof flow, "flow %u ", id.flow);
    /* An expert's matrices are called as the dense FFN's are. */
    enum vf_tensor_kind kind =
        vf_tensor_is_expert(id.kind) ? id.kind - VF_T_EXPERT_GATE + VF_T_GATE : id.kind;
    snprintf(buf, size, "%s%s%s%s", layer, expert, flow, vf_tensor_kind_name(kind));
    return buf;
}

/* A running file offset with a sticky overflow flag. */
struct cursor {
    uint64_t at;
    bool overflow;
};

static void cursor_align(struct cursor *c, uint64_t align)
{
    c->at = vf_round_up(c->at, align);
}

static uint64_t cursor_take(struct cursor *c, uint64_t bytes)
{
    uint64_t begin = c->at;
    if (c->overflow || bytes > FILE_BYTES_MAX || c->at + bytes > FILE_BYTES_MAX)
        c->overflow = true;
    else
        c->at += bytes;
    return begin;
}

/* Table order: embeddings, layer by layer, then final norm and head. */
static int table_class(const struct vf_disk_tensor *t)
{
    return t->layer != VF_LAYER_NONE ? 1 : t->kind == VF_T_EMBED ? 0 : 2;
}

static int compare_table_order(const void *pa, const void *pb)
{
    const struct vf_disk_tensor *a = pa, *b = pb;
    int ca = table_class(a), cb = table_class(b);
    if (ca != cb)
        return ca - cb;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->flow != b->flow)
        return a->flow < b->flow ? -1 : 1;
    return (int)a->kind - (int)b->kind;
}

static enum vf_code list_tensors(const struct vf_config *config, struct vf_layout *l,
                                 vf_quant_of_fn *quant_of, void *ctx, struct vf_err *err)
{
    struct vf_tensor_spec *specs = NULL;
    size_t count = 0;
    enum vf_code code = vf_tensors_list(config, false, &specs, &count, err);
    if (code)
        return code;
    l->tensors = calloc(count ? count : 1, sizeof *l->tensors);
    if (!l->tensors) {
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a table of %zu tensors", count);
        goto out;
    }
    l->tensor_count = count;
    for (size_t i = 0; i < count; i++) {
        bool vector = specs[i].is_vector;
        bool f32 = vector || specs[i].id.kind == VF_T_ROUTER;
        l->tensors[i] = (struct vf_disk_tensor){
            .kind = (uint16_t)specs[i].id.kind,
            .quant = (uint8_t)(f32 ? VF_QUANT_F32 : quant_of(ctx, specs[i].id)),
            .flags = vector ? VF_TENSOR_FLAG_VECTOR : 0,
            .layer = specs[i].id.layer,
            .flow = specs[i].id.flow,
            .rows = specs[i].rows,
            .cols = specs[i].cols,
        };
    }
    qsort(l->tensors, count, sizeof *l->tensors, compare_table_order);
    for (size_t i = 0; i < count; i++) {
        struct vf_disk_tensor *t = &l->tensors[i];
        bool vector = t->flags & VF_TENSOR_FLAG_VECTOR;
        t->bytes = vector ? (uint64_t)t->cols * 4 : vf_matrix_bytes(t->quant, t->rows, t->cols);
        t->tile_begin = vector ? 0 : l->tile_count;
        t->tile_count = vector ? 0 : vf_tile_count(t->rows, t->cols);
        l->tile_count += t->tile_count;
    }
out:
    free(specs);
    return code;
}

static enum vf_code list_groups(const struct vf_config *config, struct vf_layout *l,
                                struct vf_err *err)
{
    uint32_t layers = config->layer_count;
    l->groups = calloc(layers ? layers : 1, sizeof *l->groups);
    l->layer_experts = calloc(layers ? layers : 1, sizeof *l->layer_experts);
    if (!l->groups || !l->layer_experts)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u layers", layers);
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t sliding = vf_config_layer_slides(config, layer);
        struct vf_disk_group *last = l->group_count ? &l->groups[l->group_count - 1] : NULL;
        if (l->format == VF_FORMAT_VFLOW && last && last->sliding == sliding) {
            last->layer_end = layer + 1;
            continue;
        }
        l->groups[l->group_count++] = (struct vf_disk_group){
            .layer_begin = layer, .layer_end = layer + 1, .sliding = sliding};
    }
    return VF_OK;
}

static bool in_stage(const struct vf_disk_tensor *t, enum vf_stream stage)
{
    enum vf_stream s = vf_tensor_stream(t->kind, t->flags & VF_TENSOR_FLAG_VECTOR);
    return s == stage || (stage == VF_STREAM_DENSE && s == VF_STREAM_ROUTER);
}

/* Places the tensors of one stage among tensors[begin, end), in table order. */
static void place_tensors(struct vf_layout *l, size_t begin, size_t end, enum vf_stream stage,
                          struct cursor *c)
{
    for (size_t i = begin; i < end; i++) {
        if (!in_stage(&l->tensors[i], stage))
            continue;
        cursor_align(c, VF_FILE_ALIGN);
        l->tensors[i].offset = cursor_take(c, l->tensors[i].bytes);
    }
}

static void place_stage(struct vf_layout *l, size_t begin, size_t end, enum vf_stream stage,
                        struct cursor *c, uint64_t *offset, uint64_t *bytes)
{
    cursor_align(c, VF_STREAM_ALIGN);
    *offset = c->at;
    place_tensors(l, begin, end, stage, c);
    *bytes = c->at - *offset;
}

static void place_experts(struct vf_layout *l, uint32_t layer, struct cursor *c)
{
    uint64_t bytes;
    cursor_align(c, VF_STREAM_ALIGN);
    if (!vf_mul_u64(l->expert_count, l->expert.layout.bytes, &bytes))
        bytes = UINT64_MAX;
    l->layer_experts[layer] = cursor_take(c, bytes);
}

/* Embeddings, then each group's attention and dense streams (and in .cflow the layer's experts),
 * then the head. */
static void place_stream(struct vf_layout *l, struct cursor *c)
{
    uint64_t offset, bytes;
    place_stage(l, 0, l->tensor_count, VF_STREAM_EMBEDDING, c, &offset, &bytes);
    size_t begin = 0;
    for (size_t g = 0; g < l->group_count; g++) {
        struct vf_disk_group *group = &l->groups[g];
        while (begin < l->tensor_count && l->tensors[begin].layer != group->layer_begin)
            begin++;
        size_t end = begin;
        while (end < l->tensor_count && l->tensors[end].layer < group->layer_end)
            end++;
        place_stage(l, begin, end, VF_STREAM_ATTENTION, c, &offset, &bytes);
        group->attn_offset = offset;
        group->attn_bytes = bytes;
        place_stage(l, begin, end, VF_STREAM_DENSE, c, &offset, &bytes);
        group->dense_offset = offset;
        group->dense_bytes = bytes;
        begin = end;
        if (l->format == VF_FORMAT_CFLOW)
            place_experts(l, group->layer_begin, c);
    }
    place_stage(l, 0, l->tensor_count, VF_STREAM_HEAD, c, &offset, &bytes);
}

static uint64_t checked_product(uint64_t a, uint64_t b, struct cursor *c)
{
    uint64_t out = 0;
    if (!vf_mul_u64(a, b, &out))
        c->overflow = true;
    return out;
}

static void place_section(struct vf_layout *l, enum vf_section_kind kind, uint64_t bytes,
                          struct cursor *c)
{
    cursor_align(c, vf_section_align(kind));
    l->sections[kind].offset = c->at;
    switch (kind) {
    case VF_SECTION_VECTORS:
        place_tensors(l, 0, l->tensor_count, VF_STREAM_VECTORS, c);
        break;
    case VF_SECTION_STREAM:
        place_stream(l, c);
        break;
    case VF_SECTION_BANK:
        for (uint32_t layer = 0; l->format == VF_FORMAT_VFLOW && layer < l->layer_count; layer++)
            place_experts(l, layer, c);
        break;
    default:
        cursor_take(c, bytes);
    }
    l->sections[kind].bytes = c->at - l->sections[kind].offset;
}

static void choose_expert_quants(const struct vf_config *config, vf_quant_of_fn *quant_of,
                                 void *ctx, struct vf_expert_parts *parts)
{
    enum vf_quant quant[3] = {VF_QUANT_F32, VF_QUANT_F32, VF_QUANT_F32};
    for (int part = 0; part < 3 && config->expert_count; part++)
        quant[part] = quant_of(ctx, (struct vf_tensor_id){.kind = VF_T_EXPERT_GATE + part});
    vf_expert_parts_init_mixed(config, quant, parts);
}

/* The quantisation that all matrices but the routers share, or VF_QUANT_MIXED. */
static uint8_t common_quant(const struct vf_layout *l)
{
    int common = -1;
    for (size_t i = 0; i < l->tensor_count; i++) {
        const struct vf_disk_tensor *t = &l->tensors[i];
        if (t->flags & VF_TENSOR_FLAG_VECTOR || t->kind == VF_T_ROUTER)
            continue;
        if (common >= 0 && common != t->quant)
            return VF_QUANT_MIXED;
        common = t->quant;
    }
    for (int part = 0; part < 3 && l->expert_count; part++)
        if (common != (int)l->expert.layout.quant[part])
            return VF_QUANT_MIXED;
    return (uint8_t)common; /* every model has an embedding */
}

static enum vf_quant quant_of_all(void *ctx, struct vf_tensor_id id)
{
    (void)id;
    return *(const enum vf_quant *)ctx;
}

enum vf_code vf_layout_init(const struct vf_config *config, enum vf_file_format format,
                            enum vf_quant quant, uint64_t config_bytes, uint64_t tokenizer_bytes,
                            struct vf_layout *out, struct vf_err *err)
{
    return vf_layout_init_mixed(config, format, quant_of_all, &quant, config_bytes, tokenizer_bytes,
                                out, err);
}

enum vf_code vf_layout_init_mixed(const struct vf_config *config, enum vf_file_format format,
                                  vf_quant_of_fn *quant_of, void *ctx, uint64_t config_bytes,
                                  uint64_t tokenizer_bytes, struct vf_layout *out,
                                  struct vf_err *err)
{
    struct vf_layout *l = out;
    *l = (struct vf_layout){
        .format = format, .layer_count = config->layer_count, .expert_count = config->expert_count};
    struct cursor c = {.at = VF_FILE_HEADER_BYTES};
    enum vf_code code = list_tensors(config, l, quant_of, ctx, err);
    if (!code)
        code = list_groups(config, l, err);
    if (code)
        goto fail;
    choose_expert_quants(config, quant_of, ctx, &l->expert);
    l->quant = common_quant(l);
    uint64_t experts = (uint64_t)l->layer_count * l->expert_count;
    l->expert_tile_begin = l->tile_count;
    l->tile_count += checked_product(experts, l->expert.tile_count, &c);
    uint64_t bytes[VF_SECTION_COUNT + 1] = {
        [VF_SECTION_CONFIG] = config_bytes,
        [VF_SECTION_TOKENIZER] = tokenizer_bytes,
        [VF_SECTION_TENSORS] = l->tensor_count * sizeof(struct vf_disk_tensor),
        [VF_SECTION_GROUPS] = l->group_count * sizeof(struct vf_disk_group),
        [VF_SECTION_EXPERTS] = experts * sizeof(struct vf_disk_expert),
        [VF_SECTION_TILES] = checked_product(l->tile_count, sizeof(struct vf_disk_tile), &c),
    };
    for (unsigned kind = 1; kind <= VF_SECTION_COUNT; kind++)
        place_section(l, kind, bytes[kind], &c);
    l->file_bytes = c.at;
    if (c.overflow) {
        code = vf_err_set(err, VF_ERR_LIMIT, "the model's weights exceed 2^62 bytes");
        goto fail;
    }
    return VF_OK;
fail:
    vf_layout_deinit(l);
    return code;
}

struct vf_disk_tensor *vf_layout_find(const struct vf_layout *layout, struct vf_tensor_id id)
{
    struct vf_disk_tensor key = {.kind = (uint16_t)id.kind, .layer = id.layer, .flow = id.flow};
    return bsearch(&key, layout->tensors, layout->tensor_count, sizeof key, compare_table_order);
}

void vf_layout_deinit(struct vf_layout *layout)
{
    if (!layout)
        return;
    free(layout->tensors);
    free(layout->groups);
    free(layout->layer_experts);
    *layout = (struct vf_layout){0};
}
