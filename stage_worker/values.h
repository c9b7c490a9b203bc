/* Where the values of the step at hand lie, and how they cross between stage workers.
 *
 * A value that this worker alone uses has one of its buffers. One that goes to another worker is
 * written straight into that edge's mailbox (claimed before the operation that makes it, posted
 * behind it) and stays readable here until the step's end: the mailbox is written again
 * VF_MAILBOX_DEPTH steps later. One that comes from another worker is read in place, from its
 * receive to the release behind its last use. Only a value with several readers is copied, for each
 * but the first.
 */
#ifndef VF_STAGE_WORKER_VALUES_H
#define VF_STAGE_WORKER_VALUES_H

#include "stage_worker/step.h"

#include "common/model/step_memory.h"

struct values {
    const struct vf_executor_params *p;
    const struct vf_part *part;
    struct vf_values_space space;
    size_t stride;      /* floats per column */
    const float **in;   /* [value_count]: where it is read, from when it exists */
    float **out;        /* [value_count]: where its operation writes it */
    uint32_t *edge_out; /* [value_count]: the edge whose mailbox it is written to, or EDGE_NONE */
    bool *held;         /* [edge_count]: received and not released */
    uint64_t wait_ns;   /* for other workers */
};

#define EDGE_NONE UINT32_MAX

/* Borrows p and part. */
enum vf_code values_init(struct values *v, const struct vf_executor_params *p,
                         const struct vf_part *part, const struct vf_step_space *space,
                         struct vf_err *err);
void values_deinit(struct values *v);

/* Before the operation that makes a value: finds its mailbox a free buffer, if it goes there. */
enum vf_code values_claim(struct values *v, vf_value value, uint64_t deadline_ns,
                          struct vf_err *err);
/* Posts a value on an edge; failed: without it. */
enum vf_code values_send(struct values *v, const struct step *step, uint32_t edge, bool failed,
                         uint64_t deadline_ns, struct vf_err *err);
/* Takes a value; *failed: its producer gave the step up, and nothing is held. */
enum vf_code values_receive(struct values *v, const struct step *step, uint32_t edge,
                            uint64_t deadline_ns, bool *failed, struct vf_err *err);
/* Gives a mailbox back, if it is held. */
void values_release(struct values *v, uint32_t edge);
void values_release_all(struct values *v);

#endif
