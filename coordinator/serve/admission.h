/* From a client's message to a request the scheduler can take. Everything in the message is
 * untrusted; a refusal names the field, what was found and what is allowed.
 */
#ifndef VF_COORDINATOR_SERVE_ADMISSION_H
#define VF_COORDINATOR_SERVE_ADMISSION_H

#include "common/tokenizer/tokenizer.h"
#include "coordinator/scheduler.h"
#include "vflow.pb-c.h"

#define VF_ADMISSION_TEXT_MAX (1u << 20) /* bytes; encoding holds everybody up for so long */
#define VF_ADMISSION_STOP_MAX 1024u      /* bytes of one stop text */

struct vf_admission {
    const struct vf_tokenizer *tokenizer; /* NULL: the model has none */
    const struct vf_err *tokenizer_fault; /* or one that is refused: why; else NULL */
    uint32_t vocab_size;
};

/* An admitted request owns what request points to. */
struct vf_admitted {
    struct vf_request request;
    uint32_t *tokens;
    char *stops[VF_STOP_STRINGS_MAX];
};

/* On failure out holds nothing. */
enum vf_code vf_admit_generate(const struct vf_admission *a, const Vflow__GenerateRequest *m,
                               struct vf_admitted *out, struct vf_err *err);
enum vf_code vf_admit_score(const struct vf_admission *a, const Vflow__ScoreRequest *m,
                            struct vf_admitted *out, struct vf_err *err);
void vf_admitted_deinit(struct vf_admitted *admitted);

#endif
