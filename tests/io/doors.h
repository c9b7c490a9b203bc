/* The doors of the cache that a test works on, where the test is every stage worker and I/O worker
 * itself: loaders are opened with it, a reader when its process first acts, all closed with it. */
#ifndef VF_TESTS_IO_DOORS_H
#define VF_TESTS_IO_DOORS_H

#include "common/experts/cache_loader.h"
#include "common/experts/cache_reader.h"
#include "io_test.h"

static struct {
    struct vf_expert_cache *cache;
    struct vf_cache_reader *readers[VF_CACHE_PROCESSES_MAX];
    struct vf_cache_loader *loaders[VF_CACHE_IO_WORKERS_MAX];
    uint32_t woken; /* bit w: somebody woke I/O worker w */
} doors;

static inline void note_woken(void *ctx, uint32_t io_worker)
{
    (void)ctx;
    doors.woken |= 1u << io_worker;
}

static inline void open_doors(struct vf_expert_cache *c)
{
    doors.cache = c;
    for (uint32_t i = 0; i < vf_expert_cache_geometry(c)->io_worker_count; i++)
        MUST(vf_cache_loader_open(c, i, (struct vf_cache_waker){note_woken, NULL},
                                  &doors.loaders[i], &must_err));
}

static inline struct vf_cache_loader *loader_of(struct vf_expert_cache *c, uint32_t io_worker)
{
    if (doors.cache != c || !doors.loaders[io_worker])
        DIE("no loader %u", io_worker);
    return doors.loaders[io_worker];
}

static inline struct vf_cache_reader *reader_of(struct vf_expert_cache *c, uint32_t process)
{
    if (doors.cache != c)
        DIE("another cache");
    if (!doors.readers[process])
        MUST(vf_cache_reader_open(c, process, (struct vf_cache_waker){note_woken, NULL},
                                  &doors.readers[process], &must_err));
    return doors.readers[process];
}

/* What the process of an index left behind is given back: another one takes its place. */
static inline void replace_reader(struct vf_expert_cache *c, uint32_t process)
{
    struct vf_cache_reader *before = doors.readers[process];
    doors.readers[process] = NULL;
    reader_of(c, process);
    vf_cache_reader_close(before);
}

static inline void close_doors(void)
{
    for (uint32_t i = 0; i < VF_CACHE_PROCESSES_MAX; i++)
        vf_cache_reader_close(doors.readers[i]);
    for (uint32_t i = 0; i < VF_CACHE_IO_WORKERS_MAX; i++)
        vf_cache_loader_close(doors.loaders[i]);
    memset(&doors, 0, sizeof doors);
}

#endif
