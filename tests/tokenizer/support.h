/* Shared by the tokenizer and sampler tests: the shared data's place, files, growing strings,
 * seeded random numbers. */
#ifndef VF_TESTS_TOKENIZER_SUPPORT_H
#define VF_TESTS_TOKENIZER_SUPPORT_H

#include "common/base/util.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tokenizer_names[] = {"stories260k", "gpt2", "tinystories2k"};
#define TOKENIZER_COUNT 3

__attribute__((unused)) static void shared_path(char *out, size_t cap, const char *rest)
{
    const char *shared = getenv("VFLOW_SHARED"), *source = getenv("VFLOW_SOURCE");
    if (shared)
        snprintf(out, cap, "%s/%s", shared, rest);
    else
        snprintf(out, cap, "%s/../shared/%s", source ? source : ".", rest);
}

/* The file's bytes, NULL when it doesn't exist. */
__attribute__((unused)) static char *shared_file(const char *rest, size_t *n)
{
    char path[1024], *data;
    struct vf_err err = {0};
    shared_path(path, sizeof(path), rest);
    return vf_read_file(path, 1u << 28, &data, n, &err) == VF_OK ? data : NULL;
}

__attribute__((unused)) static char *tokenizer_file(const char *name, const char *file, size_t *n)
{
    char rest[256];
    snprintf(rest, sizeof(rest), "tokenizers/%s/%s", name, file);
    return shared_file(rest, n);
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
