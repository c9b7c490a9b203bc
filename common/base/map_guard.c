#include "common/base/map_guard.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Written before the handler is installed; a handler can't format. */
static char sentence[1200];

static void tell_and_leave(int signal)
{
    (void)signal;
    ssize_t ignored = write(STDERR_FILENO, sentence, strlen(sentence));
    (void)ignored;
    _exit(1);
}

void vf_map_guard_install(const char *path)
{
    snprintf(sentence, sizeof sentence,
             "vflow: %.1000s: the file became shorter or unreadable while it was mapped\n", path);
    struct sigaction action = {.sa_handler = tell_and_leave};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
