/* The working part of an I/O worker: takes fetch orders on its PULL socket and has the loads
 * (loads.h) fill slots of the run's expert cache. Knows nothing of the coordinator. One thread. */
#ifndef VF_IO_WORKER_SERVICE_H
#define VF_IO_WORKER_SERVICE_H

#include "common/experts/bank.h"
#include "common/experts/cache.h"
#include "common/run/run_dir.h"

#include <zmq.h>

struct vf_io_service_params {
    void *zmq_context;
    const struct vf_run_dir *run_dir;  /* borrowed during create only */
    const struct vf_expert_bank *bank; /* copied; what it points to must outlive the service */
    uint32_t index;                    /* of this I/O worker */
    uint32_t epoch;                    /* of the plan; orders of another one are dropped */
    uint32_t depth;                    /* pieces being read at a time; 0: VF_IO_DEPTH_DEFAULT */
    uint64_t piece_bytes;              /* 0: VF_IO_PIECE_DEFAULT */
    uint64_t throttle_bytes;           /* a second, for experiments; 0: none */
    bool buffered;                     /* through the page cache */
    bool no_uring;                     /* with the pool of threads */
};

struct vf_io_service;

/* Opens the run's cache, binds the socket, enters itself in the cache. */
enum vf_code vf_io_service_create(const struct vf_io_service_params *params,
                                  struct vf_io_service **out, struct vf_err *err);
/* Waits for reads in flight. NULL is fine. */
void vf_io_service_destroy(struct vf_io_service *s);

#define VF_IO_EXTRA_ITEMS_MAX 8
/* Waits at most timeout_ms for orders, completed reads or one of the caller's own items (their
 * revents are set), and does what there is to do. Fails only when the service can't go on. */
enum vf_code vf_io_service_run(struct vf_io_service *s, zmq_pollitem_t *extra, int extra_count,
                               int timeout_ms, struct vf_err *err);

const char *vf_io_service_engine(const struct vf_io_service *s); /* vf_read_engine_name */
struct vf_cache_io_stats vf_io_service_stats(const struct vf_io_service *s);

#endif
