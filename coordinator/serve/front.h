/* The sockets clients connect to: who gets in, what comes in, and answers at each client's pace.
 *
 * Two ROUTER sockets, one for ipc and one for tcp, so that every message is known to come from a
 * process of this machine's same user, or from the holder of a listed CURVE key, or (--insecure)
 * from anybody. A message that isn't a request is answered with an Error and never reaches the
 * caller. Answers never block: what a client doesn't take waits in its outbox, which is bounded in
 * bytes. One thread; the caller polls vf_front_sockets.
 */
#ifndef VF_COORDINATOR_SERVE_FRONT_H
#define VF_COORDINATOR_SERVE_FRONT_H

#include "common/run/curve_keys.h"
#include "common/run/run_dir.h"
#include "common/run/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_FRONT_SOCKETS_MAX  3
#define VF_FRONT_PEERS_MAX    1024              /* clients with something running or waiting */
#define VF_FRONT_REQUEST_MAX  (4u << 20)        /* bytes of a client's message */
#define VF_FRONT_OUTBOXES_MAX ((size_t)1 << 30) /* bytes that wait for all */
#define VF_FRONT_STUCK_S      60 /* a client that takes nothing for so long is given up */
#define VF_FRONT_HEARTBEAT_S  5

struct vf_front;

struct vf_front_options {
    const struct vf_curve_keys *keys;    /* of the server; NULL: tcp without CURVE */
    const struct vf_curve_list *allowed; /* clients; NULL: any */
    bool insecure;                       /* keys or allowed may be NULL for tcp */
    size_t outbox_max;                   /* bytes that may wait for one client */
};

/* A client, alive as long as requests hold it or answers wait for it. */
struct vf_peer;

/* Copies the options; allowed is borrowed. */
enum vf_code vf_front_open(const struct vf_front_options *options, struct vf_front **out,
                           struct vf_err *err);
/* Waits briefly for answers on their way. Removes the ipc sockets' files. NULL is fine. */
void vf_front_close(struct vf_front *f);

/* endpoint is "ipc:///path" (mode 0600; a dead server's socket file is replaced, anything else is
 * not) or "tcp://address:port". bound receives what was really bound ("*" resolved). */
#define VF_FRONT_ENDPOINT_MAX 256
enum vf_code vf_front_bind(struct vf_front *f, const char *endpoint,
                           char bound[VF_FRONT_ENDPOINT_MAX], struct vf_err *err);

/* From now on the ipc sockets' files go with the run, even if this process is killed. */
enum vf_code vf_front_adopt(const struct vf_front *f, const struct vf_run_dir *rd,
                            struct vf_err *err);

int vf_front_sockets(const struct vf_front *f, void *sockets[VF_FRONT_SOCKETS_MAX]);

/* The next request that is well-formed as an envelope, after answering whatever isn't. False when
 * none is waiting. The caller frees *message. *from is valid until the next vf_front_tick unless
 * held. */
bool vf_front_receive(struct vf_front *f, struct vf_peer **from, Vflow__Envelope **message);

/* Fills version and request_id in and sends; what can't leave yet waits. */
void vf_front_send(struct vf_peer *to, uint64_t request_id, Vflow__Envelope *message);
void vf_front_send_error(struct vf_peer *to, uint64_t request_id, const struct vf_err *why);

/* Moves outboxes, sends heartbeats to clients that hold requests, forgets idle clients. Returns how
 * many milliseconds the caller may wait until the next tick: VF_FRONT_IDLE_MS when no answer
 * waits. */
#define VF_FRONT_IDLE_MS 1000
int vf_front_tick(struct vf_front *f);

void vf_peer_hold(struct vf_peer *peer);
void vf_peer_release(struct vf_peer *peer);
/* Disconnected, or given up. */
bool vf_peer_gone(const struct vf_peer *peer);
/* Too far behind: its outbox was emptied, and nothing is sent until the mark is cleared. */
bool vf_peer_overflowed(const struct vf_peer *peer);
void vf_peer_clear_overflow(struct vf_peer *peer);
/* Whether by's owner may end requests of peer: the same connection or CURVE key, anybody on an
 * insecure endpoint among themselves, and the server's own user over ipc everywhere. */
bool vf_peer_may_cancel(const struct vf_peer *by, const struct vf_peer *peer);

#endif
