#include "common/base/cli_help.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LEFT    28 /* columns of an option's name */
#define RIGHT   98 /* the last column of its help */
#define SECTION "1"

static const char exit_status[] = "0 done, 1 failed while running, 2 wrong usage, 3 bad input "
                                  "file, 128 + n when signal n ended it.";

static const struct vf_opt help_opt = {"help", 'h', VF_OPT_FLAG, NULL, NULL, "print this and exit",
                                       0,      0,   NULL};
static const struct vf_opt version_opt = {
    "version", 0, VF_OPT_FLAG, NULL, NULL, "print the version and exit", 0, 0, NULL};

/* Row i of the table with the two that every command has behind it; NULL at its end. -h is only
 * there where no option has taken it. */
static struct vf_opt row(const struct vf_cli *cli, size_t i, bool *end)
{
    *end = i >= cli->opt_count + 2;
    if (i < cli->opt_count)
        return cli->opts[i];
    if (i > cli->opt_count)
        return version_opt;
    struct vf_opt help = help_opt;
    for (size_t k = 0; k < cli->opt_count; k++)
        if (cli->opts[k].short_name == 'h')
            help.short_name = 0;
    return help;
}

/* "-m, --model FILE", "--kernel auto|scalar". */
static void name_option(const struct vf_opt *o, char *buf, size_t bytes)
{
    char short_part[8] = "";
    if (o->short_name)
        snprintf(short_part, sizeof short_part, "-%c, ", o->short_name);
    int n =
        snprintf(buf, bytes, "%s--%s%s%s", short_part, o->name,
                 o->metavar || o->type == VF_OPT_CHOICE ? " " : "", o->metavar ? o->metavar : "");
    for (int k = 0; o->type == VF_OPT_CHOICE && o->choices[k] && n < (int)bytes; k++)
        n += snprintf(buf + n, bytes - (size_t)n, "%s%s", k ? "|" : "", o->choices[k]);
}

/* ---- text ---------------------------------------------------------------------------------- */

/* Words of text from a column on, the lines after the first indented to it. */
static void print_wrapped(const char *text, size_t column)
{
    size_t at = column;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " \n");
        if (at > column && at + 1 + n > RIGHT) {
            printf("\n%*s", (int)column, "");
            at = column;
        }
        if (at > column)
            at += (size_t)printf(" ");
        at += (size_t)printf("%.*s", (int)n, word);
        word += n + strspn(word + n, " \n");
    }
    printf("\n");
}

static void print_option(const struct vf_opt *o)
{
    char name[160];
    name_option(o, name, sizeof name);
    if (strlen(name) > LEFT)
        printf("  %s\n  %-*s  ", name, LEFT, "");
    else
        printf("  %-*s  ", LEFT, name);
    print_wrapped(o->help, LEFT + 4);
}

static void print_text(const struct vf_cli *cli)
{
    printf("usage: %s %s\n\n", cli->program, cli->usage);
    print_wrapped(cli->summary, 0);
    printf("\noptions:\n");
    bool end;
    for (size_t i = 0;; i++) {
        struct vf_opt o = row(cli, i, &end);
        if (end)
            return;
        print_option(&o);
    }
}

/* ---- manual page ----------------------------------------------------------------------------- */

/* Text for roff: hyphens that are meant as typed, backslashes, and no line that begins with a dot.
 */
static void print_roff(const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((c == text || c[-1] == '\n') && (*c == '.' || *c == '\''))
            printf("\\&");
        if (*c == '-' || *c == '\\')
            printf(*c == '-' ? "\\-" : "\\e");
        else
            putchar(*c);
    }
}

/* "vflow-coordinator generate" is the page vflow-coordinator-generate. */
static void print_page_name(const char *program, bool upper)
{
    for (const char *c = program; *c; c++)
        if (*c == ' ' || *c == '-')
            printf(upper ? "-" : "\\-");
        else
            putchar(upper ? toupper((unsigned char)*c) : *c);
}

/* Up to the first sentence's end, colon or parenthesis: what a page's list of names shows. */
static size_t brief_bytes(const char *summary)
{
    size_t n = 0;
    while (summary[n] && strncmp(summary + n, " (", 2) != 0 &&
           !(strchr(".:", summary[n]) && strchr(" \n", summary[n + 1])))
        n++;
    return n;
}

