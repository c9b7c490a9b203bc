#include "client/commands.h"
#include "common/base/cli.h"
#include "common/base/commands.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"

static const struct vf_command commands[] = {
    {"generate", vf_client_generate_main, "continue a text, streaming"},
    {"score", vf_client_score_main, "how likely a text is"},
    {"status", vf_client_status_main, "the server's model, load and workers"},
    {"cancel", vf_client_cancel_main, "end a running request"},
    {"keygen", vf_client_keygen_main, "make a key pair for tcp"},
};

static const struct vf_commands program = {
    .program = "vflow-client",
    .summary = "Talks to a vflow server, `vflow-coordinator serve`.",
    .list = commands,
    .count = VF_ARRAY_LEN(commands),
};

int main(int argc, char **argv)
{
    struct vf_err err = {0};
    if (vf_fault_init("client", &err) != VF_OK)
        return vf_cli_fail("vflow-client", &err);
    vf_log_init("client", VF_LOG_WARN);
    return vf_commands_main(&program, argc, argv);
}
