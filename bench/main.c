#include "bench/bench.h"

#include "common/base/cli.h"
#include "common/base/log.h"
#include "common/base/util.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"make-model", bench_make_model, "write a model of random weights of a named geometry"},
    {"ceiling", bench_ceiling, "how fast this machine reads memory, over threads"},
    {"matvec", bench_matvec, "each matrix kernel and shape, as a share of a plain read"},
    {"layout", bench_layout, "tiled against row-major weights: L1 misses and wall clock"},
    {"fused", bench_fused, "projections in one parallel region against one each"},
    {"prefetch", bench_prefetch, "software prefetch on and off"},
    {"hop", bench_hop, "one-way latency between processes"},
    {"decode", bench_decode, "decode and prefill of a model, as a share of the read ceiling"},
    {"flows", bench_flows, "decode time with auxiliary flows over decode time with one flow"},
    {"formats", bench_formats, ".cflow against .vflow of the same model"},
    {"workers", bench_workers, "decode over stage workers and threads, real processes"},
    {"record", bench_record, "write down the routing of a model's own decoding"},
    {"replay", bench_replay, "hit rates of expert cache policies over a routing trace"},
    {"drive", bench_drive, "how fast a drive reads, over read sizes and queue depths"},
    {"overlap", bench_overlap, "expert reads waited for where chosen against where due"},
    {"layout-pass", bench_layout_pass, NULL}, /* layout runs it under cachegrind */
};

static void print_help(FILE *out)
{
    fprintf(out, "usage: vflow-bench COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < VF_ARRAY_LEN(commands); i++)
        if (commands[i].what)
            fprintf(out, "  %-12s  %s\n", commands[i].name, commands[i].what);
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
        if (strcmp(argv[1], commands[i].name) == 0)
            return end(commands[i].run(argc - 1, argv + 1));
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
