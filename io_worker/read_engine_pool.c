/* Reads through pread in a few threads, one per read in flight. */
#include "common/base/log.h"
#include "io_worker/read_engine_internal.h"

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
    struct vf_read_list queue, done;
    uint32_t thread_count;
    pthread_t threads[VF_READ_DEPTH_MAX];
};

/* NULL: the pool ends. */
static struct vf_read *wait_for_read(struct pool_backend *b)
{
    pthread_mutex_lock(&b->mutex);
    while (!b->queue.first && !b->stopping)
        pthread_cond_wait(&b->wanted, &b->mutex);
    struct vf_read *r = vf_read_list_take(&b->queue);
    pthread_mutex_unlock(&b->mutex);
    return r;
}

static void put_done(struct pool_backend *b, struct vf_read *r)
{
    pthread_mutex_lock(&b->mutex);
    vf_read_list_append(&b->done, r);
    pthread_mutex_unlock(&b->mutex);
    eventfd_write(b->event_fd, 1);
}

static void *pool_thread(void *arg)
{
    struct pool_backend *b = arg;
    struct vf_read *r;
    while ((r = wait_for_read(b))) {
        const struct vf_read_file *f = &b->files[r->file];
        vf_read_scatter(&b->params, r);
        ssize_t n = preadv2(f->fd, r->engine.parts, (int)r->more_count + 1, (off_t)r->file_offset,
                            f->rw_flags);
        r->result = n < 0 ? -errno : n;
        put_done(b, r);
    }
    return NULL;
}

static enum vf_code pool_submit(struct vf_read_backend *base, struct vf_read *r, struct vf_err *err)
{
    (void)err;
    struct pool_backend *b = (struct pool_backend *)base;
    pthread_mutex_lock(&b->mutex);
    vf_read_list_append(&b->queue, r);
    pthread_cond_signal(&b->wanted);
    pthread_mutex_unlock(&b->mutex);
    return VF_OK;
}

static struct vf_read *pool_reap(struct vf_read_backend *base)
{
    struct pool_backend *b = (struct pool_backend *)base;
    pthread_mutex_lock(&b->mutex);
    struct vf_read *r = vf_read_list_take(&b->done);
    pthread_mutex_unlock(&b->mutex);
    return r;
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
            return vf_err_errno(err, VF_ERR_LIMIT, rc, "pread pool: can't start a thread");
        }
        if (rc != 0) { /* fewer threads only read fewer pieces at a time */
            vf_warn("pread pool: %u threads instead of %u: %s", i, params->depth, strerror(rc));
            break;
        }
        b->thread_count++;
    }
    *out = &b->base;
    return VF_OK;
}
