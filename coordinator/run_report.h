/* What --stats and --json say about a generation: its speed, and what became of its experts. Plain
 * values; nothing is owned. JSON keys are only ever added.
 */
#ifndef VF_COORDINATOR_RUN_REPORT_H
#define VF_COORDINATOR_RUN_REPORT_H

#include "common/base/json.h"
#include "coordinator/engine/engine.h"
#include "coordinator/scheduler.h"

struct vf_run_report {
    struct vf_request_stats request;
    enum vf_finish finish;
    double prefill_per_s, decode_per_s;
    double weight_bytes, drive_bytes; /* per decoded token */
    struct vf_engine_totals totals;   /* of the whole run */
    double hit_share;                 /* of experts wanted; NAN without any */
    double stall_s;
    double hidden_share; /* of the time in which experts were being read; NAN: nothing was */
};

/* The totals when the prompt was done, and at the end. */
void vf_run_report_make(const struct vf_request_stats *request, enum vf_finish finish,
                        const struct vf_engine_totals *prefilled,
                        const struct vf_engine_totals *end, struct vf_run_report *out);
void vf_run_report_print(const struct vf_run_report *r,
                         const struct vf_engine_info *info); /* stderr */
json_t *vf_run_report_json(const struct vf_run_report *r, const struct vf_engine_info *info);

const char *vf_finish_word(enum vf_finish f);

#endif
