/* What the commands that talk to a server share: the options that name it, opening the
 * connection, Ctrl-C, and waiting for the answers to one request.
 */
#ifndef VF_CLIENT_SESSION_H
#define VF_CLIENT_SESSION_H

#include "client/client.h"
#include "common/base/cli.h"

#define VF_SESSION_OPTION_COUNT 6

struct vf_session_options { /* as the command line gives them */
    const char *connect, *server_key, *key;
    bool insecure;
    double timeout; /* seconds without a sign of life from the server; 0: not given */
    int verbosity;
};

struct vf_session {
    struct vf_client *client;
    const char *program; /* for messages */
    int timeout_ms;
    int verbosity;
    int signal_fd;
    int signal; /* that ended the command, 0: none */
};

void vf_session_options_init(struct vf_session_options *o);
/* Writes the table to opts[0..VF_SESSION_OPTION_COUNT); a command appends its own rows. */
size_t vf_session_options_table(struct vf_session_options *o, struct vf_opt *opts);

/* From here on SIGINT and SIGTERM reach the command through vf_session_next only. */
enum vf_code vf_session_open(struct vf_session *s, const char *program,
                             const struct vf_session_options *o, struct vf_err *err);
void vf_session_close(struct vf_session *s);

/* The next event of request id; a failed one becomes an error. On a signal the request is
 * cancelled, the server's last answer to it is awaited briefly and the result is
 * VF_ERR_CANCELLED. */
enum vf_code vf_session_next(struct vf_session *s, uint64_t id, struct vf_client_event *event,
                             struct vf_err *err);
/* Tells the server that nobody waits for request id any more. */
void vf_session_abandon(struct vf_session *s, uint64_t id);

/* The exit status after err; prints its line unless a signal explains it. */
int vf_session_exit(const struct vf_session *s, const struct vf_err *err);

#endif
