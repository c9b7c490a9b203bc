/* Fields are found by their names in protobuf-c's descriptors, which know offset and type. */
#include "common/run/counters.h"

#include "common/base/err.h"
#include "common/base/util.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define LINE_COLUMNS 100
#define KEY_MAX      64

#define STEP  (&vflow__step_stats__descriptor)
#define GUESS (&vflow__speculation_stats__descriptor)
#define READS (&vflow__expert_reads__descriptor)

#define SUM  VF_COUNTER_SUM
#define LAST VF_COUNTER_LAST

static const struct vf_counter counters[] = {
    {STEP, "compute_ns", SUM, VF_COUNTER_NS, "vflow_compute_seconds_total",
     .help = "Time of the stage workers' first threads at work.", .label = "compute"},
    {STEP, "columns", SUM, VF_COUNTER_COUNT, "vflow_columns_total",
     .help = "Positions of all flows that the stage workers computed.", .label = "columns"},
    {STEP, "wait_ns", SUM, VF_COUNTER_NS, "vflow_wait_seconds_total",
     .help = "Time waiting for another stage worker.", .label = "wait for workers"},
    {STEP, "barrier_ns", SUM, VF_COUNTER_NS, "vflow_barrier_seconds_total",
     .help = "Time of the first threads waiting for their workers' other threads.",
     .label = "wait for threads"},
    {STEP, "stall_ns", SUM, VF_COUNTER_NS, "vflow_stall_seconds_total",
     .help = "Time waiting for experts.", .label = "stall"},
    {STEP, "weight_bytes", SUM, VF_COUNTER_BYTES, "vflow_weight_bytes_total",
     .help = "Weights read from memory by the stage workers.", .label = "weights"},
    {STEP, "experts_wanted", SUM, VF_COUNTER_COUNT, "vflow_experts_wanted_total",
     .help = "Experts that layers chose.", .label = "experts wanted"},
    {STEP, "expert_hits", SUM, VF_COUNTER_COUNT, "vflow_expert_hits_total",
     .help = "Experts that were in memory when wanted.", .label = "hits"},
    {STEP, "expert_late", SUM, VF_COUNTER_COUNT, "vflow_expert_late_total",
     .help = "Experts that were still being read when wanted.", .label = "late"},
    {STEP, "expert_demand", SUM, VF_COUNTER_COUNT, "vflow_expert_demand_total",
     .help = "Experts that nobody had ordered before they were wanted.", .label = "on demand"},
    {STEP, "expert_early", SUM, VF_COUNTER_COUNT, "vflow_expert_early_total",
     .help = "Late and demanded experts begun before the whole record was there.",
     .label = "begun early"},

    {GUESS, "on", VF_COUNTER_MAX, VF_COUNTER_FLAG, "vflow_guessing",
     .help = "Whether the next step of some stage worker guesses."},
    {GUESS, "steps", SUM, VF_COUNTER_COUNT, "vflow_guess_steps_possible_total",
     .help = "Steps of stage workers that could have guessed."},
    {GUESS, "steps_guessed", SUM, VF_COUNTER_COUNT, "vflow_guess_steps_total",
     .help = "Steps of stage workers that guessed."},
    {GUESS, "guess_ns", SUM, VF_COUNTER_NS, "vflow_guess_seconds_total",
     .help = "Part of the compute time that guessing took."},
    {GUESS, "probes", SUM, VF_COUNTER_COUNT, "vflow_guess_probes_total",
     .help = "Comparisons of steps with and without guesses."},
    {GUESS, "gain", VF_COUNTER_MEAN, VF_COUNTER_SHARE, "vflow_guess_gain_ratio",
     .help = "Share of a step's time that guessing saved in the last comparisons.",
     .weight = "probes"},
    {GUESS, "guessed", SUM, VF_COUNTER_COUNT, "vflow_guessed_one_ahead_total",
     .help = "Experts guessed one layer ahead.", .status_key = "one_ahead.guessed",
     .report_key = "ahead.0.guessed"},
    {GUESS, "right", SUM, VF_COUNTER_COUNT, "vflow_guessed_right_one_ahead_total",
     .help = "Experts guessed one layer ahead and chosen then.", .status_key = "one_ahead.right",
     .report_key = "ahead.0.right"},
    {GUESS, "chosen", SUM, VF_COUNTER_COUNT, "vflow_guess_chosen_one_ahead_total",
     .help = "Experts chosen in layers guessed one ahead.", .status_key = "one_ahead.chosen",
     .report_key = "ahead.0.chosen"},
    {GUESS, "guessed_two", SUM, VF_COUNTER_COUNT, "vflow_guessed_two_ahead_total",
     .help = "Experts guessed two layers ahead.", .status_key = "two_ahead.guessed",
     .report_key = "ahead.1.guessed"},
    {GUESS, "right_two", SUM, VF_COUNTER_COUNT, "vflow_guessed_right_two_ahead_total",
     .help = "Experts guessed two layers ahead and chosen then.", .status_key = "two_ahead.right",
     .report_key = "ahead.1.right"},
    {GUESS, "chosen_two", SUM, VF_COUNTER_COUNT, "vflow_guess_chosen_two_ahead_total",
     .help = "Experts chosen in layers guessed two ahead.", .status_key = "two_ahead.chosen",
     .report_key = "ahead.1.chosen"},

    {READS, "prefetched_used", SUM, VF_COUNTER_COUNT, "vflow_prefetched_used_total",
     .help = "Experts read for an order before anybody waited, there when wanted."},
    {READS, "prefetched_wasted", SUM, VF_COUNTER_COUNT, "vflow_prefetched_wasted_total",
     .help = "Experts read for an order and evicted without a use."},
    {READS, "read_ns", SUM, VF_COUNTER_NS, "vflow_read_seconds_total",
     .help = "Time with a read in flight that a step needs, summed over the stage workers."},
    {READS, "latency_ms_mean", LAST, VF_COUNTER_MS, "vflow_read_latency_mean_milliseconds",
     .help = "Mean time of an expert's read.", .report_key = "read_ms_mean"},
    {READS, "latency_ms_median", LAST, VF_COUNTER_MS, "vflow_read_latency_median_milliseconds",
     .help = "Median time of an expert's read, to within a tenth.", .report_key = "read_ms_median"},
    {READS, "latency_ms_p95", LAST, VF_COUNTER_MS, "vflow_read_latency_p95_milliseconds",
     .help = "95% of the experts' reads took at most so long, to within a tenth.",
     .report_key = "read_ms_p95"},
    {READS, "latency_ms_max", VF_COUNTER_MAX, VF_COUNTER_MS, "vflow_read_latency_max_milliseconds",
     .help = "The longest read of an expert.", .report_key = "read_ms_max"},
    {READS, "joined", SUM, VF_COUNTER_COUNT, "vflow_expert_reads_joined_total",
     .help = "Experts read along with the one before them, in one request.",
     .report_key = "expert_reads_joined"},
};

