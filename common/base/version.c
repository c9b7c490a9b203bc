#include "common/base/version.h"

#include "vflow_commit.h" /* made at build time: VFLOW_COMMIT */

#include <stdio.h>

void vf_version_print(const char *program)
{
    printf("%s %s\ncommit   %s\nbuild    %s, %s\nkernels  %s\n", program, VFLOW_VERSION,
           VFLOW_COMMIT, VFLOW_BUILD_TYPE, __VERSION__, VFLOW_KERNEL_TIERS);
}
