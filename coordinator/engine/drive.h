/* How the drives of a model's experts like to be read: a short probe of each of the bank's files.
 */
#ifndef VF_COORDINATOR_ENGINE_DRIVE_H
#define VF_COORDINATOR_ENGINE_DRIVE_H

#include "common/drive.h"
#include "common/expert_bank.h"

/* Takes about 300 ms. out->depth is 0 when nothing was probed: the bank is so small that it doesn't
 * matter, can't be read around the page cache, or failed to be read here, which is warned of and
 * isn't an error: the run may never touch that place. Several files are read side by side, each by
 * workers of its own: the deepest wish counts, speeds add up. */
void vf_drive_probe_bank(const struct vf_expert_bank *bank, struct vf_drive_choice *out);

#endif
