/* A program of several commands: which one is meant, help and version for all of them.
 */
#ifndef VF_COMMON_BASE_COMMANDS_H
#define VF_COMMON_BASE_COMMANDS_H

#include <stddef.h>

struct vf_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command; returns the exit status */
    const char *help;                  /* one line; NULL: not told */
};

struct vf_commands {
    const char *program; /* "vflow-client" */
    const char *summary; /* what it does, a sentence or two */
    const struct vf_command *list;
    size_t count;
};

/* Runs the command that argv[1] names and returns its status. help, -h and --help, alone or with a
 * command, and --version are answered here; anything else is wrong usage (2). */
int vf_commands_main(const struct vf_commands *c, int argc, char **argv);

#endif
