/* A command's table of options in other shapes: what --help prints, a manual page, the words that a
 * shell completes. All go to stdout.
 */
#ifndef VF_COMMON_BASE_CLI_HELP_H
#define VF_COMMON_BASE_CLI_HELP_H

#include "common/base/cli.h"
#include "common/base/commands.h"

#include <stdbool.h>

/* --help's value: NULL or "text", "man", "words". False: another one, nothing was printed. */
bool vf_cli_print(const struct vf_cli *cli, const char *shape);
bool vf_commands_print(const struct vf_commands *c, const char *shape);

#endif
