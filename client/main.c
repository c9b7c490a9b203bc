#include "client/commands.h"
#include "common/base/cli.h"
#include "common/base/log.h"
#include "common/base/util.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"generate", vf_client_generate_main, "continue a text, streaming"},
    {"score", vf_client_score_main, "how likely a text is"},
    {"status", vf_client_status_main, "the server's model, load and workers"},
    {"cancel", vf_client_cancel_main, "end a running request"},
    {"keygen", vf_client_keygen_main, "make a key pair for tcp"},
};

static void print_help(void)
{
    printf("usage: vflow-client COMMAND [options]\n\n"
           "Talks to `vflow-coordinator serve`.\n\ncommands:\n");
    for (size_t i = 0; i < VF_ARRAY_LEN(commands); i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].help);
    printf("\nvflow-client COMMAND --help shows a command's options.\n");
}

int main(int argc, char **argv)
{
    struct vf_err err = {0};
    vf_log_init("client", VF_LOG_WARN);
    if (argc < 2) {
        vf_err_set(&err, VF_ERR_USAGE, "a command is missing");
        return vf_cli_fail("vflow-client", &err);
    }
    for (size_t i = 0; i < VF_ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--help") == 0) {
        print_help();
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("vflow-client %s\n", VFLOW_VERSION);
        return 0;
    }
    vf_err_set(&err, VF_ERR_USAGE, "unknown command '%s'", argv[1]);
    return vf_cli_fail("vflow-client", &err);
}
