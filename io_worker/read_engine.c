/* Opens the files, chooses a backend, exchanges it when the kernel refuses it later, and keeps what
 * has landed: for the throttle, which holds completions back until they are due. */
#include "io_worker/read_engine.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "io_worker/read_engine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct vf_read_engine {
    struct vf_read_params params;
    struct vf_read_backend *backend;
    struct vf_read_backend *refused; /* a ring the kernel takes no more from; NULL: none */
    struct vf_read_file files[VF_READ_FILES_MAX];
    uint32_t file_count;
    int event_fd;
    int timer_fd, epoll_fd; /* with a throttle: completions come from either; else -1 */
    bool direct, uring;
    struct vf_throttle throttle;
    uint32_t in_flight;
    struct vf_read *landed; /* completed, not given back yet; the one due soonest first */
};

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code open_files(struct vf_read_engine *e, struct vf_err *err)
{
    e->direct = true;
    for (uint32_t i = 0; i < e->params.path_count; i++) {
        enum vf_code code =
            vf_read_file_open(e->params.paths[i], e->params.buffered, &e->files[i], err);
        if (code != VF_OK)
            return code;
        e->file_count++;
        e->direct = e->direct && e->files[i].direct;
    }
    return VF_OK;
}

static bool watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static enum vf_code open_events(struct vf_read_engine *e, struct vf_err *err)
{
    e->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->event_fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "eventfd");
    if (e->throttle.bytes_per_s == 0)
        return VF_OK;
    e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->timer_fd < 0 || e->epoll_fd < 0 || !watch(e->epoll_fd, e->timer_fd) ||
        !watch(e->epoll_fd, e->event_fd))
        return vf_err_errno(err, VF_ERR_IO, errno, "the throttle's timer");
    return VF_OK;
}

static enum vf_code open_backend(struct vf_read_engine *e, struct vf_err *err)
{
    if (!e->params.no_uring) {
        struct vf_err why;
        if (vf_read_uring_create(&e->params, e->files, e->event_fd, &e->backend, &why) == VF_OK) {
            e->uring = true;
            return VF_OK;
        }
        vf_warn("%s; reading with a pool of %u threads instead", why.text, e->params.depth);
    }
    return vf_read_pool_create(&e->params, e->files, e->event_fd, &e->backend, err);
}

enum vf_code vf_read_engine_create(const struct vf_read_params *params, struct vf_read_engine **out,
                                   struct vf_err *err)
{
    *out = NULL;
    VF_ASSERT(params->depth >= 1 && params->depth <= VF_READ_DEPTH_MAX);
    VF_ASSERT(params->path_count >= 1 && params->path_count <= VF_READ_FILES_MAX);
    VF_ASSERT((uintptr_t)params->region % VF_READ_ALIGN == 0);
    VF_ASSERT(params->slot_bytes > 0 && params->slot_bytes % VF_READ_ALIGN == 0);
    struct vf_read_engine *e = calloc(1, sizeof *e);
    if (!e)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "read engine: out of memory");
    e->params = *params;
    e->throttle.bytes_per_s = params->throttle_bytes;
    e->event_fd = e->timer_fd = e->epoll_fd = -1;
    enum vf_code code = open_files(e, err);
    if (code == VF_OK)
        code = open_events(e, err);
    if (code == VF_OK)
        code = open_backend(e, err);
    if (code != VF_OK)
        vf_read_engine_destroy(e);
    else
        *out = e;
    return code;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

void vf_read_engine_destroy(struct vf_read_engine *e)
{
    if (!e)
        return;
    if (e->backend)
        e->backend->ops->destroy(e->backend);
    if (e->refused)
        e->refused->ops->destroy(e->refused);
    close_fd(e->epoll_fd);
    close_fd(e->timer_fd);
    close_fd(e->event_fd);
    for (uint32_t i = 0; i < e->file_count; i++)
        close(e->files[i].fd);
    free(e);
}

/* ---- reads --------------------------------------------------------------------------------- */

void vf_read_scatter(const struct vf_read_params *p, struct vf_read *r)
{
    r->engine.parts[0] = (struct iovec){vf_read_address(p, r), r->bytes};
    for (uint32_t i = 0; i < r->more_count; i++)
        r->engine.parts[1 + i] = (struct iovec){p->region + r->more[i] * p->slot_bytes, r->bytes};
}

static void land(struct vf_read_engine *e, struct vf_read *r)
{
    struct vf_read **at = &e->landed;
    while (*at && (*at)->engine.due_ns <= r->engine.due_ns)
        at = &(*at)->engine.next;
    r->engine.next = *at;
    *at = r;
}

