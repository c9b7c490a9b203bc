#include "common/npy.h"

#include "common/out_file.h"
#include "common/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 128 /* NumPy wants a multiple of 64; this one fits any shape */

struct vf_npy {
    struct vf_out_file *file; /* NULL once it is whole */
    uint64_t rows, columns, rows_done, offset;
};

static enum vf_code write_header(struct vf_npy *npy, struct vf_err *err)
{
    char header[HEADER_BYTES];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10; /* length of what follows, u16 little-endian */
    header[9] = 0;
    int n = snprintf(header + 10, sizeof header - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
                     (unsigned long long)npy->rows, (unsigned long long)npy->columns);
    header[10 + n] = ' ';
    header[HEADER_BYTES - 1] = '\n';
    npy->offset = HEADER_BYTES;
    return vf_pwrite_full(vf_out_file_fd(npy->file), header, sizeof header, 0,
                          vf_out_file_path(npy->file), err);
}

enum vf_code vf_npy_create(const char *path, uint64_t rows, uint64_t columns, struct vf_npy **out,
                           struct vf_err *err)
{
    *out = NULL;
    uint64_t bytes = 0;
    if (!vf_mul_u64(rows, columns, &bytes) || !vf_mul_u64(bytes, 4, &bytes) || bytes > INT64_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "%s: %llu rows of %llu numbers don't fit a file", path,
                          (unsigned long long)rows, (unsigned long long)columns);
    struct vf_npy *npy = calloc(1, sizeof *npy);
    if (!npy)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to write %s", path);
    npy->rows = rows;
    npy->columns = columns;
    enum vf_code code = vf_out_file_create(path, &npy->file, err);
    if (!code)
        code = write_header(npy, err);
    if (code) {
        vf_npy_destroy(npy);
        return code;
    }
    *out = npy;
    return VF_OK;
}

enum vf_code vf_npy_append(struct vf_npy *npy, const void *values, uint64_t row_count,
                           struct vf_err *err)
{
    if (row_count > npy->rows - npy->rows_done)
        return vf_err_set(err, VF_ERR_LIMIT, "%s: row %llu of %llu", vf_out_file_path(npy->file),
                          (unsigned long long)(npy->rows_done + row_count),
                          (unsigned long long)npy->rows);
    uint64_t bytes = row_count * npy->columns * 4; /* at most what create checked */
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
