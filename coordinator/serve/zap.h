/* Who may connect over CURVE: the ZAP handler (ZeroMQ RFC 27) of one zmq context.
 *
 * libzmq asks it about every client key through a socket of the context, so it is opened before
 * any CURVE endpoint is bound. It runs in the owner's loop: poll the socket, then serve. A client
 * that is let in is known by its public key: the "User-Id" of its messages.
 */
#ifndef VF_COORDINATOR_SERVE_ZAP_H
#define VF_COORDINATOR_SERVE_ZAP_H

#include "common/run/curve_keys.h"

struct vf_zap;

/* allowed is borrowed; NULL lets every key in. */
enum vf_code vf_zap_open(void *context, const struct vf_curve_list *allowed, struct vf_zap **out,
                         struct vf_err *err);
void vf_zap_close(struct vf_zap *zap); /* NULL is fine */
void *vf_zap_socket(const struct vf_zap *zap);
/* Answers every question that is waiting. */
void vf_zap_serve(struct vf_zap *zap);

#endif
