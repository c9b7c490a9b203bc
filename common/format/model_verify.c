/* Reads weights: the tile directory, checksums of tensors and experts, zeros between them. */
#include "common/base/util.h"
#include "common/format/model_file_internal.h"
#include "common/format/values_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define BLOCK_RECORDS 512u /* of q4 144 KiB: they stay in a core's cache between two looks */

/* ---- tiles ---- */

/* The numbers come from the closed form; only the checksum is the directory's. */
static struct vf_tile_view tile_view(const struct vf_model_file *f, uint64_t entry,
                                     uint64_t matrix_offset, struct vf_tile_place place)
{
    return (struct vf_tile_view){
        .row = place.row,
        .col = place.col,
        .rows = place.rows,
        .cols = place.cols,
        .offset = matrix_offset + place.offset,
        .bytes = place.bytes,
        .xxh3_low = f->tiles[entry].xxh3_low,
    };
}

uint64_t vf_model_file_tile_count(const struct vf_model_file *f, size_t i)
{
    VF_ASSERT(i < f->tensor_count);
    return f->tensors[i].tile_count;
}

struct vf_tile_view vf_model_file_tile(const struct vf_model_file *f, size_t i, uint64_t tile)
{
    VF_ASSERT(i < f->tensor_count && tile < f->tensors[i].tile_count);
    const struct vf_disk_tensor *t = &f->tensors[i];
    return tile_view(f, t->tile_begin + tile, t->offset,
                     vf_tile_locate(t->quant, t->rows, t->cols, tile));
}

uint64_t vf_model_file_expert_tile_count(const struct vf_model_file *f, int part)
{
    return f->expert.tiles[part];
}

static uint64_t expert_tile_entry(const struct vf_model_file *f, uint32_t layer, uint32_t expert,
                                  int part, uint64_t tile)
{
    uint64_t record = (uint64_t)layer * f->config.expert_count + expert;
    uint64_t entry = f->expert_tile_begin + record * f->expert.tile_count + tile;
    for (int before = 0; before < part; before++)
        entry += f->expert.tiles[before];
    return entry;
}

static struct vf_tile_place expert_tile_place(const struct vf_model_file *f, int part,
                                              uint64_t tile)
{
    return vf_tile_locate(f->expert.layout.quant[part], f->expert.rows[part], f->expert.cols[part],
                          tile);
}

struct vf_tile_view vf_model_file_expert_tile(const struct vf_model_file *f, uint32_t layer,
                                              uint32_t expert, int part, uint64_t tile)
{
    VF_ASSERT(part >= 0 && part < 3 && tile < f->expert.tiles[part]);
    uint64_t base = vf_model_file_expert(f, layer, expert).offset;
    return tile_view(f, expert_tile_entry(f, layer, expert, part, tile),
                     base + vf_expert_part_offset(&f->expert, part),
                     expert_tile_place(f, part, tile));
}

static enum vf_code check_tile(const struct vf_model_file *f, uint64_t entry,
                               struct vf_tile_place p, struct vf_err *err)
{
    const struct vf_disk_tile *t = &f->tiles[entry];
    if (t->row == p.row && t->col == p.col && t->rows == p.rows && t->cols == p.cols)
        return VF_OK;
    return bad(f,
               "tile directory entry %" PRIu64 " is row %u, column %u, %u x %u, must be row %u,"
               " column %u, %u x %u",
               entry, t->row, t->col, t->rows, t->cols, p.row, p.col, p.rows, p.cols);
}

static enum vf_code check_expert_tiles(const struct vf_model_file *f, uint32_t layer,
                                       uint32_t expert, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int part = 0; part < 3; part++)
        for (uint64_t i = 0; i < f->expert.tiles[part] && !code; i++)
            code = check_tile(f, expert_tile_entry(f, layer, expert, part, i),
                              expert_tile_place(f, part, i), err);
    return code;
}

enum vf_code vf_model_file_verify_tiles(const struct vf_model_file *f, struct vf_err *err)
{
    struct vf_file_range s = f->sections[VF_SECTION_TILES];
    uint64_t stored = f->header.sections[VF_SECTION_TILES - 1].xxh3;
    if (XXH3_64bits(f->map + s.offset, s.bytes) != stored)
        return bad(f,
                   "section tile directory: its bytes don't give the stored checksum %016" PRIx64,
                   stored);
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < f->tensor_count; i++) {
        const struct vf_disk_tensor *t = &f->tensors[i];
        for (uint64_t tile = 0; tile < t->tile_count && !code; tile++)
            code = check_tile(f, t->tile_begin + tile,
                              vf_tile_locate(t->quant, t->rows, t->cols, tile), err);
    }
    for (uint32_t layer = 0; layer < f->config.layer_count && !code; layer++)
        for (uint32_t e = 0; e < f->config.expert_count && !code; e++)
            code = check_expert_tiles(f, layer, e, err);
    return code;
}

/* ---- checksums of the weights ---- */

/* Says which tile of a matrix is broken, or nothing when the directory finds none. */
static void name_broken_tile(const struct vf_tile_view *t, const uint8_t *data, char *text,
                             size_t size)
{
    if (!*text && (uint32_t)XXH3_64bits(data, t->bytes) != t->xxh3_low)
        snprintf(text, size, ", first in the tile at row %u, column %u", t->row, t->col);
}

/* Right checksums don't make right numbers: whoever wrote the file may have written a NaN. */
static enum vf_code check_values(const struct vf_model_file *f, const char *label, bool vector,
                                 enum vf_quant quant, uint32_t rows, uint32_t cols,
                                 const uint8_t *data, struct vf_err *err)
{
    struct vf_bad_value v;
    if (vector ? vf_values_finite_vector((const float *)(const void *)data, cols, &v)
               : vf_values_finite(&(struct vf_matrix){data, rows, cols, quant}, &v))
        return VF_OK;
    return bad(f, "tensor %s: the %s at row %u, column %u is %s, must be finite", label,
               v.is_scale ? "scale" : "number", v.row, v.col, v.is_nan ? "NaN" : "an infinity");
}

