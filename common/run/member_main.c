/* What every worker program does before it joins. */
#include "common/base/cli.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/run/member.h"

#include <signal.h>
#include <stdio.h>

struct arguments {
    const char *run_dir;
    int64_t index;
    int verbosity;
};

static enum vf_code parse(const struct vf_member_program *program, int argc, char **argv,
                          struct arguments *a, struct vf_err *err)
{
    char index_help[64];
    snprintf(index_help, sizeof index_help, "which %s this is, from 0", program->noun);
    const struct vf_opt opts[] = {
        {.name = "run-dir",
         .type = VF_OPT_STRING,
         .value = &a->run_dir,
         .metavar = "DIR",
         .help = "run directory of the coordinator to join"},
        {.name = "index",
         .type = VF_OPT_INT,
         .value = &a->index,
         .metavar = "N",
         .min = 0,
         .max = program->index_count - 1,
         .help = index_help},
        {.name = "verbose",
         .short_name = 'v',
         .type = VF_OPT_COUNT,
         .value = &a->verbosity,
         .help = "say more; twice: even more"},
    };
    const struct vf_cli cli = {.program = program->name,
                               .usage = "--run-dir DIR [--index N]",
                               .summary = program->summary,
                               .opts = opts,
                               .opt_count = VF_ARRAY_LEN(opts)};
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, err);
    if (code == VF_OK && !a->run_dir)
        code = vf_err_set(err, VF_ERR_USAGE, "--run-dir is missing");
    return code;
}

int vf_member_main(const struct vf_member_program *program, int argc, char **argv)
{
    struct arguments a = {0};
    struct vf_err err = {0};
    char role[32];
    enum vf_code code = parse(program, argc, argv, &a, &err);
    if (code == VF_OK)
        code = vf_fault_init(program->log_role, &err);
    if (code != VF_OK)
        return vf_cli_fail(program->name, &err);
    snprintf(role, sizeof role, "%s-%u", program->log_role, (unsigned)a.index);
    vf_log_init(role, (enum vf_log_level)(VF_LOG_WARN + (a.verbosity > 3 ? 3 : a.verbosity)));
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    code = program->run(a.run_dir, (uint32_t)a.index, &err);
    if (code != VF_OK)
        vf_info("leaving: %s", err.text); /* it has been said to whom it concerns */
    return vf_exit_status(code);
}
