/* The bytes of a .vflow or .cflow file, version 6: the structs as they lie on disk and the rules
 * that place every section, tensor, expert and tile. docs/FORMAT.md is the prose of this header;
 * the numbers there are the static assertions here.
 *
 * The writer follows a struct vf_layout exactly. The reader doesn't need one: it checks the
 * tables of the file on their own, so the order inside a stream may change between writers.
 */
#ifndef VF_COMMON_FORMAT_LAYOUT_H
#define VF_COMMON_FORMAT_LAYOUT_H

#include "common/format/model_file.h"

#include <stddef.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read as they lie on disk");

#define VF_FILE_VERSION        6u
#define VF_FILE_HEADER_BYTES   512u
#define VF_FILE_MAGIC_BYTES    8u
#define VF_FILE_ALIGN          64u   /* every section, matrix and vector */
#define VF_STREAM_ALIGN        4096u /* weight sections and every stage stream in them */
#define VF_CONFIG_BYTES_MAX    (16u << 20)
#define VF_TOKENIZER_BYTES_MAX (64u << 20)

extern const char vf_file_magic[2][VF_FILE_MAGIC_BYTES]; /* by enum vf_file_format */

enum vf_section_kind { /* stored; sections lie in the file in this order */
                       VF_SECTION_CONFIG = 1,
                       VF_SECTION_TOKENIZER = 2,
                       VF_SECTION_TENSORS = 3,
                       VF_SECTION_GROUPS = 4,
                       VF_SECTION_EXPERTS = 5,
                       VF_SECTION_VECTORS = 6,
                       VF_SECTION_STREAM = 7,
                       VF_SECTION_BANK = 8,
                       VF_SECTION_TILES = 9,
};
#define VF_SECTION_COUNT 9u

struct __attribute__((packed)) vf_disk_section {
    uint32_t kind;
    uint32_t reserved;
    uint64_t offset;
    uint64_t bytes;
    uint64_t xxh3; /* 0 for stream and bank, whose parts have their own */
};

struct __attribute__((packed)) vf_disk_header {
    char magic[VF_FILE_MAGIC_BYTES];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint16_t tile_rows, tile_cols;
    uint16_t record_rows, record_cols;
    uint8_t quant;           /* enum vf_quant of every matrix but the routers, or VF_QUANT_MIXED */
    uint8_t expert_quant[3]; /* gate, up, down of a mixed file with experts; else 0 */
    uint32_t section_count;
    uint64_t tile_count;
    uint64_t expert_bytes; /* one padded expert record; 0 without experts */
    uint64_t reserved1;
    struct vf_disk_section sections[VF_SECTION_COUNT];
    uint8_t reserved2[152];
    uint64_t xxh3; /* of the 504 bytes before it */
};

#define VF_QUANT_MIXED 4u /* each matrix as its entry in the tensor table says */
_Static_assert(VF_QUANT_MIXED == VF_QUANT_COUNT, "no quantisation has the number of mixed");

#define VF_TENSOR_FLAG_VECTOR 1u
struct __attribute__((packed)) vf_disk_tensor {
    uint16_t kind; /* enum vf_tensor_kind */
    uint8_t quant; /* enum vf_quant */
    uint8_t flags;
    uint32_t layer;
    uint32_t flow;
    uint32_t rows, cols;
    uint32_t reserved;
    uint64_t offset;
    uint64_t bytes;
    uint64_t xxh3;
    uint64_t tile_begin; /* index into the tile directory; 0 for vectors */
    uint64_t tile_count; /* 0 for vectors */
};

struct __attribute__((packed)) vf_disk_group {
    uint32_t layer_begin, layer_end;
    uint32_t sliding; /* 1: its layers slide a window, 0: full attention */
    uint32_t reserved;
    uint64_t attn_offset, attn_bytes;
    uint64_t dense_offset, dense_bytes;
};

struct __attribute__((packed)) vf_disk_expert {
    uint64_t offset;
    uint64_t bytes;
    uint64_t xxh3;
};

