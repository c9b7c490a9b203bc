#include "stage_worker/worker.h"

int main(int argc, char **argv)
{
    return vf_stage_worker_main(argc, argv);
}
