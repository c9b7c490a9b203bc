#include "coordinator/output.h"

#include "common/base/progress.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

/* A writable pipe takes this much at once, so the write itself doesn't wait. */
#define PIECE_BYTES PIPE_BUF

static enum vf_code wait_writable(int cancel_fd, struct vf_err *err)
{
    struct pollfd fds[2] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                            {.fd = cancel_fd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR)
            return vf_err_errno(err, VF_ERR_IO, errno, "can't wait for stdout");
    if (fds[1].revents)
        return vf_err_set(err, VF_ERR_CANCELLED, "cancelled by a signal");
    return VF_OK;
}

enum vf_code vf_output_write(const void *data, size_t n, int cancel_fd, struct vf_err *err)
{
    const char *p = data;
    vf_progress_clear();
    while (n > 0) {
        enum vf_code code = wait_writable(cancel_fd, err);
        if (code)
            return code;
        ssize_t done = write(STDOUT_FILENO, p, n < PIECE_BYTES ? n : PIECE_BYTES);
        if (done < 0 && errno != EINTR && errno != EAGAIN)
            return vf_err_errno(err, VF_ERR_IO, errno, "can't write to stdout");
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        }
    }
    return VF_OK;
}