struct __attribute__((packed)) vf_disk_tile {
    uint32_t row, col;   /* of its first weight */
    uint16_t rows, cols; /* weights it covers, without padding */
    uint32_t xxh3_low;   /* low 32 bits of XXH3 of its bytes */
};

_Static_assert(sizeof(struct vf_disk_section) == 32, "section entry");
_Static_assert(offsetof(struct vf_disk_section, offset) == 8, "section offset");
_Static_assert(offsetof(struct vf_disk_section, bytes) == 16, "section bytes");
_Static_assert(offsetof(struct vf_disk_section, xxh3) == 24, "section xxh3");
_Static_assert(sizeof(struct vf_disk_header) == VF_FILE_HEADER_BYTES, "header");
_Static_assert(offsetof(struct vf_disk_header, version) == 8, "version");
_Static_assert(offsetof(struct vf_disk_header, header_bytes) == 12, "header_bytes");
_Static_assert(offsetof(struct vf_disk_header, file_bytes) == 16, "file_bytes");
_Static_assert(offsetof(struct vf_disk_header, tile_rows) == 24, "tile_rows");
_Static_assert(offsetof(struct vf_disk_header, tile_cols) == 26, "tile_cols");
_Static_assert(offsetof(struct vf_disk_header, record_rows) == 28, "record_rows");
_Static_assert(offsetof(struct vf_disk_header, record_cols) == 30, "record_cols");
_Static_assert(offsetof(struct vf_disk_header, quant) == 32, "quant");
_Static_assert(offsetof(struct vf_disk_header, expert_quant) == 33, "expert_quant");
_Static_assert(offsetof(struct vf_disk_header, section_count) == 36, "section_count");
_Static_assert(offsetof(struct vf_disk_header, tile_count) == 40, "tile_count");
_Static_assert(offsetof(struct vf_disk_header, expert_bytes) == 48, "expert_bytes");
_Static_assert(offsetof(struct vf_disk_header, sections) == 64, "sections");
_Static_assert(offsetof(struct vf_disk_header, reserved2) == 352, "reserved");
_Static_assert(offsetof(struct vf_disk_header, xxh3) == 504, "header checksum");
_Static_assert(sizeof(struct vf_disk_tensor) == 64, "tensor entry");
_Static_assert(offsetof(struct vf_disk_tensor, layer) == 4, "layer");
_Static_assert(offsetof(struct vf_disk_tensor, flow) == 8, "flow");
_Static_assert(offsetof(struct vf_disk_tensor, rows) == 12, "rows");
_Static_assert(offsetof(struct vf_disk_tensor, cols) == 16, "cols");
_Static_assert(offsetof(struct vf_disk_tensor, offset) == 24, "offset");
_Static_assert(offsetof(struct vf_disk_tensor, bytes) == 32, "bytes");
_Static_assert(offsetof(struct vf_disk_tensor, xxh3) == 40, "xxh3");
_Static_assert(offsetof(struct vf_disk_tensor, tile_begin) == 48, "tile_begin");
_Static_assert(offsetof(struct vf_disk_tensor, tile_count) == 56, "tile_count");
_Static_assert(sizeof(struct vf_disk_group) == 48, "group entry");
_Static_assert(offsetof(struct vf_disk_group, sliding) == 8, "sliding");
_Static_assert(offsetof(struct vf_disk_group, attn_offset) == 16, "attn_offset");
_Static_assert(offsetof(struct vf_disk_group, dense_offset) == 32, "dense_offset");
_Static_assert(sizeof(struct vf_disk_expert) == 24, "expert entry");
_Static_assert(sizeof(struct vf_disk_tile) == 16, "tile entry");
_Static_assert(offsetof(struct vf_disk_tile, rows) == 8, "tile rows");
_Static_assert(offsetof(struct vf_disk_tile, xxh3_low) == 12, "tile checksum");

static inline uint64_t vf_section_align(enum vf_section_kind kind)
{
    return kind == VF_SECTION_STREAM || kind == VF_SECTION_BANK ? VF_STREAM_ALIGN : VF_FILE_ALIGN;
}
/* "config", "tensor table", ... */
const char *vf_section_name(enum vf_section_kind kind);

