/* What a drive delivers: random reads of one size, a number of them at a time, timed.
 *
 * The probe answers for one file which size and how many reads at a time its drive wants: deeper
 * queues help arrays and network drives, and only add latency to a drive that one or two reads keep
 * busy. It takes at most its budget, reads around the page cache where it can, writes nothing down.
 *
 * Reads are preads by as many threads, so it works wherever a file can be read; from 64 KiB up that
 * is as fast as a ring. Used by one thread at a time.
 */
#ifndef VF_COMMON_MACHINE_DRIVE_H
#define VF_COMMON_MACHINE_DRIVE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define VF_DRIVE_DEPTH_MAX  64u
#define VF_DRIVE_BUFFER_MAX (64u << 20) /* all reads in flight together */

struct vf_drive;

/* A range of a file, as large as one read at least. Direct where the file system allows it, unless
 * buffered. */
enum vf_code vf_drive_open(const char *path, uint64_t offset, uint64_t bytes, bool buffered,
                           struct vf_drive **out, struct vf_err *err);
void vf_drive_close(struct vf_drive *d); /* NULL is fine */
bool vf_drive_is_direct(const struct vf_drive *d);

struct vf_drive_cell {
    uint64_t read_bytes; /* multiple of 4096, at most the range */
    uint32_t depth;      /* 1..VF_DRIVE_DEPTH_MAX, times read_bytes at most VF_DRIVE_BUFFER_MAX */
    double bytes_per_s;  /* the rest is filled by the measurement */
    double latency_ms;   /* of one read, mean */
    uint64_t reads;
};
/* Reads for about duration_ns, and `depth` times at least. */
enum vf_code vf_drive_measure(struct vf_drive *d, uint64_t duration_ns, struct vf_drive_cell *cell,
                              struct vf_err *err);

struct vf_drive_choice {
    uint32_t depth; /* reads at a time; at least 2, so that a drive works on while one is taken */
    uint64_t read_bytes; /* of each at most; more than a record where reads of several small ones
                            bring more, all else is then of single records */
    double bytes_per_s;  /* as measured with about these */
    double latency_ms;
};
/* For records of record_bytes, which may be read in parts. About budget_ns. */
enum vf_code vf_drive_probe(struct vf_drive *d, uint64_t record_bytes, uint64_t budget_ns,
                            struct vf_drive_choice *out, struct vf_err *err);

#endif
