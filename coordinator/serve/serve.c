/* vflow-coordinator serve: opens the client sockets, starts the engine, and turns one loop until a
 * signal or a broken engine ends it: clients' messages in, steps out, answers out.
 */
#include "common/base/cli.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/run/run_dir.h"
#include "coordinator/commands.h"
#include "coordinator/options.h"
#include "coordinator/serve/front.h"
#include "coordinator/serve/requests.h"
#include "coordinator/signals.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM          "vflow-coordinator serve"
#define BATCH_DEFAULT    8
#define OUTBOX_DEFAULT   (256u << 20) /* a step's score rows of a large vocabulary fit */
#define OUTBOX_MIN       (1u << 20)
#define MESSAGES_AT_ONCE 64   /* then the engine gets its turn */
#define GOODBYE_MS       2000 /* for the last answers to leave */
#define OWN_OPTIONS      5

struct serve_options {
    struct vf_run_options run;
    struct vf_opt_list bind;
    const char *curve_secret, *allow;
    bool insecure;
    uint64_t client_queue;
};

struct server {
    struct serve_options options;
    int signal_fd;
    struct vf_curve_keys keys;
    struct vf_curve_list allowed;
    struct vf_front *front;
    struct vf_scheduler *scheduler;
    struct vf_requests *requests;
    char bound[VF_OPT_LIST_MAX][VF_FRONT_ENDPOINT_MAX];
    int bound_count;
};

/* ---- command line ---------------------------------------------------------------------------- */

static enum vf_code check_options(const struct serve_options *o, struct vf_err *err)
{
    if (o->allow && !o->curve_secret)
        return vf_err_set(err, VF_ERR_USAGE, "--allow needs --curve-secret");
    if (o->curve_secret && !o->allow && !o->insecure)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--curve-secret needs --allow FILE, or --insecure to let every key in");
    return vf_run_options_check(&o->run, true, err);
}

static enum vf_code parse_options(int argc, char **argv, struct serve_options *o,
                                  struct vf_err *err)
{
    vf_run_options_init(&o->run, BATCH_DEFAULT, true);
    o->client_queue = OUTBOX_DEFAULT;
    struct vf_opt opts[VF_RUN_OPTIONS_MAX + OWN_OPTIONS];
    size_t n = vf_run_options_table(&o->run, opts);
    const struct vf_opt own[OWN_OPTIONS] = {
        {"bind", 0, VF_OPT_LIST, &o->bind, "ENDPOINT",
         "ipc:///path or tcp://address:port, may be repeated (default: a private ipc socket)", 0, 0,
         NULL},
        {"curve-secret", 0, VF_OPT_STRING, &o->curve_secret, "FILE",
         "the server's key pair for tcp (vflow-client keygen)", 0, 0, NULL},
        {"allow", 0, VF_OPT_STRING, &o->allow, "FILE",
         "public keys of the clients that may connect over tcp", 0, 0, NULL},
        {"insecure", 0, VF_OPT_FLAG, &o->insecure, NULL,
         "tcp without keys, or without a list: anybody may connect", 0, 0, NULL},
        {"client-queue", 0, VF_OPT_SIZE, &o->client_queue, "SIZE",
         "answers that may wait for one slow client (default 256M)", OUTBOX_MIN,
         VF_FRONT_OUTBOXES_MAX, NULL},
    };
    memcpy(opts + n, own, sizeof own);
    const struct vf_cli cli = {PROGRAM,
                               "--model FILE [--bind ENDPOINT ...] [options]",
                               "Answers clients (vflow-client, or any program that speaks "
                               "docs/PROTOCOL.md) until stopped.",
                               opts,
                               n + OWN_OPTIONS,
                               0,
                               0};
    enum vf_code code = vf_run_options_parse(&o->run, &cli, argc, argv, err);
    return code ? code : check_options(o, err);
}

/* ---- start ----------------------------------------------------------------------------------- */

static enum vf_code bind_endpoint(struct server *s, const char *endpoint, struct vf_err *err)
{
    enum vf_code code = vf_front_bind(s->front, endpoint, s->bound[s->bound_count], err);
    if (code)
        return code;
    if (strncmp(endpoint, "tcp://", 6) == 0 && s->options.insecure && !s->options.allow)
        vf_warn("%s: anybody who reaches it may use this server (--insecure)",
                s->bound[s->bound_count]);
    s->bound_count++;
    return VF_OK;
}

