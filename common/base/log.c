#include "common/base/log.h"

#include "common/base/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Process-wide by nature: stderr is. Set once before threads start. */
static struct {
    char role[32];
    enum vf_log_level level;
} state = {"vflow", VF_LOG_WARN};

static const char *const level_words[] = {"error", "warn", "info", "debug", "trace"};

void vf_log_init(const char *role, enum vf_log_level level)
{
    snprintf(state.role, sizeof state.role, "%s", role);
    state.level = level;
    const char *forced = getenv("VFLOW_LOG");
    for (int i = 0; forced && i <= VF_LOG_TRACE; i++)
        if (strcmp(forced, level_words[i]) == 0)
            state.level = (enum vf_log_level)i;
}

enum vf_log_level vf_log_level(void)
{
    return state.level;
}

void vf_log_write(enum vf_log_level level, const char *fmt, ...)
{
    vf_progress_clear();
    /* One write per line, so that lines of several processes don't mix. */
    char line[1024];
    int n = snprintf(line, sizeof line, "%s %s: ", level_words[level], state.role);
    va_list args;
    va_start(args, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
    va_end(args);
    size_t len = strlen(line);
    if (m >= 0)
        line[len++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}
