/* vflow-io-worker: reads experts from the drive for one run. */
#include "common/experts/cache.h"
#include "common/run/member.h"
#include "io_worker/io_worker.h"

int main(int argc, char **argv)
{
    const struct vf_member_program program = {
        .name = "vflow-io-worker",
        .noun = "I/O worker",
        .summary = "Reads experts from the drive into the run's shared cache. Started by "
                   "vflow-coordinator, or by hand to join its run.",
        .log_role = "io",
        .index_count = VF_CACHE_IO_WORKERS_MAX,
        .run = vf_io_worker_run,
    };
    return vf_member_main(&program, argc, argv);
}