/* What the user named is bound before the model is loaded: a mistake shows at once. */
static enum vf_code open_front(struct server *s, struct vf_err *err)
{
    const struct serve_options *o = &s->options;
    enum vf_code code = VF_OK;
    if (o->curve_secret)
        code = vf_curve_keys_read(o->curve_secret, &s->keys, err);
    if (!code && o->allow)
        code = vf_curve_list_read(o->allow, &s->allowed, err);
    struct vf_front_options front = {.keys = o->curve_secret ? &s->keys : NULL,
                                     .allowed = o->allow ? &s->allowed : NULL,
                                     .insecure = o->insecure,
                                     .outbox_max = o->client_queue};
    if (!code)
        code = vf_front_open(&front, &s->front, err);
    explicit_bzero(s->keys.secret_key, sizeof s->keys.secret_key);
    for (int i = 0; i < o->bind.count && !code; i++)
        code = bind_endpoint(s, o->bind.items[i], err);
    return code;
}

static enum vf_code start_engine(struct server *s, struct vf_err *err)
{
    struct vf_engine_params params = vf_run_options_engine(&s->options.run, true, s->signal_fd);
    struct vf_engine *engine;
    enum vf_code code = vf_engine_create(&params, &engine, err);
    if (!code) /* which owns the engine from here on */
        code = vf_scheduler_create(engine, &s->scheduler, err);
    if (!code)
        code = vf_front_adopt(s->front, vf_engine_run_dir(engine), err);
    if (code)
        return code;
    struct vf_requests_params requests = {.scheduler = s->scheduler, .signal_fd = s->signal_fd};
    return vf_requests_create(&requests, &s->requests, err);
}

static enum vf_code announce(struct server *s, struct vf_err *err)
{
    if (s->bound_count == 0) {
        char endpoint[VF_RUN_ENDPOINT_MAX];
        vf_run_dir_endpoint(vf_engine_run_dir(vf_scheduler_engine(s->scheduler)), VF_RUN_CLIENT,
                            endpoint);
        enum vf_code code = bind_endpoint(s, endpoint, err);
        if (code)
            return code;
    }
    for (int i = 0; i < s->bound_count; i++)
        printf("listening on %s\n", s->bound[i]);
    fflush(stdout); /* whoever closed it may still be served */
    return VF_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* True when more may be waiting. */
static bool handle_messages(struct server *s)
{
    struct vf_peer *from;
    Vflow__Envelope *message;
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        if (!vf_front_receive(s->front, &from, &message))
            return false;
        vf_requests_handle(s->requests, from, message);
        vflow__envelope__free_unpacked(message, NULL);
    }
    return true;
}

static enum vf_code run(struct server *s, struct vf_err *err)
{
    void *sockets[VF_FRONT_SOCKETS_MAX];
    struct vf_poll_extra extra = {.sockets = sockets, .fds = &s->signal_fd, .fd_count = 1};
    extra.socket_count = vf_front_sockets(s->front, sockets);
    enum vf_code code = VF_OK;
    bool more = false;
    while (!code && !vf_signals_take(s->signal_fd)) {
        int wait_ms = vf_front_tick(s->front);
        vf_requests_sweep(s->requests);
        code = vf_scheduler_poll(s->scheduler, more ? 0 : wait_ms, &extra, err);
        if (!code)
            more = handle_messages(s);
    }
    return code;
}

/* Everybody who still waits is told why, and gets a moment to hear it. err is NULL when nothing is
 * wrong. */
static void say_goodbye(struct server *s, const struct vf_err *err)
{
    struct vf_err why;
    if (err)
        why = *err;
    if (!err || vf_signals_take(s->signal_fd))
        vf_err_set(&why, VF_ERR_CANCELLED, "the server is shutting down");
    vf_requests_end(s->requests, &why);
    uint64_t deadline = vf_now_ns() + VF_MS(GOODBYE_MS);
    while (vf_front_tick(s->front) < VF_FRONT_IDLE_MS && vf_now_ns() < deadline)
        usleep(5000);
}

static void server_deinit(struct server *s)
{
    vf_run_options_deinit(&s->options.run);
    vf_front_close(s->front);
    vf_scheduler_destroy(s->scheduler);
    vf_requests_destroy(s->requests);
    vf_curve_list_deinit(&s->allowed);
    if (s->signal_fd >= 0)
        close(s->signal_fd);
}

int vf_serve_main(int argc, char **argv)
{
    struct server s = {.signal_fd = -1};
    struct vf_err err = {0};
    enum vf_code code = parse_options(argc, argv, &s.options, &err);
    if (code) {
        vf_run_options_deinit(&s.options.run);
        return vf_cli_fail(PROGRAM, &err);
    }
    code = vf_signals_open(&s.signal_fd, &err);
    if (!code)
        code = open_front(&s, &err);
    if (!code)
        code = start_engine(&s, &err);
    if (!code)
        code = announce(&s, &err);
    if (!code) {
        code = run(&s, &err);
        say_goodbye(&s, code ? &err : NULL);
    }
    int signo = s.signal_fd >= 0 ? vf_signals_take(s.signal_fd) : 0;
    server_deinit(&s);
    if (!signo)
        return code ? vf_cli_fail(PROGRAM, &err) : 0;
    vf_info("stopped by signal %d", signo);
    return 0; /* a signal is how a server is stopped */
}
