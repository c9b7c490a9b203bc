/* The files of ipc sockets. libzmq removes whatever is at a path before it binds there, and leaves
 * its own socket behind when it closes; both are decided here instead.
 */
#ifndef VF_COORDINATOR_SERVE_IPC_FILE_H
#define VF_COORDINATOR_SERVE_IPC_FILE_H

#include "common/run/run_dir.h"

struct vf_ipc_file;

/* Whether a socket may be bound at path: nothing is there, or the socket of somebody dead.
 * VF_ERR_USAGE for a path that can't be one or another kind of file, VF_ERR_BUSY for a living
 * server. */
enum vf_code vf_ipc_file_check(const char *path, struct vf_err *err);
/* Notes the socket just bound at path, in front of *list. */
enum vf_code vf_ipc_file_note(const char *path, struct vf_ipc_file **list, struct vf_err *err);
/* Has the run's workers remove the files noted, should this process be killed. */
enum vf_code vf_ipc_files_adopt(const struct vf_ipc_file *list, const struct vf_run_dir *rd,
                                struct vf_err *err);
/* Removes every file noted that is still the same one; called while the sockets still listen, so
 * that nobody can have put another one there in good faith. Empties *list. */
void vf_ipc_files_remove(struct vf_ipc_file **list);

#endif
