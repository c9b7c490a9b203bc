/* Shared by the tokenizer and sampler tests: files of the test data, growing strings, seeded random
 * numbers. */
#ifndef VF_TESTS_TOKENIZER_SUPPORT_H
#define VF_TESTS_TOKENIZER_SUPPORT_H

#include "common/base/util.h"
#include "data.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tokenizer_names[] = {"stories260k", "tinystories2k", "gpt2"};
#define TOKENIZER_COUNT_MAX 3

/* The file's bytes, NULL when it doesn't exist. */
__attribute__((unused)) static char *tokenizer_file(const char *name, const char *file, size_t *n)
{
    char path[1400], *data;
    struct vf_err err = {0};
    snprintf(path, sizeof(path), "%s/tokenizers/%s/%s", data_dir(), name, file);
    return vf_read_file(path, 1u << 28, &data, n, &err) == VF_OK ? data : NULL;
}

/* How many of the names there are: the small set of test data has no gpt2. */
__attribute__((unused)) static int tokenizer_count(void)
{
    size_t n;
    char *last = tokenizer_file(tokenizer_names[TOKENIZER_COUNT_MAX - 1], "tokenizer.json", &n);
    free(last);
    return last ? TOKENIZER_COUNT_MAX : TOKENIZER_COUNT_MAX - 1;
}

/* xorshift64*; state is never 0. */
__attribute__((unused)) static uint64_t random_u64(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

__attribute__((unused)) static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(random_u64(state) >> 32) % n;
}

struct str {
    char *s;
    size_t n, cap;
};

__attribute__((unused)) static void str_add(struct str *b, const char *s, size_t n)
{
    if (b->n + n + 1 > b->cap) {
        b->cap = (b->n + n + 1) * 2;
        b->s = realloc(b->s, b->cap);
        if (!b->s)
            abort();
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}

#endif
