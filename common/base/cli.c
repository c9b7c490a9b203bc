#include "common/base/cli.h"

#include "common/base/cli_help.h"
#include "common/base/nearest.h"
#include "common/base/progress.h"
#include "common/base/version.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct vf_opt *find_opt(const struct vf_cli *cli, const char *name, size_t len)
{
    for (size_t i = 0; i < cli->opt_count; i++)
        if (strlen(cli->opts[i].name) == len && memcmp(cli->opts[i].name, name, len) == 0)
            return &cli->opts[i];
    return NULL;
}

static const struct vf_opt *find_short(const struct vf_cli *cli, char c)
{
    for (size_t i = 0; i < cli->opt_count; i++)
        if (cli->opts[i].short_name == c)
            return &cli->opts[i];
    return NULL;
}

/* As the GNU tools have it: K and KiB are 1024 bytes, KB is 1000. 0 for what isn't a unit. */
static double unit_bytes(const char *unit)
{
    static const char letters[] = "kmgt";
    if (!*unit || strcasecmp(unit, "b") == 0)
        return 1;
    const char *letter = strchr(letters, tolower((unsigned char)*unit));
    bool binary = !unit[1] || strcasecmp(unit + 1, "ib") == 0;
    if (!letter || (!binary && strcasecmp(unit + 1, "b") != 0))
        return 0;
    return pow(binary ? 1024 : 1000, (double)(letter - letters + 1));
}

enum vf_code vf_cli_parse_size(const char *text, uint64_t *bytes, struct vf_err *err)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    double unit = unit_bytes(end);
    v *= unit;
    if (end == text || unit == 0 || errno || !(v >= 0 && v < 9.2e18) || strpbrk(text, "xXpP"))
        return vf_err_set(err, VF_ERR_USAGE,
                          "'%s' is not a size (allowed: 4096, 64K, 512M, 1.5G, 8GiB; 8GB is 8 x "
                          "10^9)",
                          text);
    *bytes = (uint64_t)v;
    return VF_OK;
}

enum vf_code vf_cli_parse_ids(const char *text, uint32_t max_id, uint32_t **ids, size_t *count,
                              struct vf_err *err)
{
    size_t capacity = 1;
    for (const char *p = text; *p; p++)
        capacity += *p == ',';
    uint32_t *list = malloc(capacity * sizeof *list);
    if (!list)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu token ids", capacity);
    size_t n = 0;
    const char *p = text;
    for (;;) {
        char *end;
        errno = 0;
        unsigned long v = strtoul(p, &end, 10);
        if (*p < '0' || *p > '9' || errno || v > max_id || (*end && *end != ',')) {
            free(list);
            return vf_err_set(err, VF_ERR_USAGE,
                              "token %zu in '%.40s%s' is not an id from 0 to %u (allowed: 1,2,3)",
                              n, text, strlen(text) > 40 ? "..." : "", max_id);
        }
        list[n++] = (uint32_t)v;
        if (!*end)
            break;
        p = end + 1;
    }
    *ids = list;
    *count = n;
    return VF_OK;
}

static enum vf_code read_int(const struct vf_opt *o, const char *text, int64_t *out,
                             struct vf_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || (long double)v < o->min || (long double)v > o->max)
        return vf_err_set(err, VF_ERR_USAGE,
                          "'%s' found, a whole number from %.0f to %.0f is allowed", text, o->min,
                          o->max);
    *out = v;
    return VF_OK;
}

static enum vf_code set_float(const struct vf_opt *o, const char *text, struct vf_err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= o->min && v <= o->max))
        return vf_err_set(err, VF_ERR_USAGE, "'%s' found, a number from %g to %g is allowed", text,
                          o->min, o->max);
    *(double *)o->value = v;
    return VF_OK;
}

static enum vf_code set_size(const struct vf_opt *o, const char *text, struct vf_err *err)
{
    uint64_t v;
    enum vf_code code = vf_cli_parse_size(text, &v, err);
    if (code != VF_OK)
        return code;
    if ((double)v < o->min || (double)v > o->max)
        return vf_err_set(err, VF_ERR_USAGE, "'%s' found, from %.0f to %.0f bytes are allowed",
                          text, o->min, o->max);
    *(uint64_t *)o->value = v;
    return VF_OK;
}

