/* What engine.c shares with the two engines behind it. */
#ifndef VF_IO_WORKER_READ_ENGINE_INTERNAL_H
#define VF_IO_WORKER_READ_ENGINE_INTERNAL_H

#include "io_worker/read_engine.h"

/* Of kernels from 6.14 on; headers may be older. */
#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif

struct vf_read_file {
    int fd;
    bool direct;
    bool drop;    /* the page cache behind each read */
    int rw_flags; /* RWF_DONTCACHE where the file system drops by itself, else 0 */
};

/* Reads in the order of their arrival, linked by engine.next. */
struct vf_read_list {
    struct vf_read *first, *last;
};

static inline void vf_read_list_append(struct vf_read_list *list, struct vf_read *r)
{
    r->engine.next = NULL;
    *(list->first ? &list->last->engine.next : &list->first) = r;
    list->last = r;
}

/* NULL: there is none. */
static inline struct vf_read *vf_read_list_take(struct vf_read_list *list)
{
    struct vf_read *r = list->first;
    if (r)
        list->first = r->engine.next;
    return r;
}

struct vf_read_backend;
struct vf_read_backend_ops {
    void (*destroy)(struct vf_read_backend *b); /* waits for reads in flight */
    enum vf_code (*submit)(struct vf_read_backend *b, struct vf_read *read, struct vf_err *err);
    /* A completed read, its result set; NULL: none. */
    struct vf_read *(*reap)(struct vf_read_backend *b);
    /* The errno for which the kernel takes no more reads from this backend, 0: it does; with the
     * reads that it didn't take. Those that it took still come through reap. */
    int (*refused)(struct vf_read_backend *b, struct vf_read_list *reads);
};
struct vf_read_backend {
    const struct vf_read_backend_ops *ops;
};

/* Both borrow files [params->path_count] and event_fd (an eventfd they add to at every completion).
 */
enum vf_code vf_read_uring_create(const struct vf_read_params *params,
                                  const struct vf_read_file *files, int event_fd,
                                  struct vf_read_backend **out, struct vf_err *err);
enum vf_code vf_read_pool_create(const struct vf_read_params *params,
                                 const struct vf_read_file *files, int event_fd,
                                 struct vf_read_backend **out, struct vf_err *err);

static inline uint8_t *vf_read_address(const struct vf_read_params *p, const struct vf_read *r)
{
    return p->region + r->slot * p->slot_bytes + r->slot_offset;
}

static inline uint64_t vf_read_total(const struct vf_read *r)
{
    return (1 + r->more_count) * r->bytes;
}

/* Fills the read's parts, of which more_count + 1 are used. */
void vf_read_scatter(const struct vf_read_params *p, struct vf_read *r);

/* ---- throttle.c ---- */

struct vf_throttle {
    uint64_t bytes_per_s; /* 0: none */
    uint64_t busy_until_ns;
};

/* When a read that is submitted now may complete at the soonest. */
uint64_t vf_throttle_due_ns(struct vf_throttle *t, uint64_t bytes, uint64_t now_ns);

/* ---- engine_file.c ---- */

/* Opens a file as directly as it can be, and says what it had to give up. */
enum vf_code vf_read_file_open(const char *path, bool buffered, struct vf_read_file *out,
                               struct vf_err *err);
/* After a read of the file has completed. */
void vf_read_file_drop(const struct vf_read_file *f, uint64_t offset, uint64_t bytes);

#endif
