/* Reads through pread in a few threads, one per read in flight. */
#include "io_worker/engine_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct pool_backend {
    struct vf_read_backend base;
    struct vf_read_params params;
    const struct vf_read_file *files;
    int event_fd;
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t wanted; /* signalled for a new read and for the end */
    bool stopping;
    struct vf_read queue[VF_READ_DEPTH_MAX]; /* rings; never fuller than depth */
    struct vf_read_done done[VF_READ_DEPTH_MAX];
    uint32_t queue_head, queue_count, done_head, done_count;
    uint32_t thread_count;
    pthread_t threads[VF_READ_DEPTH_MAX];
};

static bool take_read(struct pool_backend *b, struct vf_read *out)
{
    pthread_mutex_lock(&b->mutex);
    while (b->queue_count == 0 && !b->stopping)
        pthread_cond_wait(&b->wanted, &b->mutex);
    bool taken = b->queue_count > 0;
    if (taken) {
        *out = b->queue[b->queue_head];
        b->queue_head = (b->queue_head + 1) % VF_READ_DEPTH_MAX;
        b->queue_count--;
    }
    pthread_mutex_unlock(&b->mutex);
    return taken;
}

static void put_done(struct pool_backend *b, struct vf_read_done done)
{
    pthread_mutex_lock(&b->mutex);
    b->done[(b->done_head + b->done_count++) % VF_READ_DEPTH_MAX] = done;
    pthread_mutex_unlock(&b->mutex);
    eventfd_write(b->event_fd, 1);
}

static void *pool_thread(void *arg)
{
    struct pool_backend *b = arg;
    struct vf_read r;
    while (take_read(b, &r)) {
        const struct vf_read_file *f = &b->files[r.file];
        struct iovec iov[VF_READ_SLOTS_MAX];
        vf_read_scatter(&b->params, &r, iov);
        ssize_t n = preadv2(f->fd, iov, (int)r.more_count + 1, (off_t)r.file_offset, f->rw_flags);
        put_done(b, (struct vf_read_done){.tag = r.tag, .result = n < 0 ? -errno : n});
    }
    return NULL;
}

static enum vf_code pool_submit(struct vf_read_backend *base, const struct vf_read *r,
                                struct vf_err *err)
{
    (void)err;
    struct pool_backend *b = (struct pool_backend *)base;
    pthread_mutex_lock(&b->mutex);
    b->queue[(b->queue_head + b->queue_count++) % VF_READ_DEPTH_MAX] = *r;
    pthread_cond_signal(&b->wanted);
    pthread_mutex_unlock(&b->mutex);
    return VF_OK;
}

static uint32_t pool_reap(struct vf_read_backend *base, struct vf_read_done *done, uint32_t max)
{
    struct pool_backend *b = (struct pool_backend *)base;
    uint32_t n = 0;
    pthread_mutex_lock(&b->mutex);
    while (n < max && b->done_count > 0) {
        done[n++] = b->done[b->done_head];
        b->done_head = (b->done_head + 1) % VF_READ_DEPTH_MAX;
        b->done_count--;
    }
    pthread_mutex_unlock(&b->mutex);
    return n;
}

/* The threads finish what is queued before they leave. */
static void pool_destroy(struct vf_read_backend *base)
{
    struct pool_backend *b = (struct pool_backend *)base;
    pthread_mutex_lock(&b->mutex);
    b->stopping = true;
    pthread_cond_broadcast(&b->wanted);
    pthread_mutex_unlock(&b->mutex);
    for (uint32_t i = 0; i < b->thread_count; i++)
        pthread_join(b->threads[i], NULL);
    pthread_cond_destroy(&b->wanted);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

static const struct vf_read_backend_ops pool_ops = {
    .destroy = pool_destroy,
    .submit = pool_submit,
    .reap = pool_reap,
};

enum vf_code vf_read_pool_create(const struct vf_read_params *params,
                                 const struct vf_read_file *files, int event_fd,
                                 struct vf_read_backend **out, struct vf_err *err)
{
    *out = NULL;
    struct pool_backend *b = calloc(1, sizeof *b);
    if (!b)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "pread pool: out of memory");
    b->base.ops = &pool_ops;
    b->params = *params;
    b->files = files;
    b->event_fd = event_fd;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->wanted, NULL);
    for (uint32_t i = 0; i < params->depth; i++) {
        int rc = pthread_create(&b->threads[i], NULL, pool_thread, b);
        if (rc != 0 && i == 0) {
            pool_destroy(&b->base);
            return vf_err_errno(err, VF_ERR_NO_MEMORY, rc, "pread pool: cannot start a thread");
        }
        if (rc != 0)
            break; /* fewer threads only read fewer records at a time */
        b->thread_count++;
    }
    *out = &b->base;
    return VF_OK;
}
