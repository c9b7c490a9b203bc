/* The safetensors header: JSON through jansson, then every rule of the format on the result. */
#include "common/format/safetensors.h"

#include "common/base/json.h"
#include "common/base/util.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct vf_safetensors {
    char *path;
    int fd;
    uint64_t file_bytes;
    uint64_t data_offset;
    struct vf_safetensors_entry *entries;
    size_t count;
    uint64_t *dims; /* all shapes behind each other */
    json_t *json;   /* holds the names */
};

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[VF_DTYPE_COUNT] = {
    [VF_DTYPE_BOOL] = {"BOOL", 8},
    [VF_DTYPE_F4] = {"F4", 4},
    [VF_DTYPE_F6_E2M3] = {"F6_E2M3", 6},
    [VF_DTYPE_F6_E3M2] = {"F6_E3M2", 6},
    [VF_DTYPE_U8] = {"U8", 8},
    [VF_DTYPE_I8] = {"I8", 8},
    [VF_DTYPE_F8_E5M2] = {"F8_E5M2", 8},
    [VF_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
    [VF_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
    [VF_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [VF_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [VF_DTYPE_I16] = {"I16", 16},
    [VF_DTYPE_U16] = {"U16", 16},
    [VF_DTYPE_F16] = {"F16", 16},
    [VF_DTYPE_BF16] = {"BF16", 16},
    [VF_DTYPE_I32] = {"I32", 32},
    [VF_DTYPE_U32] = {"U32", 32},
    [VF_DTYPE_F32] = {"F32", 32},
    [VF_DTYPE_C64] = {"C64", 64},
    [VF_DTYPE_F64] = {"F64", 64},
    [VF_DTYPE_I64] = {"I64", 64},
    [VF_DTYPE_U64] = {"U64", 64},
};

const char *vf_dtype_name(enum vf_dtype dtype)
{
    return (unsigned)dtype < VF_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

uint32_t vf_dtype_bits(enum vf_dtype dtype)
{
    return dtypes[dtype].bits;
}

const char *vf_name_printable(const char *name, char *buf, size_t size)
{
    size_t n = strlen(name), keep = n < size ? n : size - 4;
    for (size_t i = 0; i < keep; i++)
        buf[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    if (keep < n) {
        while (keep && ((unsigned char)name[keep] & 0xc0) == 0x80)
            keep--; /* not through the middle of a UTF-8 character */
        memcpy(buf + keep, "...", 3);
        keep += 3;
    }
    buf[keep] = 0;
    return buf;
}

/* A message about one tensor of the file. */
static enum vf_code bad_tensor(const struct vf_safetensors *st, const char *name,
                               struct vf_err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static enum vf_code bad_tensor(const struct vf_safetensors *st, const char *name,
                               struct vf_err *err, const char *fmt, ...)
{
    char printable[VF_NAME_PRINTABLE_BYTES], text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\": %s", st->path,
                      vf_name_printable(name, printable, sizeof printable), text);
}

static enum vf_code parse_dtype(const struct vf_safetensors *st, struct vf_safetensors_entry *e,
                                const json_t *info, struct vf_err *err)
{
    const json_t *v = json_object_get(info, "dtype");
    if (!json_is_string(v))
        return bad_tensor(st, e->name, err, "dtype is missing or not a string");
    for (unsigned d = 0; d < VF_DTYPE_COUNT; d++) {
        if (strcmp(json_string_value(v), dtypes[d].name) == 0) {
            e->dtype = d;
            return VF_OK;
        }
    }
    char printable[VF_NAME_PRINTABLE_BYTES];
    return bad_tensor(st, e->name, err,
                      "dtype \"%s\" is unknown, the format has BOOL, F4 to F64, "
                      "BF16, I8 to I64, U8 to U64, C64",
                      vf_name_printable(json_string_value(v), printable, sizeof printable));
}

static bool json_size(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static enum vf_code parse_shape(const struct vf_safetensors *st, struct vf_safetensors_entry *e,
                                const json_t *info, uint64_t *dims, struct vf_err *err)
{
    const json_t *v = json_object_get(info, "shape");
    if (!json_is_array(v))
        return bad_tensor(st, e->name, err, "shape is missing or not an array");
    e->shape = dims;
    e->rank = json_array_size(v);
    for (size_t i = 0; i < e->rank; i++)
        if (!json_size(json_array_get(v, i), &dims[i]))
            return bad_tensor(st, e->name, err, "shape[%zu] isn't an integer from 0 to 2^63 - 1",
                              i);
    return VF_OK;
}

static enum vf_code parse_offsets(const struct vf_safetensors *st, struct vf_safetensors_entry *e,
                                  const json_t *info, struct vf_err *err)
{
    const json_t *v = json_object_get(info, "data_offsets");
    uint64_t begin, end;
    if (!json_is_array(v) || json_array_size(v) != 2 || !json_size(json_array_get(v, 0), &begin) ||
        !json_size(json_array_get(v, 1), &end))
        return bad_tensor(st, e->name, err,
                          "data_offsets is missing or not two integers from 0 to 2^63 - 1");
    uint64_t data_bytes = st->file_bytes - st->data_offset;
    if (begin > end || end > data_bytes)
        return bad_tensor(st, e->name, err,
                          "data_offsets are %" PRIu64 " to %" PRIu64
                          ", must ascend within the %" PRIu64 " data bytes",
                          begin, end, data_bytes);
    e->offset = st->data_offset + begin;
    e->bytes = end - begin;
    return VF_OK;
}

/* shape times dtype, with every step checked, against the bytes that data_offsets give. */
static enum vf_code check_bytes(const struct vf_safetensors *st,
                                const struct vf_safetensors_entry *e, struct vf_err *err)
{
    uint64_t bits = 1;
    bool ok = true;
    for (size_t i = 0; i < e->rank && ok; i++)
        ok = vf_mul_u64(bits, e->shape[i], &bits);
    ok = ok && vf_mul_u64(bits, dtypes[e->dtype].bits, &bits);
    if (!ok)
        return bad_tensor(st, e->name, err, "shape times dtype overflows 64 bits");
    if (bits % 8)
        return bad_tensor(st, e->name, err, "%" PRIu64 " bits don't end on a byte", bits);
    if (bits / 8 != e->bytes)
        return bad_tensor(st, e->name, err,
                          "data_offsets give %" PRIu64 " bytes, shape and dtype %s %" PRIu64,
                          e->bytes, dtypes[e->dtype].name, bits / 8);
    return VF_OK;
}

static enum vf_code parse_entry(const struct vf_safetensors *st, struct vf_safetensors_entry *e,
                                const json_t *info, uint64_t *dims, struct vf_err *err)
{
    if (!json_is_object(info))
        return bad_tensor(st, e->name, err, "its description isn't a JSON object");
    enum vf_code code = parse_dtype(st, e, info, err);
    if (!code)
        code = parse_shape(st, e, info, dims, err);
    if (!code)
        code = parse_offsets(st, e, info, err);
    if (!code)
        code = check_bytes(st, e, err);
    return code;
}

static enum vf_code check_metadata(const struct vf_safetensors *st, json_t *metadata,
                                   struct vf_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: __metadata__ isn't a JSON object", st->path);
    json_object_foreach(metadata, key, value)
    {
        char printable[VF_NAME_PRINTABLE_BYTES];
        if (!json_is_string(value))
            return vf_err_set(err, VF_ERR_CORRUPT, "%s: __metadata__ field \"%s\" isn't a string",
                              st->path, vf_name_printable(key, printable, sizeof printable));
    }
    return VF_OK;
}

static size_t count_dims(json_t *root)
{
    const char *key;
    json_t *info;
    size_t n = 0;
    json_object_foreach(root, key, info)
    {
        n += json_array_size(json_object_get(info, "shape"));
    }
    return n;
}

static int compare_entries(const void *pa, const void *pb)
{
    const struct vf_safetensors_entry *a = pa, *b = pb;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Data follow each other from the first byte to the last. */
static enum vf_code check_coverage(const struct vf_safetensors *st, struct vf_err *err)
{
    uint64_t at = st->data_offset;
    for (size_t i = 0; i < st->count; i++) {
        const struct vf_safetensors_entry *e = &st->entries[i];
        if (e->offset != at)
            return bad_tensor(st, e->name, err,
                              "its data begin at byte %" PRIu64 ", the data before end at %" PRIu64
                              " (%s)",
                              e->offset - st->data_offset, at - st->data_offset,
                              e->offset < at ? "an overlap" : "a hole");
        at += e->bytes;
    }
    if (at != st->file_bytes)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: the tensors' data end at byte %" PRIu64 ", the file at %" PRIu64,
                          st->path, at, st->file_bytes);
    return VF_OK;
}

static enum vf_code parse_header(struct vf_safetensors *st, struct vf_err *err)
{
    if (!json_is_object(st->json))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: the header isn't a JSON object", st->path);
    size_t dim = 0;
    st->entries = calloc(json_object_size(st->json) + 1, sizeof *st->entries);
    st->dims = calloc(count_dims(st->json) + 1, sizeof *st->dims);
    if (!st->entries || !st->dims)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its header", st->path);
    const char *key;
    json_t *info;
    json_object_foreach(st->json, key, info)
    {
        enum vf_code code;
        struct vf_safetensors_entry *e = &st->entries[st->count];
        if (strcmp(key, "__metadata__") == 0) {
            code = check_metadata(st, info, err);
        } else {
            e->name = key;
            code = parse_entry(st, e, info, st->dims + dim, err);
            dim += e->rank;
            st->count++;
        }
        if (code)
            return code;
    }
    qsort(st->entries, st->count, sizeof *st->entries, compare_entries);
    return check_coverage(st, err);
}

static enum vf_code read_header(struct vf_safetensors *st, struct vf_err *err)
{
    uint64_t n = 0;
    if (st->file_bytes < sizeof n)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: file has %" PRIu64 " bytes, a safetensors file at least 8", st->path,
                          st->file_bytes);
    enum vf_code code = vf_pread_full(st->fd, &n, sizeof n, 0, st->path, err);
    if (code)
        return code;
    if (n > VF_SAFETENSORS_HEADER_MAX || n > st->file_bytes - sizeof n)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: header length is %" PRIu64 ", at most %" PRIu64 " are possible",
                          st->path, n,
                          vf_min_u64(VF_SAFETENSORS_HEADER_MAX, st->file_bytes - sizeof n));
    char *text = malloc(n + 1);
    if (!text)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its header", st->path);
    code = vf_pread_full(st->fd, text, n, sizeof n, st->path, err);
    if (!code && (n == 0 || text[0] != '{'))
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: the header doesn't begin with '{'", st->path);
    st->data_offset = sizeof n + n;
    if (!code)
        code = vf_json_parse(text, n, st->path, &st->json, err);
    free(text);
    return code;
}

enum vf_code vf_safetensors_open(const char *path, struct vf_safetensors **out, struct vf_err *err)
{
    struct vf_safetensors *st = calloc(1, sizeof *st);
    if (!st || !(st->path = strdup(path))) {
        free(st);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    }
    st->fd = -1;
    enum vf_code code = vf_open_input(path, &st->fd, &st->file_bytes, err);
    if (!code)
        code = read_header(st, err);
    if (!code)
        code = parse_header(st, err);
    if (code) {
        vf_safetensors_close(st);
        return code;
    }
    *out = st;
    return VF_OK;
}

void vf_safetensors_close(struct vf_safetensors *st)
{
    if (!st)
        return;
    if (st->fd >= 0)
        close(st->fd);
    json_decref(st->json);
    free(st->entries);
    free(st->dims);
    free(st->path);
    free(st);
}

const char *vf_safetensors_path(const struct vf_safetensors *st)
{
    return st->path;
}

size_t vf_safetensors_count(const struct vf_safetensors *st)
{
    return st->count;
}

const struct vf_safetensors_entry *vf_safetensors_entry(const struct vf_safetensors *st, size_t i)
{
    VF_ASSERT(i < st->count);
    return &st->entries[i];
}

enum vf_code vf_safetensors_read(const struct vf_safetensors *st,
                                 const struct vf_safetensors_entry *e, uint64_t begin, void *buf,
                                 size_t n, struct vf_err *err)
{
    VF_ASSERT(begin <= e->bytes && n <= e->bytes - begin);
    return vf_pread_full(st->fd, buf, n, e->offset + begin, st->path, err);
}
