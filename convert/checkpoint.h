/* A Hugging Face checkpoint directory's weights: every tensor of one or many *.safetensors.
 *
 * model.safetensors.index.json names the files where there is one, else model.safetensors is the
 * only file. All headers are checked at open; a name that two files have is refused. Tensors are
 * taken by name, and what nobody took can be listed: a checkpoint must have no tensor that the
 * model doesn't. Used by one thread.
 */
#ifndef VF_CONVERT_CHECKPOINT_H
#define VF_CONVERT_CHECKPOINT_H

#include "common/format/safetensors.h"

#include <stdbool.h>

struct vf_checkpoint_tensor {
    const struct vf_safetensors *file;
    const struct vf_safetensors_entry *entry;
    bool taken;
};

struct vf_checkpoint;

enum vf_code vf_checkpoint_open(const char *dir, struct vf_checkpoint **out, struct vf_err *err);
void vf_checkpoint_close(struct vf_checkpoint *c);

const char *vf_checkpoint_dir(const struct vf_checkpoint *c);
/* Finds a tensor and marks it as taken; NULL when the checkpoint lacks it. */
const struct vf_checkpoint_tensor *vf_checkpoint_take(struct vf_checkpoint *c, const char *name);
/* The first tensor by name that wasn't taken, NULL when all were; *count is how many weren't. */
const struct vf_checkpoint_tensor *vf_checkpoint_leftover(const struct vf_checkpoint *c,
                                                          size_t *count);

#endif
