/* Prints what a model file holds, as text or as JSON, and verifies every checksum in it. */
#ifndef VF_CONVERT_INSPECT_H
#define VF_CONVERT_INSPECT_H

#include "common/format/model_file.h"

struct vf_inspect_options {
    bool json;
    bool tiles;  /* list every tile */
    bool verify; /* read all weights */
};

/* To stdout. docs/FORMAT.md documents the JSON. With verify, every bad tensor, expert and section
 * is part of the output; the code then is VF_ERR_CORRUPT and err names the first and says how many.
 */
enum vf_code vf_inspect_print(const struct vf_model_file *f,
                              const struct vf_inspect_options *options, struct vf_err *err);

#endif
