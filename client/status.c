/* vflow-client status and cancel: one question, one answer. */
#include "client/commands.h"
#include "client/session.h"
#include "common/base/json.h"
#include "common/base/util.h"
#include "common/run/counters.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- status ---------------------------------------------------------------------------------- */

static const char *role_word(Vflow__Role role)
{
    return role == VFLOW__ROLE__ROLE_STAGE ? "stage"
           : role == VFLOW__ROLE__ROLE_IO  ? "io"
                                           : "unknown";
}

static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static json_t *workers_json(const Vflow__StatusReply *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_workers; i++) {
        const Vflow__WorkerStatus *w = r->workers[i];
        json_t *item = json_object();
        json_object_set_new(item, "role", json_string(role_word(w->role)));
        json_object_set_new(item, "index", number(w->index));
        json_object_set_new(item, "pid", number(w->pid));
        json_object_set_new(item, "state", json_string(w->state));
        json_object_set_new(item, "heartbeat_age_ms", number(w->heartbeat_age_ms));
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *stats_json(const Vflow__StepStats *s)
{
    json_t *o = json_object();
    vf_counters_json(&s->base, VF_COUNTER_STATUS, o);
    if (s->speculation) {
        json_t *guesses = json_object();
        vf_counters_json(&s->speculation->base, VF_COUNTER_STATUS, guesses);
        json_object_set_new(o, "speculation", guesses);
    }
    return o;
}

/* stall over the time of reading; 0 when nothing was read. */
static double hidden_share(const Vflow__StepStats *stats, const Vflow__ExpertReads *reads)
{
    if (reads->read_ns == 0)
        return 0;
    double share = 1 - (double)stats->stall_ns / (double)reads->read_ns;
    return share > 0 ? share : 0;
}

static json_t *reads_json(const Vflow__StepStats *stats, const Vflow__ExpertReads *reads)
{
    json_t *o = json_object();
    vf_counters_json(&reads->base, VF_COUNTER_STATUS, o);
    json_object_set_new(o, "hidden_share",
                        reads->read_ns ? json_real(hidden_share(stats, reads)) : json_null());
    return o;
}

static json_t *drive_json(const Vflow__DriveStatus *d)
{
    if (!d)
        return json_null();
    json_t *o = json_object();
    json_object_set_new(o, "io_depth", number(d->io_depth));
    json_object_set_new(o, "read_bytes", number(d->read_bytes));
    json_object_set_new(o, "bytes_per_s", json_real(d->bytes_per_s));
    json_object_set_new(o, "latency_ms", json_real(d->latency_ms));
    return o;
}

static enum vf_code print_status_json(const Vflow__StatusReply *r, struct vf_err *err)
{
    const Vflow__StepStats none = VFLOW__STEP_STATS__INIT;
    const Vflow__ExpertReads no_reads = VFLOW__EXPERT_READS__INIT;
    json_t *o = json_object();
    json_object_set_new(o, "software", json_string(r->software));
    json_object_set_new(o, "model", json_string(r->model));
    json_object_set_new(o, "model_type", json_string(r->model_type));
    json_object_set_new(o, "parameters", number(r->parameters));
    json_object_set_new(o, "context", number(r->context));
    json_object_set_new(o, "sequences_max", number(r->sequences_max));
    json_object_set_new(o, "sequences_active", number(r->sequences_active));
    json_object_set_new(o, "requests_queued", number(r->requests_queued));
    json_object_set_new(o, "requests_done", number(r->requests_done));
    json_object_set_new(o, "tokens_prefilled", number(r->tokens_prefilled));
    json_object_set_new(o, "tokens_decoded", number(r->tokens_decoded));
    json_object_set_new(o, "uptime_ms", number(r->uptime_ms));
    json_object_set_new(o, "experts", json_string(r->experts));
    json_object_set_new(o, "expert_cache_bytes", number(r->expert_cache_bytes));
    json_object_set_new(o, "expert_bytes_read", number(r->expert_bytes_read));
    json_object_set_new(o, "expert_reads", number(r->expert_reads));
    json_object_set_new(o, "expert_evictions", number(r->expert_evictions));
    json_object_set_new(o, "guesses_used", number(r->guesses_used));
    json_object_set_new(o, "guesses_wasted", number(r->guesses_wasted));
    json_object_set_new(o, "guess_bytes_wasted", number(r->guess_bytes_wasted));
    json_object_set_new(o, "stats", stats_json(r->stats ? r->stats : &none));
    json_object_set_new(o, "reads",
                        reads_json(r->stats ? r->stats : &none, r->reads ? r->reads : &no_reads));
    json_object_set_new(o, "drive", drive_json(r->drive));
    json_object_set_new(o, "workers", workers_json(r));
    char *dump = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    if (!dump)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the JSON output");
    puts(dump);
    free(dump);
    return VF_OK;
}

static void print_reads(const Vflow__StepStats *s, const Vflow__ExpertReads *reads)
{
    printf("            %llu prefetched were there when wanted, %llu wasted\n",
           (unsigned long long)reads->prefetched_used,
           (unsigned long long)reads->prefetched_wasted);
    printf(
        "reads       %.2f ms each (median %.2f, 95%% %.2f, longest %.2f), %llu joined; %.3f s of "
        "stall in %.3f s of reading, %.1f%% hidden\n",
        reads->latency_ms_mean, reads->latency_ms_median, reads->latency_ms_p95,
        reads->latency_ms_max, (unsigned long long)reads->joined, (double)s->stall_ns * 1e-9,
        (double)reads->read_ns * 1e-9, 100 * hidden_share(s, reads));
}

static void print_status(const Vflow__StatusReply *r)
{
    printf("model       %s (%s, %llu parameters)\n", r->model, r->model_type,
           (unsigned long long)r->parameters);
    printf("server      vflow %s, up %.1f s\n", r->software, (double)r->uptime_ms / 1000);
    printf("requests    %u of %u running, %u queued, %llu done\n", r->sequences_active,
           r->sequences_max, r->requests_queued, (unsigned long long)r->requests_done);
    printf("tokens      %llu prefilled, %llu decoded, context %u\n",
           (unsigned long long)r->tokens_prefilled, (unsigned long long)r->tokens_decoded,
           r->context);
    if (r->stats)
        vf_counters_print(stdout, "counted     ", &r->stats->base);
    printf("experts     %s, cache %.1f MiB, %llu reads (%.1f MiB), %llu evictions\n", r->experts,
           (double)r->expert_cache_bytes / (1 << 20), (unsigned long long)r->expert_reads,
           (double)r->expert_bytes_read / (1 << 20), (unsigned long long)r->expert_evictions);
    if (r->drive && r->drive->bytes_per_s > 0)
        printf(
            "drive       %.2f GB/s at the start in reads of %llu KiB, %u at a time, %.2f ms each\n",
            r->drive->bytes_per_s * 1e-9, (unsigned long long)r->drive->read_bytes >> 10,
            r->drive->io_depth, r->drive->latency_ms);
    if (r->stats && r->stats->speculation)
        printf("guesses     %s, %llu used, %llu wasted (%.1f MiB at most)\n",
               r->stats->speculation->on ? "on" : "off", (unsigned long long)r->guesses_used,
               (unsigned long long)r->guesses_wasted, (double)r->guess_bytes_wasted / (1 << 20));
    if (r->stats && r->reads && strcmp(r->experts, "streamed") == 0)
        print_reads(r->stats, r->reads);
    for (size_t i = 0; i < r->n_workers; i++) {
        const Vflow__WorkerStatus *w = r->workers[i];
        printf("worker      %s-%u pid %llu %s, heard %.1f s ago\n", role_word(w->role), w->index,
               (unsigned long long)w->pid, w->state, (double)w->heartbeat_age_ms / 1000);
    }
}

static enum vf_code ask_status(struct vf_session *s, bool json, struct vf_err *err)
{
    uint64_t id;
    struct vf_client_event event;
    enum vf_code code = vf_client_status(s->client, &id, err);
    if (!code)
        code = vf_session_next(s, id, &event, err);
    if (code)
        return code;
    if (event.kind != VF_CLIENT_STATUS)
        return vf_err_set(err, VF_ERR_PROTOCOL, "the server's answer isn't a status");
    if (json)
        code = print_status_json(event.message->status_reply, err);
    else
        print_status(event.message->status_reply);
    return code ? code : vf_flush_stdout(err);
}

int vf_client_status_main(int argc, char **argv)
{
    static const char program[] = "vflow-client status";
    struct vf_session_options o;
    struct vf_session session = {.program = program, .signal_fd = -1};
    struct vf_err err = {0};
    bool json = false;
    vf_session_options_init(&o);
    struct vf_opt opts[VF_SESSION_OPTION_COUNT + 1];
    size_t n = vf_session_options_table(&o, opts);
    opts[n++] =
        (struct vf_opt){"json", 0, VF_OPT_FLAG, &json, NULL, "print one JSON object", 0, 0, NULL};
    const struct vf_cli cli = {program,
                               "--connect ENDPOINT [options]",
                               "Shows a vflow server's model, load and workers.",
                               opts,
                               n,
                               0,
                               0};
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, &err);
    if (!code)
        code = vf_session_open(&session, program, &o, &err);
    if (!code)
        ask_status(&session, json, &err);
    vf_session_close(&session);
    return vf_session_exit(&session, &err);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static enum vf_code parse_id(const char *text, uint64_t *id, struct vf_err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || v == 0)
        return vf_err_set(err, VF_ERR_USAGE,
                          "'%s' isn't a request id (a whole number from 1 to 2^64 - 1)", text);
    *id = v;
    return VF_OK;
}