enum vf_code vf_model_file_check_expert_values(const struct vf_model_file *f, uint32_t layer,
                                               uint32_t expert, const uint8_t *data,
                                               struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (int part = 0; part < 3 && !code; part++) {
        char label[VF_TENSOR_LABEL_BYTES];
        struct vf_tensor_id id = {
            .kind = VF_T_EXPERT_GATE + part, .layer = layer, .expert = expert};
        code =
            check_values(f, vf_tensor_label(id, label, sizeof label), false,
                         f->expert.layout.quant[part], f->expert.rows[part], f->expert.cols[part],
                         data + vf_expert_part_offset(&f->expert, part), err);
    }
    return code;
}

/* A tensor's checksum, and whether its numbers are finite, in one pass over memory. */
static enum vf_code sum_tensor(const struct vf_model_file *f, const struct vf_disk_tensor *t,
                               uint64_t *sum, bool *finite, struct vf_err *err)
{
    const uint8_t *data = f->weights + t->offset;
    uint64_t record = vf_model_entry_is_vector(t) ? t->bytes : vf_record_bytes(t->quant);
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return vf_model_bad(f, VF_ERR_NO_MEMORY, err, "no memory for a checksum");
    XXH3_64bits_reset(state);
    *finite = true;
    for (uint64_t at = 0; at < t->bytes;) {
        uint64_t n = vf_min_u64(t->bytes - at, record * BLOCK_RECORDS);
        XXH3_64bits_update(state, data + at, n);
        if (*finite && !vf_model_entry_is_vector(t))
            *finite = vf_records_finite(t->quant, data + at, n / record);
        at += n;
    }
    *sum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return VF_OK;
}

enum vf_code vf_model_file_verify_tensor(const struct vf_model_file *f, struct vf_tensor_id id,
                                         struct vf_err *err)
{
    char label[VF_TENSOR_LABEL_BYTES], where[80] = "";
    vf_tensor_label(id, label, sizeof label);
    uint32_t i = vf_model_find_entry(f, id);
    if (i == VF_ENTRY_NONE)
        return vf_model_bad(f, VF_ERR_INTERNAL, err, "asked to verify %s, which the model lacks",
                            label);
    const struct vf_disk_tensor *t = &f->tensors[i];
    const uint8_t *data = f->weights + t->offset;
    uint64_t sum = 0;
    bool finite = false;
    enum vf_code code = sum_tensor(f, t, &sum, &finite, err);
    if (code)
        return code;
    if (sum == t->xxh3)
        return finite && !vf_model_entry_is_vector(t)
                   ? VF_OK
                   : check_values(f, label, vf_model_entry_is_vector(t), t->quant, t->rows, t->cols,
                                  data, err);
    for (uint64_t tile = 0; tile < t->tile_count && !*where; tile++) {
        struct vf_tile_view v = vf_model_file_tile(f, i, tile);
        name_broken_tile(&v, f->weights + v.offset, where, sizeof where);
    }
    return bad(f,
               "tensor %s at %" PRIu64 ": its bytes give checksum %016" PRIx64
               ", stored is %016" PRIx64 "%s",
               label, (uint64_t)t->offset, sum, (uint64_t)t->xxh3, where);
}

enum vf_code vf_model_file_verify_expert(const struct vf_model_file *f, uint32_t layer,
                                         uint32_t expert, const uint8_t *data, struct vf_err *err)
{
    static const char *const part_words[3] = {"gate", "up", "down"};
    struct vf_expert_extent e = vf_model_file_expert(f, layer, expert);
    uint64_t sum = XXH3_64bits(data, e.bytes);
    if (sum == e.xxh3)
        return vf_model_file_check_expert_values(f, layer, expert, data, err);
    char where[80] = "";
    const char *part_word = "";
    for (int part = 0; part < 3 && !*where; part++) {
        part_word = part_words[part];
        for (uint64_t i = 0; i < f->expert.tiles[part] && !*where; i++) {
            struct vf_tile_view v = vf_model_file_expert_tile(f, layer, expert, part, i);
            name_broken_tile(&v, data + (v.offset - e.offset), where, sizeof where);
        }
    }
    return bad(f,
               "layer %u expert %u at %" PRIu64 ": its bytes give checksum %016" PRIx64
               ", stored is %016" PRIx64 "%s%s%s",
               layer, expert, e.offset, sum, e.xxh3, where, *where ? " of its " : "",
               *where ? part_word : "");
}

/* ---- padding ---- */

enum vf_code vf_model_file_verify_padding(const struct vf_model_file *f, struct vf_err *err)
{
    struct vf_extent *x = NULL;
    size_t count = 0;
    enum vf_code code = vf_model_list_extents(f, &x, &count, err);
    if (code)
        return code;
    /* Only the weight sections have bytes that no table accounts for. */
    uint64_t at = f->sections[VF_SECTION_VECTORS].offset;
    uint64_t end = f->sections[VF_SECTION_TILES].offset;
    for (size_t i = 0; i <= count && !code; i++) {
        uint64_t begin = i < count ? x[i].begin : end;
        if (begin > at && !vf_all_zero(f->map + at, begin - at))
            code =
                bad(f, "a padding byte between %" PRIu64 " and %" PRIu64 " isn't zero", at, begin);
        at = i < count ? x[i].end : end;
    }
    free(x);
    return code;
}