const struct vf_counter *vf_counters(size_t *count)
{
    *count = VF_ARRAY_LEN(counters);
    return counters;
}

/* ---- values --------------------------------------------------------------------------------- */

static void *field_of(const ProtobufCMessage *m, const char *name, ProtobufCType *type)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
    VF_ASSERT(f && f->label != PROTOBUF_C_LABEL_REPEATED);
    *type = f->type;
    return (char *)m + f->offset;
}

static double value_of(const ProtobufCMessage *m, const char *name)
{
    ProtobufCType type;
    const void *p = field_of(m, name, &type);
    if (type == PROTOBUF_C_TYPE_UINT64)
        return (double)*(const uint64_t *)p;
    if (type == PROTOBUF_C_TYPE_BOOL)
        return *(const protobuf_c_boolean *)p;
    VF_ASSERT(type == PROTOBUF_C_TYPE_DOUBLE);
    return *(const double *)p;
}

static double mean_of(const struct vf_counter *c, const ProtobufCMessage *a,
                      const ProtobufCMessage *b)
{
    double wa = value_of(a, c->weight), wb = value_of(b, c->weight);
    if (wa + wb <= 0)
        return 0;
    return (wa * value_of(a, c->field) + wb * value_of(b, c->field)) / (wa + wb);
}

static double merged(const struct vf_counter *c, const ProtobufCMessage *a,
                     const ProtobufCMessage *b)
{
    double va = value_of(a, c->field), vb = value_of(b, c->field);
    switch (c->rule) {
    case VF_COUNTER_SUM:
        return va + vb;
    case VF_COUNTER_MAX:
        return va > vb ? va : vb;
    case VF_COUNTER_LAST:
        return vb;
    case VF_COUNTER_MEAN:
        return mean_of(c, a, b);
    }
    return vb;
}

/* Whole numbers stay whole: a double has 53 bits. */
static void merge_whole(const struct vf_counter *c, uint64_t *sum, uint64_t part)
{
    if (c->rule == VF_COUNTER_SUM)
        *sum += part;
    else if (c->rule == VF_COUNTER_LAST || part > *sum)
        *sum = part;
}

static void merge(const struct vf_counter *c, ProtobufCMessage *sum, const ProtobufCMessage *part)
{
    ProtobufCType type;
    void *to = field_of(sum, c->field, &type);
    const void *from = field_of(part, c->field, &type);
    if (type == PROTOBUF_C_TYPE_UINT64)
        merge_whole(c, to, *(const uint64_t *)from);
    else if (type == PROTOBUF_C_TYPE_BOOL)
        *(protobuf_c_boolean *)to = merged(c, sum, part) > 0;
    else
        *(double *)to = merged(c, sum, part);
}

