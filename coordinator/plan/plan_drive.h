/* The drive's share of a token whose experts are streamed.
 *
 * Hits: as if each expert of a layer were as likely to be chosen as the others, whatever was chosen
 * before. Then no policy does better than the share of the experts that the cache holds beside
 * those ordered and not used yet. Tokens that resemble their neighbours read less.
 *
 * Time: the program once more, in the order in which a run with streamed experts executes it, with
 * the drive as one more resource: a fetch takes what its misses take to read, experts wait for
 * their fetch. So a delay hides what fits its window, and without one the two times add up. Guessed
 * experts, which can only hide more, and the latency of a read aren't counted.
 */
#ifndef VF_COORDINATOR_PLAN_PLAN_DRIVE_H
#define VF_COORDINATOR_PLAN_PLAN_DRIVE_H

#include "common/base/err.h"
#include "common/base/json.h"

#include <stdio.h>

struct vf_plan;

enum vf_drive_speed_source {
    VF_DRIVE_SPEED_UNKNOWN,
    VF_DRIVE_SPEED_GIVEN,     /* --drive-speed */
    VF_DRIVE_SPEED_THROTTLED, /* --io-throttle, of all I/O workers together */
    VF_DRIVE_SPEED_PROBED
};

struct vf_plan_drive {
    double hit_share;   /* of the experts that a token wants, in the cache */
    double token_bytes; /* read from the drive for a token */
    double bytes_per_s; /* 0: unknown */
    enum vf_drive_speed_source source;
    double read_ms; /* what those bytes take; NAN: unknown */
};

/* Of a plan that streams, whose bandwidth is known: fills plan->drive, replaces plan->token_ms. */
enum vf_code vf_plan_add_drive(struct vf_plan *plan, struct vf_err *err);
/* "given", ...; NULL: unknown. */
const char *vf_plan_drive_source(const struct vf_plan_drive *drive);

#endif
