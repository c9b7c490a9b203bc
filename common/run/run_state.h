/* Whether the run goes on: a word that all of its processes share.
 *
 * The coordinator ends the run when it is over or a stage worker has died; a worker ends it whose
 * coordinator has died. Nobody begins it again. Who is in the middle of a step looks between two
 * operations, and whoever waits for another process looks while it waits, and leaves: nobody
 * finishes a step that nobody wants. One page of shared memory: that decision, and how far loading
 * is.
 */
#ifndef VF_COMMON_RUN_RUN_STATE_H
#define VF_COMMON_RUN_RUN_STATE_H

#include "common/base/err.h"

#include <stdint.h>

#define VF_RUN_STATE_BYTES 4096u /* of the object */

struct vf_run_state;

/* The coordinator creates the object (name from run_dir.h), workers open it. */
enum vf_code vf_run_state_create(const char *shm_name, struct vf_run_state **out,
                                 struct vf_err *err);
enum vf_code vf_run_state_open(const char *shm_name, struct vf_run_state **out, struct vf_err *err);
void vf_run_state_close(struct vf_run_state *s); /* unmaps; the name is the run directory's */

/* Ends the run for good. Who sleeps in a mailbox is woken by vf_mailboxes_wake. */
void vf_run_state_end(struct vf_run_state *s);
/* How much of the weights is loaded, for the coordinator to show: each worker tells first what it
 * will load, then what it has. s NULL: nobody looks. */
void vf_run_state_expect(struct vf_run_state *s, uint64_t bytes);
void vf_run_state_add_loaded(struct vf_run_state *s, uint64_t bytes);
void vf_run_state_loaded(const struct vf_run_state *s, uint64_t *done, uint64_t *total);
/* VF_ERR_PEER_LOST once that was done. s NULL: a run that nobody ends. */
enum vf_code vf_run_state_check(const struct vf_run_state *s, struct vf_err *err);

#endif
