/* A .vflow or .cflow file, version 6, opened for reading: validated once into a view.
 *
 * Both formats have the same sections (docs/FORMAT.md); they differ in the order of the weight
 * streams. .cflow runs layer by layer in compute order with each layer's experts behind it;
 * .vflow runs stage by stage over a vertical group of layers with one expert bank at the end.
 * Readers look tensors up in the tensor table, so nothing else depends on the order.
 *
 * vf_model_file_open() checks the header, every table and every range against the file size,
 * the embedded config (vf_config_parse) and the exact tensor list of that config; every bit
 * outside the weights and the tile directory is covered by a checksum. The weights' checksums are
 * checked by vf_model_file_verify_tensor and by whoever loads an expert.
 * A vf_model_file is immutable after open and may be shared by threads.
 */
#ifndef VF_COMMON_FORMAT_MODEL_FILE_H
#define VF_COMMON_FORMAT_MODEL_FILE_H

#include "common/model/config.h"
#include "common/model/tensors.h"
#include "common/tile/tile.h"

#define VF_EXPERT_ALIGN 4096u /* an expert's record starts and ends on this, for O_DIRECT */

enum vf_file_format { VF_FORMAT_VFLOW, VF_FORMAT_CFLOW };

struct vf_model_file; /* opaque */

struct vf_expert_extent {
    uint64_t offset; /* in the file, multiple of VF_EXPERT_ALIGN */
    uint64_t bytes;  /* multiple of VF_EXPERT_ALIGN, the same for every expert of a file */
    uint64_t xxh3;   /* XXH3_64bits of those bytes */
    uint32_t file;   /* which file of a bank in several; 0 in a model file */
};

/* Where the three matrices lie inside an expert's record; the same for every expert. */
struct vf_expert_layout {
    uint64_t gate_offset, up_offset, down_offset;
    uint64_t bytes;         /* padded record */
    enum vf_quant quant[3]; /* gate, up, down */
};

/* How a matrix is stored, for files that mix quantisations. The experts' three matrices are asked
 * for once, with layer 0 and expert 0. */
typedef enum vf_quant vf_quant_of_fn(void *ctx, struct vf_tensor_id id);

/* VF_ERR_NOT_FOUND, VF_ERR_CORRUPT, VF_ERR_UNSUPPORTED (another version), each naming the file, the
 * field, what was found and what is allowed. Until close the mapping is guarded (map_guard.h). */
enum vf_code vf_model_file_open(const char *path, struct vf_model_file **out, struct vf_err *err);
void vf_model_file_close(struct vf_model_file *f); /* unmaps; NULL is fine */

/* Whoever computes from the mapping asks before and after, since a program may write another model
 * over the file: VF_ERR_IO when its size or times say so. The tables were copied by open, so
 * nothing worse than wrong numbers comes of it. Always right after vf_model_file_own_weights,
 * which leaves nothing to read. About a microsecond. */
enum vf_code vf_model_file_check_unchanged(const struct vf_model_file *f, struct vf_err *err);

/* Copies the weights in these ranges from the page cache into this process's own memory, in huge
 * pages where the system grants them, and answers every later look-up of weights from there. For
 * the one owner of f, before it hands out pointers; weights outside the ranges must not be asked
 * for. copied is told of every few MiB; NULL: nobody is. */
struct vf_weight_range {
    uint64_t offset, bytes;
};
typedef void vf_copied_fn(void *ctx, uint64_t bytes);
enum vf_code vf_model_file_own_weights(struct vf_model_file *f,
                                       const struct vf_weight_range *ranges, size_t count,
                                       vf_copied_fn *copied, void *ctx, struct vf_err *err);

/* Says that these ranges of the mapped file are read soon and nothing around them is: exactly they
 * come into memory, without the neighbours that the system would read along. Later faults read
 * page by page. Sorts ranges. */
void vf_model_file_want_only(const struct vf_model_file *f, struct vf_weight_range *ranges,
                             size_t count);

const char *vf_model_file_path(const struct vf_model_file *f);
enum vf_file_format vf_model_file_format(const struct vf_model_file *f);
const struct vf_config *vf_model_file_config(const struct vf_model_file *f);
uint64_t vf_model_file_bytes(const struct vf_model_file *f);
/* "q4", ... of every matrix but the routers, or "mixed". */
const char *vf_model_file_quant_name(const struct vf_model_file *f);
/* XXH3 of the header; changes when anything but padding changes (tables hold the checksums). */
uint64_t vf_model_file_fingerprint(const struct vf_model_file *f);
/* tokenizer.json as stored, UTF-8 but not otherwise checked, without a NUL behind it; *bytes is 0
 * and NULL returned when the model has none. */
