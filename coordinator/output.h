/* Results on stdout, in the order they are written, without ever hiding a signal: while a slow
 * reader makes us wait, cancel_fd is watched too.
 */
#ifndef VF_COORDINATOR_OUTPUT_H
#define VF_COORDINATOR_OUTPUT_H

#include "common/base/err.h"

#include <stddef.h>

/* Writes all of data. VF_ERR_CANCELLED when cancel_fd became readable first; VF_ERR_IO with
 * sys_errno EPIPE when the reader is gone. */
enum vf_code vf_output_write(const void *data, size_t n, int cancel_fd, struct vf_err *err);

#endif
