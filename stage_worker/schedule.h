/* What one worker does in a step, one action behind the other: its part of the program
 * (common/model/part.h), with a receive before the first reader of each value that comes from
 * another worker, a release behind its last, and a send right behind each producer.
 */
#ifndef VF_STAGE_WORKER_SCHEDULE_H
#define VF_STAGE_WORKER_SCHEDULE_H

#include "common/model/part.h"

enum action_kind {
    ACTION_RECEIVE,
    ACTION_RELEASE,
    ACTION_COLUMNS, /* operations that go column by column, one behind the other */
    ACTION_OP,      /* one light operation */
    ACTION_HEAVY,   /* the heavy operations of a stage, side by side */
    ACTION_SEND
};
struct action {
    enum action_kind kind;
    uint32_t index; /* of the edge, or of the first operation in the part's order */
    uint32_t count; /* operations; 0: the action is about an edge */
};

struct schedule {
    struct action *actions;
    uint32_t count;
};

enum vf_code schedule_init(struct schedule *s, const struct vf_program *program,
                           const struct vf_placement *placement, const struct vf_part *part,
                           struct vf_err *err);
void schedule_deinit(struct schedule *s);

#endif
