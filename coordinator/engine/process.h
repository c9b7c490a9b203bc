/* Child processes: started from programs beside our own, watched through pidfds, reaped once. */
#ifndef VF_COORDINATOR_ENGINE_PROCESS_H
#define VF_COORDINATOR_ENGINE_PROCESS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct vf_process {
    pid_t pid; /* 0: none, or reaped */
    int pidfd; /* readable once it has ended; -1: none */
};

/* Starts the program `name` that lies beside this process's own executable. argv[0] is filled in
 * here; argv ends with NULL. The child has an empty signal mask, a process group of its own (a
 * terminal's Ctrl-C reaches the coordinator alone, which then shuts its workers down in order),
 * /dev/null as stdin, and our stderr as stdout and stderr. */
enum vf_code vf_process_start(const char *name, char **argv, struct vf_process *out,
                              struct vf_err *err);
/* Reaps the process if it has ended: true, with how in words ("was killed by signal 9", "exited
 * with status 3") and as exit status (-1 for a signal). */
bool vf_process_reap(struct vf_process *p, char *how, size_t how_bytes, int *exit_status);
/* SIGKILL. The process is still to be reaped. */
void vf_process_kill(const struct vf_process *p);
/* Closes the descriptor; the process has been reaped. */
void vf_process_deinit(struct vf_process *p);

#endif
