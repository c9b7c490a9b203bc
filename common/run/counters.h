/* What the processes of a run count, described once. The messages of proto/vflow.proto are the
 * types (StepStats, SpeculationStats, ExpertReads); one row here says of each of their fields how
 * two processes' values make one, what unit it has, and what it is called in every place where
 * people or programs read it. A new counter is a field, a row, and the line that counts.
 *
 * tests/unit/test_counters.c fails where a field has no row. Nothing here keeps state.
 */
#ifndef VF_COMMON_RUN_COUNTERS_H
#define VF_COMMON_RUN_COUNTERS_H

#include "common/base/json.h"
#include "vflow.pb-c.h"

#include <stddef.h>
#include <stdio.h>

enum vf_counter_rule {
    VF_COUNTER_SUM,
    VF_COUNTER_MAX, /* of flags: any */
    VF_COUNTER_LAST,
    VF_COUNTER_MEAN, /* of the parts, each with the weight of its field `weight` */
};
enum vf_counter_unit {
    VF_COUNTER_COUNT,
    VF_COUNTER_NS,
    VF_COUNTER_BYTES,
    VF_COUNTER_MS,
    VF_COUNTER_SHARE,
    VF_COUNTER_FLAG,
};

struct vf_counter {
    const ProtobufCMessageDescriptor *message;
    const char *field;
    enum vf_counter_rule rule;
    enum vf_counter_unit unit;
    const char *metric; /* Prometheus: its base unit, _total where it only grows */
    const char *help;   /* one line */
    const char *label;  /* in lists for people; NULL: a sentence of its own tells it */
    const char *weight; /* of MEAN */
    /* Keys where they aren't the field's name; "a.b" is b in the object a, "a.0.b" in the first
     * object of the array a. A report has seconds where a field has ns. */
    const char *status_key, *report_key;
};

const struct vf_counter *vf_counters(size_t *count);

/* Adds part to sum, both of one type and initialised; sub-messages and unknown fields stay out. */
void vf_counters_add(ProtobufCMessage *sum, const ProtobufCMessage *part);

enum vf_counter_keys {
    VF_COUNTER_STATUS, /* raw values under the fields' names */
    VF_COUNTER_REPORT, /* seconds instead of nanoseconds */
};
/* Puts every counter of m into the object; a mean of nothing is null. */
void vf_counters_json(const ProtobufCMessage *m, enum vf_counter_keys keys, json_t *into);

/* "label value, label value, ..." of those that aren't 0, in lines behind head and an indent of
 * its width; nothing when all are 0. */
void vf_counters_print(FILE *f, const char *head, const ProtobufCMessage *m);

#endif
