/* What is asked of a generation on a command line: the options that vflow-coordinator generate and
 * vflow-client generate share, so that the same words mean the same text.
 *
 * init, then vf_generate_options_table() for the parser, then vf_generate_options_read() once the
 * words are parsed. One thread.
 */
#ifndef VF_COMMON_RUN_GENERATE_OPTIONS_H
#define VF_COMMON_RUN_GENERATE_OPTIONS_H

#include "common/base/cli.h"

#define VF_GENERATE_OPTION_COUNT 13
#define VF_STOP_STRINGS_MAX      8 /* --stop, and GenerateRequest.stop */

struct vf_generate_options {                   /* defaults of the command line */
    const char *prompt, *prompt_file, *tokens; /* exactly one is given */
    int64_t max_tokens, top_k, seed;
    const char *seed_text; /* a number, or "random", of which read makes the seed; NULL: 0 */
    double temperature, top_p, min_p;
    struct vf_opt_list stop;
    bool no_bos, ignore_eos, json;
    /* The prompt's text and where it is from ("-p", "--prompt-file FILE"); NULL with --tokens.
     * Owned. Valid UTF-8, a NUL behind it isn't counted. */
    char *text;
    size_t text_bytes;
    char text_name[160];
};

void vf_generate_options_init(struct vf_generate_options *o);
/* Writes the rows, which store into o, to opts[0..VF_GENERATE_OPTION_COUNT); returns how many. */
size_t vf_generate_options_table(struct vf_generate_options *o, struct vf_opt *opts);
/* Checks the words together and reads the prompt, which may wait for standard input: before
 * signals are blocked. */
enum vf_code vf_generate_options_read(struct vf_generate_options *o, struct vf_err *err);
void vf_generate_options_deinit(struct vf_generate_options *o);

#endif
