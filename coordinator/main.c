#include "coordinator/commands.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"generate", vf_generate_main, "continue a prompt, streaming the text to stdout"},
    {"score", vf_score_main, "log-probabilities and perplexity of a text"},
    {"serve", vf_serve_main, "answer clients (vflow-client) until stopped"},
    {"plan", vf_plan_main, "show what would run where, what it reads and how long it takes"},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_usage(FILE *f)
{
    fprintf(f, "usage: vflow-coordinator COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(f, "  %-10s  %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\n'vflow-coordinator COMMAND --help' tells the options of a command.\n"
               "Exit status: 0 done, 1 failed while running, 2 wrong usage, 3 bad input file,\n"
               "128 + n when signal n ended it.\n");
}

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
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "--help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(word, "--version") == 0) {
        printf("vflow-coordinator %s\n", VFLOW_VERSION);
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(word, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (argc > 1)
        fprintf(stderr,
                "vflow-coordinator: '%s' found, allowed: generate, score, serve, plan (see "
                "vflow-coordinator --help)\n",
                word);
    else
        fprintf(stderr, "vflow-coordinator: a command is missing: generate, score, serve or plan "
                        "(see vflow-coordinator --help)\n");
    return 2;
}
