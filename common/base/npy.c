#include "common/base/npy.h"

#include "common/base/out_file.h"
#include "common/base/util.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES 128 /* NumPy wants a multiple of 64; this one fits any shape */

struct vf_npy {
    struct vf_out_file *file; /* NULL once it is whole */
    uint64_t rows, row_bytes, rows_done, offset;
};

static enum vf_code write_header(struct vf_npy *npy, const char *descr, const char *shape,
                                 struct vf_err *err)
{
    char header[HEADER_BYTES];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10; /* length of what follows, u16 little-endian */
    header[9] = 0;
    int n = snprintf(header + 10, sizeof header - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    header[10 + n] = ' ';
    header[HEADER_BYTES - 1] = '\n';
    npy->offset = HEADER_BYTES;
    return vf_pwrite_full(vf_out_file_fd(npy->file), header, sizeof header, 0,
                          vf_out_file_path(npy->file), err);
}

static enum vf_code create(const char *path, uint64_t rows, uint64_t row_bytes, const char *descr,
                           const char *shape, struct vf_npy **out, struct vf_err *err)
{
    struct vf_npy *npy = calloc(1, sizeof *npy);
    if (!npy)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to write %s", path);
    npy->rows = rows;
    npy->row_bytes = row_bytes;
    enum vf_code code = vf_out_file_create(path, &npy->file, err);
    if (!code)
        code = vf_out_file_reserve(npy->file, HEADER_BYTES + rows * row_bytes, err);
    if (!code)
        code = write_header(npy, descr, shape, err);
    if (code) {
        vf_npy_destroy(npy);
        return code;
    }
    *out = npy;
    return VF_OK;
}

enum vf_code vf_npy_create(const char *path, uint64_t rows, uint64_t columns, struct vf_npy **out,
                           struct vf_err *err)
{
    *out = NULL;
    uint64_t row_bytes, bytes;
    char shape[48];
    if (!vf_mul_u64(columns, 4, &row_bytes) || !vf_mul_u64(rows, row_bytes, &bytes) ||
        bytes > INT64_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "%s: %llu rows of %llu numbers don't fit a file", path,
                          (unsigned long long)rows, (unsigned long long)columns);
    snprintf(shape, sizeof shape, "%llu, %llu", (unsigned long long)rows,
             (unsigned long long)columns);
    return create(path, rows, row_bytes, "<f4", shape, out, err);
}

enum vf_code vf_npy_create_u16(const char *path, uint64_t rows, uint64_t columns, uint64_t depth,
                               struct vf_npy **out, struct vf_err *err)
{
    *out = NULL;
    uint64_t row_bytes, bytes;
    char shape[72];
    if (!vf_mul_u64(columns, depth, &row_bytes) || !vf_mul_u64(row_bytes, 2, &row_bytes) ||
        !vf_mul_u64(rows, row_bytes, &bytes) || bytes > INT64_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "%s: %llu x %llu x %llu numbers don't fit a file",
                          path, (unsigned long long)rows, (unsigned long long)columns,
                          (unsigned long long)depth);
    snprintf(shape, sizeof shape, "%llu, %llu, %llu", (unsigned long long)rows,
             (unsigned long long)columns, (unsigned long long)depth);
    return create(path, rows, row_bytes, "<u2", shape, out, err);
}

enum vf_code vf_npy_append(struct vf_npy *npy, const void *values, uint64_t row_count,
                           struct vf_err *err)
{
    if (row_count > npy->rows - npy->rows_done)
        return vf_err_set(err, VF_ERR_LIMIT, "%s: row %llu of %llu", vf_out_file_path(npy->file),
                          (unsigned long long)(npy->rows_done + row_count),
                          (unsigned long long)npy->rows);
    uint64_t bytes = row_count * npy->row_bytes; /* at most what create checked */
    enum vf_code code = vf_pwrite_full(vf_out_file_fd(npy->file), values, bytes, npy->offset,
                                       vf_out_file_path(npy->file), err);
    npy->offset += bytes;
    npy->rows_done += row_count;
    return code;
}

enum vf_code vf_npy_commit(struct vf_npy *npy, struct vf_err *err)
{
    if (npy->rows_done != npy->rows)
        return vf_err_set(err, VF_ERR_INTERNAL, "%s: only %llu of %llu rows came",
                          vf_out_file_path(npy->file), (unsigned long long)npy->rows_done,
                          (unsigned long long)npy->rows);
    struct vf_out_file *file = npy->file;
    npy->file = NULL;
    return vf_out_file_commit(file, err);
}

void vf_npy_destroy(struct vf_npy *npy)
{
    if (!npy)
        return;
    vf_out_file_abandon(npy->file);
    free(npy);
}

/* ---- reading ------------------------------------------------------------------------------- */

#define HEADER_MAX 4096u /* of the dictionary; three dimensions need about 80 */

/* What stands behind a key of the dictionary, or NULL. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (!at)
        return NULL;
    at += strlen(key);
    at += strspn(at, " ");
    if (*at++ != ':')
        return NULL;
    return at + strspn(at, " ");
}

static bool parse_shape(const char *at, uint64_t *shape)
{
    if (!at || *at++ != '(')
        return false;
    for (int i = 0; i < 3; i++) {
        char *end;
        at += strspn(at, " ");
        if (*at < '0' || *at > '9')
            return false;
        errno = 0;
        shape[i] = strtoull(at, &end, 10);
        if (errno)
            return false;
        at = end + strspn(end, " ");
        if (*at == ',')
            at++;
        else if (i < 2)
            return false;
    }
    return at[strspn(at, " ")] == ')';
}

static enum vf_code parse_header(const char *header, const char *path, struct vf_npy_array *out,
                                 struct vf_err *err)
{
    const char *descr = value_of(header, "'descr'"), *order = value_of(header, "'fortran_order'");
    if (!descr || !order)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: its NumPy header lacks descr or fortran_order",
                          path);
    if (strncmp(descr, "'<u2'", 5) == 0)
        out->type = VF_NPY_U16;
    else if (strncmp(descr, "'<i4'", 5) == 0)
        out->type = VF_NPY_I32;
    else
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "%s: descr is %.16s; allowed are '<u2' and '<i4'", path, descr);
    if (strncmp(order, "False", 5) != 0)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: fortran_order is %.5s; allowed is False",
                          path, order);
    if (!parse_shape(value_of(header, "'shape'"), out->shape))
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: its shape isn't one of three dimensions",
                          path);
    return VF_OK;
}

/* Checks the shape against the file's size and reads the numbers behind the header. */
static enum vf_code read_data(int fd, const char *path, uint64_t offset, uint64_t file_bytes,
                              uint64_t bytes_max, struct vf_npy_array *out, struct vf_err *err)
{
    uint64_t bytes = out->type == VF_NPY_U16 ? 2 : 4;
    bool fits = true;
    for (int i = 0; i < 3; i++)
        fits = fits && vf_mul_u64(bytes, out->shape[i], &bytes);
    if (!fits || bytes == 0 || bytes > bytes_max)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: shape (%llu, %llu, %llu); allowed are arrays of 1 to %llu bytes",
                          path, (unsigned long long)out->shape[0],
                          (unsigned long long)out->shape[1], (unsigned long long)out->shape[2],
                          (unsigned long long)bytes_max);
    if (bytes != file_bytes - offset)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: its shape needs %llu bytes behind the header, the file has %llu",
                          path, (unsigned long long)bytes,
                          (unsigned long long)(file_bytes - offset));
    out->data = malloc(bytes);
    if (!out->data)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its %llu bytes", path,
                          (unsigned long long)bytes);
    enum vf_code code = vf_pread_full(fd, out->data, bytes, offset, path, err);
    if (code) {
        free(out->data);
        out->data = NULL;
    }
    return code;
}

