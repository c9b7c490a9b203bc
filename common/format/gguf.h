/* Reads a GGUF file, version 2 or 3, and checks all of it but the weights before any is used.
 *
 * The format: header, metadata (key, typed value), one description a tensor, then the tensors'
 * data from the next multiple of general.alignment on. Everything is untrusted: counts and lengths
 * are bounded by the bytes that are left, offsets by the file, shapes times types are multiplied
 * with overflow checks, names are unique and UTF-8, data don't overlap. The metadata stay in
 * memory as they are in the file (at most VF_GGUF_HEADER_BYTES_MAX); the file stays open for
 * reading weights with pread. Immutable after open.
 *
 * Tensors of types other than those of enum vf_ggml_type are VF_ERR_UNSUPPORTED by name.
 */
#ifndef VF_COMMON_FORMAT_GGUF_H
#define VF_COMMON_FORMAT_GGUF_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_GGUF_HEADER_BYTES_MAX (256u << 20) /* twenty times the largest vocabulary in use */
#define VF_GGUF_KEYS_MAX         65536u
#define VF_GGUF_TENSORS_MAX      (1u << 20)
#define VF_GGUF_KEY_BYTES_MAX    65535u /* the format's own limit */
#define VF_GGUF_NAME_BYTES_MAX   64u    /* the format's own limit */
#define VF_GGUF_RANK_MAX         4u
#define VF_GGUF_NESTING_MAX      4u /* arrays in arrays */
#define VF_GGUF_ALIGN_MAX        (1u << 20)
#define VF_GGUF_ALIGN_DEFAULT    32u

enum vf_gguf_type { /* the format's numbers */
                    VF_GGUF_U8 = 0,
                    VF_GGUF_I8 = 1,
                    VF_GGUF_U16 = 2,
                    VF_GGUF_I16 = 3,
                    VF_GGUF_U32 = 4,
                    VF_GGUF_I32 = 5,
                    VF_GGUF_F32 = 6,
                    VF_GGUF_BOOL = 7,
                    VF_GGUF_STRING = 8,
                    VF_GGUF_ARRAY = 9,
                    VF_GGUF_U64 = 10,
                    VF_GGUF_I64 = 11,
                    VF_GGUF_F64 = 12,
                    VF_GGUF_TYPE_COUNT
};

enum vf_ggml_type { /* ggml's numbers */
                    VF_GGML_F32 = 0,
                    VF_GGML_F16 = 1,
                    VF_GGML_Q4_0 = 2,
                    VF_GGML_Q8_0 = 8,
                    VF_GGML_BF16 = 30,
};
/* "Q4_0", also of types that aren't read; "unknown". */
const char *vf_ggml_type_name(uint32_t type);
/* Bytes of n weights in a row; n is a multiple of 32 for Q4_0 and Q8_0. */
uint64_t vf_ggml_row_bytes(enum vf_ggml_type type, uint64_t n);

struct vf_gguf_string {
    const char *s; /* UTF-8 of n bytes, no NUL behind it; may hold NULs */
    size_t n;
};

struct vf_gguf_tensor {
    const char *name; /* holds no NUL */
    enum vf_ggml_type type;
    uint32_t rank;
    uint64_t dims[VF_GGUF_RANK_MAX]; /* dims[0] is a row's length; 1 from rank on */
    uint64_t offset, bytes;          /* in the file */
};

struct vf_gguf;

/* VF_ERR_NOT_FOUND, VF_ERR_IO, VF_ERR_CORRUPT or VF_ERR_UNSUPPORTED naming file, field, what was
 * found and what is allowed. */
enum vf_code vf_gguf_open(const char *path, struct vf_gguf **out, struct vf_err *err);
void vf_gguf_close(struct vf_gguf *g); /* NULL is fine */
const char *vf_gguf_path(const struct vf_gguf *g);

/* ---- metadata: a wrong type or a value out of range is an error that names the key ---- */

size_t vf_gguf_key_count(const struct vf_gguf *g);
const char *vf_gguf_key(const struct vf_gguf *g, size_t i); /* sorted */
bool vf_gguf_has(const struct vf_gguf *g, const char *key);

/* A missing key is an error when required, and leaves *out unchanged otherwise. */
struct vf_gguf_field {
    const char *key;
    bool required;
};
/* Any integer type. */
enum vf_code vf_gguf_get_uint(const struct vf_gguf *g, struct vf_gguf_field f, uint64_t min,
                              uint64_t max, uint64_t *out, struct vf_err *err);
/* F32 or F64, within [min, max]. */
enum vf_code vf_gguf_get_real(const struct vf_gguf *g, struct vf_gguf_field f, double min,
                              double max, double *out, struct vf_err *err);
enum vf_code vf_gguf_get_bool(const struct vf_gguf *g, struct vf_gguf_field f, bool *out,
                              struct vf_err *err);
/* A string without NULs, which lives as long as g. */
enum vf_code vf_gguf_get_string(const struct vf_gguf *g, struct vf_gguf_field f, const char **out,
                                struct vf_err *err);
/* Arrays; heap, the caller frees. The strings live as long as g. */
enum vf_code vf_gguf_get_strings(const struct vf_gguf *g, struct vf_gguf_field f,
                                 struct vf_gguf_string **out, size_t *count, struct vf_err *err);
/* Elements of any integer type that fit int32_t. */
enum vf_code vf_gguf_get_ints(const struct vf_gguf *g, struct vf_gguf_field f, int32_t **out,
                              size_t *count, struct vf_err *err);
/* Elements F32, finite. */
enum vf_code vf_gguf_get_floats(const struct vf_gguf *g, struct vf_gguf_field f, float **out,
                                size_t *count, struct vf_err *err);

/* ---- tensors ---- */

size_t vf_gguf_tensor_count(const struct vf_gguf *g);
/* In the file's order. */
const struct vf_gguf_tensor *vf_gguf_tensor(const struct vf_gguf *g, size_t i);
/* NULL when there is none. */
const struct vf_gguf_tensor *vf_gguf_find(const struct vf_gguf *g, const char *name);
/* Bytes [begin, begin + n) of a tensor's data. */
enum vf_code vf_gguf_read(const struct vf_gguf *g, const struct vf_gguf_tensor *t, uint64_t begin,
                          void *buf, size_t n, struct vf_err *err);

#endif
