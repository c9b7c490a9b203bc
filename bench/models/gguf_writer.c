/* Metadata and tensor descriptions grow in two buffers until the counts and offsets are known. */
#include "bench/models/gguf_writer.h"

#include "common/base/out_file.h"
#include "common/base/util.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES 24u /* magic, version, two counts */

struct buffer {
    uint8_t *bytes;
    size_t used, cap;
};

struct range {
    uint64_t offset, bytes; /* from the data's first byte */
};

struct vf_gguf_writer {
    struct vf_out_file *file; /* NULL once it is whole */
    int fd;                   /* of file */
    bool failed;              /* memory ran out */
    struct buffer metadata, infos;
    uint64_t key_count;
    struct range *tensors;
    size_t tensor_count, tensor_cap;
    uint64_t data_bytes, data_begin;
};

/* ---- create ---- */

enum vf_code vf_gguf_writer_create(const char *path, struct vf_gguf_writer **out,
                                   struct vf_err *err)
{
    struct vf_gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    enum vf_code code = vf_out_file_create(path, &w->file, err);
    if (code) {
        vf_gguf_writer_destroy(w);
        return code;
    }
    w->fd = vf_out_file_fd(w->file);
    *out = w;
    return VF_OK;
}

void vf_gguf_writer_destroy(struct vf_gguf_writer *w)
{
    if (!w)
        return;
    vf_out_file_abandon(w->file);
    free(w->metadata.bytes);
    free(w->infos.bytes);
    free(w->tensors);
    free(w);
}

/* ---- metadata ---- */

static void append(struct vf_gguf_writer *w, struct buffer *b, const void *data, size_t n)
{
    if (n > b->cap - b->used && !w->failed) {
        size_t cap = 2 * b->cap + n + 4096;
        uint8_t *bytes = realloc(b->bytes, cap);
        w->failed = !bytes;
        b->bytes = bytes ? bytes : b->bytes;
        b->cap = bytes ? cap : b->cap;
    }
    if (w->failed || n == 0)
        return;
    memcpy(b->bytes + b->used, data, n);
    b->used += n;
}

static void append_u32(struct vf_gguf_writer *w, struct buffer *b, uint32_t v)
{
    append(w, b, &v, sizeof v);
}

static void append_u64(struct vf_gguf_writer *w, struct buffer *b, uint64_t v)
{
    append(w, b, &v, sizeof v);
}

static void append_string(struct vf_gguf_writer *w, struct buffer *b, const char *s)
{
    append_u64(w, b, strlen(s));
    append(w, b, s, strlen(s));
}

static void begin_key(struct vf_gguf_writer *w, const char *key, enum vf_gguf_type type)
{
    append_string(w, &w->metadata, key);
    append_u32(w, &w->metadata, type);
    w->key_count++;
}

static void begin_array(struct vf_gguf_writer *w, const char *key, enum vf_gguf_type element,
                        size_t count)
{
    begin_key(w, key, VF_GGUF_ARRAY);
    append_u32(w, &w->metadata, element);
    append_u64(w, &w->metadata, count);
}

void vf_gguf_writer_put_string(struct vf_gguf_writer *w, const char *key, const char *s)
{
    begin_key(w, key, VF_GGUF_STRING);
    append_string(w, &w->metadata, s);
}

void vf_gguf_writer_put_u32(struct vf_gguf_writer *w, const char *key, uint32_t v)
{
    begin_key(w, key, VF_GGUF_U32);
    append_u32(w, &w->metadata, v);
}

void vf_gguf_writer_put_f32(struct vf_gguf_writer *w, const char *key, float v)
{
    begin_key(w, key, VF_GGUF_F32);
    append(w, &w->metadata, &v, sizeof v);
}

void vf_gguf_writer_put_bool(struct vf_gguf_writer *w, const char *key, bool v)
{
    const uint8_t byte = v;
    begin_key(w, key, VF_GGUF_BOOL);
    append(w, &w->metadata, &byte, 1);
}

