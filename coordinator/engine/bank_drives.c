/* The drive's part of starting a run: the bank's stripes, and how to read them as probed before the
 * workers start, whose loading would disturb the probe. */
#include "coordinator/engine/bank_drives.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <stdlib.h>

/* Banks below this are read in a moment, whichever way. */
#define PROBE_BANK_MIN (256ull << 20)
#define PROBE_NS       VF_MS(300)

static enum vf_code probe_file(const struct vf_expert_bank *bank, uint32_t file,
                               struct vf_drive_choice *choice, struct vf_err *err)
{
    struct vf_drive *drive;
    uint64_t offset, bytes;
    vf_expert_bank_range(bank, file, &offset, &bytes);
    *choice = (struct vf_drive_choice){0};
    if (bytes < PROBE_BANK_MIN / bank->file_count)
        return VF_OK;
    enum vf_code code = vf_drive_open(bank->files[file], offset, bytes, false, &drive, err);
    if (code)
        return code;
    if (vf_drive_is_direct(drive))
        code = vf_drive_probe(drive, bank->record_bytes, PROBE_NS / bank->file_count, choice, err);
    vf_drive_close(drive);
    return code ? vf_err_prepend(err, "%s: ", bank->files[file]) : VF_OK;
}

void vf_drive_probe_bank(const struct vf_expert_bank *bank, struct vf_drive_choice *out)
{
    *out = (struct vf_drive_choice){0};
    for (uint32_t file = 0; file < bank->file_count; file++) {
        struct vf_drive_choice one;
        struct vf_err err;
        if (probe_file(bank, file, &one, &err) != VF_OK) {
            vf_warn("the drive can't be probed, so it is read as a common one: %s", err.text);
            *out = (struct vf_drive_choice){0};
            return;
        }
        double bytes_per_s = out->bytes_per_s + one.bytes_per_s;
        if (one.depth > out->depth)
            *out = one;
        out->bytes_per_s = bytes_per_s;
    }
}

/* Workers may have another working directory one day, so paths are made absolute. */
static enum vf_code resolve_paths(struct vf_stripe_set *set, const char *model_path,
                                  const char *dirs, struct vf_err *err)
{
    char *given[VF_BANK_FILES_MAX];
    uint32_t count;
    enum vf_code code = vf_bank_stripe_paths(model_path, dirs, given, &count, err);
    if (code)
        return vf_err_prepend(err, "--expert-bank: ");
    for (uint32_t i = 0; i < count; i++) {
        set->paths[i] = code ? NULL : realpath(given[i], NULL);
        if (!code && !set->paths[i])
            code = vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno,
                                "--expert-bank: %s (the directories are those of vflow-convert "
                                "--split-bank, in its order)",
                                given[i]);
        free(given[i]);
    }
    set->count = count;
    return code;
}

enum vf_code vf_stripe_set_open(struct vf_stripe_set *set, const struct vf_model_file *file,
                                const char *model_path, const char *dirs, struct vf_err *err)
{
    *set = (struct vf_stripe_set){0};
    if (!dirs)
        return VF_OK;
    enum vf_code code = resolve_paths(set, model_path, dirs, err);
    return code ? code
                : vf_bank_stripes_open(file, (const char *const *)set->paths, set->count,
                                       &set->stripes, err);
}

void vf_stripe_set_close(struct vf_stripe_set *set)
{
    vf_bank_stripes_close(set->stripes);
    for (uint32_t i = 0; i < set->count; i++)
        free(set->paths[i]);
    *set = (struct vf_stripe_set){0};
}
