/* vflow-io-worker: reads experts from the drive for one run. */
#include "common/base/cli.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/cache.h"
#include "io_worker/io_worker.h"

#include <stdio.h>

static enum vf_code parse(int argc, char **argv, const char **run_dir, int64_t *index,
                          int *verbosity, struct vf_err *err)
{
    const struct vf_opt opts[] = {
        {.name = "run-dir",
         .type = VF_OPT_STRING,
         .value = run_dir,
         .metavar = "DIR",
         .help = "run directory of the coordinator to join"},
        {.name = "index",
         .type = VF_OPT_INT,
         .value = index,
         .metavar = "N",
         .min = 0,
         .max = VF_CACHE_IO_WORKERS_MAX - 1,
         .help = "which I/O worker this is, from 0"},
        {.name = "verbose",
         .short_name = 'v',
         .type = VF_OPT_COUNT,
         .value = verbosity,
         .help = "say more; twice: even more"},
    };
    const struct vf_cli cli = {
        .program = "vflow-io-worker",
        .usage = "--run-dir DIR [--index N]",
        .summary = "Reads experts from the drive into the run's shared cache. Started by "
                   "vflow-coordinator, or by hand to join its run.",
        .opts = opts,
        .opt_count = VF_ARRAY_LEN(opts),
    };
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, err);
    if (code == VF_OK && !*run_dir)
        code = vf_err_set(err, VF_ERR_USAGE, "--run-dir is missing");
    return code;
}

int main(int argc, char **argv)
{
    const char *run_dir = NULL;
    int64_t index = 0;
    int verbosity = 0;
    struct vf_err err = {0};
    enum vf_code code = parse(argc, argv, &run_dir, &index, &verbosity, &err);
    if (code == VF_OK)
        code = vf_fault_init(&err);
    if (code != VF_OK)
        return vf_cli_fail("vflow-io-worker", &err);
    char role[32];
    snprintf(role, sizeof role, "io-%u", (unsigned)index);
    vf_log_init(role, (enum vf_log_level)(VF_LOG_WARN + (verbosity > 3 ? 3 : verbosity)));
    code = vf_io_worker_run(run_dir, (uint32_t)index, &err);
    if (code != VF_OK)
        vf_info("leaving: %s", err.text); /* the coordinator has told it to the user */
    return vf_exit_status(code);
}