static enum vf_code set_choice(const struct vf_opt *o, const char *text, struct vf_err *err)
{
    char allowed[160] = "";
    for (int k = 0; o->choices[k]; k++) {
        if (strcmp(o->choices[k], text) == 0) {
            *(int *)o->value = k;
            return VF_OK;
        }
        size_t n = strlen(allowed);
        snprintf(allowed + n, sizeof allowed - n, "%s%s", k ? ", " : "", o->choices[k]);
    }
    struct vf_nearest nearest = vf_nearest_begin(text, strlen(text));
    char hint[96];
    for (int k = 0; o->choices[k]; k++)
        vf_nearest_try(&nearest, o->choices[k]);
    return vf_err_set(err, VF_ERR_USAGE, "'%s' found, allowed: %s%s", text, allowed,
                      vf_nearest_hint(&nearest, "", hint, sizeof hint));
}

static enum vf_code add_to_list(struct vf_opt_list *list, const char *text, struct vf_err *err)
{
    if (list->count == VF_OPT_LIST_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "given more than %d times", VF_OPT_LIST_MAX);
    list->items[list->count++] = text;
    return VF_OK;
}

enum vf_code vf_cli_set(const struct vf_opt *o, const char *text, struct vf_err *err)
{
    int64_t number = 0;
    enum vf_code code = VF_OK;
    switch (o->type) {
    case VF_OPT_FLAG:
        *(bool *)o->value = true;
        return VF_OK;
    case VF_OPT_STRING:
        *(const char **)o->value = text;
        return VF_OK;
    case VF_OPT_INT:
        return read_int(o, text, o->value, err);
    case VF_OPT_UINT32:
        if ((code = read_int(o, text, &number, err)) == VF_OK)
            *(uint32_t *)o->value = (uint32_t)number;
        return code;
    case VF_OPT_COUNT:
        if ((code = read_int(o, text, &number, err)) == VF_OK)
            *(int *)o->value = (int)number;
        return code;
    case VF_OPT_SIZE:
        return set_size(o, text, err);
    case VF_OPT_FLOAT:
        return set_float(o, text, err);
    case VF_OPT_CHOICE:
        return set_choice(o, text, err);
    case VF_OPT_LIST:
        return add_to_list(o->value, text, err);
    }
    return vf_err_set(err, VF_ERR_INTERNAL, "unknown option type");
}

static bool takes_value(const struct vf_opt *o)
{
    return o->type != VF_OPT_FLAG && o->type != VF_OPT_COUNT;
}

/* How often "-v" or "-vv" repeats the letter of a counting option; 0: it isn't one. */
static int count_cluster(const struct vf_opt *o, const char *arg)
{
    size_t n = strlen(arg) - 1;
    bool repeats = o->type == VF_OPT_COUNT && strspn(arg + 1, (char[2]){o->short_name, 0}) == n;
    return repeats ? (int)n : 0;
}

static enum vf_code refuse_option(const struct vf_cli *cli, const char *arg, struct vf_err *err)
{
    char hint[96] = "";
    if (arg[1] == '-') {
        struct vf_nearest nearest = vf_nearest_begin(arg + 2, strcspn(arg + 2, "="));
        for (size_t i = 0; i < cli->opt_count; i++)
            vf_nearest_try(&nearest, cli->opts[i].name);
        vf_nearest_hint(&nearest, "--", hint, sizeof hint);
    }
    return vf_err_set(err, VF_ERR_USAGE, "unknown option '%s'%s", arg, hint);
}

/* Finds the option that argv[*i] names and its value (NULL: it takes none), over which *i advances.
 */
