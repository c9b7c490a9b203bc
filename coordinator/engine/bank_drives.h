/* The drives that a model's experts lie on: the files of the expert bank, and how they like to be
 * read. */
#ifndef VF_COORDINATOR_ENGINE_BANK_DRIVES_H
#define VF_COORDINATOR_ENGINE_BANK_DRIVES_H

#include "common/experts/stripes.h"
#include "common/machine/drive.h"

/* The stripes of a model's expert bank; without any the bank is in the model file. */
struct vf_stripe_set {
    struct vf_bank_stripes *stripes;
    char *paths[VF_BANK_FILES_MAX]; /* absolute */
    uint32_t count;
};
/* Those in dirs ("DIR,DIR"), which may be NULL. Borrows file. Close it after a failure, too. */
enum vf_code vf_stripe_set_open(struct vf_stripe_set *set, const struct vf_model_file *file,
                                const char *model_path, const char *dirs, struct vf_err *err);
void vf_stripe_set_close(struct vf_stripe_set *set);

/* Takes about 300 ms. out->depth is 0 when nothing was probed: the bank is so small that it doesn't
 * matter, can't be read around the page cache, or failed to be read here, which is warned of and
 * isn't an error: the run may never touch that place. Several files are read side by side, each by
 * workers of its own: the deepest wish counts, speeds add up. */
void vf_drive_probe_bank(const struct vf_expert_bank *bank, struct vf_drive_choice *out);

#endif
