#include "bench/command.h"

#include "common/base/util.h"
#include "common/machine/bandwidth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 16

/* Options as vf_cli_parse takes them, their values in `values`. */
struct parsing {
    struct vf_opt opts[OPTIONS_MAX + 2]; /* with --json and --svg */
    size_t count;
    int64_t narrow[OPTIONS_MAX]; /* where an INT of 32 bits is parsed to */
    bool json;
    const char *svg;
};

static bool is_narrow(const struct bench_option *o)
{
    return o->opt.type == VF_OPT_INT && !o->wide;
}

static void init_parsing(struct parsing *p, const struct bench_command *c, char *values)
{
    VF_ASSERT(c->option_count <= OPTIONS_MAX);
    *p = (struct parsing){.count = c->option_count};
    for (size_t i = 0; i < c->option_count; i++) {
        const struct bench_option *o = &c->options[i];
        uint32_t start;
        p->opts[i] = o->opt;
        p->opts[i].value = is_narrow(o) ? (void *)&p->narrow[i] : values + o->offset;
        if (is_narrow(o)) {
            memcpy(&start, values + o->offset, sizeof start);
            p->narrow[i] = start;
        }
    }
    if (c->plain)
        return;
    p->opts[p->count++] = (struct vf_opt){.name = "json",
                                          .type = VF_OPT_FLAG,
                                          .value = &p->json,
                                          .help = "print one JSON object instead of tables"};
    p->opts[p->count++] = (struct vf_opt){.name = "svg",
                                          .type = VF_OPT_STRING,
                                          .value = &p->svg,
                                          .metavar = "FILE",
                                          .help = "also draw the result"};
}

static enum vf_code parse(struct parsing *p, const struct bench_command *c, const char *program,
                          int argc, char **argv, char *values, struct vf_err *err)
{
    char usage[128];
    int words = 0;
    snprintf(usage, sizeof usage, "%s%s[options]", c->usage ? c->usage : "", c->usage ? " " : "");
    const struct vf_cli cli = {.program = program,
                               .usage = usage,
                               .summary = c->summary,
                               .opts = p->opts,
                               .opt_count = p->count,
                               .positional_min = c->words_min,
                               .positional_max = c->words_max};
    enum vf_code code =
        vf_cli_parse(&cli, argc, argv,
                     c->words_max ? (const char **)(void *)(values + c->words) : NULL, &words, err);
    for (size_t i = 0; code == VF_OK && i < c->option_count; i++) {
        uint32_t given = (uint32_t)p->narrow[i];
        if (is_narrow(&c->options[i]))
            memcpy(values + c->options[i].offset, &given, sizeof given);
    }
    return code;
}

static enum vf_code run(const struct bench_command *c, const struct parsing *p, void *values,
                        struct vf_err *err)
{
    if (c->plain)
        return c->run(values, NULL, err);
    struct bench_report *r = bench_report_begin(c->name);
    enum vf_code code =
        r ? c->run(values, r, err) : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a report");
    return bench_report_end(r, p->json, p->svg, code, err);
}

int bench_command_run(const struct bench_command *command, int argc, char **argv)
{
    struct parsing parsing;
    struct vf_err err = {0};
    char program[64];
    char *values = malloc(command->options_bytes);
    enum vf_code code =
        values ? VF_OK : vf_err_set(&err, VF_ERR_NO_MEMORY, "no memory for the options");
    snprintf(program, sizeof program, "vflow-bench %s", command->name);
    if (code == VF_OK) {
        memcpy(values, command->defaults, command->options_bytes);
        init_parsing(&parsing, command, values);
        code = parse(&parsing, command, program, argc, argv, values, &err);
    }
    if (code == VF_OK)
        code = run(command, &parsing, values, &err);
    free(values);
    return code == VF_OK ? 0 : vf_cli_fail(program, &err);
}

enum vf_code bench_parse_counts(const char *option, const char *text, uint32_t max, uint32_t **out,
                                size_t *count, struct vf_err *err)
{
    enum vf_code code = vf_cli_parse_ids(text, max, out, count, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "%s: ", option);
    for (size_t i = 0; i < *count; i++)
        if ((*out)[i] == 0)
            return vf_err_set(err, VF_ERR_USAGE, "%s: 0 found, allowed are 1 to %u", option, max);
    return VF_OK;
}

void bench_thread_counts(uint32_t most, char *out, size_t n)
{
    size_t used = (size_t)snprintf(out, n, "1");
    for (uint32_t t = 2, cpus = vf_bandwidth_default_threads(); t <= cpus && t <= most; t *= 2)
        used += (size_t)snprintf(out + used, n - used, ",%u", t);
}
