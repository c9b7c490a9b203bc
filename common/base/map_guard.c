/* A table of mappings that the handler looks the lost page up in. An entry's base is set last and
 * cleared first, so the handler never sees half an entry. */
#include "common/base/map_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

struct guard {
    _Atomic(uintptr_t) base; /* 0: free; released after the rest, acquired by the handler */
    uint64_t bytes;
    const char *path;
};

static struct guard guards[VF_MAP_GUARDS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who add and remove */

/* A handler can't format. */
static void say(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void tell_and_leave(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (size_t i = 0; i < VF_MAP_GUARDS_MAX; i++) {
        uintptr_t base = atomic_load_explicit(&guards[i].base, memory_order_acquire);
        if (!base || at < base || at - base >= guards[i].bytes)
            continue;
        say("vflow: ");
        say(guards[i].path);
        say(": the file became shorter or unreadable while it was mapped\n");
        _exit(1);
    }
    signal(number, SIG_DFL); /* back to the instruction that fails again */
}

void vf_map_guard_add(const void *base, uint64_t bytes, const char *path)
{
    struct sigaction action = {.sa_sigaction = tell_and_leave, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < VF_MAP_GUARDS_MAX; i++) {
        if (atomic_load_explicit(&guards[i].base, memory_order_relaxed))
            continue;
        guards[i].bytes = bytes;
        guards[i].path = path;
        atomic_store_explicit(&guards[i].base, (uintptr_t)base, memory_order_release);
        break;
    }
    sigaction(SIGBUS, &action, NULL);
    pthread_mutex_unlock(&lock);
}

void vf_map_guard_remove(const void *base)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < VF_MAP_GUARDS_MAX; i++)
        if (atomic_load_explicit(&guards[i].base, memory_order_relaxed) == (uintptr_t)base)
            atomic_store_explicit(&guards[i].base, 0, memory_order_release);
    pthread_mutex_unlock(&lock);
}