static enum vf_code cancel(struct vf_session *s, uint64_t target, struct vf_err *err)
{
    uint64_t id;
    struct vf_client_event event;
    enum vf_code code = vf_client_cancel(s->client, target, &id, err);
    if (!code)
        code = vf_session_next(s, id, &event, err);
    if (code)
        return code;
    if (event.kind != VF_CLIENT_CANCEL)
        return vf_err_set(err, VF_ERR_PROTOCOL, "the server's answer isn't a cancel reply");
    if (!event.message->cancel_reply->found)
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "the server runs no request %llu that is yours to cancel",
                          (unsigned long long)target);
    printf("cancelled %llu\n", (unsigned long long)target);
    return vf_flush_stdout(err);
}

int vf_client_cancel_main(int argc, char **argv)
{
    static const char program[] = "vflow-client cancel";
    struct vf_session_options o;
    struct vf_session session = {.program = program, .signal_fd = -1};
    struct vf_err err = {0};
    const char *word = NULL;
    uint64_t target = 0;
    vf_session_options_init(&o);
    struct vf_opt opts[VF_SESSION_OPTION_COUNT];
    size_t n = vf_session_options_table(&o, opts);
    const struct vf_cli cli = {program,
                               "--connect ENDPOINT [options] ID",
                               "Ends a running request; generate -v prints its id.",
                               opts,
                               n,
                               1,
                               1};
    int count = 0;
    enum vf_code code = vf_cli_parse(&cli, argc, argv, &word, &count, &err);
    if (!code)
        code = parse_id(word, &target, &err);
    if (!code)
        code = vf_session_open(&session, program, &o, &err);
    if (!code)
        cancel(&session, target, &err);
    vf_session_close(&session);
    return vf_session_exit(&session, &err);
}
