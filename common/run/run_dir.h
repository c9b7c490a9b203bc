/* A run's private directory, and the names of everything a run leaves outside its processes.
 *
 * A run is one coordinator and its workers. Its directory (mode 0700) is "vflow-<run id>" under the
 * first of $XDG_RUNTIME_DIR, $TMPDIR and /tmp that is short enough for socket names and lets a
 * directory be made; it holds the ipc sockets and the file "lock", which the coordinator keeps
 * flocked for its life. A socket that the run made elsewhere has an entry there too, a symbolic
 * link "owned-<device>-<inode>-<modification time>" to its path.
 * Shared-memory objects are "/vflow-<run id>-<what>", mode 0600. The run id is
 * "<pid namespace>-<pid>-<start time>-<random>", so that anybody can tell from a name alone whether
 * the owner can still be alive.
 *
 * The directory is trusted only if it is a real directory of this user closed to others; removal
 * follows no symbolic link but those entries, and takes nothing but that very socket. A handle is
 * used by one thread at a time.
 */
#ifndef VF_COMMON_RUN_RUN_DIR_H
#define VF_COMMON_RUN_RUN_DIR_H

#include "common/base/err.h"

#include <stddef.h>
#include <sys/types.h>

#define VF_RUN_ID_MAX       64  /* with the NUL */
#define VF_RUN_NAME_MAX     20  /* a name inside the run: "control", "stage-12", "experts" */
#define VF_RUN_ENDPOINT_MAX 120 /* "ipc://" and a path that fits sun_path */
#define VF_RUN_SHM_NAME_MAX 100

/* Names that more than one program knows. */
#define VF_RUN_CONTROL       "control"   /* socket: the coordinator's ROUTER for its workers */
#define VF_RUN_CLIENT        "client"    /* socket: where `serve` listens by default */
#define VF_RUN_SHM_EXPERTS   "experts"   /* shared memory: the expert cache */
#define VF_RUN_SHM_STATE     "state"     /* shared memory: whether the run goes on */
#define VF_RUN_SHM_MAILBOXES "mailboxes" /* shared memory: values between stage workers */
#define VF_RUN_SHM_LOGITS    "logits"    /* shared memory: [logits_slots, rows_max, V] f32 */

struct vf_run_dir;

/* The coordinator: makes a new run, owned by this process. */
enum vf_code vf_run_dir_create(struct vf_run_dir **out, struct vf_err *err);
/* A worker: opens the run directory at path and checks its name, owner and mode. */
enum vf_code vf_run_dir_open(const char *path, struct vf_run_dir **out, struct vf_err *err);
/* Frees the handle and, in the coordinator, the lock. Removes nothing; NULL is fine. */
void vf_run_dir_close(struct vf_run_dir *rd);

const char *vf_run_dir_path(const struct vf_run_dir *rd);
const char *vf_run_dir_id(const struct vf_run_dir *rd);
/* "ipc://<path>/<what>"; what is at most VF_RUN_NAME_MAX - 1 of [a-z0-9-]. */
void vf_run_dir_endpoint(const struct vf_run_dir *rd, const char *what,
                         char out[VF_RUN_ENDPOINT_MAX]);
/* "ipc://<path>/io-<index>": where I/O worker index takes fetch orders. */
void vf_run_dir_io_endpoint(const struct vf_run_dir *rd, unsigned index,
                            char out[VF_RUN_ENDPOINT_MAX]);
/* "/vflow-<run id>-<what>" */
void vf_run_dir_shm_name(const struct vf_run_dir *rd, const char *what,
                         char out[VF_RUN_SHM_NAME_MAX]);

/* From now on the run's end takes the socket at path, too, whoever removes the run: a coordinator
 * that is killed can't do so itself. path is absolute; what is there must be a socket. */
enum vf_code vf_run_dir_adopt_socket(const struct vf_run_dir *rd, const char *path,
                                     struct vf_err *err);

/* A pidfd of the run's owner, readable once the owner has died; the caller closes it.
 * VF_ERR_PEER_LOST when it is dead already. */
enum vf_code vf_run_dir_owner_pidfd(const struct vf_run_dir *rd, int *pidfd, struct vf_err *err);

/* Removes the run's sockets, directory and shared-memory objects. Whoever is left may call it, in
 * any number and order; what is already gone is fine. */
void vf_run_dir_remove(const struct vf_run_dir *rd);
/* Removes what dead runs of this user left behind; called at every start of a coordinator. Returns
 * the number of directories and objects removed. Runs that live, or that can't be proved dead, are
 * left alone. */
int vf_run_dir_sweep(void);

/* The start time of a process in clock ticks since boot (/proc/PID/stat); 0 when there is no such
 * process or it is a zombie. With the pid it names a process for good. */
unsigned long long vf_process_start_time(pid_t pid);

#endif