/* Where the header begins and its length: format 1.0 has a u16 there, 2.0 a u32. */
static enum vf_code read_preamble(int fd, const char *path, uint64_t file_bytes, uint64_t *at,
                                  uint64_t *length, struct vf_err *err)
{
    uint8_t start[12] = {0};
    if (file_bytes < sizeof start)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: %llu bytes are no NumPy file", path,
                          (unsigned long long)file_bytes);
    enum vf_code code = vf_pread_full(fd, start, sizeof start, 0, path, err);
    if (code)
        return code;
    if (memcmp(start, "\x93NUMPY", 6) != 0 || (start[6] != 1 && start[6] != 2))
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: it doesn't begin as a NumPy file of format 1 or 2", path);
    *at = start[6] == 1 ? 10 : 12;
    *length = start[8] | (uint64_t)start[9] << 8;
    if (start[6] == 2)
        *length |= (uint64_t)start[10] << 16 | (uint64_t)start[11] << 24;
    if (*length > HEADER_MAX || *length > file_bytes - *at)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: a header of %llu bytes; allowed are up to %u",
                          path, (unsigned long long)*length, HEADER_MAX);
    return VF_OK;
}

enum vf_code vf_npy_read(const char *path, uint64_t bytes_max, struct vf_npy_array *out,
                         struct vf_err *err)
{
    *out = (struct vf_npy_array){0};
    int fd;
    uint64_t file_bytes, at = 0, length = 0;
    char header[HEADER_MAX + 1];
    enum vf_code code = vf_open_input(path, &fd, &file_bytes, err);
    if (code)
        return code;
    code = read_preamble(fd, path, file_bytes, &at, &length, err);
    if (!code)
        code = vf_pread_full(fd, header, length, at, path, err);
    if (!code) {
        header[length] = 0;
        code = parse_header(header, path, out, err);
    }
    if (!code)
        code = read_data(fd, path, at + length, file_bytes, bytes_max, out, err);
    close(fd);
    return code;
}
