/* The word somebody may have meant: for options, their words, and commands. */
#ifndef VF_COMMON_BASE_NEAREST_H
#define VF_COMMON_BASE_NEAREST_H

#include <stddef.h>

/* What is compared so far. Begin with {0} and the word. */
struct vf_nearest {
    const char *word;
    size_t word_bytes;
    const char *best; /* NULL: nothing is near */
    size_t distance;
};

struct vf_nearest vf_nearest_begin(const char *word, size_t word_bytes);
/* Takes candidate (borrowed) if it is nearer than what came before: a third of the word's letters,
 * at most three, may be wrong, missing, too many or swapped; or the word is its beginning. */
void vf_nearest_try(struct vf_nearest *n, const char *candidate);

/* "; did you mean --threads?" or "". prefix stands before the word. The text lies in buf. */
const char *vf_nearest_hint(const struct vf_nearest *n, const char *prefix, char *buf,
                            size_t buf_bytes);

#endif
