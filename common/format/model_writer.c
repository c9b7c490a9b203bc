/* Writes a model file to the plan of a struct vf_layout.
 *
 * Blocks are packed tile by tile, hashed and written at their final offsets; the gaps stay the
 * zeros of a sparse file. The tile directory goes out with each block, so memory holds one block,
 * the tables and the expert index, whatever the model's size. Checksums of what arrived in pieces
 * (an expert's record, the vectors, the tile directory) are taken by reading the file back.
 */
#include "common/format/model_writer.h"

#include "common/base/log.h"
#include "common/base/out_file.h"
#include "common/base/util.h"
#include "common/format/layout.h"
#include "common/format/pack.h"
#include "common/format/small_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define PARTS_ALL       7u /* gate, up, down of an expert */
#define READ_BACK_BYTES (1u << 20)
#define F16_EXPONENT    0x7c00u

/* Where a tensor's bytes go. */
struct target {
    uint32_t rows, cols;
    bool vector;
    enum vf_quant quant;
    uint64_t offset, bytes;
    uint64_t tile_begin;
    size_t entry;    /* in the tensor table, unless part >= 0 */
    int part;        /* of an expert, else -1 */
    uint64_t expert; /* index into experts */
};

struct vf_model_writer {
    char *path;
    struct vf_out_file *file; /* NULL once it is whole */
    int fd;                   /* of file */
    struct vf_layout layout;
    char *config_text;
    size_t config_bytes;
    const char *tokenizer;
    size_t tokenizer_bytes;
    bool *done;                     /* [tensor_count] */
    struct vf_disk_expert *experts; /* [layer_count * expert_count] */
    uint8_t *expert_done;           /* a bit per part */
    bool reserved;                  /* disk space is */
    /* the tensor that is being written */
    bool open;
    struct vf_tensor_id open_id;
    struct target target;
    uint32_t next_row, next_col;
    uint64_t next_offset, next_tile;
    XXH3_state_t *hash;
    struct vf_small_weights small;
    unsigned threads; /* that pack, this one included */
    float *scratch;   /* one tile's f32 for each of them */
    uint8_t *packed;  /* one piece's tiles */
    uint8_t *buffer;  /* for reading back */
};

/* ---- create ---- */

static enum vf_code open_file(struct vf_model_writer *w, struct vf_err *err)
{
    enum vf_code code = vf_out_file_create(w->path, &w->file, err);
    if (code)
        return code;
    w->fd = vf_out_file_fd(w->file);
    if (ftruncate(w->fd, (off_t)w->layout.file_bytes) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: making a file of %" PRIu64 " bytes",
                            w->path, w->layout.file_bytes);
    return VF_OK;
}

static enum vf_code dump_config(struct vf_model_writer *w, const struct vf_model_writer_params *p,
                                struct vf_err *err)
{
    json_t *obj = vf_config_to_json(p->config);
    if (obj && (!p->chat || json_object_set(obj, "chat", p->chat) == 0))
        w->config_text = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(obj);
    if (!w->config_text)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the config's JSON");
    w->config_bytes = strlen(w->config_text);
    if (w->config_bytes > VF_CONFIG_BYTES_MAX)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "config and chat templates have %zu bytes together, at most %u fit",
                          w->config_bytes, VF_CONFIG_BYTES_MAX);
    return VF_OK;
}

static enum vf_code allocate(struct vf_model_writer *w, struct vf_err *err)
{
    const struct vf_layout *l = &w->layout;
    size_t experts = (size_t)l->layer_count * l->expert_count;
    w->done = calloc(l->tensor_count + 1, sizeof *w->done);
    w->experts = calloc(experts + 1, sizeof *w->experts);
    w->expert_done = calloc(experts + 1, 1);
    w->hash = XXH3_createState();
    w->threads = vf_pack_threads();
    w->scratch = malloc((size_t)w->threads * VF_TILE_ROWS * VF_TILE_COLS * sizeof *w->scratch);
    w->packed = malloc(vf_matrix_bytes(VF_QUANT_F32, VF_TILE_ROWS, VF_PACK_COLS_MAX));
    w->buffer = malloc(READ_BACK_BYTES);
    if (!w->done || !w->experts || !w->expert_done || !w->hash || !w->scratch || !w->packed ||
        !w->buffer)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for tables of %zu experts", w->path,
                          experts);
    for (size_t i = 0; i < experts; i++)
        w->experts[i] =
            (struct vf_disk_expert){.offset = l->layer_experts[i / l->expert_count] +
                                              i % l->expert_count * l->expert.layout.bytes,
                                    .bytes = l->expert.layout.bytes};
    return VF_OK;
}

