#include "common/base/cli.h"
#include "common/base/commands.h"
#include "common/base/fault.h"
#include "common/base/util.h"
#include "coordinator/commands.h"

#include <fcntl.h>
#include <unistd.h>

static const struct vf_command commands[] = {
    {"generate", vf_generate_main, "continue a prompt, streaming the text to stdout"},
    {"score", vf_score_main, "log-probabilities and perplexity of a text"},
    {"serve", vf_serve_main, "answer clients (vflow-client) until stopped"},
    {"plan", vf_plan_main, "show what would run where, what it reads and how long it takes"},
};

static const struct vf_commands program = {
    .program = "vflow-coordinator",
    .summary = "Decodes large language models on CPUs: runs a model file with worker processes.",
    .list = commands,
    .count = VF_ARRAY_LEN(commands),
};

/* Descriptors 0 to 2 are ours even when they were closed: a file that got number 1 would receive
 * the results. Opened for reading, so that writing is an error. */
static void occupy_standard_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    occupy_standard_fds();
    struct vf_err err = {0};
    if (vf_fault_init("coordinator", &err) != VF_OK)
        return vf_cli_fail("vflow-coordinator", &err);
    return vf_commands_main(&program, argc, argv);
}
