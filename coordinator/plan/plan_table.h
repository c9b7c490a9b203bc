/* Table 4.1 of the pipeline-native report (critical-path bandwidth of its six architectures at
 * their training geometries), as printed there and as computed here.
 */
#ifndef VF_COORDINATOR_PLAN_PLAN_TABLE_H
#define VF_COORDINATOR_PLAN_PLAN_TABLE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdio.h>

enum vf_code vf_plan_print_table(bool as_json, FILE *out, struct vf_err *err);

#endif
