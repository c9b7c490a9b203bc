#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/commands.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"

#include <string.h>

static const struct bench_command *const commands[] = {
    &bench_make_model, &bench_ceiling,  &bench_matvec,  &bench_layout,
    &bench_fused,      &bench_prefetch, &bench_hop,     &bench_decode,
    &bench_flows,      &bench_formats,  &bench_workers, &bench_record,
    &bench_replay,     &bench_drive,    &bench_overlap, &bench_layout_pass,
};

#define COMMAND_COUNT VF_ARRAY_LEN(commands)

/* A result that didn't reach stdout is a failure. */
static int run(int argc, char **argv)
{
    struct vf_err err = {0};
    int status = 1;
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[0], commands[i]->name) == 0)
            status = bench_command_run(commands[i], argc, argv);
    return status == 0 && vf_flush_stdout(&err) ? vf_cli_fail("vflow-bench", &err) : status;
}

int main(int argc, char **argv)
{
    struct vf_command list[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        list[i] = (struct vf_command){commands[i]->name, run, commands[i]->what};
    const struct vf_commands program = {
        .program = "vflow-bench",
        .summary = "Measures the engine and its parts: ratios side by side in one run.",
        .list = list,
        .count = COMMAND_COUNT,
    };
    struct vf_err err = {0};
    if (vf_fault_init("bench", &err) != VF_OK)
        return vf_cli_fail("vflow-bench", &err);
    vf_log_init("bench", VF_LOG_WARN);
    return vf_commands_main(&program, argc, argv);
}
