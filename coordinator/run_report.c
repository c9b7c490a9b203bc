#include "coordinator/run_report.h"

#include "common/run/counters.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

static double ratio(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

const char *vf_finish_word(enum vf_finish f)
{
    static const char *const words[] = {"stop", "eos", "length", "cancelled"};
    return words[f];
}

void vf_run_report_make(const struct vf_request_stats *s, enum vf_finish finish,
                        const struct vf_engine_totals *prefilled,
                        const struct vf_engine_totals *end, struct vf_run_report *out)
{
    /* Steps after the first token; the end-of-sequence token took one and isn't counted. */
    double steps = (double)s->generated_tokens - (finish != VF_FINISH_EOS);
    *out = (struct vf_run_report){
        .request = *s,
        .finish = finish,
        .prefill_per_s = ratio(s->prompt_tokens, s->prefill_seconds),
        .decode_per_s = ratio(steps, s->decode_seconds),
        .weight_bytes =
            ratio((double)(end->stats.weight_bytes - prefilled->stats.weight_bytes), steps),
        .drive_bytes =
            ratio((double)(end->expert_bytes_read - prefilled->expert_bytes_read), steps),
        .totals = *end,
        .hit_share = ratio((double)end->stats.expert_hits, (double)end->stats.experts_wanted),
        .stall_s = (double)end->stats.stall_ns * 1e-9,
    };
    double hidden = 1 - ratio((double)end->stats.stall_ns, (double)end->reads.read_ns);
    out->hidden_share = hidden < 0 ? 0 : hidden; /* NAN stays */
}

/* "12.3 unit", or "-" where there is nothing to divide. */
static const char *measure_text(char *buf, size_t n, double v, int digits, const char *unit)
{
    if (isfinite(v))
        snprintf(buf, n, "%.*f%s", digits, v, unit);
    else
        snprintf(buf, n, "-");
    return buf;
}
#define TEXT(v, digits, unit) measure_text((char[48]){0}, 48, v, digits, unit)

static void print_guesses(const struct vf_engine_totals *t)
{
    const Vflow__SpeculationStats *s = &t->speculation;
    fprintf(stderr,
            "guesses  %s of steps, %s of the experts one layer ahead named, %s of the names right",
            TEXT(100 * ratio((double)s->steps_guessed, (double)s->steps), 0, "%"),
            TEXT(100 * ratio((double)s->right, (double)s->chosen), 1, "%"),
            TEXT(100 * ratio((double)s->right, (double)s->guessed), 1, "%"));
    fprintf(stderr,
            "\n         %" PRIu64 " read and used, %" PRIu64
            " wasted (at most %s), %.3f s of guessing, now %s, gain %s\n",
            t->guesses_used, t->guesses_wasted,
            TEXT((double)t->guess_bytes_wasted / MIB, 1, " MiB"), (double)s->guess_ns * 1e-9,
            s->on ? "on" : "off", TEXT(s->probes ? 100 * s->gain : NAN, 1, "%"));
}

void vf_run_report_print(const struct vf_run_report *r, const struct vf_engine_info *info)
{
    const struct vf_request_stats *s = &r->request;
    fprintf(stderr, "\nprefill  %u tokens, %s\n", s->prompt_tokens,
            TEXT(r->prefill_per_s, 1, " tokens/s"));
    fprintf(stderr, "decode   %u tokens, %s, ended by %s\n", s->generated_tokens,
            TEXT(r->decode_per_s, 1, " tokens/s"), vf_finish_word(r->finish));
    fprintf(stderr, "weights  %s read per token by %u stage worker%s of %u thread%s\n",
            TEXT(r->weight_bytes / MIB, 2, " MiB"), info->stage_workers,
            info->stage_workers == 1 ? "" : "s", info->threads, info->threads == 1 ? "" : "s");
    vf_counters_print(stderr, "counted  ", &r->totals.stats.base);
    fprintf(stderr, "memory   %.1f MiB planned of %.1f MiB allowed\n",
            (double)info->memory_bytes / MIB, (double)info->memory_allowed / MIB);
    fprintf(stderr, "experts  %s", info->experts);
    if (strcmp(info->experts, "streamed") != 0) {
        fputc('\n', stderr);
        return;
    }
    fprintf(stderr, " by %u I/O worker%s through a cache of %.1f MiB for %.1f MiB\n",
            info->io_workers, info->io_workers == 1 ? "" : "s", (double)info->cache_bytes / MIB,
            (double)info->expert_bytes / MIB);
    fprintf(stderr,
            "         %s of %" PRIu64 " wanted were there in time, %" PRIu64
            " begun early, %s read per token\n",
            TEXT(100 * r->hit_share, 1, "%"), r->totals.stats.experts_wanted,
            r->totals.stats.expert_early, TEXT(r->drive_bytes / MIB, 2, " MiB"));
    if (info->drive_bytes_per_s > 0)
        fprintf(stderr,
                "drive    %.2f GB/s at the start in reads of %" PRIu64
                " KiB, %u at a time, %.2f ms each\n",
                info->drive_bytes_per_s * 1e-9, info->io_read_bytes >> 10, info->io_depth,
                info->drive_latency_ms);
    const Vflow__ExpertReads *c = &r->totals.reads;
    fprintf(stderr, "prefetch %" PRIu64 " were there when wanted, %" PRIu64 " wasted\n",
            c->prefetched_used, c->prefetched_wasted);
    fprintf(stderr,
            "reads    %" PRIu64 " of the drive at %.2f GB/s, %.2f ms each (median %.2f, 95%% %.2f, "
            "longest %.2f), %" PRIu64 " joined to another\n",
            r->totals.expert_reads, r->totals.read_bytes_per_s * 1e-9, c->latency_ms_mean,
            c->latency_ms_median, c->latency_ms_p95, c->latency_ms_max, c->joined);
    fprintf(stderr, "stall    %.3f s waiting for the drive in %.3f s of reading, %s hidden\n",
            r->stall_s, (double)c->read_ns * 1e-9, TEXT(100 * r->hidden_share, 1, "%"));
    if (r->totals.speculates)
        print_guesses(&r->totals);
}

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *guesses_json(const struct vf_engine_totals *t)
{
    if (!t->speculates)
        return json_null();
    json_t *o = json_object();
    vf_counters_json(&t->speculation.base, VF_COUNTER_REPORT, o);
    json_object_set_new(o, "reads_used", json_integer((json_int_t)t->guesses_used));
    json_object_set_new(o, "reads_wasted", json_integer((json_int_t)t->guesses_wasted));
    json_object_set_new(o, "bytes_wasted", json_integer((json_int_t)t->guess_bytes_wasted));
    return o;
}

static void add_totals_json(json_t *stats, const struct vf_engine_totals *t)
{
    vf_counters_json(&t->stats.base, VF_COUNTER_REPORT, stats);
    vf_counters_json(&t->reads.base, VF_COUNTER_REPORT, stats);
    json_object_set_new(stats, "expert_reads", json_integer((json_int_t)t->expert_reads));
    json_object_set_new(stats, "expert_bytes_read", json_integer((json_int_t)t->expert_bytes_read));
    json_object_set_new(stats, "expert_evictions", json_integer((json_int_t)t->expert_evictions));
    json_object_set_new(stats, "read_bytes_per_second", json_real(t->read_bytes_per_s));
    json_object_set_new(stats, "speculation", guesses_json(t));
}

static void add_info_json(json_t *stats, const struct vf_engine_info *info)
{
    bool probed = info->drive_bytes_per_s > 0;
    json_object_set_new(stats, "io_depth", json_integer(info->io_depth));
    json_object_set_new(stats, "io_read_bytes", json_integer((json_int_t)info->io_read_bytes));
    json_object_set_new(stats, "drive_bytes_per_second",
                        probed ? json_real(info->drive_bytes_per_s) : json_null());
    json_object_set_new(stats, "drive_read_ms",
                        probed ? json_real(info->drive_latency_ms) : json_null());
    json_object_set_new(stats, "memory_planned", json_integer((json_int_t)info->memory_bytes));
    json_object_set_new(stats, "memory_allowed", json_integer((json_int_t)info->memory_allowed));
}

json_t *vf_run_report_json(const struct vf_run_report *r, const struct vf_engine_info *info)
{
    const struct vf_request_stats *s = &r->request;
    json_t *stats = json_pack(
        "{s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:s, s:o, s:o}", "prompt_tokens",
        (json_int_t)s->prompt_tokens, "generated_tokens", (json_int_t)s->generated_tokens,
        "prefill_seconds", s->prefill_seconds, "decode_seconds", s->decode_seconds,
        "prefill_tokens_per_second", real_or_null(r->prefill_per_s), "decode_tokens_per_second",
        real_or_null(r->decode_per_s), "weight_bytes_per_token", real_or_null(r->weight_bytes),
        "experts", info->experts, "drive_bytes_per_token", real_or_null(r->drive_bytes),
        "hidden_share", real_or_null(r->hidden_share));
    add_totals_json(stats, &r->totals);
    add_info_json(stats, info);
    return stats;
}