void vf_counters_add(ProtobufCMessage *sum, const ProtobufCMessage *part)
{
    VF_ASSERT(sum->descriptor == part->descriptor);
    for (int means = 1; means >= 0; means--) /* first: their weights are still apart */
        for (size_t i = 0; i < VF_ARRAY_LEN(counters); i++)
            if (counters[i].message == sum->descriptor &&
                (counters[i].rule == VF_COUNTER_MEAN) == (means == 1))
                merge(&counters[i], sum, part);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static json_t *value_json(const struct vf_counter *c, const ProtobufCMessage *m, bool seconds)
{
    ProtobufCType type;
    const void *p = field_of(m, c->field, &type);
    double v = value_of(m, c->field);
    if (c->weight && value_of(m, c->weight) <= 0)
        return json_null();
    if (type == PROTOBUF_C_TYPE_BOOL)
        return json_boolean(v > 0);
    if (c->unit == VF_COUNTER_NS && seconds)
        return json_real(v * 1e-9);
    return type == PROTOBUF_C_TYPE_UINT64 ? json_integer((json_int_t) * (const uint64_t *)p)
                                          : json_real(v);
}

/* The key under which a counter stands: its own, or the field's name with the unit shown. */
static const char *key_of(const struct vf_counter *c, enum vf_counter_keys keys, char buf[KEY_MAX])
{
    const char *own = keys == VF_COUNTER_STATUS ? c->status_key : c->report_key;
    int base = (int)strlen(c->field) - (int)strlen("_ns");
    if (own || keys == VF_COUNTER_STATUS || c->unit != VF_COUNTER_NS)
        return own ? own : c->field;
    snprintf(buf, KEY_MAX, "%.*s_seconds", base, c->field);
    return buf;
}

/* The object or array called key[0..n) in an object, or at that index of an array; made when it
 * isn't there. What follows tells whether it is an array. */
static json_t *step_into(json_t *at, const char *key, size_t n, bool array)
{
    char name[KEY_MAX];
    snprintf(name, sizeof name, "%.*s", (int)n, key);
    json_t *next;
    if (json_is_array(at)) {
        size_t i = (size_t)(name[0] - '0');
        while (json_array_size(at) <= i)
            json_array_append_new(at, json_object());
        return json_array_get(at, i);
    }
    next = json_object_get(at, name);
    if (next)
        return next;
    json_object_set_new(at, name, array ? json_array() : json_object());
    return json_object_get(at, name);
}

void vf_counters_json(const ProtobufCMessage *m, enum vf_counter_keys keys, json_t *into)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(counters); i++) {
        char buf[KEY_MAX];
        if (counters[i].message != m->descriptor)
            continue;
        const char *key = key_of(&counters[i], keys, buf), *dot;
        json_t *at = into;
        for (; (dot = strchr(key, '.')) != NULL; key = dot + 1)
            at = step_into(at, key, (size_t)(dot - key), dot[1] >= '0' && dot[1] <= '9');
        json_object_set_new(at, key, value_json(&counters[i], m, keys == VF_COUNTER_REPORT));
    }
}

/* ---- text ----------------------------------------------------------------------------------- */

static int item_text(const struct vf_counter *c, const ProtobufCMessage *m, char *buf, size_t n)
{
    double v = value_of(m, c->field);
    switch (c->unit) {
    case VF_COUNTER_NS:
        return snprintf(buf, n, "%s %.3f s", c->label, v * 1e-9);
    case VF_COUNTER_BYTES:
        return snprintf(buf, n, "%s %.1f MiB", c->label, v / 1048576.0);
    case VF_COUNTER_MS:
        return snprintf(buf, n, "%s %.2f ms", c->label, v);
    case VF_COUNTER_SHARE:
        return snprintf(buf, n, "%s %.1f%%", c->label, v * 100);
    case VF_COUNTER_FLAG:
        return snprintf(buf, n, "%s %s", c->label, v > 0 ? "on" : "off");
    case VF_COUNTER_COUNT:
        break;
    }
    return snprintf(buf, n, "%s %.0f", c->label, v);
}

void vf_counters_print(FILE *f, const char *head, const ProtobufCMessage *m)
{
    int indent = (int)strlen(head), column = 0;
    for (size_t i = 0; i < VF_ARRAY_LEN(counters); i++) {
        const struct vf_counter *c = &counters[i];
        char item[80];
        if (c->message != m->descriptor || !c->label || value_of(m, c->field) == 0)
            continue;
        int n = item_text(c, m, item, sizeof item);
        if (column == 0)
            column = fprintf(f, "%s%s", head, item);
        else if (column + n + 3 <= LINE_COLUMNS)
            column += fprintf(f, ", %s", item);
        else
            column = fprintf(f, ",\n%*s%s", indent, "", item) - 2;
    }
    if (column > 0)
        fputc('\n', f);
}
