/* vflow-stage-worker: computes one group of layers for one run. */
#include "common/model/placement.h"
#include "common/run/member.h"
#include "stage_worker/worker.h"

int main(int argc, char **argv)
{
    const struct vf_member_program program = {
        .name = "vflow-stage-worker",
        .noun = "stage worker",
        .summary = "Computes the operations of one group of layers. Started by vflow-coordinator, "
                   "or by hand to join its run.",
        .log_role = "stage",
        .index_count = VF_STAGE_WORKERS_MAX,
        .run = vf_stage_worker_run,
    };
    return vf_member_main(&program, argc, argv);
}
