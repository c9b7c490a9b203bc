/* Values that cross between stage workers of one host: one mailbox per edge of the placement, in
 * one shared-memory object, written once by the producer and read in place by the consumer.
 *
 * A mailbox is a ring of VF_MAILBOX_DEPTH buffers of [columns_max, width] f32. Exactly one process
 * writes an edge and one reads it; both go through the steps in the same order, so the counters
 * alone say what is in a buffer. The reader may read its buffer until it releases it, the producer
 * what it posted until it claims the same buffer again, VF_MAILBOX_DEPTH steps later. Waiting spins
 * briefly, then sleeps on a futex. A step that fails on its producer is posted as failed, so
 * readers stay in step. When the run ends (run_state.h), every waiter returns VF_ERR_PEER_LOST. The
 * content can always be rebuilt.
 */
#ifndef VF_COMMON_RUN_MAILBOX_H
#define VF_COMMON_RUN_MAILBOX_H

#include "common/base/err.h"
#include "common/run/run_state.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_MAILBOX_DEPTH 4u

struct vf_mailboxes;

/* Bytes of the whole object; 0 without an edge, when there is none. VF_ERR_LIMIT beyond what can be
 * addressed. */
enum vf_code vf_mailboxes_bytes(uint32_t edge_count, uint32_t columns_max, uint32_t width,
                                uint64_t *bytes, struct vf_err *err);
/* The coordinator creates the object (name from run_dir.h), workers open it and check that the
 * sizes are what their own placement says. At least one edge. `state` is borrowed: its end ends
 * every wait; NULL: nothing does. */
enum vf_code vf_mailboxes_create(const char *shm_name, uint32_t edge_count, uint32_t columns_max,
                                 uint32_t width, const struct vf_run_state *state,
                                 struct vf_mailboxes **out, struct vf_err *err);
enum vf_code vf_mailboxes_open(const char *shm_name, uint32_t edge_count, uint32_t columns_max,
                               uint32_t width, const struct vf_run_state *state,
                               struct vf_mailboxes **out, struct vf_err *err);
void vf_mailboxes_close(struct vf_mailboxes *m); /* unmaps; the name is the run directory's */

/* The next free buffer of an edge, waiting for the reader at most until deadline_ns. */
enum vf_code vf_mailbox_claim(struct vf_mailboxes *m, uint32_t edge, uint64_t deadline_ns,
                              float **buffer, struct vf_err *err);
/* Makes the claimed buffer visible; failed posts carry no data. */
void vf_mailbox_post(struct vf_mailboxes *m, uint32_t edge, uint64_t step_id, bool failed);
/* The oldest unread buffer, which must be step_id's; waits at most until deadline_ns. *failed tells
 * that the producer gave the step up. The buffer stays valid until vf_mailbox_release. */
enum vf_code vf_mailbox_take(struct vf_mailboxes *m, uint32_t edge, uint64_t step_id,
                             uint64_t deadline_ns, const float **buffer, bool *failed,
                             struct vf_err *err);
void vf_mailbox_release(struct vf_mailboxes *m, uint32_t edge);

/* Wakes every waiter, so that it looks at the run's state now. m NULL: nobody waits. */
void vf_mailboxes_wake(struct vf_mailboxes *m);

#endif
