/* A command of vflow-bench, described: its name and help, its options and what it does.
 *
 * One runner parses the options, begins the report, lets the command fill it and writes it as
 * tables, JSON and a chart. A command is a constant; its options are a struct of its own that
 * begins as a copy of the defaults and lives for the run.
 */
#ifndef VF_BENCH_COMMAND_H
#define VF_BENCH_COMMAND_H

#include "bench/report/report.h"
#include "common/base/cli.h"

#include <stddef.h>
#include <stdint.h>

/* Where in the command's options a value goes: an INT into a uint32_t, or an int64_t when it is
 * wide; all else as vf_opt says. */
struct bench_option {
    struct vf_opt opt; /* without a value */
    size_t offset;
    bool wide;
};

struct bench_command {
    const char *name;
    const char *what;    /* in the list of commands; NULL: not listed */
    const char *usage;   /* the words before [options], or NULL */
    const char *summary; /* one or two sentences */
    int words_min, words_max;
    size_t words; /* offset of a const char *, or of an array of words_max */
    const struct bench_option *options;
    size_t option_count;
    const void *defaults;
    size_t options_bytes;
    bool plain; /* reports nothing: no --json, no --svg, and report is NULL */
    enum vf_code (*run)(void *options, struct bench_report *report, struct vf_err *err);
};

/* argv[0] is the command's name. Returns the exit status. */
int bench_command_run(const struct bench_command *command, int argc, char **argv);

/* "1,2,4" -> heap array of counts from 1 to max; the option's name for the error. */
enum vf_code bench_parse_counts(const char *option, const char *text, uint32_t max, uint32_t **out,
                                size_t *count, struct vf_err *err);
/* "1,2,4" up to the CPUs of this process, at most `most`. */
void bench_thread_counts(uint32_t most, char *out, size_t n);

/* .options, .option_count, .defaults and .options_bytes of a command out of its tables. */
#define BENCH_OPTIONS(table, start)                                                                \
    .options = (table), .option_count = sizeof(table) / sizeof(table)[0], .defaults = &(start),    \
    .options_bytes = sizeof(start)

#define BENCH_OPTION(struct_, field, ...)                                                          \
    {                                                                                              \
        .offset = offsetof(struct_, field), .opt = { __VA_ARGS__ }                                 \
    }

#define BENCH_WIDE_OPTION(struct_, field, ...)                                                     \
    {                                                                                              \
        .offset = offsetof(struct_, field), .wide = true, .opt = { __VA_ARGS__ }                   \
    }

/* Options of many commands; the struct has a field of the usual name. */
#define BENCH_THREADS(struct_, most, text)                                                         \
    BENCH_OPTION(struct_, threads, .name = "threads", .type = VF_OPT_INT, .metavar = "N",          \
                 .min = 1, .max = (most), .help = text)
#define BENCH_TOKENS(struct_, least, most, text)                                                   \
    BENCH_OPTION(struct_, tokens, .name = "tokens", .type = VF_OPT_INT, .metavar = "N",            \
                 .min = (least), .max = (most), .help = text)
#define BENCH_SAMPLES(struct_, least, most, text)                                                  \
    BENCH_OPTION(struct_, samples, .name = "samples", .type = VF_OPT_INT, .metavar = "N",          \
                 .min = (least), .max = (most), .help = text)
#define BENCH_SECONDS(struct_, text)                                                               \
    BENCH_OPTION(struct_, seconds, .name = "seconds", .type = VF_OPT_FLOAT, .metavar = "S",        \
                 .min = 0.001, .max = 3600, .help = text)
#define BENCH_KERNEL(struct_)                                                                      \
    BENCH_OPTION(struct_, tier, .name = "kernel", .type = VF_OPT_CHOICE,                           \
                 .choices = vf_kernel_tier_words, .help = "instruction set (auto)")
#define BENCH_HUGE(struct_)                                                                        \
    BENCH_OPTION(struct_, huge, .name = "huge", .type = VF_OPT_FLAG,                               \
                 .help = "copy the weights into huge pages first (--weights huge)")

#endif
