/* Reads the header of one *.safetensors file and checks all of it before any data is used.
 *
 * The format: u64 header bytes, a JSON object {name: {dtype, shape, data_offsets}}, then the data.
 * Accepted is exactly what the format allows: the tensors' data must cover the rest of the file
 * without holes or overlaps, names are unique, shapes and dtypes give the byte counts. The file
 * stays open for reading rows with pread; nothing is mapped. Immutable after open.
 */
#ifndef VF_COMMON_FORMAT_SAFETENSORS_H
#define VF_COMMON_FORMAT_SAFETENSORS_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VF_SAFETENSORS_HEADER_MAX 100000000u /* the format's own limit */

enum vf_dtype {
    VF_DTYPE_BOOL,
    VF_DTYPE_F4,
    VF_DTYPE_F6_E2M3,
    VF_DTYPE_F6_E3M2,
    VF_DTYPE_U8,
    VF_DTYPE_I8,
    VF_DTYPE_F8_E5M2,
    VF_DTYPE_F8_E4M3,
    VF_DTYPE_F8_E8M0,
    VF_DTYPE_F8_E4M3FNUZ,
    VF_DTYPE_F8_E5M2FNUZ,
    VF_DTYPE_I16,
    VF_DTYPE_U16,
    VF_DTYPE_F16,
    VF_DTYPE_BF16,
    VF_DTYPE_I32,
    VF_DTYPE_U32,
    VF_DTYPE_F32,
    VF_DTYPE_C64,
    VF_DTYPE_F64,
    VF_DTYPE_I64,
    VF_DTYPE_U64,
    VF_DTYPE_COUNT
};
const char *vf_dtype_name(enum vf_dtype dtype); /* "BF16", ... */
uint32_t vf_dtype_bits(enum vf_dtype dtype);

struct vf_safetensors_entry {
    const char *name; /* may hold any character but NUL */
    enum vf_dtype dtype;
    size_t rank;
    const uint64_t *shape;  /* [rank] */
    uint64_t offset, bytes; /* in the file */
};

struct vf_safetensors;

/* VF_ERR_NOT_FOUND, VF_ERR_IO, or VF_ERR_CORRUPT naming file, tensor and field. */
enum vf_code vf_safetensors_open(const char *path, struct vf_safetensors **out, struct vf_err *err);
void vf_safetensors_close(struct vf_safetensors *st);

const char *vf_safetensors_path(const struct vf_safetensors *st);
size_t vf_safetensors_count(const struct vf_safetensors *st);
/* Entries are in the order of their data. Pointers live as long as st. */
const struct vf_safetensors_entry *vf_safetensors_entry(const struct vf_safetensors *st, size_t i);
/* bytes [begin, begin + n) of an entry's data. */
enum vf_code vf_safetensors_read(const struct vf_safetensors *st,
                                 const struct vf_safetensors_entry *e, uint64_t begin, void *buf,
                                 size_t n, struct vf_err *err);

/* A name from a file for use in a one-line message: control characters become '?', long names
 * are cut. Returns buf. */
const char *vf_name_printable(const char *name, char *buf, size_t size);
#define VF_NAME_PRINTABLE_BYTES 128u

#endif
