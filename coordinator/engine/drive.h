/* How the drives of a model's experts like to be read: a short probe of each of the bank's files.
 */
#ifndef VF_COORDINATOR_ENGINE_DRIVE_H
#define VF_COORDINATOR_ENGINE_DRIVE_H

#include "common/drive.h"
#include "common/expert_bank.h"

/* Takes at most 300 ms. out->depth is 0 when nothing was probed: the bank is so small that it
 * doesn't matter, or can't be read around the page cache. Several files are read side by side, each
 * by workers of its own: the deepest wish counts, speeds add up. */
enum vf_code vf_drive_probe_bank(const struct vf_expert_bank *bank, struct vf_drive_choice *out,
                                 struct vf_err *err);

#endif
