/* ZeroMQ sockets that carry one Envelope (proto/vflow.proto) per message.
 *
 * Sockets are owned by one thread. Every send is non-blocking with a bounded queue, every receive
 * has a deadline. A message that is too large, doesn't parse, or has another protocol version is
 * dropped and reported as VF_ERR_PROTOCOL with the reason; the socket stays usable.
 */
#ifndef VF_COMMON_RUN_WIRE_H
#define VF_COMMON_RUN_WIRE_H

#include "common/base/err.h"
#include "vflow.pb-c.h"

#include <stddef.h>
#include <stdint.h>

#define VF_WIRE_VERSION      1u
#define VF_WIRE_MESSAGE_MAX  (64u << 20) /* a step of 4096 columns or a part of score rows fits */
#define VF_WIRE_IDENTITY_MAX 64

/* Who sent a message on a ROUTER socket; also the address of the answer. */
struct vf_wire_peer {
    uint8_t id[VF_WIRE_IDENTITY_MAX];
    size_t id_bytes;
};

/* One zmq context per process. libzmq aborts when it can't have a thread or a descriptor, so its
 * two threads are started here, right after as many were tried, and vf_wire_open tries what a
 * socket needs; the limit of open files is raised as far as it may be, and one below
 * VF_WIRE_FILES_MIN is refused. What remains: another process may take the last thread or
 * descriptor between the trial and libzmq, and a peer's connection may find none left. NULL on
 * failure. */
#define VF_WIRE_FILES_MIN 64u
void *vf_wire_context_create(struct vf_err *err);
void vf_wire_context_destroy(void *context);

enum vf_wire_type { VF_WIRE_ROUTER, VF_WIRE_DEALER, VF_WIRE_PUSH, VF_WIRE_PULL };

struct vf_wire_options {
    enum vf_wire_type type;
    const char *identity; /* a DEALER's routing id; NULL: ZeroMQ's choice */
    /* CURVE (40-character Z85 keys), all NULL for ipc and --insecure. */
    const char *curve_secret, *curve_public; /* own pair */
    const char *curve_server_public;         /* clients: the server's public key */
    int curve_server;                        /* 1: act as CURVE server (ZAP decides who enters) */
};
enum vf_code vf_wire_open(void *context, const struct vf_wire_options *options, void **socket,
                          struct vf_err *err);
/* Unsent messages are dropped, but a DEALER's may still leave for half a second while
 * vf_wire_context_destroy waits: a worker's last word is its error. NULL is fine. */
void vf_wire_close(void *socket);
enum vf_code vf_wire_bind(void *socket, const char *endpoint, struct vf_err *err);
enum vf_code vf_wire_connect(void *socket, const char *endpoint, struct vf_err *err);

/* Sends; to is required for ROUTER, NULL otherwise. VF_ERR_PEER_LOST when nobody is there,
 * VF_ERR_BUSY when the peer's queue is full. */
enum vf_code vf_wire_send(void *socket, const struct vf_wire_peer *to,
                          const Vflow__Envelope *message, struct vf_err *err);
/* Receives one message or fails with VF_ERR_TIMEOUT; timeout_ms 0 polls. The caller frees *message
 * with vflow__envelope__free_unpacked(*message, NULL). from may be NULL. */
enum vf_code vf_wire_receive(void *socket, int timeout_ms, struct vf_wire_peer *from,
                             Vflow__Envelope **message, struct vf_err *err);

/* Checks and unpacks the body of a message that was received by other means. request_id (NULL is
 * fine) is filled as soon as the envelope can be read, so that a refusal can name it. */
enum vf_code vf_wire_unpack(const void *data, size_t n, uint64_t *request_id,
                            Vflow__Envelope **message, struct vf_err *err);

/* Fills a protobuf Error from err (text borrowed) and back. */
void vf_wire_error_fill(Vflow__Error *out, const struct vf_err *err);
enum vf_code vf_wire_error_take(const Vflow__Error *in, struct vf_err *err);

#endif
