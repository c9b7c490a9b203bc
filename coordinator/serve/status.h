/* The answer to a StatusRequest, put together from the engine and the scheduler.
 */
#ifndef VF_COORDINATOR_SERVE_STATUS_H
#define VF_COORDINATOR_SERVE_STATUS_H

#include "coordinator/scheduler.h"
#include "vflow.pb-c.h"

struct vf_status;
enum vf_code vf_status_create(const struct vf_scheduler *scheduler, uint64_t uptime_ms,
                              struct vf_status **out, struct vf_err *err);
void vf_status_destroy(struct vf_status *status);
/* Lives as long as status and the engine. */
Vflow__StatusReply *vf_status_reply(struct vf_status *status);

#endif
