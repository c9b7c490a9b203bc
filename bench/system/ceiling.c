/* The machine's read ceiling: 1..n threads, probe by probe in turn, since neighbours and clocks
 * move it within seconds. A ceiling with two levels shows in the histogram and as a split.
 */
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/progress.h"
#include "common/base/util.h"
#include "common/machine/bandwidth.h"

#include <stdlib.h>
#include <string.h>

#define COUNTS_MAX 32
#define BINS       16
#define SPLIT_GAP  0.15 /* of the median, between the two levels' nearest samples */
#define SPLIT_PART 0.2  /* of the samples, on either side */

struct ceiling_options {
    uint32_t threads; /* 0: the CPUs of this process */
    uint32_t samples;
};

/* 1, 2, 3, 4, 6, 8, 12, ... and n itself. */
static int thread_counts(uint32_t n, uint32_t *counts)
{
    int k = 0;
    for (uint32_t t = 1; t < n && k < COUNTS_MAX - 1; t += t < 4           ? 1
                                                           : (t & (t - 1)) ? t / 3
                                                                           : t / 2)
        counts[k++] = t;
    counts[k++] = n;
    return k;
}

/* Where the sorted samples fall apart into two levels; 0: they don't. */
static size_t split_at(const double *sorted, size_t n)
{
    size_t at = 0;
    double widest = SPLIT_GAP * sorted[n / 2];
    for (size_t i = 1; i < n; i++) {
        if ((double)i < SPLIT_PART * (double)n || (double)(n - i) < SPLIT_PART * (double)n)
            continue;
        if (sorted[i] - sorted[i - 1] > widest) {
            widest = sorted[i] - sorted[i - 1];
            at = i;
        }
    }
    return at;
}

/* How many samples lie in each of BINS equal steps from low to high, as bars of a text line. */
static const char *histogram(const double *samples, size_t n, double low, double high, char *out)
{
    static const char *const bars[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t bins[BINS] = {0}, most = 1;
    for (size_t i = 0; i < n; i++) {
        int b = high > low ? (int)(BINS * (samples[i] - low) / (high - low)) : 0;
        size_t count = ++bins[b < BINS ? b : BINS - 1];
        most = count > most ? count : most;
    }
    *out = 0;
    for (int b = 0; b < BINS; b++)
        strcat(out, bars[(bins[b] * 8 + most - 1) / most]);
    return out;
}

static void add_row(struct bench_report *r, uint32_t threads, double *samples, size_t n, double low,
                    double high)
{
    char bars[4 * BINS + 1];
    struct bench_stat s = bench_stat_of(samples, n);
    size_t split = split_at(samples, n);
    bench_report_row(
        r, (struct bench_cell[]){BENCH_NUM(threads), BENCH_NUM(s.median), BENCH_NUM(s.low),
                                 BENCH_NUM(bench_quantile(samples, n, 0.1)),
                                 BENCH_NUM(bench_quantile(samples, n, 0.9)), BENCH_NUM(s.high),
                                 BENCH_NUM(split ? bench_median(samples, split) : NAN),
                                 BENCH_NUM(split ? bench_median(samples + split, n - split) : NAN),
                                 BENCH_STR(histogram(samples, n, low, high, bars))});
}

static void report(struct bench_report *r, const uint32_t *counts, int count, double *samples,
                   const struct ceiling_options *o)
{
    static const struct bench_column columns[] = {
        {"threads", "threads", BENCH_INT},   {"gb_per_s", "GB/s", BENCH_2},
        {"gb_per_s_min", "min", BENCH_2},    {"gb_per_s_p10", "p10", BENCH_2},
        {"gb_per_s_p90", "p90", BENCH_2},    {"gb_per_s_max", "max", BENCH_2},
        {"low_level", "low level", BENCH_2}, {"high_level", "high level", BENCH_2},
        {"histogram", NULL, BENCH_TEXT},
    };
    static struct bench_column shown[VF_ARRAY_LEN(columns)];
    static char title[64];
    size_t n = o->samples, all = n * (size_t)count;
    double low = samples[0], high = samples[0];
    for (size_t i = 0; i < all; i++) {
        low = fmin(low, samples[i]);
        high = fmax(high, samples[i]);
    }
    memcpy(shown, columns, sizeof columns);
    snprintf(title, sizeof title, "%.1f to %.1f GB/s", low, high);
    shown[VF_ARRAY_LEN(columns) - 1].title = title;
    bench_report_fact(r, "samples", o->samples);
    bench_report_table(r, "rows", NULL, shown, VF_ARRAY_LEN(shown));
    struct bench_panel *panel = bench_panel_add(
        bench_report_chart(r), &(struct bench_panel_look){.kind = BENCH_DOTS,
                                                          .title = "Read ceiling over threads",
                                                          .values = "GB/s",
                                                          .categories = "threads"});
    for (int c = 0; c < count; c++) {
        char name[32];
        snprintf(name, sizeof name, "%u", counts[c]);
        for (size_t i = 0; i < n; i++)
            bench_panel_point(panel, "a probe of 256 MiB", name, samples[(size_t)c * n + i], NAN,
                              NAN);
        add_row(r, counts[c], samples + (size_t)c * n, n, low, high);
    }
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct ceiling_options *o = options;
    uint32_t counts[COUNTS_MAX];
    int count = thread_counts(o->threads ? o->threads : vf_bandwidth_default_threads(), counts);
    double *samples = calloc((size_t)count * o->samples, sizeof *samples);
    enum vf_code code =
        samples ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the samples");
    for (uint32_t s = 0; code == VF_OK && s < o->samples; s++) {
        for (int c = 0; code == VF_OK && c < count; c++) {
            int turn = s % 2 ? count - 1 - c : c; /* both orders */
            code = vf_bandwidth_measure(counts[turn], &samples[(size_t)turn * o->samples + s], err);
        }
        vf_progress("ceiling", VF_PROGRESS_ITEMS, s + 1, o->samples);
    }
    if (code == VF_OK)
        report(r, counts, count, samples, o);
    free(samples);
    return code;
}

static const struct ceiling_options defaults = {.samples = 20};
static const struct bench_option options[] = {
    BENCH_THREADS(struct ceiling_options, VF_BANDWIDTH_THREADS_MAX,
                  "from 1 to N threads (the CPUs of this process)"),
    BENCH_SAMPLES(struct ceiling_options, 5, 100000, "probes of each (20)"),
};
const struct bench_command bench_ceiling = {
    .name = "ceiling",
    .what = "how fast this machine reads memory, over threads",
    .summary = "How fast this machine reads memory: what bounds decode.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
