/* POSIX shared-memory objects and futex words inside them.
 *
 * An object is created once at its final size, with all of its pages allocated (a full /dev/shm is
 * an error here instead of a SIGBUS later), mode 0600, and mapped whole. What a peer wrote there is
 * untrusted: users copy the geometry once, check it, and store offsets instead of pointers.
 */
#ifndef VF_COMMON_RUN_SHM_H
#define VF_COMMON_RUN_SHM_H

#include "common/base/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct vf_shm {
    void *base; /* page aligned; NULL when closed */
    size_t bytes;
};

/* name is "/vflow-<run id>-<what>" (vf_run_dir_shm_name). Create fails if the name exists and
 * leaves no object behind on failure; the memory is zero. VF_ERR_NO_MEMORY says how much is free;
 * what would take less is the caller's to add. */
enum vf_code vf_shm_create(const char *name, size_t bytes, struct vf_shm *out, struct vf_err *err);
/* Maps an existing object of this user that is at least bytes_min long, at its whole size.
 * VF_ERR_NOT_FOUND, VF_ERR_DENIED (other owner, or open to others), VF_ERR_CORRUPT (too small). */
enum vf_code vf_shm_open(const char *name, size_t bytes_min, struct vf_shm *out,
                         struct vf_err *err);
void vf_shm_close(struct vf_shm *shm); /* unmaps; the object stays. Twice is fine. */
void vf_shm_unlink(const char *name);  /* a missing name is fine */

/* Sleeps while *word is expected, at most until deadline_ns (CLOCK_MONOTONIC). VF_OK on a wake-up,
 * on a changed word and on a spurious return alike: the caller looks again. VF_ERR_TIMEOUT after
 * the deadline. Works between processes. */
enum vf_code vf_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
void vf_futex_wake_all(_Atomic uint32_t *word);

#endif