static enum vf_code place_all(struct vf_model_writer *w, const struct vf_model_writer_params *p,
                              struct vf_err *err)
{
    if (p->quant_of)
        return vf_layout_init_mixed(p->config, p->format, p->quant_of, p->quant_ctx,
                                    w->config_bytes, w->tokenizer_bytes, &w->layout, err);
    return vf_layout_init(p->config, p->format, p->quant, w->config_bytes, w->tokenizer_bytes,
                          &w->layout, err);
}

static enum vf_code check_params(const struct vf_model_writer_params *p, struct vf_err *err)
{
    if (p->tokenizer_bytes > VF_TOKENIZER_BYTES_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "tokenizer.json has %zu bytes, at most %u fit",
                          p->tokenizer_bytes, VF_TOKENIZER_BYTES_MAX);
    if (!vf_utf8_valid(p->tokenizer, p->tokenizer_bytes))
        return vf_err_set(err, VF_ERR_CORRUPT, "tokenizer.json isn't valid UTF-8");
    return VF_OK;
}

enum vf_code vf_model_writer_create(const struct vf_model_writer_params *params,
                                    struct vf_model_writer **out, struct vf_err *err)
{
    enum vf_code code = check_params(params, err);
    if (code)
        return code;
    struct vf_model_writer *w = calloc(1, sizeof *w);
    if (!w)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", params->path);
    w->tokenizer = params->tokenizer;
    w->tokenizer_bytes = params->tokenizer_bytes;
    w->path = strdup(params->path);
    if (!w->path)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", params->path);
    if (!code)
        code = dump_config(w, params, err);
    if (!code)
        code = place_all(w, params, err);
    if (!code)
        code = allocate(w, err);
    if (!code)
        code = open_file(w, err);
    if (code) {
        vf_model_writer_destroy(w);
        return code;
    }
    *out = w;
    return VF_OK;
}

void vf_model_writer_destroy(struct vf_model_writer *w)
{
    if (!w)
        return;
    vf_out_file_abandon(w->file);
    vf_layout_deinit(&w->layout);
    XXH3_freeState(w->hash);
    free(w->config_text);
    free(w->done);
    free(w->experts);
    free(w->expert_done);
    free(w->scratch);
    free(w->packed);
    free(w->buffer);
    free(w->path);
    free(w);
}

uint64_t vf_model_writer_total_bytes(const struct vf_model_writer *w)
{
    return w->layout.file_bytes;
}

/* ---- put ---- */

/* Blocks for the whole file in one go also keep it contiguous. */
static enum vf_code reserve_space(struct vf_model_writer *w, struct vf_err *err)
{
    w->reserved = true;
    return vf_out_file_reserve(w->file, w->layout.file_bytes, err);
}

static bool same_id(struct vf_tensor_id a, struct vf_tensor_id b)
{
    return a.kind == b.kind && a.layer == b.layer && a.flow == b.flow && a.expert == b.expert;
}

