/* The table of counters against the messages it describes: no field without a row, no row without a
 * field, addition by every rule, the documented keys. */
#include "common/run/counters.h"
#include "tap.h"

#include <ctype.h>
#include <string.h>

static const struct vf_counter *table;
static size_t count;

static int rows_of(const ProtobufCMessageDescriptor *m, const char *field)
{
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += table[i].message == m && strcmp(table[i].field, field) == 0;
    return n;
}

static void test_complete(const ProtobufCMessageDescriptor *m)
{
    bool right = true;
    unsigned scalars = 0, rows = 0;
    for (unsigned i = 0; i < m->n_fields; i++) {
        if (m->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            continue;
        scalars++;
        if (rows_of(m, m->fields[i].name) != 1) {
            right = false;
            printf("# %s.%s has %d rows\n", m->short_name, m->fields[i].name,
                   rows_of(m, m->fields[i].name));
        }
    }
    for (size_t i = 0; i < count; i++)
        rows += table[i].message == m;
    ok(right && scalars > 0 && rows == scalars, "%s: a row for each of its %u fields",
       m->short_name, scalars);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static void test_names(void)
{
    bool shaped = true, unique = true, units = true;
    for (size_t i = 0; i < count; i++) {
        const struct vf_counter *c = &table[i];
        shaped &= strncmp(c->metric, "vflow_", 6) == 0 && c->help && ends_with(c->help, ".");
        for (const char *p = c->metric; *p; p++)
            shaped &= islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '_';
        units &= (c->unit == VF_COUNTER_NS) == ends_with(c->field, "_ns");
        units &= c->unit != VF_COUNTER_NS || ends_with(c->metric, "_seconds_total");
        units &= c->unit != VF_COUNTER_BYTES || ends_with(c->metric, "_bytes_total");
        units &= (c->rule == VF_COUNTER_SUM) == ends_with(c->metric, "_total");
        units &= (c->rule == VF_COUNTER_MEAN) == (c->weight != NULL);
        for (size_t k = 0; k < i; k++)
            unique &= strcmp(c->metric, table[k].metric) != 0;
    }
    ok(shaped, "metrics are Prometheus names, helps are sentences");
    ok(unique, "no two metrics have one name");
    ok(units, "units and rules show in the names");
}

static void test_addition(void)
{
    Vflow__StepStats a = VFLOW__STEP_STATS__INIT, b = VFLOW__STEP_STATS__INIT;
    a.compute_ns = (1ull << 60) + 1; /* beyond a double's 53 bits */
    b.compute_ns = 2;
    b.barrier_ns = 7;
    vf_counters_add(&a.base, &b.base);
    ok(a.compute_ns == (1ull << 60) + 3 && a.barrier_ns == 7, "sums are whole");

    Vflow__SpeculationStats s = VFLOW__SPECULATION_STATS__INIT, t = s, none = s;
    s.gain = 0.1, s.probes = 1;
    t.gain = 0.4, t.probes = 2, t.on = 1;
    none.gain = 99;
    vf_counters_add(&s.base, &t.base);
    vf_counters_add(&s.base, &none.base);
    ok(s.probes == 3 && s.on && s.gain > 0.3 - 1e-12 && s.gain < 0.3 + 1e-12,
       "a mean weighs its parts: %.3f", s.gain);

    Vflow__ExpertReads r = VFLOW__EXPERT_READS__INIT, q = r;
    r.latency_ms_max = 9, r.latency_ms_mean = 5;
    q.latency_ms_max = 3, q.latency_ms_mean = 2;
    vf_counters_add(&r.base, &q.base);
    ok(r.latency_ms_max == 9 && r.latency_ms_mean == 2, "largest and last");
}

static const json_t *at(const json_t *o, const char *a, const char *b)
{
    return json_object_get(json_object_get(o, a), b);
}

static void test_json(void)
{
    Vflow__StepStats a = VFLOW__STEP_STATS__INIT;
    Vflow__SpeculationStats s = VFLOW__SPECULATION_STATS__INIT;
    json_t *status = json_object(), *report = json_object();
    a.barrier_ns = 1500000000;
    vf_counters_json(&a.base, VF_COUNTER_STATUS, status);
    vf_counters_json(&a.base, VF_COUNTER_REPORT, report);
    ok(json_integer_value(json_object_get(status, "barrier_ns")) == 1500000000 &&
           json_real_value(json_object_get(report, "barrier_seconds")) == 1.5 &&
           !json_object_get(report, "barrier_ns"),
       "status has nanoseconds, a report seconds");
    s.right = 3, s.right_two = 4;
    vf_counters_json(&s.base, VF_COUNTER_STATUS, status);
    vf_counters_json(&s.base, VF_COUNTER_REPORT, report);
    const json_t *ahead = json_object_get(report, "ahead");
    ok(json_integer_value(at(status, "one_ahead", "right")) == 3 &&
           json_integer_value(at(status, "two_ahead", "right")) == 4 &&
           json_array_size(ahead) == 2 &&
           json_integer_value(json_object_get(json_array_get(ahead, 1), "right")) == 4,
       "keys within objects and arrays");
    ok(json_is_null(json_object_get(status, "gain")) &&
           json_is_false(json_object_get(report, "on")),
       "a mean of nothing is null, a flag is a boolean");
    json_decref(status);
    json_decref(report);
}

static void test_text(void)
{
    char text[512] = "";
    Vflow__StepStats a = VFLOW__STEP_STATS__INIT;
    FILE *f = fmemopen(text, sizeof text, "w");
    vf_counters_print(f, "counted  ", &a.base);
    fflush(f);
    bool silent = text[0] == 0;
    a.barrier_ns = 250000000;
    a.compute_ns = 1000000000;
    a.weight_bytes = 1 << 20;
    a.experts_wanted = a.expert_hits = a.expert_late = a.expert_demand = a.expert_early =
        1234567890123;
    vf_counters_print(f, "counted  ", &a.base);
    fclose(f);
    size_t longest = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        size_t n = strcspn(line, "\n");
        longest = n > longest ? n : longest;
    }
    ok(silent &&
           strstr(text, "counted  compute 1.000 s, wait for threads 0.250 s, weights 1.0 MiB"),
       "a list for people, without what is 0");
    ok(longest > 50 && longest <= 100 && strstr(text, ",\n         "),
       "in lines of at most 100 columns, %zu", longest);
}

int main(void)
{
    table = vf_counters(&count);
    plan(3 + 3 + 3 + 3 + 2);
    test_complete(&vflow__step_stats__descriptor);
    test_complete(&vflow__speculation_stats__descriptor);
    test_complete(&vflow__expert_reads__descriptor);
    test_names();
    test_addition();
    test_json();
    test_text();
    return 0;
}
