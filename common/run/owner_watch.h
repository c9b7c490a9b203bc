/* Watches the coordinator from a thread of its own and ends this process when it has died, also in
 * the middle of a step, removing the run's files and shared memory. Part of member.h.
 */
#ifndef VF_COMMON_RUN_OWNER_WATCH_H
#define VF_COMMON_RUN_OWNER_WATCH_H

#include "common/base/err.h"
#include "common/run/run_dir.h"

struct vf_owner_watch;

/* Borrows rd until stopped. on_death (NULL: nothing) runs in the thread first. */
enum vf_code vf_owner_watch_start(const struct vf_run_dir *rd, void (*on_death)(void *), void *ctx,
                                  struct vf_owner_watch **out, struct vf_err *err);
void vf_owner_watch_stop(struct vf_owner_watch *w); /* NULL is fine */

#endif