static enum vf_code find_target(const struct vf_model_writer *w, struct vf_tensor_id id,
                                struct target *out, struct vf_err *err)
{
    const struct vf_layout *l = &w->layout;
    char label[VF_TENSOR_LABEL_BYTES];
    vf_tensor_label(id, label, sizeof label);
    if (vf_tensor_is_expert(id.kind)) {
        int part = (int)id.kind - (int)VF_T_EXPERT_GATE;
        if (id.layer >= l->layer_count || id.expert >= l->expert_count)
            return vf_err_set(err, VF_ERR_INTERNAL, "the model has no tensor %s", label);
        uint64_t expert = (uint64_t)id.layer * l->expert_count + id.expert;
        *out = (struct target){
            .rows = l->expert.rows[part],
            .cols = l->expert.cols[part],
            .quant = l->expert.layout.quant[part],
            .offset = w->experts[expert].offset + vf_expert_part_offset(&l->expert, part),
            .bytes = vf_matrix_bytes(l->expert.layout.quant[part], l->expert.rows[part],
                                     l->expert.cols[part]),
            .tile_begin = l->expert_tile_begin + expert * l->expert.tile_count,
            .part = part,
            .expert = expert,
        };
        for (int before = 0; before < part; before++)
            out->tile_begin += l->expert.tiles[before];
        return VF_OK;
    }
    const struct vf_disk_tensor *t = vf_layout_find(l, id);
    if (!t)
        return vf_err_set(err, VF_ERR_INTERNAL, "the model has no tensor %s", label);
    *out = (struct target){
        .rows = t->rows,
        .cols = t->cols,
        .vector = t->flags & VF_TENSOR_FLAG_VECTOR,
        .quant = t->quant,
        .offset = t->offset,
        .bytes = t->bytes,
        .tile_begin = t->tile_begin,
        .entry = (size_t)(t - l->tensors),
        .part = -1,
    };
    return VF_OK;
}

static enum vf_code begin_tensor(struct vf_model_writer *w, struct vf_tensor_id id,
                                 struct vf_err *err)
{
    char label[VF_TENSOR_LABEL_BYTES], open[VF_TENSOR_LABEL_BYTES];
    if (w->open)
        return vf_err_set(err, VF_ERR_INTERNAL, "tensor %s begins before %s is complete",
                          vf_tensor_label(id, label, sizeof label),
                          vf_tensor_label(w->open_id, open, sizeof open));
    enum vf_code code = w->reserved ? VF_OK : reserve_space(w, err);
    if (!code)
        code = find_target(w, id, &w->target, err);
    if (code)
        return code;
    const struct target *t = &w->target;
    if (t->part < 0 ? w->done[t->entry] : w->expert_done[t->expert] >> t->part & 1)
        return vf_err_set(err, VF_ERR_INTERNAL, "tensor %s is written twice",
                          vf_tensor_label(id, label, sizeof label));
    w->open = true;
    w->open_id = id;
    w->next_row = w->next_col = 0;
    w->next_offset = t->offset;
    w->next_tile = t->tile_begin;
    XXH3_64bits_reset(w->hash);
    vf_small_weights_begin(&w->small, t->vector ? VF_QUANT_F32 : t->quant);
    return VF_OK;
}

/* The checksum of file bytes [offset, offset + bytes). */
static enum vf_code hash_file(struct vf_model_writer *w, uint64_t offset, uint64_t bytes,
                              uint64_t *sum, struct vf_err *err)
{
    XXH3_64bits_reset(w->hash);
    while (bytes) {
        size_t n = (size_t)vf_min_u64(bytes, READ_BACK_BYTES);
        enum vf_code code = vf_pread_full(w->fd, w->buffer, n, offset, w->path, err);
        if (code)
            return code;
        XXH3_64bits_update(w->hash, w->buffer, n);
        offset += n;
        bytes -= n;
    }
    *sum = XXH3_64bits_digest(w->hash);
    return VF_OK;
}

static enum vf_code judge_small_weights(const struct vf_model_writer *w, struct vf_err *err)
{
    const struct vf_small_weights *s = &w->small;
    const char *quant = vf_quant_name(w->target.quant);
    char label[VF_TENSOR_LABEL_BYTES];
    vf_tensor_label(w->open_id, label, sizeof label);
    switch (vf_small_weights_verdict(s)) {
    case VF_SMALL_NONE:
        return VF_OK;
    case VF_SMALL_ROWS:
        vf_warn("tensor %s: %" PRIu64
                " of %u rows are too small for %s and lose more than a sixteenth, the "
                "largest weight of them, %.3g, in row %u (the tensor's is %.3g); --quant f32 keeps "
                "them",
                label, s->rows_lost, w->target.rows, quant, (double)s->row_largest, s->row,
                (double)s->largest);
        return VF_OK;
    default:
        return vf_err_set(
            err, VF_ERR_CORRUPT,
            "tensor %s: its weights are too small for %s: the largest, %.3g, is in row "
            "%u, and of all together %.0f%% would be lost, at most 6%% are allowed "
            "(root mean square); --quant f32 keeps them",
            label, quant, (double)s->row_largest, s->row, 100 * sqrt(s->lost / s->energy));
    }
}

