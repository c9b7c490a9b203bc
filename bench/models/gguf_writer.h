/* Writes a GGUF file, version 3: metadata and tensor descriptions first, then the tensors' data in
 * any order.
 *
 * The puts and adds can't fail by themselves; running out of memory in one is reported by
 * vf_gguf_writer_begin_data. The file is written under a temporary name beside its own and renamed
 * by finish; destroy without finish removes it. Used by one thread.
 */
#ifndef VF_BENCH_MODELS_GGUF_WRITER_H
#define VF_BENCH_MODELS_GGUF_WRITER_H

#include "common/format/gguf.h"

struct vf_gguf_writer;

enum vf_code vf_gguf_writer_create(const char *path, struct vf_gguf_writer **out,
                                   struct vf_err *err);
void vf_gguf_writer_destroy(struct vf_gguf_writer *w); /* NULL is fine */

/* Metadata; keys are unique. */
void vf_gguf_writer_put_string(struct vf_gguf_writer *w, const char *key, const char *s);
void vf_gguf_writer_put_u32(struct vf_gguf_writer *w, const char *key, uint32_t v);
void vf_gguf_writer_put_f32(struct vf_gguf_writer *w, const char *key, float v);
void vf_gguf_writer_put_bool(struct vf_gguf_writer *w, const char *key, bool v);
void vf_gguf_writer_put_strings(struct vf_gguf_writer *w, const char *key, const char *const *v,
                                size_t count);
void vf_gguf_writer_put_f32s(struct vf_gguf_writer *w, const char *key, const float *v,
                             size_t count);
void vf_gguf_writer_put_i32s(struct vf_gguf_writer *w, const char *key, const int32_t *v,
                             size_t count);

/* Tensors, in the order of their data; dims[0] is a row's length, a multiple of the type's block.
 * Returns the tensor's number. */
size_t vf_gguf_writer_add_tensor(struct vf_gguf_writer *w, const char *name, enum vf_ggml_type type,
                                 const uint64_t *dims, uint32_t rank);
/* Writes everything so far; only data may follow. */
enum vf_code vf_gguf_writer_begin_data(struct vf_gguf_writer *w, struct vf_err *err);
/* Bytes [begin, begin + n) of a tensor's data. What is never written is zero. */
enum vf_code vf_gguf_writer_write(struct vf_gguf_writer *w, size_t tensor, uint64_t begin,
                                  const void *data, size_t n, struct vf_err *err);
/* Syncs and renames. */
enum vf_code vf_gguf_writer_finish(struct vf_gguf_writer *w, struct vf_err *err);

#endif
