/* What clients have asked for: each request from its message to its last answer.
 *
 * Turns messages into scheduler requests and the scheduler's events into answers, keeps who may
 * cancel what, and ends the requests of clients that left or can't keep up. One thread.
 */
#ifndef VF_COORDINATOR_SERVE_REQUESTS_H
#define VF_COORDINATOR_SERVE_REQUESTS_H

#include "coordinator/scheduler.h"
#include "coordinator/serve/front.h"

#define VF_REQUESTS_PER_CLIENT_MAX 64
#define VF_REQUESTS_PART_BYTES     (4u << 20) /* of score rows in one message, at least one row */

struct vf_requests;

struct vf_requests_params {
    struct vf_scheduler *scheduler; /* borrowed */
    int signal_fd;                  /* a request that a signal ends is told so */
};

enum vf_code vf_requests_create(const struct vf_requests_params *params, struct vf_requests **out,
                                struct vf_err *err);
/* Every request must have ended. NULL is fine. */
void vf_requests_destroy(struct vf_requests *r);

/* Handles one message; whatever is wrong with it is answered with an Error. */
void vf_requests_handle(struct vf_requests *r, struct vf_peer *from, const Vflow__Envelope *m);
/* Cancels the requests of clients that are gone or too far behind. Once per turn of the loop. */
void vf_requests_sweep(struct vf_requests *r);
/* Answers every request that still runs with why and forgets it. The scheduler is not used any
 * more afterwards. */
void vf_requests_end(struct vf_requests *r, const struct vf_err *why);

#endif