static enum vf_code end_tensor(struct vf_model_writer *w, struct vf_err *err)
{
    const struct target *t = &w->target;
    enum vf_code judged = judge_small_weights(w, err);
    if (judged)
        return judged;
    VF_ASSERT(w->next_offset == t->offset + t->bytes);
    w->open = false;
    if (t->part < 0) {
        w->done[t->entry] = true;
        w->layout.tensors[t->entry].xxh3 = XXH3_64bits_digest(w->hash);
        return VF_OK;
    }
    w->expert_done[t->expert] |= (uint8_t)(1u << t->part);
    if (w->expert_done[t->expert] != PARTS_ALL)
        return VF_OK;
    uint64_t sum = 0;
    struct vf_disk_expert *e = &w->experts[t->expert];
    enum vf_code code = hash_file(w, e->offset, e->bytes, &sum, err);
    e->xxh3 = sum;
    return code;
}

/* The largest magnitude whose scale (or value) still is a finite f16: below 65520 it rounds to
 * 65504 at most. */
static float magnitude_limit(enum vf_quant quant)
{
    switch (quant) {
    case VF_QUANT_Q4:
        return 7 * 65520.0f;
    case VF_QUANT_Q8:
        return 127 * 65520.0f;
    case VF_QUANT_F16:
        return 65520.0f;
    default:
        return INFINITY;
    }
}

static enum vf_code refuse_weight(const struct vf_model_writer *w, float value, uint64_t row,
                                  uint64_t col, struct vf_err *err)
{
    char label[VF_TENSOR_LABEL_BYTES];
    vf_tensor_label(w->open_id, label, sizeof label);
    if (isfinite(value))
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "tensor %s: the weight at row %" PRIu64 ", column %" PRIu64
                          " is %.8g, %s holds magnitudes below %.8g",
                          label, row, col, (double)value, vf_quant_name(w->target.quant),
                          (double)magnitude_limit(w->target.quant));
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "tensor %s: the weight at row %" PRIu64 ", column %" PRIu64
                      " is %s, must be finite",
                      label, row, col, isnan(value) ? "NaN" : "an infinity");
}

/* Every weight of a block of `cols` columns that begins at (w->next_row, w->next_col). */
static enum vf_code check_weights(const struct vf_model_writer *w, const float *block, size_t count,
                                  uint32_t cols, struct vf_err *err)
{
    float limit = magnitude_limit(w->target.quant);
    for (size_t begin = 0; begin < count; begin += cols) {
        const float *row = block + begin;
        int fits = 1;
        for (uint32_t c = 0; c < cols; c++)
            fits &= fabsf(row[c]) < limit; /* false for a NaN, and for infinities */
        for (uint32_t c = 0; !fits && c < cols; c++)
            if (!(fabsf(row[c]) < limit))
                return refuse_weight(w, row[c], w->next_row + begin / cols,
                                     (uint64_t)w->next_col + c, err);
    }
    return VF_OK;
}

static enum vf_code append(struct vf_model_writer *w, const void *data, uint64_t bytes,
                           struct vf_err *err)
{
    XXH3_64bits_update(w->hash, data, bytes);
    enum vf_code code = vf_pwrite_full(w->fd, data, bytes, w->next_offset, w->path, err);
    w->next_offset += bytes;
    return code;
}

static enum vf_code write_tile_entries(struct vf_model_writer *w, const struct vf_disk_tile *tiles,
                                       size_t count, struct vf_err *err)
{
    uint64_t offset = w->layout.sections[VF_SECTION_TILES].offset + w->next_tile * sizeof *tiles;
    w->next_tile += count;
    return vf_pwrite_full(w->fd, tiles, count * sizeof *tiles, offset, w->path, err);
}

