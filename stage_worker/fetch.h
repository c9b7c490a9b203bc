/* Orders the experts that were chosen, and behind them guesses of the next layers' (speculate.h).
 */
#ifndef VF_STAGE_WORKER_FETCH_H
#define VF_STAGE_WORKER_FETCH_H

#include "stage_worker/expert_source.h"
#include "stage_worker/route.h"
#include "stage_worker/speculate.h"

struct fetch {
    struct core *core;
    struct expert_set set;
    struct vf_expert_ref *refs;
    struct speculation speculation;
};
init_fn fetch_init;
deinit_fn fetch_deinit;
begin_step_fn fetch_begin_step;
run_fn fetch_run;

#endif
