/* vflow-inspect: what a model file holds, and whether its checksums hold. */
#include "common/base/cli.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "convert/inspect.h"

#define PROGRAM "vflow-inspect"

int main(int argc, char **argv)
{
    struct vf_inspect_options options = {0};
    const char *path = NULL;
    int verbose = 0, count = 0;
    const struct vf_opt opts[] = {
        {.name = "json",
         .type = VF_OPT_FLAG,
         .value = &options.json,
         .help = "print JSON, as docs/FORMAT.md describes it"},
        {.name = "tiles",
         .type = VF_OPT_FLAG,
         .value = &options.tiles,
         .help = "list every tile, too"},
        {.name = "verify",
         .type = VF_OPT_FLAG,
         .value = &options.verify,
         .help = "check every checksum; exit status 3 when one is wrong"},
        {.name = "verbose",
         .short_name = 'v',
         .type = VF_OPT_COUNT,
         .value = &verbose,
         .help = "say more; twice for still more"},
    };
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "FILE [--json] [--tiles] [--verify]",
        .summary = "Prints geometry, parameters, streams, groups and tensors of a .vflow or "
                   ".cflow file.",
        .opts = opts,
        .opt_count = VF_ARRAY_LEN(opts),
        .positional_min = 1,
        .positional_max = 1,
    };
    struct vf_model_file *f = NULL;
    struct vf_err err = {0};
    if (vf_fault_init("inspect", &err) || vf_cli_parse(&cli, argc, argv, &path, &count, &err))
        return vf_cli_fail(PROGRAM, &err);
    vf_log_init(PROGRAM, VF_LOG_WARN + verbose);
    enum vf_code code = vf_model_file_open(path, &f, &err);
    if (!code)
        code = vf_inspect_print(f, &options, &err);
    vf_model_file_close(f);
    return code ? vf_cli_fail(PROGRAM, &err) : 0;
}