/* What a caller supplies: rows x cols weights, as numbers or as groups. */
struct block {
    uint32_t row_begin, row_count, col_begin, col_count;
    const float *values;
    const uint8_t *groups;
};

/* The scales of a block that is quantised already. */
static enum vf_code check_scales(const struct vf_model_writer *w, const struct block *b,
                                 struct vf_err *err)
{
    uint32_t bytes = vf_group_bytes(w->target.quant), across = vf_col_groups(b->col_count);
    for (uint32_t r = 0; r < b->row_count; r++) {
        for (uint32_t g = 0; g < across; g++) {
            uint16_t scale;
            memcpy(&scale, b->groups + ((size_t)r * across + g) * bytes, sizeof scale);
            if ((scale & F16_EXPONENT) != F16_EXPONENT)
                continue;
            char label[VF_TENSOR_LABEL_BYTES];
            return vf_err_set(err, VF_ERR_CORRUPT,
                              "tensor %s: the scale of row %u, columns %u to %u is %s, must be "
                              "finite",
                              vf_tensor_label(w->open_id, label, sizeof label), w->next_row + r,
                              w->next_col + g * VF_RECORD_COLS,
                              w->next_col + (g + 1) * VF_RECORD_COLS - 1,
                              scale & 0x3ffu ? "NaN" : "an infinity");
        }
    }
    return VF_OK;
}

/* Packs and writes cols columns from column begin of the block on, at (next_row, next_col). */
static enum vf_code put_piece(struct vf_model_writer *w, const struct block *b, uint32_t begin,
                              uint32_t cols, struct vf_err *err)
{
    struct vf_disk_tile tiles[VF_PACK_TILES_MAX];
    struct vf_pack_piece piece = {
        .quant = w->target.quant,
        .rows = b->row_count,
        .cols = cols,
        .row = w->next_row,
        .col = w->next_col,
    };
    if (b->groups) {
        size_t bytes = vf_group_bytes(piece.quant);
        piece.groups = b->groups + vf_col_groups(begin) * bytes;
        piece.stride = vf_col_groups(b->col_count) * bytes;
    } else {
        piece.src = b->values + begin;
        piece.stride = b->col_count;
    }
    vf_pack_tiles(&piece, w->threads, w->scratch, w->packed, tiles);
    enum vf_code code = append(w, w->packed, vf_matrix_bytes(piece.quant, piece.rows, cols), err);
    if (!code)
        code = write_tile_entries(w, tiles, vf_tile_count(piece.rows, cols), err);
    return code;
}

static enum vf_code put_stripe(struct vf_model_writer *w, const struct block *b, struct vf_err *err)
{
    enum vf_code code = b->groups ? check_scales(w, b, err)
                                  : check_weights(w, b->values, (size_t)b->row_count * b->col_count,
                                                  b->col_count, err);
    if (!code && !b->groups)
        vf_small_weights_add(&w->small, b->values, b->row_count, b->col_count, b->col_count);
    for (uint32_t begin = 0; begin < b->col_count && !code; begin += VF_PACK_COLS_MAX) {
        uint32_t n = (uint32_t)vf_min_u64(VF_PACK_COLS_MAX, b->col_count - begin);
        code = put_piece(w, b, begin, n, err);
        w->next_col += n;
    }
    return code;
}

static enum vf_code put_vector(struct vf_model_writer *w, const float *values, struct vf_err *err)
{
    enum vf_code code = check_weights(w, values, w->target.cols, w->target.cols, err);
    return code ? code : append(w, values, w->target.bytes, err);
}