/* Which stream a tensor belongs to. */
enum vf_stream {
    VF_STREAM_EMBEDDING,
    VF_STREAM_ATTENTION,
    VF_STREAM_DENSE,
    VF_STREAM_ROUTER, /* lies in the dense stream, counted apart */
    VF_STREAM_EXPERTS,
    VF_STREAM_HEAD,
    VF_STREAM_VECTORS,
    VF_STREAM_COUNT
};
enum vf_stream vf_tensor_stream(enum vf_tensor_kind kind, bool is_vector);

/* Tiles of a matrix. */
static inline uint64_t vf_tile_count(uint64_t rows, uint64_t cols)
{
    return (rows + VF_TILE_ROWS - 1) / VF_TILE_ROWS * ((cols + VF_TILE_COLS - 1) / VF_TILE_COLS);
}
/* Tile i of a matrix: what it covers, and where its bytes lie from the matrix's first byte. */
struct vf_tile_place {
    uint32_t row, col;
    uint32_t rows, cols;
    uint64_t offset, bytes;
};
struct vf_tile_place vf_tile_locate(enum vf_quant quant, uint32_t rows, uint32_t cols, uint64_t i);

/* Shapes and places of an expert's parts; parts 0, 1, 2 are gate, up, down. */
struct vf_expert_parts {
    struct vf_expert_layout layout;
    uint32_t rows[3], cols[3];
    uint64_t tiles[3];
    uint64_t tile_count; /* of one expert */
};
/* All zero for a model without experts. */
void vf_expert_parts_init(const struct vf_config *config, enum vf_quant quant,
                          struct vf_expert_parts *parts);
void vf_expert_parts_init_mixed(const struct vf_config *config, const enum vf_quant quant[3],
                                struct vf_expert_parts *parts);
uint64_t vf_expert_part_offset(const struct vf_expert_parts *parts, int part);

/* Where everything of one model goes. */
struct vf_layout {
    enum vf_file_format format;
    uint8_t quant; /* enum vf_quant, or VF_QUANT_MIXED */
    struct {
        uint64_t offset, bytes;
    } sections[VF_SECTION_COUNT + 1]; /* by kind; 0 is unused */
    uint64_t file_bytes;
    struct vf_disk_tensor *tensors; /* table order; xxh3 is 0 */
    size_t tensor_count;
    struct vf_disk_group *groups;
    size_t group_count;
    uint32_t layer_count, expert_count;
    struct vf_expert_parts expert;
    uint64_t *layer_experts;    /* [layer_count]: offset of the layer's expert 0 */
    uint64_t expert_tile_begin; /* directory index of layer 0, expert 0 */
    uint64_t tile_count;
};

/* VF_ERR_LIMIT when the model's bytes don't fit 63 bits. */
enum vf_code vf_layout_init(const struct vf_config *config, enum vf_file_format format,
                            enum vf_quant quant, uint64_t config_bytes, uint64_t tokenizer_bytes,
                            struct vf_layout *out, struct vf_err *err);
/* The same with a choice for each matrix; a choice that is the same for all isn't mixed. */
enum vf_code vf_layout_init_mixed(const struct vf_config *config, enum vf_file_format format,
                                  vf_quant_of_fn *quant_of, void *ctx, uint64_t config_bytes,
                                  uint64_t tokenizer_bytes, struct vf_layout *out,
                                  struct vf_err *err);
void vf_layout_deinit(struct vf_layout *layout);
/* The table entry of a tensor outside the expert bank, NULL when the model has none. */
struct vf_disk_tensor *vf_layout_find(const struct vf_layout *layout, struct vf_tensor_id id);

/* "layer 3 q_proj", "layer 3 expert 5 gate_proj", "layer 3 flow 1 q_proj", "embed": for messages.
 * Returns buf. */
const char *vf_tensor_label(struct vf_tensor_id id, char *buf, size_t size);
#define VF_TENSOR_LABEL_BYTES 96u

#endif
