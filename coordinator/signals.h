/* SIGINT, SIGTERM and SIGHUP as a file descriptor, so that one poll waits for everything.
 *
 * Opened once, before the process starts a thread or a worker: the mask is inherited by threads
 * (workers get a clean one back). SIGPIPE is ignored from then on.
 */
#ifndef VF_COORDINATOR_SIGNALS_H
#define VF_COORDINATOR_SIGNALS_H

#include "common/base/err.h"

/* Signals that are ignored already stay ignored. *fd is readable once a signal has come;
 * nobody reads it but vf_signals_take. */
enum vf_code vf_signals_open(int *fd, struct vf_err *err);
/* The signal that came, 0 if none did. Takes it out of fd. */
int vf_signals_take(int fd);
/* What a command returns after err: 128 + n if signal n came, else the code's exit status. Prints
 * the error's one line, unless a signal explains it. */
int vf_signals_exit(int fd, const char *program, const struct vf_err *err);

#endif
