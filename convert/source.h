/* What a conversion reads: a checkpoint directory or a GGUF file, behind one interface.
 *
 * Opening reads and checks everything but the weights: config, tokenizer, the files' headers. The
 * converter then finds each tensor of the model (which checks its shape and type), asks whether
 * anything is left over, and reads weights block by block. Used by one thread.
 */
#ifndef VF_CONVERT_SOURCE_H
#define VF_CONVERT_SOURCE_H

#include "common/model/tensors.h"
#include "common/tile/tile.h"

/* Q8 and Q4 are rows of groups as tile.h describes them. */
enum vf_source_type { VF_SOURCE_F32, VF_SOURCE_F16, VF_SOURCE_BF16, VF_SOURCE_Q8, VF_SOURCE_Q4 };

struct vf_source_tensor {
    enum vf_source_type type;
    const char *path; /* its file, for messages; lives as long as the source */
    const char *name; /* in that file, for messages; lives as long as the source */
    uint64_t bytes;
    const void *handle; /* the source's own */
};

struct vf_source_block {
    uint32_t row, row_count, col, col_count; /* columns: whole groups of a quantised tensor */
};

struct vf_source;
struct vf_source_ops {
    /* VF_ERR_CORRUPT or VF_ERR_UNSUPPORTED when the tensor is missing, misshapen or of a type that
     * isn't read. */
    enum vf_code (*find)(struct vf_source *s, const struct vf_tensor_spec *spec,
                         struct vf_source_tensor *out, struct vf_err *err);
    /* Refuses tensors that nobody found: they aren't the model's. */
    enum vf_code (*check_rest)(struct vf_source *s, struct vf_err *err);
    /* out gets vf_source_bytes(type, row_count * col_count), row behind row. */
    enum vf_code (*read)(struct vf_source *s, const struct vf_tensor_spec *spec,
                         const struct vf_source_tensor *t, struct vf_source_block block,
                         uint8_t *out, struct vf_err *err);
    void (*close)(struct vf_source *s);
};

/* The head of every source; the kinds put their own behind it. */
struct vf_source {
    const struct vf_source_ops *ops;
    struct vf_config config;
    json_t *chat;    /* see chat_source.h; NULL when there is nothing */
    char *tokenizer; /* tokenizer.json, which a run accepts; NULL when there is none; heap */
    size_t tokenizer_bytes;
    bool keeps_types; /* without a wish, matrices stay as they are in the file */
};

/* A directory, or a file, which must be GGUF. path is kept until close. Without with_tokenizer the
 * source's isn't looked at. */
enum vf_code vf_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                            struct vf_err *err);
void vf_source_close(struct vf_source *s); /* NULL is fine */

enum vf_code vf_directory_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                                      struct vf_err *err);
enum vf_code vf_gguf_source_open(const char *path, bool with_tokenizer, struct vf_source **out,
                                 struct vf_err *err);

/* Builds s->tokenizer as a run does. where names it in messages. What is refused is VF_ERR_CORRUPT
 * or VF_ERR_UNSUPPORTED and says how to convert without it. */
enum vf_code vf_source_check_tokenizer(const struct vf_source *s, const char *where,
                                       struct vf_err *err);

/* Bytes of n weights; n is a multiple of 32 for Q8 and Q4. */
uint64_t vf_source_bytes(enum vf_source_type type, uint64_t n);
/* The quantisation that holds such weights exactly, the smallest there is. */
enum vf_quant vf_source_quant(enum vf_source_type type);
/* n weights as f32, exactly. */
void vf_source_to_f32(enum vf_source_type type, const uint8_t *raw, size_t n, float *out);

#endif