static enum vf_code next_option(const struct vf_cli *cli, int argc, char **argv, int *i,
                                const struct vf_opt **out, const char **text, struct vf_err *err)
{
    const char *arg = argv[*i];
    const struct vf_opt *o;
    const char *value = NULL;
    if (arg[1] == '-') {
        const char *eq = strchr(arg, '=');
        o = find_opt(cli, arg + 2, eq ? (size_t)(eq - arg) - 2 : strlen(arg + 2));
        value = eq ? eq + 1 : NULL;
    } else {
        o = find_short(cli, arg[1]);
        if (arg[2] && o && !takes_value(o) && count_cluster(o, arg) == 0)
            o = NULL; /* flags don't cluster */
        else if (arg[2] && o && takes_value(o))
            value = arg + 2;
    }
    if (!o)
        return refuse_option(cli, arg, err);
    if (!takes_value(o) && value)
        return vf_err_set(err, VF_ERR_USAGE, "--%s takes no value, found '%s'", o->name, value);
    if (takes_value(o) && !value) {
        if (*i + 1 >= argc)
            return vf_err_set(err, VF_ERR_USAGE, "--%s needs a value (%s)", o->name,
                              o->metavar ? o->metavar : "one of its words");
        value = argv[++*i];
    }
    *out = o;
    *text = value;
    return VF_OK;
}

static enum vf_code parse_option(const struct vf_cli *cli, int argc, char **argv, int *i,
                                 struct vf_err *err)
{
    const struct vf_opt *o;
    const char *text, *arg = argv[*i];
    enum vf_code code = next_option(cli, argc, argv, i, &o, &text, err);
    if (code != VF_OK)
        return code;
    if (o->type == VF_OPT_COUNT) {
        *(int *)o->value += arg[1] == '-' ? 1 : count_cluster(o, arg);
        return VF_OK;
    }
    code = vf_cli_set(o, text, err);
    return code ? vf_err_prepend(err, "--%s: ", o->name) : VF_OK;
}

bool vf_cli_find(const struct vf_cli *cli, int argc, char **argv, const char *name,
                 const char **value)
{
    bool found = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct vf_opt *o;
        const char *text;
        struct vf_err ignored;
        if (argv[i][0] != '-' || !argv[i][1] ||
            next_option(cli, argc, argv, &i, &o, &text, &ignored) != VF_OK ||
            strcmp(o->name, name) != 0)
            continue;
        found = true;
        if (value)
            *value = text;
    }
    return found;
}

/* --help in one of its shapes, and --version: printed, and the program ends. */
static void answer(const struct vf_cli *cli, const char *arg)
{
    bool short_help = strcmp(arg, "-h") == 0 && !find_short(cli, 'h');
    const char *shape = strncmp(arg, "--help=", 7) == 0 ? arg + 7 : NULL;
    if ((short_help || shape || strcmp(arg, "--help") == 0) && vf_cli_print(cli, shape))
        exit(0);
    if (strcmp(arg, "--version") == 0) {
        vf_version_print(cli->program);
        exit(0);
    }
}

void vf_cli_answer(const struct vf_cli *cli, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct vf_opt *o;
        const char *value;
        struct vf_err ignored;
        if (argv[i][0] != '-' || !argv[i][1])
            continue;
        answer(cli, argv[i]);
        next_option(cli, argc, argv, &i, &o, &value, &ignored); /* and past its value */
    }
}

enum vf_code vf_cli_parse(const struct vf_cli *cli, int argc, char **argv, const char **positional,
                          int *positional_count, struct vf_err *err)
{
    int count = 0;
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!options_ended && strcmp(arg, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && arg[0] == '-' && arg[1]) {
            answer(cli, arg);
            enum vf_code code = parse_option(cli, argc, argv, &i, err);
            if (code != VF_OK)
                return code;
        } else {
            if (count == cli->positional_max)
                return vf_err_set(err, VF_ERR_USAGE, "unexpected argument '%s'", arg);
            positional[count++] = arg;
        }
    }
    if (count < cli->positional_min)
        return vf_err_set(err, VF_ERR_USAGE, "an argument is missing: %s %.*s", cli->program,
                          (int)strcspn(cli->usage, "\n"), cli->usage);
    if (positional_count)
        *positional_count = count;
    return VF_OK;
}

int vf_cli_fail(const char *program, const struct vf_err *err)
{
    vf_progress_clear();
    fprintf(stderr, "%s: %s%s%s%s\n", program, err->text, err->code == VF_ERR_USAGE ? " (see " : "",
            err->code == VF_ERR_USAGE ? program : "", err->code == VF_ERR_USAGE ? " --help)" : "");
    return vf_exit_status(err->code);
}
