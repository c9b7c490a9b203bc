/* Writes a model as a GGUF file, tensor by tensor, with the same calls as the .vflow writer.
 *
 * The config must be one that vf_gguf_arch_of finds an architecture for. Matrices become Q4_0,
 * Q8_0, F16 or F32 by MODEL.md's quantisation, router and vectors F32. The tokenizer is a kind
 * "llama" vocabulary that knows the 256 bytes and nothing else; a vocabulary too small for that
 * gets none. Used by one thread.
 */
#ifndef VF_BENCH_MODELS_GGUF_MODEL_WRITER_H
#define VF_BENCH_MODELS_GGUF_MODEL_WRITER_H

#include "common/format/gguf_model.h"
#include "common/tile/tile.h"

struct vf_gguf_model_writer;

/* config is kept until destroy. VF_ERR_UNSUPPORTED when no
 * architecture computes what the config says, or a row isn't a multiple of 32 as Q4_0 and Q8_0
 * need. */
enum vf_code vf_gguf_model_writer_create(const char *path, const struct vf_config *config,
                                         enum vf_quant quant, struct vf_gguf_model_writer **out,
                                         struct vf_err *err);
/* Rows [row_begin, row_begin + row_count) of a matrix, or a whole vector (0, 1), as f32 row-major;
 * in any order. Values are finite and within f16's range. */
enum vf_code vf_gguf_model_writer_put(struct vf_gguf_model_writer *w, struct vf_tensor_id id,
                                      uint32_t row_begin, uint32_t row_count, const float *rows,
                                      struct vf_err *err);
/* Rows of a Q4_0 or Q8_0 matrix that are quantised already, as tile.h's groups, whose bytes are
 * those formats' blocks. */
enum vf_code vf_gguf_model_writer_put_groups(struct vf_gguf_model_writer *w, struct vf_tensor_id id,
                                             uint32_t row_begin, uint32_t row_count,
                                             const uint8_t *groups, struct vf_err *err);
enum vf_code vf_gguf_model_writer_finish(struct vf_gguf_model_writer *w, struct vf_err *err);
void vf_gguf_model_writer_destroy(struct vf_gguf_model_writer *w); /* NULL is fine */

#endif
