/* Command lines: one table of options per command, shared parsing, help and value syntax.
 *
 * Options are --name VALUE or --name=VALUE, flags are --name; -p style short names are single
 * letters. A repeated option keeps its last value, except VF_OPT_COUNT and VF_OPT_LIST. Every fault
 * is VF_ERR_USAGE and names the option, what was found and what is allowed.
 */
#ifndef VF_COMMON_BASE_CLI_H
#define VF_COMMON_BASE_CLI_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vf_opt_type {
    VF_OPT_FLAG,   /* bool * */
    VF_OPT_STRING, /* const char **, points into argv */
    VF_OPT_INT,    /* int64_t *, within [min, max] */
    VF_OPT_UINT32, /* uint32_t *, likewise */
    VF_OPT_SIZE,   /* uint64_t *, bytes as vf_cli_parse_size reads them, within [min, max] */
    VF_OPT_FLOAT,  /* double *, finite, within [min_f, max_f] */
    VF_OPT_CHOICE, /* int *, index into choices */
    VF_OPT_LIST,   /* struct vf_opt_list *, every value given */
    VF_OPT_COUNT,  /* int *, one more each time: -v -v and -vv are both 2; as text within [min, max]
                    */
};

#define VF_OPT_LIST_MAX 16
struct vf_opt_list {
    const char *items[VF_OPT_LIST_MAX];
    int count;
};

struct vf_opt {
    const char *name; /* without dashes */
    char short_name;  /* 0: none */
    enum vf_opt_type type;
    void *value;         /* holds the default before parsing */
    const char *metavar; /* "N", "FILE"; NULL for flags and counts */
    const char *help;
    double min, max;            /* INT, UINT32, SIZE, FLOAT, COUNT */
    const char *const *choices; /* CHOICE: NULL-terminated */
};

struct vf_cli {
    const char *program; /* "vflow-convert" or "vflow-coordinator generate" */
    const char *usage;   /* the words after the program name */
    const char *summary; /* one or two sentences */
    const struct vf_opt *opts;
    size_t opt_count;
    int positional_min, positional_max;
};

/* Parses argv[1..argc). Positional words are stored into positional[0..*positional_count).
 * --help (-h, where no option has that letter), --help=man, --help=words and --version print to
 * stdout and exit(0). */
enum vf_code vf_cli_parse(const struct vf_cli *cli, int argc, char **argv, const char **positional,
                          int *positional_count, struct vf_err *err);

/* Whether argv gives the option, in any spelling, wherever else it is faulty; *value (may be NULL)
 * becomes the last one given. */
bool vf_cli_find(const struct vf_cli *cli, int argc, char **argv, const char *name,
                 const char **value);

/* Stores text, wherever it is from, into opt->value. The message has what was found and what is
 * allowed; the caller says where: "--ctx: ". */
enum vf_code vf_cli_set(const struct vf_opt *opt, const char *text, struct vf_err *err);

/* The same of --help and --version alone, for a command that reads more than its arguments first:
 * help doesn't wait for a sound environment. */
void vf_cli_answer(const struct vf_cli *cli, int argc, char **argv);

/* "512", "64K", "1.5G" -> bytes. */
enum vf_code vf_cli_parse_size(const char *text, uint64_t *bytes, struct vf_err *err);
/* "1,2,3" -> heap array, caller frees. Each id within [0, max_id]. */
enum vf_code vf_cli_parse_ids(const char *text, uint32_t max_id, uint32_t **ids, size_t *count,
                              struct vf_err *err);

/* Prints "program: text" to stderr and returns the exit status of err->code; for usage errors
 * adds a line that names --help. */
int vf_cli_fail(const char *program, const struct vf_err *err);

#endif
