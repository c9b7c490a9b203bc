#include "common/run/owner_watch.h"

#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct vf_owner_watch {
    const struct vf_run_dir *rd;
    pthread_t thread;
    int pidfd, stop_fd;
    void (*on_death)(void *ctx);
    void *ctx;
};

static void leave(struct vf_owner_watch *w)
{
    vf_info("the coordinator has died, leaving");
    if (w->on_death)
        w->on_death(w->ctx);
    vf_run_dir_remove(w->rd);
    _exit(1);
}

static void *watch(void *arg)
{
    struct vf_owner_watch *w = arg;
    struct pollfd fds[2] = {{.fd = w->pidfd, .events = POLLIN},
                            {.fd = w->stop_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(fds, 2, -1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || fds[1].revents)
            return NULL;
        if (fds[0].revents)
            leave(w);
    }
}

enum vf_code vf_owner_watch_start(const struct vf_run_dir *rd, void (*on_death)(void *), void *ctx,
                                  struct vf_owner_watch **out, struct vf_err *err)
{
    struct vf_owner_watch *w = calloc(1, sizeof *w);
    if (!w)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to watch the coordinator");
    *w = (struct vf_owner_watch){
        .rd = rd, .pidfd = -1, .stop_fd = -1, .on_death = on_death, .ctx = ctx};
    enum vf_code code = vf_run_dir_owner_pidfd(rd, &w->pidfd, err);
    if (code == VF_ERR_PEER_LOST) /* died while this worker started: nobody else may be left */
        vf_run_dir_remove(rd);
    if (code != VF_OK)
        goto fail;
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = w->stop_fd < 0 ? errno : pthread_create(&w->thread, NULL, watch, w);
    if (rc != 0) {
        code = vf_err_errno(err, VF_ERR_IO, rc, "watching the coordinator");
        goto fail;
    }
    *out = w;
    return VF_OK;
fail:
    if (w->pidfd >= 0)
        close(w->pidfd);
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    free(w);
    return code;
}

void vf_owner_watch_stop(struct vf_owner_watch *w)
{
    if (!w)
        return;
    uint64_t one = 1;
    ssize_t ignored = write(w->stop_fd, &one, sizeof one);
    (void)ignored;
    pthread_join(w->thread, NULL);
    close(w->pidfd);
    close(w->stop_fd);
    free(w);
}
