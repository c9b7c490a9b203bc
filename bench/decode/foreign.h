/* A process that keeps one CPU busy, as somebody else's would: what decode is disturbed with. */
#ifndef VF_BENCH_DECODE_FOREIGN_H
#define VF_BENCH_DECODE_FOREIGN_H

#include "common/base/err.h"

#include <sys/types.h>

struct foreign {
    pid_t pid; /* 0: none */
};

/* Starts it, pinned to the first CPU this process may use, and stopped. It dies with this one. */
enum vf_code foreign_start(struct foreign *f, struct vf_err *err);
/* Lets it compute or not. */
void foreign_run(const struct foreign *f, int on);
void foreign_end(struct foreign *f);

#endif
