#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/log.h"
#include "common/base/util.h"

#include <stdio.h>
#include <string.h>

static const struct bench_command *const commands[] = {
    &bench_make_model, &bench_ceiling,  &bench_matvec,  &bench_layout,
    &bench_fused,      &bench_prefetch, &bench_hop,     &bench_decode,
    &bench_flows,      &bench_formats,  &bench_workers, &bench_record,
    &bench_replay,     &bench_drive,    &bench_overlap, &bench_layout_pass,
};

static void print_help(FILE *out)
{
    fprintf(out, "usage: vflow-bench COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < VF_ARRAY_LEN(commands); i++)
        if (commands[i]->what)
            fprintf(out, "  %-12s  %s\n", commands[i]->name, commands[i]->what);
    fprintf(out, "\nvflow-bench COMMAND --help explains one.\n");
}

/* A result that didn't reach stdout is a failure. */
static int end(int status)
{
    struct vf_err err = {0};
    return status == 0 && vf_flush_stdout(&err) ? vf_cli_fail("vflow-bench", &err) : status;
}

int main(int argc, char **argv)
{
    vf_log_init("bench", VF_LOG_WARN);
    for (size_t i = 0; argc > 1 && i < VF_ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            return end(bench_command_run(commands[i], argc - 1, argv + 1));
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("vflow-bench %s\n", VFLOW_VERSION);
        return 0;
    }
    bool help = argc > 1 && strcmp(argv[1], "--help") == 0;
    if (!help && argc > 1)
        fprintf(stderr, "vflow-bench: unknown command '%s'\n", argv[1]);
    print_help(help ? stdout : stderr);
    return help ? 0 : 2;
}
