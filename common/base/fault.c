/* The table of faults, parsed once from one string. */
#include "common/base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITE_NAME_MAX 32

struct fault {
    char site[SITE_NAME_MAX];
    unsigned long nth;
    bool onwards;
    int what;
    atomic_ulong passed;
};

/* Process-wide by nature, like the environment it comes from. Written before threads start. */
static struct {
    struct fault faults[VF_FAULT_SITES_MAX];
    int count;
    char calls[VF_FAULT_CALLS][SITE_NAME_MAX]; /* their sites' names */
} table;

static const struct {
    const char *word;
    int what;
} words[] = {
    {"EIO", EIO},
    {"ENOMEM", ENOMEM},
    {"ENOSPC", ENOSPC},
    {"EPERM", EPERM},
    {"ENOSYS", ENOSYS},
    {"EAGAIN", EAGAIN},
    {"EINTR", EINTR},
    {"short", VF_FAULT_SHORT},
    {"corrupt", VF_FAULT_CORRUPT},
    {"kill", VF_FAULT_KILL},
};

static int what_of_word(const char *word)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].word, word) == 0)
            return words[i].what;
    return VF_FAULT_NONE;
}

/* item is "site:n=WHAT" or "site:n+=WHAT"; it is cut into its words. */
static bool parse_item(char *item, struct fault *f)
{
    char *colon = strchr(item, ':');
    char *equals = strchr(item, '=');
    if (!colon || !equals || equals < colon || colon == item)
        return false;
    *colon = *equals = 0;
    if (strlen(item) >= SITE_NAME_MAX || colon[1] < '0' || colon[1] > '9')
        return false;
    char *end;
    errno = 0;
    f->nth = strtoul(colon + 1, &end, 10);
    f->onwards = *end == '+';
    if (f->onwards)
        end++;
    if (errno || *end || f->nth == 0)
        return false;
    f->what = what_of_word(equals + 1);
    memcpy(f->site, item, strlen(item) + 1);
    atomic_store(&f->passed, 0);
    return f->what != VF_FAULT_NONE;
}

enum vf_code vf_fault_set(const char *spec, struct vf_err *err)
{
    table.count = 0;
    if (!spec || !*spec)
        return VF_OK;
    char *copy = strdup(spec);
    if (!copy)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "VFLOW_FAULT: out of memory");
    enum vf_code code = VF_OK;
    char *rest = copy;
    int count = 0;
    for (char *item; code == VF_OK && (item = strsep(&rest, ",")) != NULL;) {
        size_t at = (size_t)(item - copy);
        if (count == VF_FAULT_SITES_MAX)
            code = vf_err_set(err, VF_ERR_USAGE, "VFLOW_FAULT: more than %d faults",
                              VF_FAULT_SITES_MAX);
        else if (!parse_item(item, &table.faults[count]))
            code = vf_err_set(err, VF_ERR_USAGE,
                              "VFLOW_FAULT: \"%s\" at \"%s\" is not SITE:N=WHAT or SITE:N+=WHAT",
                              spec, spec + at);
        else
            count++;
    }
    free(copy);
    if (code == VF_OK)
        table.count = count;
    return code;
}

enum vf_code vf_fault_init(const char *role, struct vf_err *err)
{
    static const char *const names[VF_FAULT_CALLS] = {"memory", "map", "shm", "socket", "write"};
    for (int i = 0; i < VF_FAULT_CALLS; i++)
        snprintf(table.calls[i], SITE_NAME_MAX, "%.15s.%s", role, names[i]);
    return vf_fault_set(getenv("VFLOW_FAULT"), err);
}

int vf_fault(const char *site)
{
    int what = VF_FAULT_NONE;
    for (int i = 0; i < table.count; i++) {
        struct fault *f = &table.faults[i];
        if (strcmp(f->site, site) != 0)
            continue;
        unsigned long n = atomic_fetch_add_explicit(&f->passed, 1, memory_order_relaxed) + 1;
        if (n == f->nth || (f->onwards && n > f->nth))
            what = f->what;
    }
    if (what == VF_FAULT_KILL)
        raise(SIGKILL);
    return what;
}

int vf_fault_called(enum vf_fault_call call)
{
    if (table.count == 0)
        return VF_FAULT_NONE;
    int what = vf_fault(table.calls[call]);
    if (what)
        errno = what < VF_FAULT_SHORT ? what : EIO;
    return what;
}
