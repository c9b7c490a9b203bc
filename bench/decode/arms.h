/* Models that decode in turn, token by token, so that whatever else the machine does meets all of
 * them: what the comparisons of whole models are made of.
 */
#ifndef VF_BENCH_DECODE_ARMS_H
#define VF_BENCH_DECODE_ARMS_H

#include "bench/decode/loaded.h"

#define ARMS_MAX 8

struct arms_options { /* of a comparison of two models */
    const char *paths[2];
    uint32_t threads, tokens;
    int tier;
    bool huge;
};

struct arms {
    struct loaded models[ARMS_MAX];
    double *ms[ARMS_MAX]; /* [tokens] */
    int count;
    size_t tokens;
};

/* Loads every model with these parameters (path is each one's own, context and chunk are set).
 * arms_close after a failure too. */
enum vf_code arms_open(struct arms *arms, const char *const *paths, int count, size_t tokens,
                       const struct loaded_params *params, struct vf_err *err);
void arms_close(struct arms *arms);
/* Decodes `tokens` tokens with each, whose order rotates. */
enum vf_code arms_decode(struct arms *arms, const char *what, struct vf_err *err);

/* Medians with the 10th and 90th percentiles. */
struct bench_stat arms_ms(const struct arms *arms, int arm);
/* Time of arm b over time of arm a, token by token. */
struct bench_stat arms_ratio(const struct arms *arms, int a, int b);

#endif
