#include "stage_worker/owner_watch.h"

#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct vf_owner_watch {
    const struct vf_run_dir *rd;
    pthread_t thread;
    int pidfd, stop_fd;
    pthread_mutex_t lock; /* guards state and mailboxes */
    struct vf_run_state *state;
    struct vf_mailboxes *mailboxes;
};

static void leave(struct vf_owner_watch *w)
{
    vf_info("the coordinator has died, leaving");
    pthread_mutex_lock(&w->lock);
    if (w->state)
        vf_run_state_end(w->state);
    vf_mailboxes_wake(w->mailboxes);
    pthread_mutex_unlock(&w->lock);
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

enum vf_code vf_owner_watch_start(const struct vf_run_dir *rd, struct vf_owner_watch **out,
                                  struct vf_err *err)
{
    struct vf_owner_watch *w = calloc(1, sizeof *w);
    if (!w)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory to watch the coordinator");
    w->rd = rd;
    w->stop_fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    enum vf_code code = vf_run_dir_owner_pidfd(rd, &w->pidfd, err);
    if (code == VF_ERR_PEER_LOST) /* died while this worker started: nobody else may be left */
        vf_run_dir_remove(rd);
    if (code != VF_OK)
        goto fail;
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = w->stop_fd < 0 ? errno : pthread_create(&w->thread, NULL, watch, w);
    if (rc != 0) {
        close(w->pidfd);
        code = vf_err_errno(err, VF_ERR_IO, rc, "watching the coordinator");
        goto fail;
    }
    *out = w;
    return VF_OK;
fail:
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return code;
}

void vf_owner_watch_set_run(struct vf_owner_watch *w, struct vf_run_state *state,
                            struct vf_mailboxes *mailboxes)
{
    pthread_mutex_lock(&w->lock);
    w->state = state;
    w->mailboxes = mailboxes;
    pthread_mutex_unlock(&w->lock);
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
    pthread_mutex_destroy(&w->lock);
    free(w);
}
