#include "bench/decode/arms.h"

#include "common/base/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP 3u /* tokens that don't count */

enum vf_code arms_open(struct arms *arms, const char *const *paths, int count, size_t tokens,
                       const struct loaded_params *params, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    *arms = (struct arms){.tokens = tokens};
    VF_ASSERT(count <= ARMS_MAX);
    while (code == VF_OK && arms->count < count) {
        struct loaded_params p = *params;
        int i = arms->count++;
        p.path = paths[i];
        p.context = (uint32_t)tokens + WARM_UP;
        p.chunk = 1;
        code = loaded_open(&arms->models[i], &p, err);
        arms->ms[i] = calloc(tokens, sizeof *arms->ms[i]);
        if (code == VF_OK && !arms->ms[i])
            code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu samples", tokens);
    }
    return code;
}

void arms_close(struct arms *arms)
{
    for (int i = 0; i < arms->count; i++) {
        loaded_close(&arms->models[i]);
        free(arms->ms[i]);
    }
}

enum vf_code arms_decode(struct arms *arms, const char *what, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t t = 0; code == VF_OK && t < arms->tokens + WARM_UP; t++) {
        for (int i = 0; code == VF_OK && i < arms->count; i++) {
            int arm = (int)((t + (size_t)i) % (size_t)arms->count);
            double ms;
            code = loaded_step(&arms->models[arm], 1, true, true, &ms, err);
            if (t >= WARM_UP)
                arms->ms[arm][t - WARM_UP] = ms;
        }
        vf_progress(what, VF_PROGRESS_ITEMS, t + 1, arms->tokens + WARM_UP);
    }
    return code;
}

/* Of a copy: the samples stay in the order of the tokens. */
static struct bench_stat spread(const double *a, const double *over, size_t n)
{
    double *copy = calloc(n, sizeof *copy);
    struct bench_stat s = {NAN, NAN, NAN};
    if (!copy)
        return s;
    for (size_t i = 0; i < n; i++)
        copy[i] = over ? a[i] / over[i] : a[i];
    s.median = bench_median(copy, n);
    s.low = bench_quantile(copy, n, 0.1);
    s.high = bench_quantile(copy, n, 0.9);
    free(copy);
    return s;
}

struct bench_stat arms_ms(const struct arms *arms, int arm)
{
    return spread(arms->ms[arm], NULL, arms->tokens);
}

struct bench_stat arms_ratio(const struct arms *arms, int a, int b)
{
    return spread(arms->ms[b], arms->ms[a], arms->tokens);
}
