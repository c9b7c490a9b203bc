/* What engine.c shares with the two engines behind it. */
#ifndef VF_IO_WORKER_ENGINE_INTERNAL_H
#define VF_IO_WORKER_ENGINE_INTERNAL_H

#include "io_worker/engine.h"

struct vf_read_backend;
struct vf_read_backend_ops {
    void (*destroy)(struct vf_read_backend *b); /* waits for reads in flight */
    enum vf_code (*submit)(struct vf_read_backend *b, const struct vf_read *read,
                           struct vf_err *err);
    uint32_t (*reap)(struct vf_read_backend *b, struct vf_read_done *done, uint32_t max);
};
struct vf_read_backend {
    const struct vf_read_backend_ops *ops;
};

/* Both borrow fd and event_fd (an eventfd they add to at every completion). */
enum vf_code vf_read_uring_create(const struct vf_read_params *params, int fd, int event_fd,
                                  struct vf_read_backend **out, struct vf_err *err);
enum vf_code vf_read_pool_create(const struct vf_read_params *params, int fd, int event_fd,
                                 struct vf_read_backend **out, struct vf_err *err);

static inline uint8_t *vf_read_address(const struct vf_read_params *p, const struct vf_read *r)
{
    return p->region + r->slot * p->slot_bytes + r->slot_offset;
}

#endif
