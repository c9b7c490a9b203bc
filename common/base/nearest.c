#include "common/base/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define WORD_MAX 32 /* longer ones have no neighbours */

struct vf_nearest vf_nearest_begin(const char *word, size_t word_bytes)
{
    return (struct vf_nearest){.word = word, .word_bytes = word_bytes, .distance = SIZE_MAX};
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to change, add, drop or swap with their neighbour (optimal string alignment). */
static size_t edit_distance(const char *a, size_t an, const char *b, size_t bn)
{
    size_t d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= an; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= bn; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= an; i++)
        for (size_t j = 1; j <= bn; j++) {
            size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = smaller(change, smaller(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = smaller(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[an][bn];
}

void vf_nearest_try(struct vf_nearest *n, const char *candidate)
{
    size_t bytes = strlen(candidate), allowed = smaller((n->word_bytes + 2) / 3, 3);
    if (n->word_bytes == 0 || n->word_bytes > WORD_MAX || bytes > WORD_MAX)
        return;
    bool begins = n->word_bytes >= 2 && strncmp(candidate, n->word, n->word_bytes) == 0;
    size_t distance = begins ? 1 : edit_distance(n->word, n->word_bytes, candidate, bytes);
    if (distance > allowed || distance >= n->distance || distance >= n->word_bytes)
        return;
    n->distance = distance;
    n->best = candidate;
}

const char *vf_nearest_hint(const struct vf_nearest *n, const char *prefix, char *buf,
                            size_t buf_bytes)
{
    buf[0] = 0;
    if (n->best)
        snprintf(buf, buf_bytes, "; did you mean '%s%s'?", prefix, n->best);
    return buf;
}
