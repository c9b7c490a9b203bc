#include "coordinator/serve/status.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

struct vf_status {
    Vflow__StatusReply reply;
    struct vf_engine_totals totals; /* the reply's messages are its members */
    Vflow__DriveStatus drive;
    Vflow__WorkerStatus *workers;
    Vflow__WorkerStatus **worker_list;
};

static void fill_model(Vflow__StatusReply *reply, const struct vf_engine *engine)
{
    const struct vf_model_file *file = vf_engine_model(engine);
    const struct vf_config *config = vf_model_file_config(file);
    const struct vf_engine_info *info = vf_engine_info(engine);
    const char *path = vf_model_file_path(file);
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path; /* where it lies is nobody's business */
    reply->software = (char *)VFLOW_VERSION;
    reply->model = (char *)(vf_utf8_valid(name, strlen(name)) ? name : "?");
    reply->model_type = (char *)config->model_type;
    reply->parameters = vf_config_param_count(config);
    reply->context = info->context;
    reply->sequences_max = info->sequences;
    reply->experts = (char *)info->experts;
    reply->expert_cache_bytes = info->cache_bytes;
}

static void fill_drive(struct vf_status *s, const struct vf_engine_info *info)
{
    if (info->io_workers == 0)
        return;
    vflow__drive_status__init(&s->drive);
    s->drive.io_depth = info->io_depth;
    s->drive.read_bytes = info->io_read_bytes;
    s->drive.bytes_per_s = info->drive_bytes_per_s;
    s->drive.latency_ms = info->drive_latency_ms;
    s->reply.drive = &s->drive;
}

static void fill_totals(struct vf_status *s)
{
    struct vf_engine_totals *t = &s->totals;
    if (t->speculates)
        t->stats.speculation = &t->speculation;
    s->reply.stats = &t->stats;
    s->reply.reads = &t->reads;
    s->reply.expert_bytes_read = t->expert_bytes_read;
    s->reply.expert_reads = t->expert_reads;
    s->reply.expert_evictions = t->expert_evictions;
    s->reply.guesses_used = t->guesses_used;
    s->reply.guesses_wasted = t->guesses_wasted;
    s->reply.guess_bytes_wasted = t->guess_bytes_wasted;
}

static enum vf_code fill_workers(struct vf_status *s, const struct vf_engine *engine,
                                 struct vf_err *err)
{
    uint32_t n = vf_engine_worker_count(engine);
    s->workers = calloc(n, sizeof *s->workers);
    s->worker_list = calloc(n, sizeof *s->worker_list);
    if (n && (!s->workers || !s->worker_list))
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the status of %u workers", n);
    for (uint32_t i = 0; i < n; i++) {
        struct vf_worker_view view;
        Vflow__WorkerStatus *w = s->worker_list[i] = &s->workers[i];
        vf_engine_worker(engine, i, &view);
        vflow__worker_status__init(w);
        w->role = view.role == VF_WORKER_STAGE ? VFLOW__ROLE__ROLE_STAGE : VFLOW__ROLE__ROLE_IO;
        w->index = view.index;
        w->pid = (uint64_t)view.pid;
        w->state = (char *)view.state;
        w->heartbeat_age_ms = view.heard_ms_ago;
    }
    s->reply.workers = s->worker_list;
    s->reply.n_workers = n;
    return VF_OK;
}

static void fill_load(Vflow__StatusReply *reply, const struct vf_scheduler *scheduler)
{
    struct vf_scheduler_totals totals;
    vf_scheduler_totals(scheduler, &totals);
    reply->sequences_active = vf_scheduler_active(scheduler);
    reply->requests_queued = vf_scheduler_queued(scheduler);
    reply->requests_done = totals.requests_done;
    reply->tokens_prefilled = totals.tokens_prefilled;
    reply->tokens_decoded = totals.tokens_decoded;
}

enum vf_code vf_status_create(const struct vf_scheduler *scheduler, uint64_t uptime_ms,
                              struct vf_status **out, struct vf_err *err)
{
    struct vf_engine *engine = vf_scheduler_engine(scheduler);
    struct vf_status *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the status");
    vflow__status_reply__init(&s->reply);
    s->reply.uptime_ms = uptime_ms;
    fill_model(&s->reply, engine);
    fill_drive(s, vf_engine_info(engine));
    fill_load(&s->reply, scheduler);
    enum vf_code code = vf_engine_read_totals(engine, false, &s->totals, err);
    if (!code) {
        fill_totals(s);
        code = fill_workers(s, engine, err);
    }
    if (code) {
        vf_status_destroy(s);
        return code;
    }
    *out = s;
    return VF_OK;
}

void vf_status_destroy(struct vf_status *status)
{
    if (!status)
        return;
    free(status->workers);
    free(status->worker_list);
    free(status);
}

Vflow__StatusReply *vf_status_reply(struct vf_status *status)
{
    return &status->reply;
}