static enum vf_code check_block(const struct vf_model_writer *w, const struct block *b,
                                struct vf_err *err)
{
    const struct target *t = &w->target;
    uint32_t rows = t->vector ? 1 : (uint32_t)vf_min_u64(VF_TILE_ROWS, t->rows - w->next_row);
    bool cols_ok = b->col_count && b->col_count <= t->cols - w->next_col &&
                   (b->col_count % VF_TILE_COLS == 0 || b->col_count == t->cols - w->next_col);
    char label[VF_TENSOR_LABEL_BYTES];
    vf_tensor_label(w->open_id, label, sizeof label);
    if (b->row_begin != w->next_row || b->col_begin != w->next_col || b->row_count != rows ||
        !cols_ok || (t->vector && b->col_count != t->cols))
        return vf_err_set(err, VF_ERR_INTERNAL,
                          "tensor %s [%u, %u]: a block of %u x %u at row %u, column %u arrived, "
                          "expected %u rows at row %u, column %u",
                          label, t->rows, t->cols, b->row_count, b->col_count, b->row_begin,
                          b->col_begin, rows, w->next_row, w->next_col);
    bool groups = !t->vector && (t->quant == VF_QUANT_Q4 || t->quant == VF_QUANT_Q8) &&
                  t->cols % VF_RECORD_COLS == 0;
    if (b->groups && !groups)
        return vf_err_set(err, VF_ERR_INTERNAL,
                          "tensor %s [%u, %u]: groups arrived, it is stored as %s", label, t->rows,
                          t->cols, t->vector ? "a vector" : vf_quant_name(t->quant));
    return VF_OK;
}

static enum vf_code put_any(struct vf_model_writer *w, struct vf_tensor_id id,
                            const struct block *b, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    if (!w->open || !same_id(w->open_id, id))
        code = begin_tensor(w, id, err);
    if (!code)
        code = check_block(w, b, err);
    if (code)
        return code;
    if (w->target.vector) {
        code = put_vector(w, b->values, err);
        return code ? code : end_tensor(w, err);
    }
    code = put_stripe(w, b, err);
    if (code || w->next_col < w->target.cols)
        return code;
    vf_small_weights_end_stripe(&w->small, w->next_row, b->row_count);
    w->next_col = 0;
    w->next_row += b->row_count;
    return w->next_row < w->target.rows ? VF_OK : end_tensor(w, err);
}

enum vf_code vf_model_writer_put_block(struct vf_model_writer *w, struct vf_tensor_id id,
                                       uint32_t row_begin, uint32_t row_count, uint32_t col_begin,
                                       uint32_t col_count, const float *block, struct vf_err *err)
{
    const struct block b = {row_begin, row_count, col_begin, col_count, block, NULL};
    return put_any(w, id, &b, err);
}

enum vf_code vf_model_writer_put_groups(struct vf_model_writer *w, struct vf_tensor_id id,
                                        uint32_t row_begin, uint32_t row_count, uint32_t col_begin,
                                        uint32_t col_count, const uint8_t *block,
                                        struct vf_err *err)
{
    const struct block b = {row_begin, row_count, col_begin, col_count, NULL, block};
    return put_any(w, id, &b, err);
}

enum vf_code vf_model_writer_put(struct vf_model_writer *w, struct vf_tensor_id id,
                                 uint32_t row_begin, uint32_t row_count, const float *rows,
                                 struct vf_err *err)
{
    struct target t;
    enum vf_code code = find_target(w, id, &t, err);
    for (uint32_t done = 0; done < row_count && !code; done += VF_TILE_ROWS)
        code = vf_model_writer_put_block(w, id, row_begin + done,
                                         (uint32_t)vf_min_u64(VF_TILE_ROWS, row_count - done), 0,
                                         t.cols, rows + (size_t)done * t.cols, err);
    return code;
}

/* ---- finish ---- */

static enum vf_code missing(struct vf_tensor_id id, struct vf_err *err)
{
    char label[VF_TENSOR_LABEL_BYTES];
    return vf_err_set(err, VF_ERR_INTERNAL, "tensor %s was never written",
                      vf_tensor_label(id, label, sizeof label));
}

static enum vf_code check_complete(const struct vf_model_writer *w, struct vf_err *err)
{
    const struct vf_layout *l = &w->layout;
    if (w->open)
        return missing(w->open_id, err);
    for (size_t i = 0; i < l->tensor_count; i++) {
        const struct vf_disk_tensor *t = &l->tensors[i];
        if (!w->done[i])
            return missing((struct vf_tensor_id){t->kind, t->layer, t->flow, 0}, err);
    }
    for (uint64_t i = 0; i < (uint64_t)l->layer_count * l->expert_count; i++)
        for (int part = 0; part < 3; part++)
            if ((PARTS_ALL & ~w->expert_done[i]) >> part & 1)
                return missing((struct vf_tensor_id){VF_T_EXPERT_GATE + part,
                                                     (uint32_t)(i / l->expert_count), 0,
                                                     (uint32_t)(i % l->expert_count)},
                               err);
    return VF_OK;
}

