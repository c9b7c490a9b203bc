/* The control side of an I/O worker. One poll waits for the coordinator's messages, a signal, and
 * through the service for orders and reads. */
#include "io_worker/io_worker.h"

#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "common/experts/stripes.h"
#include "common/run/member.h"
#include "common/settings/settings.h"
#include "io_worker/read_engine.h"
#include "io_worker/service.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define POLL_MS 500 /* between two heartbeats in the cache */

struct io_worker {
    uint32_t index;
    int signal_fd;
    struct vf_member *member;
    struct vf_model_file *file;
    struct vf_bank_stripes *stripes; /* NULL: the bank is in the file */
    struct vf_io_service *service;   /* NULL until the plan was followed */
};

/* ---- the plan ------------------------------------------------------------------------------ */

static bool uring_is_forbidden(void)
{
    const char *no = getenv("VFLOW_NO_URING");
    return no && strcmp(no, "1") == 0;
}

static enum vf_code check_plan(const struct io_worker *w, const Vflow__Plan *plan,
                               struct vf_err *err)
{
    const Vflow__RunSettings *s = plan->settings;
    if (!s)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: no settings found");
    enum vf_code code = vf_run_settings_check(s, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "plan: ");
    if (w->index >= s->io_workers)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: it has %u I/O workers, this is number %u",
                          s->io_workers, w->index);
    if (s->io_depth > VF_READ_DEPTH_MAX)
        return vf_err_set(err, VF_ERR_PROTOCOL, "plan: queue depth %u; allowed are 1 to %u",
                          s->io_depth, VF_READ_DEPTH_MAX);
    return VF_OK;
}

static enum vf_code open_file(struct io_worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    enum vf_code code = vf_model_file_open(plan->model_path, &w->file, err);
    if (code != VF_OK)
        return code;
    uint64_t found = vf_model_file_fingerprint(w->file);
    if (found != plan->model_fingerprint)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: fingerprint %016" PRIx64
                          ", the coordinator opened one with %016" PRIx64
                          "; was the file exchanged?",
                          plan->model_path, found, plan->model_fingerprint);
    return VF_OK;
}

static enum vf_code follow_plan(struct io_worker *w, const Vflow__Plan *plan, struct vf_err *err)
{
    struct vf_expert_bank bank;
    enum vf_code code = check_plan(w, plan, err);
    if (code == VF_OK)
        code = open_file(w, plan, err);
    if (code == VF_OK && plan->n_expert_bank > 0)
        code = vf_bank_stripes_open(w->file, (const char *const *)plan->expert_bank,
                                    (uint32_t)plan->n_expert_bank, &w->stripes, err);
    if (code == VF_OK)
        code = vf_expert_bank_of(w->file, w->stripes, &bank, err);
    if (code != VF_OK)
        return code;
    struct vf_io_service_params params = {
        .zmq_context = vf_member_zmq(w->member),
        .run_dir = vf_member_run_dir(w->member),
        .bank = &bank,
        .index = w->index,
        .epoch = vf_member_epoch(w->member),
        .depth = plan->settings->io_depth,
        .piece_bytes = plan->read_bytes,
        .throttle_bytes = plan->settings->io_throttle,
        .buffered = plan->settings->io == VFLOW__IO__IO_BUFFERED,
        .no_uring = uring_is_forbidden(),
    };
    return vf_io_service_create(&params, &w->service, err);
}

/* ---- serving ------------------------------------------------------------------------------- */

/* One wait for the coordinator, orders and reads, and what it brought. */
static enum vf_code turn(struct io_worker *w, bool *over, struct vf_err *err)
{
    zmq_pollitem_t items[VF_MEMBER_ITEMS_MAX];
    int count = vf_member_poll_items(w->member, items);
    enum vf_code code = vf_io_service_run(w->service, items, count, POLL_MS, err);
    if (code == VF_OK)
        code = vf_model_file_check_unchanged(w->file, err);
    for (int i = 0; i < count && code == VF_OK; i++) {
        enum vf_member_event event = VF_MEMBER_NOTHING;
        const Vflow__Envelope *ignored; /* steps aren't for this role */
        if (items[i].revents)
            code = vf_member_next(w->member, 0, &event, &ignored, err);
        *over |= event == VF_MEMBER_OVER;
    }
    return code;
}

static enum vf_code serve(struct io_worker *w, struct vf_err *err)
{
    Vflow__Ready ready = VFLOW__READY__INIT;
    bool over = false;
    ready.threads = 1;
    ready.io = (char *)vf_io_service_engine(w->service);
    enum vf_code code = vf_member_ready(w->member, &ready, err);
    while (code == VF_OK && !over)
        code = turn(w, &over, err);
    return code;
}

static enum vf_code live(struct io_worker *w, struct vf_err *err)
{
    const Vflow__Plan *plan;
    enum vf_code code = vf_member_wait_plan(w->member, &plan, err);
    if (code != VF_OK || !plan)
        return code;
    code = follow_plan(w, plan, err);
    return code == VF_OK ? serve(w, err) : code;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* SIGTERM becomes readable; blocked before any thread starts, so that none takes it. */
static enum vf_code open_signals(struct io_worker *w, struct vf_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return vf_err_errno(err, VF_ERR_INTERNAL, errno, "sigprocmask");
    w->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return w->signal_fd >= 0 ? VF_OK : vf_err_errno(err, VF_ERR_IO, errno, "signalfd");
}

static void log_totals(const struct io_worker *w)
{
    if (!w->service)
        return;
    struct vf_cache_io_stats s = vf_io_service_stats(w->service);
    vf_info(
        "%" PRIu64 " reads, %" PRIu64 " MiB, latency mean %.2f ms, max %.2f ms, %" PRIu64
        " errors, %" PRIu64 " joined, %" PRIu64 " orders merged, %" PRIu64 " stale, %" PRIu64
        " evictions",
        s.reads, s.bytes >> 20, s.reads ? (double)s.latency_ns_sum / (double)s.reads / 1e6 : 0.0,
        (double)s.latency_ns_max / 1e6, s.read_errors, s.joined, s.merged, s.stale, s.evictions);
}

static void deinit(struct io_worker *w)
{
    vf_io_service_destroy(w->service);
    vf_bank_stripes_close(w->stripes);
    vf_model_file_close(w->file);
    vf_member_destroy(w->member);
    close(w->signal_fd);
}

enum vf_code vf_io_worker_run(const char *run_dir, uint32_t index, struct vf_err *err)
{
    struct io_worker w = {.index = index, .signal_fd = -1};
    enum vf_code code = open_signals(&w, err);
    if (code != VF_OK) {
        vf_error("%s", err->text);
        return code;
    }
    struct vf_member_params params = {
        .run_dir = run_dir, .role = VFLOW__ROLE__ROLE_IO, .index = index, .stop_fd = w.signal_fd};
    code = vf_member_create(&params, &w.member, err);
    if (code == VF_OK) {
        code = live(&w, err);
        log_totals(&w);
        if (code != VF_OK) {
            vf_io_service_destroy(w.service); /* reads in flight end before the goodbye */
            w.service = NULL;
            vf_member_fail(w.member, err);
        }
    }
    deinit(&w);
    return code;
}