static void print_man_head(const char *program, const char *summary)
{
    size_t sentence = brief_bytes(summary);
    printf(".TH \"");
    print_page_name(program, true);
    printf("\" " SECTION " \"\" \"vflow %s\" \"vflow\"\n.SH NAME\n", VFLOW_VERSION);
    print_page_name(program, false);
    printf(" \\- %c", tolower((unsigned char)*summary));
    for (const char *c = summary + 1; *summary && c < summary + sentence; c++)
        putchar(*c == '\n' ? ' ' : *c);
    printf("\n.SH SYNOPSIS\n");
}

static void print_man_end(const char *see_also)
{
    printf(".SH EXIT STATUS\n");
    print_roff(exit_status);
    printf("\n.SH SEE ALSO\n%s\n", see_also);
}

static void print_man(const struct vf_cli *cli)
{
    print_man_head(cli->program, cli->summary);
    printf(".nf\n\\fB");
    print_roff(cli->program);
    printf("\\fR ");
    print_roff(cli->usage);
    printf("\n.fi\n.SH DESCRIPTION\n");
    print_roff(cli->summary);
    printf("\n.SH OPTIONS\n");
    bool end;
    for (size_t i = 0;; i++) {
        char name[160];
        struct vf_opt o = row(cli, i, &end);
        if (end)
            break;
        name_option(&o, name, sizeof name);
        printf(".TP\n.B ");
        print_roff(name);
        printf("\n");
        print_roff(o.help);
        printf("\n");
    }
    print_man_end(".BR vflow\\-convert (1),\n.BR vflow\\-coordinator (1),\n.BR vflow\\-client (1)");
}

/* ---- words for completion -------------------------------------------------------------------- */

/* A line an option: its words, and behind a tab what it takes: nothing, "FILE", "a|b|c". */
static void print_words(const struct vf_cli *cli)
{
    bool end;
    for (size_t i = 0;; i++) {
        struct vf_opt o = row(cli, i, &end);
        if (end)
            return;
        printf("--%s\t%s", o.name, o.metavar ? o.metavar : "");
        for (int k = 0; o.type == VF_OPT_CHOICE && o.choices[k]; k++)
            printf("%s%s", k ? "|" : "", o.choices[k]);
        printf("\n");
        if (o.short_name)
            printf("-%c\t%s\n", o.short_name, o.metavar ? o.metavar : "");
    }
}

bool vf_cli_print(const struct vf_cli *cli, const char *shape)
{
    if (!shape || strcmp(shape, "text") == 0)
        print_text(cli);
    else if (strcmp(shape, "man") == 0)
        print_man(cli);
    else if (strcmp(shape, "words") == 0)
        print_words(cli);
    else
        return false;
    return true;
}

/* ---- programs of several commands ------------------------------------------------------------ */

static void print_commands_text(const struct vf_commands *c)
{
    printf("usage: %s COMMAND [options]\n\n", c->program);
    print_wrapped(c->summary, 0);
    printf("\ncommands:\n");
    for (size_t i = 0; i < c->count; i++)
        if (c->list[i].help)
            printf("  %-12s  %s\n", c->list[i].name, c->list[i].help);
    printf("\n'%s COMMAND --help' tells the options of a command.\nExit status: ", c->program);
    print_wrapped(exit_status, 13);
}

static void print_commands_man(const struct vf_commands *c)
{
    print_man_head(c->program, c->summary);
    printf("\\fB");
    print_roff(c->program);
    printf("\\fR COMMAND [options]\n.SH DESCRIPTION\n");
    print_roff(c->summary);
    printf("\n.SH COMMANDS\n");
    for (size_t i = 0; i < c->count; i++) {
        if (!c->list[i].help)
            continue;
        printf(".TP\n.BR ");
        print_page_name(c->program, false);
        printf("\\-");
        print_roff(c->list[i].name);
        printf(" (" SECTION ")\n");
        print_roff(c->list[i].help);
        printf("\n");
    }
    print_man_end("the pages of the commands");
}

bool vf_commands_print(const struct vf_commands *c, const char *shape)
{
    if (!shape || strcmp(shape, "text") == 0)
        print_commands_text(c);
    else if (strcmp(shape, "man") == 0)
        print_commands_man(c);
    else if (strcmp(shape, "words") == 0)
        for (size_t i = 0; i < c->count; i++)
            printf("%s\n", c->list[i].help ? c->list[i].name : "");
    else
        return false;
    return true;
}
