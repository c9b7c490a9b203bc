/* An expert source that notes every routing decision on its way to another source. For steps of one
 * token: what a step orders of a layer is then what the token wants there, in rank order.
 */
#ifndef VF_BENCH_EXPERTS_RECORDING_SOURCE_H
#define VF_BENCH_EXPERTS_RECORDING_SOURCE_H

#include "bench/experts/routing_trace.h"
#include "stage_worker/expert_source.h"

/* Takes *source over and puts itself in its place; recorder is borrowed. On failure *source is as
 * it was. */
enum vf_code recording_source_wrap(struct vf_expert_source **source,
                                   struct vf_routing_recorder *recorder, struct vf_err *err);

#endif