static enum vf_code write_section(struct vf_model_writer *w, struct vf_disk_header *h,
                                  enum vf_section_kind kind, const void *data, struct vf_err *err)
{
    uint64_t offset = w->layout.sections[kind].offset, bytes = w->layout.sections[kind].bytes;
    h->sections[kind - 1].xxh3 = XXH3_64bits(data, bytes);
    return vf_pwrite_full(w->fd, data, bytes, offset, w->path, err);
}

static enum vf_code write_tables(struct vf_model_writer *w, struct vf_disk_header *h,
                                 struct vf_err *err)
{
    const void *const data[VF_SECTION_COUNT + 1] = {
        [VF_SECTION_CONFIG] = w->config_text,     [VF_SECTION_TOKENIZER] = w->tokenizer,
        [VF_SECTION_TENSORS] = w->layout.tensors, [VF_SECTION_GROUPS] = w->layout.groups,
        [VF_SECTION_EXPERTS] = w->experts,
    };
    enum vf_code code = VF_OK;
    for (unsigned kind = VF_SECTION_CONFIG; kind <= VF_SECTION_EXPERTS && !code; kind++)
        code = write_section(w, h, kind, data[kind], err);
    for (unsigned kind = VF_SECTION_VECTORS; kind <= VF_SECTION_TILES && !code; kind++) {
        uint64_t sum = 0;
        if (kind != VF_SECTION_STREAM && kind != VF_SECTION_BANK)
            code = hash_file(w, w->layout.sections[kind].offset, w->layout.sections[kind].bytes,
                             &sum, err);
        h->sections[kind - 1].xxh3 = sum;
    }
    return code;
}

static enum vf_code write_header(struct vf_model_writer *w, struct vf_disk_header *h,
                                 struct vf_err *err)
{
    const struct vf_layout *l = &w->layout;
    memcpy(h->magic, vf_file_magic[l->format], sizeof h->magic);
    h->version = VF_FILE_VERSION;
    h->header_bytes = VF_FILE_HEADER_BYTES;
    h->file_bytes = l->file_bytes;
    h->tile_rows = VF_TILE_ROWS;
    h->tile_cols = VF_TILE_COLS;
    h->record_rows = VF_RECORD_ROWS;
    h->record_cols = VF_RECORD_COLS;
    h->quant = l->quant;
    for (int part = 0; part < 3 && l->quant == VF_QUANT_MIXED && l->expert_count; part++)
        h->expert_quant[part] = (uint8_t)l->expert.layout.quant[part];
    h->section_count = VF_SECTION_COUNT;
    h->tile_count = l->tile_count;
    h->expert_bytes = l->expert.layout.bytes;
    for (unsigned kind = 1; kind <= VF_SECTION_COUNT; kind++) {
        h->sections[kind - 1].kind = kind;
        h->sections[kind - 1].offset = l->sections[kind].offset;
        h->sections[kind - 1].bytes = l->sections[kind].bytes;
    }
    h->xxh3 = XXH3_64bits(h, offsetof(struct vf_disk_header, xxh3));
    return vf_pwrite_full(w->fd, h, sizeof *h, 0, w->path, err);
}

static enum vf_code publish(struct vf_model_writer *w, struct vf_err *err)
{
    struct vf_out_file *file = w->file;
    w->file = NULL;
    return vf_out_file_commit(file, err);
}

enum vf_code vf_model_writer_finish(struct vf_model_writer *w, struct vf_err *err)
{
    struct vf_disk_header header = {0};
    enum vf_code code = check_complete(w, err);
    if (!code && !w->reserved)
        code = reserve_space(w, err);
    if (!code)
        code = write_tables(w, &header, err);
    if (!code)
        code = write_header(w, &header, err);
    if (!code)
        code = publish(w, err);
    return code;
}
