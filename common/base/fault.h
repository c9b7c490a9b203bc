/* Faults on purpose, for the tests: VFLOW_FAULT="io.read:3=EIO,io.checksum:1=corrupt".
 *
 * A site is a named place in the code that asks vf_fault() each time it passes. "site:n=WHAT"
 * strikes at the n-th passing in this process (1 is the first), "site:n+=WHAT" at that one and all
 * later ones. The calls of a program's own code for what the system may refuse are sites by
 * themselves, named after its role: "coordinator.memory", "stage.map", "io.shm", "client.socket",
 * "convert.write" (see enum vf_fault_call). WHAT is an errno name (EIO, ENOMEM, ENOSPC, EPERM,
 * ENOSYS, EAGAIN, EINTR), or one of short, corrupt and kill (SIGKILL to this process, on the spot).
 * Safe from any thread.
 */
#ifndef VF_COMMON_BASE_FAULT_H
#define VF_COMMON_BASE_FAULT_H

#include "common/base/err.h"

#define VF_FAULT_SITES_MAX 16

/* What vf_fault returns: 0 for nothing, an errno value, or one of these. */
enum vf_fault_what { VF_FAULT_NONE = 0, VF_FAULT_SHORT = 4096, VF_FAULT_CORRUPT, VF_FAULT_KILL };

/* Calls that are sites in every program: ROLE.memory (malloc and its kin, strdup), ROLE.map (mmap),
 * ROLE.shm (shm_open), ROLE.socket (socket, zmq_socket), ROLE.write (write, pwrite, fwrite, but to
 * stderr). Calls inside libraries aren't met. */
enum vf_fault_call {
    VF_FAULT_MEMORY,
    VF_FAULT_MAP,
    VF_FAULT_SHM,
    VF_FAULT_SOCKET,
    VF_FAULT_WRITE,
    VF_FAULT_CALLS
};

/* Reads VFLOW_FAULT; VF_ERR_USAGE names the item it doesn't understand. role is that of the
 * program, of at most 15 letters. Called once, before its threads start; without it no fault ever
 * strikes. */
enum vf_code vf_fault_init(const char *role, struct vf_err *err);
/* The same from a string (NULL: none), counting from zero again; for tests, without threads. */
enum vf_code vf_fault_set(const char *spec, struct vf_err *err);

/* Counts a passing of the site and returns what strikes there, 0 nearly always. */
int vf_fault(const char *site);
/* The same for a call of this program; errno says what strikes. */
int vf_fault_called(enum vf_fault_call call);

#endif
