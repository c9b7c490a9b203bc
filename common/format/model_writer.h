/* Writes a .vflow or .cflow file in one streaming pass with bounded memory.
 *
 * The caller creates a writer from a config (which fixes every offset at once), then supplies
 * each tensor of vf_tensors_list() in any order, whole or block by block, and finishes. A tensor
 * that is begun is completed before another one begins. The file is written under a temporary
 * name beside its own and renamed by finish; destroy without finish removes it, and a process
 * that is killed leaves the temporary name, never a half file under the final one. Two writers
 * given the same input produce the same bytes. Called by one thread; packing uses as many as
 * there are CPUs, with the same result.
 */
#ifndef VF_COMMON_FORMAT_MODEL_WRITER_H
#define VF_COMMON_FORMAT_MODEL_WRITER_H

#include "common/format/model_file.h"

struct vf_model_writer;

struct vf_model_writer_params {
    const char *path; /* final name */
    enum vf_file_format format;
    enum vf_quant quant;      /* of every matrix but the router (always f32), unless: */
    vf_quant_of_fn *quant_of; /* not NULL: of each; called by create only */
    void *quant_ctx;
    const struct vf_config *config;
    json_t *chat;          /* what vf_chat_check accepts; may be NULL */
    const char *tokenizer; /* tokenizer.json, may be NULL; kept by the caller until finish */
    size_t tokenizer_bytes;
};

/* Creates the temporary file; takes no disk space yet. */
enum vf_code vf_model_writer_create(const struct vf_model_writer_params *params,
                                    struct vf_model_writer **out, struct vf_err *err);
/* rows [row_begin, row_begin + row_count) of a matrix, or a whole vector (row_begin 0,
 * row_count 1), as f32 row-major. Rows of one tensor come in ascending order, row_begin a
 * multiple of 128, row_count too unless it reaches the last row. A NaN or infinity, or a weight
 * too large for the quantisation's f16, is VF_ERR_CORRUPT and names the tensor, row and column. */
enum vf_code vf_model_writer_put(struct vf_model_writer *w, struct vf_tensor_id id,
                                 uint32_t row_begin, uint32_t row_count, const float *rows,
                                 struct vf_err *err);
/* The same for rows too wide to hold: one stripe of 128 rows (fewer at the bottom) from left to
 * right, columns [col_begin, col_begin + col_count); col_begin is a multiple of 256, col_count
 * too unless it reaches the last column. block is [row_count, col_count]. */
enum vf_code vf_model_writer_put_block(struct vf_model_writer *w, struct vf_tensor_id id,
                                       uint32_t row_begin, uint32_t row_count, uint32_t col_begin,
                                       uint32_t col_count, const float *block, struct vf_err *err);
/* The same for rows that are quantised already, as q4 or q8 like the tensor: nothing is rounded
 * again. block is [row_count, col_count / 32] groups as tile.h describes them, and the tensor's
 * columns are a multiple of 32. A scale that isn't finite is VF_ERR_CORRUPT. */
enum vf_code vf_model_writer_put_groups(struct vf_model_writer *w, struct vf_tensor_id id,
                                        uint32_t row_begin, uint32_t row_count, uint32_t col_begin,
                                        uint32_t col_count, const uint8_t *block,
                                        struct vf_err *err);
/* Checks that every tensor is complete, writes tables and header, syncs and renames. */
enum vf_code vf_model_writer_finish(struct vf_model_writer *w, struct vf_err *err);
void vf_model_writer_destroy(struct vf_model_writer *w);

/* Total bytes the file will have; for free-space checks and progress. */
uint64_t vf_model_writer_total_bytes(const struct vf_model_writer *w);

#endif