void vf_gguf_writer_put_strings(struct vf_gguf_writer *w, const char *key, const char *const *v,
                                size_t count)
{
    begin_array(w, key, VF_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        append_string(w, &w->metadata, v[i]);
}

void vf_gguf_writer_put_f32s(struct vf_gguf_writer *w, const char *key, const float *v,
                             size_t count)
{
    begin_array(w, key, VF_GGUF_F32, count);
    append(w, &w->metadata, v, count * sizeof *v);
}

void vf_gguf_writer_put_i32s(struct vf_gguf_writer *w, const char *key, const int32_t *v,
                             size_t count)
{
    begin_array(w, key, VF_GGUF_I32, count);
    append(w, &w->metadata, v, count * sizeof *v);
}

/* ---- tensors ---- */

size_t vf_gguf_writer_add_tensor(struct vf_gguf_writer *w, const char *name, enum vf_ggml_type type,
                                 const uint64_t *dims, uint32_t rank)
{
    uint64_t bytes = vf_ggml_row_bytes(type, dims[0]);
    append_string(w, &w->infos, name);
    append_u32(w, &w->infos, rank);
    for (uint32_t d = 0; d < rank; d++) {
        append_u64(w, &w->infos, dims[d]);
        bytes *= d ? dims[d] : 1;
    }
    append_u32(w, &w->infos, type);
    append_u64(w, &w->infos, w->data_bytes);
    if (w->tensor_count == w->tensor_cap && !w->failed) {
        size_t cap = 2 * w->tensor_cap + 256;
        struct range *tensors = realloc(w->tensors, cap * sizeof *tensors);
        w->failed = !tensors;
        w->tensors = tensors ? tensors : w->tensors;
        w->tensor_cap = tensors ? cap : w->tensor_cap;
    }
    if (w->failed)
        return 0;
    w->tensors[w->tensor_count] = (struct range){w->data_bytes, bytes};
    w->data_bytes = vf_round_up(w->data_bytes + bytes, VF_GGUF_ALIGN_DEFAULT);
    return w->tensor_count++;
}

enum vf_code vf_gguf_writer_begin_data(struct vf_gguf_writer *w, struct vf_err *err)
{
    struct buffer head = {0};
    append(w, &head, "GGUF", 4);
    append_u32(w, &head, 3);
    append_u64(w, &head, w->tensor_count);
    append_u64(w, &head, w->key_count);
    VF_ASSERT(w->failed || head.used == HEADER_BYTES);
    append(w, &head, w->metadata.bytes, w->metadata.used);
    append(w, &head, w->infos.bytes, w->infos.used);
    enum vf_code code = VF_OK;
    w->data_begin = vf_round_up(head.used, VF_GGUF_ALIGN_DEFAULT);
    if (w->failed)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its metadata",
                          vf_out_file_path(w->file));
    else
        code = vf_out_file_reserve(w->file, w->data_begin + w->data_bytes, err);
    if (!code)
        code = vf_pwrite_full(w->fd, head.bytes, head.used, 0, vf_out_file_path(w->file), err);
    free(head.bytes);
    return code;
}

enum vf_code vf_gguf_writer_write(struct vf_gguf_writer *w, size_t tensor, uint64_t begin,
                                  const void *data, size_t n, struct vf_err *err)
{
    VF_ASSERT(tensor < w->tensor_count && w->data_begin);
    const struct range *r = &w->tensors[tensor];
    VF_ASSERT(begin <= r->bytes && n <= r->bytes - begin);
    return vf_pwrite_full(w->fd, data, n, w->data_begin + r->offset + begin,
                          vf_out_file_path(w->file), err);
}

enum vf_code vf_gguf_writer_finish(struct vf_gguf_writer *w, struct vf_err *err)
{
    struct vf_out_file *file = w->file;
    w->file = NULL;
    return vf_out_file_commit(file, err);
}
