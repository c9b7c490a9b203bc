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
/* The run to end when the owner dies, and the mailboxes whose waiters to wake; NULL: none. */
void vf_owner_watch_set_run(struct vf_owner_watch *w, struct vf_run_state *state,
                            struct vf_mailboxes *mailboxes);
void vf_owner_watch_stop(struct vf_owner_watch *w); /* NULL is fine */

#endif
