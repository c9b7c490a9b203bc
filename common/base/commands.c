#include "common/base/commands.h"

#include "common/base/cli_help.h"
#include "common/base/nearest.h"
#include "common/base/version.h"

#include <stdio.h>
#include <string.h>

static const struct vf_command *find(const struct vf_commands *c, const char *word)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->list[i].name, word) == 0)
            return &c->list[i];
    return NULL;
}

/* "generate, score, serve" of the commands that are told. */
static void list_names(const struct vf_commands *c, char *buf, size_t buf_bytes)
{
    size_t n = 0;
    buf[0] = 0;
    for (size_t i = 0; i < c->count && n < buf_bytes; i++)
        if (c->list[i].help)
            n += (size_t)snprintf(buf + n, buf_bytes - n, "%s%s", n ? ", " : "", c->list[i].name);
}

static int refuse(const struct vf_commands *c, const char *word)
{
    char names[512], hint[96];
    struct vf_nearest nearest = vf_nearest_begin(word, strlen(word));
    list_names(c, names, sizeof names);
    for (size_t i = 0; i < c->count; i++)
        if (c->list[i].help)
            vf_nearest_try(&nearest, c->list[i].name);
    fprintf(stderr, "%s: '%s' found, allowed: %s%s (see %s --help)\n", c->program, word, names,
            vf_nearest_hint(&nearest, "", hint, sizeof hint), c->program);
    return 2;
}

static int missing(const struct vf_commands *c)
{
    char names[512];
    list_names(c, names, sizeof names);
    fprintf(stderr, "%s: a command is missing: %s (see %s --help)\n", c->program, names,
            c->program);
    return 2;
}

static int help_on(const struct vf_commands *c, char *word)
{
    const struct vf_command *command = find(c, word);
    char help[] = "--help";
    return command ? command->run(2, (char *[]){word, help, NULL}) : refuse(c, word);
}

int vf_commands_main(const struct vf_commands *c, int argc, char **argv)
{
    if (argc < 2)
        return missing(c);
    const struct vf_command *command = find(c, argv[1]);
    if (command)
        return command->run(argc - 1, argv + 1);
    const char *word = argv[1];
    bool help = strcmp(word, "help") == 0;
    if (help && argc > 2)
        return help_on(c, argv[2]);
    if (help || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        vf_commands_print(c, NULL);
        return 0;
    }
    if (strncmp(word, "--help=", 7) == 0 && vf_commands_print(c, word + 7))
        return 0;
    if (strcmp(word, "--version") == 0) {
        vf_version_print(c->program);
        return 0;
    }
    return refuse(c, word);
}
