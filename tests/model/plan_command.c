#include "coordinator/plan/plan.h"

int main(int argc, char **argv)
{
    return vf_plan_main(argc, argv);
}
