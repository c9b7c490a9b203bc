/* Converts a Hugging Face checkpoint directory or a GGUF file to one model file.
 *
 * Everything that can be known from headers is checked first (config, tensor names, shapes,
 * dtypes, free space, that the output isn't one of the input files); then the weights stream
 * through block by block, so memory stays at some tens of MiB whatever the model's size. On any
 * failure no output and no temporary file is left.
 */
#ifndef VF_CONVERT_CONVERT_H
#define VF_CONVERT_CONVERT_H

#include "common/format/model_file.h"

#include <signal.h>
#include <stdbool.h>

struct vf_convert_params {
    const char *input;  /* a directory with config.json, *.safetensors and maybe tokenizer.json, or
                         * a GGUF file */
    const char *output; /* replaced when the conversion has succeeded */
    enum vf_file_format format;
    int quant; /* enum vf_quant of every matrix; -1: q4 from a directory, from GGUF as they are */
    bool no_tokenizer;                   /* leave it out, whatever the input has */
    const volatile sig_atomic_t *cancel; /* not 0: stop with VF_ERR_CANCELLED; may be NULL */
};

struct vf_convert_result {
    uint64_t params; /* stored parameters */
    uint64_t file_bytes;
    const char *quant; /* "q4", ..., "mixed"; static */
};

enum vf_code vf_convert_run(const struct vf_convert_params *params,
                            struct vf_convert_result *result, struct vf_err *err);

#endif
