/* Watches the coordinator from a thread of its own and ends this process when it has died, also in
 * the middle of a step: waiters are woken first, the run's files and shared memory are removed.
 */
#ifndef VF_STAGE_WORKER_OWNER_WATCH_H
#define VF_STAGE_WORKER_OWNER_WATCH_H

#include "common/base/err.h"
#include "common/run/mailbox.h"
#include "common/run/run_dir.h"

struct vf_owner_watch;

/* Borrows rd until stopped. */
enum vf_code vf_owner_watch_start(const struct vf_run_dir *rd, struct vf_owner_watch **out,
                                  struct vf_err *err);
/* Mailboxes whose waiters to wake when the owner dies; NULL: none. */
void vf_owner_watch_set_mailboxes(struct vf_owner_watch *w, struct vf_mailboxes *m);
void vf_owner_watch_stop(struct vf_owner_watch *w); /* NULL is fine */

#endif