/* What the ring can't hand to the kernel any more is read by a pool; what the kernel has comes back
 * through the ring. Without a pool the reads fail. */
static void fall_back(struct vf_read_engine *e, int sys_errno, struct vf_read_list *reads)
{
    struct vf_read_backend *pool;
    struct vf_read *r;
    struct vf_err err = {0};
    if (vf_read_pool_create(&e->params, e->files, e->event_fd, &pool, &err) == VF_OK) {
        vf_warn("io_uring isn't available any more: io_uring_enter: %s; reading with a pool of %u "
                "threads instead",
                strerror(sys_errno), e->params.depth);
        e->refused = e->backend;
        e->backend = pool;
        e->uring = false;
    } else {
        vf_error("io_uring isn't available any more: io_uring_enter: %s; %s", strerror(sys_errno),
                 err.text);
    }
    while ((r = vf_read_list_take(reads)))
        if (e->uring || e->backend->ops->submit(e->backend, r, &err) != VF_OK) {
            r->result = -sys_errno;
            land(e, r);
            eventfd_write(e->event_fd, 1);
        }
}

static void check_refused(struct vf_read_engine *e)
{
    struct vf_read_list reads = {0};
    int sys_errno = e->uring ? e->backend->ops->refused(e->backend, &reads) : 0;
    if (reads.first)
        fall_back(e, sys_errno, &reads);
}

enum vf_code vf_read_engine_submit(struct vf_read_engine *e, struct vf_read *r, struct vf_err *err)
{
    VF_ASSERT(e->in_flight < e->params.depth);
    VF_ASSERT(r->slot < e->params.slot_count && r->bytes > 0 && r->file < e->file_count);
    VF_ASSERT(r->slot_offset <= e->params.slot_bytes &&
              r->bytes <= e->params.slot_bytes - r->slot_offset);
    VF_ASSERT(r->more_count == 0 || (r->more_count < VF_READ_SLOTS_MAX && r->slot_offset == 0));
    for (uint32_t k = 0; k < r->more_count; k++)
        VF_ASSERT(r->more[k] < e->params.slot_count);
    r->engine.due_ns = vf_throttle_due_ns(&e->throttle, vf_read_total(r), vf_now_ns());
    enum vf_code code = e->backend->ops->submit(e->backend, r, err);
    if (code != VF_OK)
        return code;
    e->in_flight++;
    check_refused(e);
    return VF_OK;
}

int vf_read_engine_fd(const struct vf_read_engine *e)
{
    return e->epoll_fd >= 0 ? e->epoll_fd : e->event_fd;
}

/* Wakes the caller when the next held completion is due. */
static void set_timer(struct vf_read_engine *e, uint64_t due_ns)
{
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(due_ns / VF_S(1)), .tv_nsec = (long)(due_ns % VF_S(1))}};
    timerfd_settime(e->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Resets what is readable before looking: a completion after the look makes it readable again. */
static void reset_events(struct vf_read_engine *e)
{
    uint64_t events;
    ssize_t ignored = read(e->event_fd, &events, sizeof events);
    if (e->timer_fd >= 0)
        ignored = read(e->timer_fd, &events, sizeof events);
    (void)ignored;
}

static void take_completions(struct vf_read_engine *e, struct vf_read_backend *b)
{
    struct vf_read *r;
    while (b && (r = b->ops->reap(b))) {
        if (r->result > 0)
            vf_read_file_drop(&e->files[r->file], r->file_offset, (uint64_t)r->result);
        land(e, r);
    }
}

uint32_t vf_read_engine_reap(struct vf_read_engine *e, struct vf_read **done, uint32_t max)
{
    reset_events(e);
    take_completions(e, e->refused);
    take_completions(e, e->backend);
    check_refused(e);
    uint64_t now_ns = e->landed && e->throttle.bytes_per_s ? vf_now_ns() : 0;
    uint32_t n = 0;
    for (; n < max && e->landed && e->landed->engine.due_ns <= now_ns; n++) {
        done[n] = e->landed;
        e->landed = e->landed->engine.next;
    }
    e->in_flight -= n;
    if (e->landed && e->landed->engine.due_ns <= now_ns)
        eventfd_write(e->event_fd, 1); /* more are ready than the caller took */
    else if (e->landed)
        set_timer(e, e->landed->engine.due_ns);
    return n;
}

const char *vf_read_engine_name(const struct vf_read_engine *e)
{
    if (e->uring)
        return e->direct ? "uring direct" : "uring buffered";
    return e->direct ? "pread direct" : "pread buffered";
}