const char *vf_model_file_tokenizer(const struct vf_model_file *f, size_t *bytes);

/* The chat template and what belongs to it (chat.h); NULL when the model has none. */
const json_t *vf_model_file_chat(const struct vf_model_file *f);

/* A matrix outside the expert bank, mapped. False when the model has no such tensor. */
bool vf_model_file_matrix(const struct vf_model_file *f, struct vf_tensor_id id,
                          struct vf_matrix *out);
/* A vector [cols] f32, mapped; NULL when the model has no such tensor. */
const float *vf_model_file_vector(const struct vf_model_file *f, struct vf_tensor_id id);
/* O(1): the record of one expert. layer is a weight layer. */
struct vf_expert_extent vf_model_file_expert(const struct vf_model_file *f, uint32_t layer,
                                             uint32_t expert);
struct vf_expert_layout vf_model_file_expert_layout(const struct vf_model_file *f);
/* The mapped record of an expert (resident mode). */
const uint8_t *vf_model_file_expert_data(const struct vf_model_file *f, uint32_t layer,
                                         uint32_t expert);
/* The three matrices of an expert whose record starts at data. */
void vf_expert_matrices(const struct vf_model_file *f, const uint8_t *data, struct vf_matrix *gate,
                        struct vf_matrix *up, struct vf_matrix *down);

/* Compares a tensor's bytes with its stored checksum, and looks at its numbers: VF_ERR_CORRUPT
 * names file and tensor, and the first broken tile, or the first NaN or infinity among numbers and
 * scales. data is the expert's record, wherever it was read to. */
enum vf_code vf_model_file_verify_tensor(const struct vf_model_file *f, struct vf_tensor_id id,
                                         struct vf_err *err);
enum vf_code vf_model_file_verify_expert(const struct vf_model_file *f, uint32_t layer,
                                         uint32_t expert, const uint8_t *data, struct vf_err *err);

/* Only the numbers of a record whose checksum has been compared. */
enum vf_code vf_model_file_check_expert_values(const struct vf_model_file *f, uint32_t layer,
                                               uint32_t expert, const uint8_t *data,
                                               struct vf_err *err);

/* For inspect: the raw table. */
struct vf_tensor_entry_view {
    struct vf_tensor_spec spec; /* in table order; experts aren't in the table */
    enum vf_quant quant;
    uint64_t offset, bytes, xxh3;
};
size_t vf_model_file_tensor_count(const struct vf_model_file *f);
struct vf_tensor_entry_view vf_model_file_tensor(const struct vf_model_file *f, size_t i);
/* Vertical groups: runs of layers with the same attention geometry; single layers in .cflow. */
struct vf_group_view {
    uint32_t layer_begin, layer_end;
    uint64_t attn_offset, attn_bytes;   /* the group's q, k, v, o, one contiguous stream */
    uint64_t dense_offset, dense_bytes; /* its dense FFN and router; 0 bytes: it has neither */
};
size_t vf_model_file_group_count(const struct vf_model_file *f);
struct vf_group_view vf_model_file_group(const struct vf_model_file *f, size_t i);

/* Tiles as the tile directory at the end of the file lists them. The directory serves inspection
 * and the search for damage only, so opening checks its size and nothing else;
 * vf_model_file_verify_tiles checks every entry's numbers and the directory's checksum. */
struct vf_tile_view {
    uint32_t row, col;   /* of the tile's first weight */
    uint32_t rows, cols; /* weights it covers, without padding */
    uint64_t offset, bytes;
    uint32_t xxh3_low; /* low 32 bits of XXH3_64bits of those bytes */
};
/* Tiles of table entry i: 0 for a vector. */
uint64_t vf_model_file_tile_count(const struct vf_model_file *f, size_t i);
struct vf_tile_view vf_model_file_tile(const struct vf_model_file *f, size_t i, uint64_t tile);
/* Tiles of part 0, 1 or 2 (gate, up, down) of an expert. */
uint64_t vf_model_file_expert_tile_count(const struct vf_model_file *f, int part);
struct vf_tile_view vf_model_file_expert_tile(const struct vf_model_file *f, uint32_t layer,
                                              uint32_t expert, int part, uint64_t tile);
enum vf_code vf_model_file_verify_tiles(const struct vf_model_file *f, struct vf_err *err);
/* Checks that the bytes between the tensors are zero: with the tensors, the experts and the tile
 * directory this covers the whole file. */
enum vf_code vf_model_file_verify_padding(const struct vf_model_file *f, struct vf_err *err);

#endif
