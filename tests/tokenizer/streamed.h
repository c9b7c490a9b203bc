/* Decoding through a detokenizer, for comparison with decoding the whole. */
#ifndef VF_TESTS_TOKENIZER_STREAMED_H
#define VF_TESTS_TOKENIZER_STREAMED_H

#include "common/tokenizer/tokenizer.h"
#include "support.h"

/* Everything a detokenizer gives for ids, checking that no piece ends inside a character. */
__attribute__((unused)) static bool streamed(const struct vf_tokenizer *t, const uint32_t *ids,
                                             size_t n, bool skip_special, struct str *out)
{
    struct vf_err err = {0};
    struct vf_detokenizer *d;
    const char *piece;
    size_t len;
    bool whole = true;
    out->n = 0;
    str_add(out, "", 0);
    if (vf_detokenizer_create(t, skip_special, &d, &err) != VF_OK)
        return false;
    for (size_t i = 0; i < n && whole; i++) {
        whole = vf_detokenizer_push(d, ids[i], &piece, &len, &err) == VF_OK &&
                vf_utf8_valid(piece, len);
        if (whole)
            str_add(out, piece, len);
    }
    whole =
        whole && vf_detokenizer_flush(d, &piece, &len, &err) == VF_OK && vf_utf8_valid(piece, len);
    if (whole)
        str_add(out, piece, len);
    vf_detokenizer_destroy(d);
    return whole;
}

#endif
