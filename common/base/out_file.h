/* A file that a command writes for its user: written beside its name, renamed to it when whole.
 *
 * A reader of the name sees what was there before or all of the new file, never a part. A symbolic
 * link keeps being one: the file it leads to is replaced. Only regular files are replaced; a
 * device, a pipe, a socket or a directory under the name is refused. The new file has the mode of
 * the one it replaces, and its owner and group where the user may give them away. Until the commit
 * the bytes lie in "<name>.part-<hex>", locked; what a killed process leaves of that kind is
 * removed by the next one that writes the same name, which says so. Used by one thread.
 */
#ifndef VF_COMMON_BASE_OUT_FILE_H
#define VF_COMMON_BASE_OUT_FILE_H

#include "common/base/err.h"

#include <stdint.h>

struct vf_out_file;

/* Makes the temporary file, empty and open for reading and writing. VF_ERR_USAGE when path is empty
 * or names something that isn't a regular file; VF_ERR_IO when nothing can be created there. */
enum vf_code vf_out_file_create(const char *path, struct vf_out_file **out, struct vf_err *err);
/* Stays the file's own: not to be closed. */
int vf_out_file_fd(const struct vf_out_file *f);
/* The name given to create, for messages; valid as long as f. */
const char *vf_out_file_path(const struct vf_out_file *f);

/* Room on the drive for a file of so many bytes, which makes it that long: a full drive is found
 * now instead of in the middle. VF_ERR_IO says how much is needed and how much is free. A file
 * system that can't reserve is asked for its free space only. */
enum vf_code vf_out_file_reserve(struct vf_out_file *f, uint64_t bytes, struct vf_err *err);

/* Both end f. Commit brings the bytes to the drive and gives the file its name; when it fails
 * before that, nothing is left of the file. Abandon leaves nothing of it; NULL is fine. */
enum vf_code vf_out_file_commit(struct vf_out_file *f, struct vf_err *err);
void vf_out_file_abandon(struct vf_out_file *f);

#endif
