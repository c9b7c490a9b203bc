#include "client/session.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOODBYE_MS        2000 /* how long a cancelled request's last answer is awaited */
#define TIMEOUT_DEFAULT_S 30

void vf_session_options_init(struct vf_session_options *o)
{
    *o = (struct vf_session_options){0};
}

size_t vf_session_options_table(struct vf_session_options *o, struct vf_opt *opts)
{
    const struct vf_opt rows[VF_SESSION_OPTION_COUNT] = {
        {"connect", 'c', VF_OPT_STRING, &o->connect, "ENDPOINT",
         "where the server listens: ipc:///path or tcp://host:port", 0, 0, NULL},
        {"server-key", 0, VF_OPT_STRING, &o->server_key, "FILE",
         "the server's public key (its .pub file), for tcp", 0, 0, NULL},
        {"key", 0, VF_OPT_STRING, &o->key, "FILE", "own key pair (a .key file), for tcp", 0, 0,
         NULL},
        {"insecure", 0, VF_OPT_FLAG, &o->insecure, NULL, "tcp without keys", 0, 0, NULL},
        {"timeout", 0, VF_OPT_FLOAT, &o->timeout, "SECONDS",
         "give up when the server is silent for so long (default 30); given, it also is how long "
         "a socket file that isn't there is waited for",
         0.01, 1e6, NULL},
        {"verbose", 'v', VF_OPT_COUNT, &o->verbosity, NULL, "say more on stderr", 0, 0, NULL},
    };
    memcpy(opts, rows, sizeof rows);
    return VF_SESSION_OPTION_COUNT;
}

/* ---- signals --------------------------------------------------------------------------------- */

static void signal_set(sigset_t *set)
{
    static const int signals[] = {SIGINT, SIGTERM};
    sigemptyset(set);
    for (size_t i = 0; i < VF_ARRAY_LEN(signals); i++)
        if (!vf_signal_is_ignored(signals[i]))
            sigaddset(set, signals[i]);
}

/* Before zmq starts threads, so that they inherit the mask. */
static enum vf_code open_signals(struct vf_session *s, struct vf_err *err)
{
    sigset_t set;
    signal_set(&set);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? VF_OK
                             : vf_err_errno(err, VF_ERR_IO, errno, "can't watch for signals");
}

/* The first signal asks for an orderly end; from then on another one kills at once. */
static void take_signal(struct vf_session *s)
{
    struct signalfd_siginfo info;
    if (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        s->signal = (int)info.ssi_signo;
    sigset_t set;
    signal_set(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum vf_code read_keys(const struct vf_session_options *o, struct vf_curve_keys *keys,
                              char *server_key, struct vf_err *err)
{
    if (!o->server_key != !o->key)
        return vf_err_set(err, VF_ERR_USAGE, "--server-key and --key are given together");
    enum vf_code code = o->key ? vf_curve_keys_read(o->key, keys, err) : VF_OK;
    if (!code && o->server_key)
        code = vf_curve_public_read(o->server_key, server_key, err);
    return code;
}

/* Without --timeout nobody is expected to start the server only now. */
static enum vf_code check_socket_file(const struct vf_session_options *o, struct vf_err *err)
{
    struct stat st;
    if (o->timeout > 0 || strncmp(o->connect, "ipc://", 6) != 0 || o->connect[6] != '/' ||
        stat(o->connect + 6, &st) == 0 || (errno != ENOENT && errno != ENOTDIR))
        return VF_OK;
    return vf_err_set(err, VF_ERR_PEER_LOST,
                      "no server at %s: there is no such socket file (--timeout SECONDS waits for "
                      "it); is `vflow-coordinator serve` running there?",
                      o->connect);
}

enum vf_code vf_session_open(struct vf_session *s, const char *program,
                             const struct vf_session_options *o, struct vf_err *err)
{
    *s = (struct vf_session){.program = program, .signal_fd = -1, .verbosity = o->verbosity};
    s->timeout_ms = (int)((o->timeout > 0 ? o->timeout : TIMEOUT_DEFAULT_S) * 1000);
    if (!o->connect)
        return vf_err_set(err, VF_ERR_USAGE, "--connect ENDPOINT is missing");
    struct vf_curve_keys keys;
    char server_key[VF_CURVE_KEY_CHARS + 1];
    enum vf_code code = check_socket_file(o, err);
    if (!code)
        code = read_keys(o, &keys, server_key, err);
    if (!code)
        code = open_signals(s, err);
    if (!code) {
        struct vf_client_options options = {.endpoint = o->connect,
                                            .server_key = o->server_key ? server_key : NULL,
                                            .keys = o->key ? &keys : NULL,
                                            .insecure = o->insecure,
                                            .interrupt_fd = s->signal_fd};
        code = vf_client_open(&options, &s->client, err);
    }
    explicit_bzero(&keys, sizeof keys);
    return code;
}

void vf_session_close(struct vf_session *s)
{
    vf_client_close(s->client);
    s->client = NULL;
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    s->signal_fd = -1;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool ends_request(const struct vf_client_event *event)
{
    return event->kind == VF_CLIENT_DONE || event->kind == VF_CLIENT_SCORED ||
           event->kind == VF_CLIENT_FAILED;
}

void vf_session_abandon(struct vf_session *s, uint64_t id)
{
    uint64_t cancel_id;
    struct vf_client_event event;
    if (vf_client_cancel(s->client, id, &cancel_id, NULL) != VF_OK)
        return;
    uint64_t deadline = vf_now_ns() + VF_MS(GOODBYE_MS);
    while (vf_now_ns() < deadline)
        if (vf_client_next(s->client, GOODBYE_MS, &event, NULL) != VF_OK ||
            (event.request_id == id && ends_request(&event)) ||
            (event.kind == VF_CLIENT_CANCEL && !event.message->cancel_reply->found))
            return;
}

enum vf_code vf_session_next(struct vf_session *s, uint64_t id, struct vf_client_event *event,
                             struct vf_err *err)
{
    enum vf_code code;
    do /* an error that names no request is about ours: nothing else was sent */
        code = vf_client_next(s->client, s->timeout_ms, event, err);
    while (!code && event->request_id != id &&
           !(event->kind == VF_CLIENT_FAILED && event->request_id == 0));
    if (code == VF_ERR_CANCELLED) {
        take_signal(s);
        vf_session_abandon(s, id);
    }
    if (!code && event->kind == VF_CLIENT_FAILED) {
        *err = event->failure;
        code = err->code;
    }
    return code;
}

int vf_session_exit(const struct vf_session *s, const struct vf_err *err)
{
    if (s->signal)
        return 128 + s->signal;
    return err->code ? vf_cli_fail(s->program, err) : 0;
}
