/* Decoders: a chain that turns the texts of tokens into the text, token by token. Decoding a
 * whole sequence and streaming it are the same code.
 */
#ifndef VF_COMMON_TOKENIZER_DECODER_H
#define VF_COMMON_TOKENIZER_DECODER_H

#include "common/tokenizer/json_read.h"
#include "common/tokenizer/text.h"

struct vf_decoder_step;
struct vf_decoder {
    struct vf_decoder_step *steps;
    size_t count;
};

/* v: the value of "decoder", may be null (tokens are joined by spaces). */
enum vf_code vf_decoder_init(struct vf_decoder *d, const json_t *v, const struct vf_place *p,
                             struct vf_err *err);
void vf_decoder_deinit(struct vf_decoder *d);

/* The state of one stream. */
struct vf_decoder_state;
struct vf_decode_run {
    const struct vf_decoder *decoder;
    struct vf_decoder_state *states; /* [decoder->count] */
    struct vf_text_buf out;          /* what is decoded; the user empties it */
    size_t given, grown; /* bytes of the tokens so far; those that Replace steps added to them */
};
enum vf_code vf_decode_run_init(struct vf_decode_run *r, const struct vf_decoder *d,
                                struct vf_err *err);
void vf_decode_run_deinit(struct vf_decode_run *r);
/* One token's text. */
enum vf_code vf_decode_run_push(struct vf_decode_run *r, const char *s, size_t n,
                                struct vf_err *err);
/* After the last token. */
enum vf_code vf_decode_run_finish(struct vf_decode_run *r, struct vf_err *err);

#endif
