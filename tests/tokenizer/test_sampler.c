/* The sampler against an independent computation: the rule of sampler.h written the plain way
 * (full sort, long double, libm), random numbers against published values, distributions by
 * chi-square. */
#include "support.h"
#include "tap.h"

#include "coordinator/sampler/sampler.h"

#include <math.h>
#include <time.h>

/* --- the rule, the plain way --- */

struct entry {
    long double w;
    float logp;
    uint32_t id;
    bool kept;
};

static int by_rank(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logp != y->logp)
        return x->logp > y->logp ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

/* Fills e with all tokens by id, the kept ones marked; false when a limit is so close that
 * rounding may decide. */
static bool expect(const struct vf_sampling *p, const float *logp, uint32_t n, struct entry *e)
{
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){0, logp[i], i, true};
    qsort(e, n, sizeof(*e), by_rank);
    long double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        e[i].w = expl(((long double)e[i].logp - e[0].logp) / p->temperature);
        e[i].kept = p->top_k == 0 || i < p->top_k;
        total += e[i].kept ? e[i].w : 0;
    }
    bool clear = true, over = false;
    for (uint32_t i = 0; i < n && p->top_p < 1; i++) {
        e[i].kept = e[i].kept && !over;
        sum += e[i].kept ? e[i].w : 0;
        clear = clear && fabsl(sum / total - p->top_p) > 1e-11L;
        over = over || sum >= p->top_p * total;
    }
    for (uint32_t i = 0; i < n; i++) {
        clear = clear && (p->min_p == 0 || p->min_p == 1 || fabsl(e[i].w / p->min_p - 1) > 1e-11L);
        e[i].kept = e[i].kept && (i == 0 || e[i].w >= p->min_p);
    }
    qsort(e, n, sizeof(*e), by_id);
    return clear;
}

/* The token that u picks; *clear false when u is at a border. */
static uint32_t pick(const struct entry *e, uint32_t n, double u, bool *clear)
{
    long double total = 0, sum = 0;
    uint32_t token = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++)
        total += e[i].kept ? e[i].w : 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += e[i].kept ? e[i].w : 0;
        if (e[i].kept && fabsl(sum - u * total) < 1e-11L * total)
            *clear = false;
        if (e[i].kept && token == UINT32_MAX && sum > u * total)
            token = i;
    }
    return token;
}

/* --- random logits and parameters --- */

static float random_unit(uint64_t *rng)
{
    return (float)(random_u64(rng) >> 40) * 0x1p-24f;
}

static void random_logp(uint64_t *rng, float *logp, uint32_t n)
{
    float scale = (float[]){0.1f, 3, 12, 60}[random_below(rng, 4)];
    bool ties = random_below(rng, 3) == 0;
    for (uint32_t i = 0; i < n; i++) {
        logp[i] = -scale * random_unit(rng);
        if (ties)
            logp[i] = floorf(logp[i]);
        if (random_below(rng, 20) == 0)
            logp[i] = -INFINITY;
    }
    logp[random_below(rng, n)] = -0.5f;
}

static struct vf_sampling random_params(uint64_t *rng, uint32_t n)
{
    struct vf_sampling p = {.temperature = 1, .top_p = 1, .seed = random_u64(rng)};
    p.temperature = (double[]){1, 0.3, 0.8, 2.5, 0.01, 100}[random_below(rng, 6)];
    if (random_below(rng, 2))
        p.top_k = 1 + random_below(rng, n + 5);
    if (random_below(rng, 2))
        p.top_p = (double[]){0.9, 0.5, 0.99, 1e-9, 0.999999, 0.05}[random_below(rng, 6)];
    if (random_below(rng, 2))
        p.min_p = (double[]){0.1, 0.5, 1e-4, 0.95, 1e-12}[random_below(rng, 5)];
    return p;
}

static uint32_t draw(struct vf_sampler *s, const struct vf_sampling *p, const float *logp,
                     uint64_t position)
{
    struct vf_err err = {0};
    uint32_t token = UINT32_MAX;
    if (vf_sampler_draw(s, p, logp, position, &token, &err) != VF_OK)
        note("draw: %s", err.text);
    return token;
}

static void check_against_rule(void)
{
    enum { CASES = 4000, N_MAX = 300 };
    static float logp[N_MAX];
    static struct entry e[N_MAX];
    uint64_t rng = 12345;
    int wrong = 0, unclear = 0;
    for (int c = 0; c < CASES; c++) {
        uint32_t n = 1 + random_below(&rng, N_MAX);
        struct vf_err err = {0};
        struct vf_sampler *s;
        if (vf_sampler_create(n, &s, &err) != VF_OK)
            abort();
        random_logp(&rng, logp, n);
        struct vf_sampling p = random_params(&rng, n);
        bool clear_set = expect(&p, logp, n, e);
        for (uint64_t position = 0; position < 5; position++) {
            bool clear = clear_set;
            uint32_t want = pick(e, n, vf_sampler_uniform(p.seed, position), &clear);
            uint32_t got = draw(s, &p, logp, position);
            unclear += !clear;
            if (clear && got != want && wrong++ < 5)
                note("case %d: n %u T %g k %u p %g min %g: want %u, got %u", c, n, p.temperature,
                     p.top_k, p.top_p, p.min_p, want, got);
        }
        vf_sampler_destroy(s);
    }
    note("%d draws, %d too close to a limit to compare", CASES * 5, unclear);
    ok(wrong == 0 && unclear < CASES, "draws are those of the plain rule, %d wrong", wrong);
}

/* --- distribution --- */

/* The statistic over tokens with at least 5 expected draws (the others pooled), turned into a
 * normal deviate (Wilson and Hilferty). */
static double chi_square_z(const struct entry *e, uint32_t n, const uint32_t *seen, uint32_t draws)
{
    long double total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += e[i].kept ? e[i].w : 0;
    double x2 = 0, pooled_want = 0, pooled_seen = 0;
    int cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        double want = e[i].kept ? (double)(e[i].w / total) * draws : 0;
        if (want < 5) {
            pooled_want += want;
            pooled_seen += seen[i];
            continue;
        }
        x2 += (seen[i] - want) * (seen[i] - want) / want;
        cells++;
    }
    if (pooled_want >= 5) {
        x2 += (pooled_seen - pooled_want) * (pooled_seen - pooled_want) / pooled_want;
        cells++;
    }
    double k = cells - 1;
    return (cbrt(x2 / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
}

static void check_distribution(const char *what, struct vf_sampling p)
{
    enum { N = 200, DRAWS = 50000 };
    static float logp[N];
    static uint32_t seen[N];
    static struct entry e[N];
    struct vf_err err = {0};
    struct vf_sampler *s;
    uint64_t rng = 99;
    if (vf_sampler_create(N, &s, &err) != VF_OK)
        abort();
    for (uint32_t i = 0; i < N; i++)
        logp[i] = -8 * random_unit(&rng);
    memset(seen, 0, sizeof(seen));
    expect(&p, logp, N, e);
    int outside = 0;
    for (uint64_t position = 0; position < DRAWS; position++) {
        uint32_t token = draw(s, &p, logp, position);
        if (token >= N || !e[token].kept)
            outside++;
        else
            seen[token]++;
    }
    double z = chi_square_z(e, N, seen, DRAWS);
    note("%s: chi-square deviate %.3f", what, z);
    ok(outside == 0 && z > -4 && z < 4, "distribution: %s", what);
    vf_sampler_destroy(s);
}

/* --- random numbers --- */

static bool philox_is(uint32_t c, uint32_t k, const uint32_t want[4])
{
    uint32_t counter[4] = {c, c, c, c}, key[2] = {k, k}, out[4];
    vf_philox4x32(counter, key, out);
    return memcmp(out, want, sizeof(out)) == 0;
}

static void check_random(void)
{
    /* Random123's kat_vectors. */
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    uint32_t counter[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
             key[2] = {0xa4093822, 0x299f31d0}, out[4];
    vf_philox4x32(counter, key, out);
    ok(philox_is(0, 0, zeros) && philox_is(UINT32_MAX, UINT32_MAX, ones) &&
           memcmp(out, pi, sizeof(out)) == 0,
       "Philox4x32-10 gives the published values");
    double want = ldexp((double)(((uint64_t)0x6627e8d5 << 32 | 0xe169c58d) >> 11), -53);
    ok(vf_sampler_uniform(0, 0) == want, "the uniform number is the first 53 bits");
    double low = 1, high = 0, sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double u = vf_sampler_uniform(7, i);
        low = u < low ? u : low;
        high = u > high ? u : high;
        sum += u;
    }
    ok(low >= 0 && low < 1e-3 && high < 1 && high > 0.999 && fabs(sum / 100000 - 0.5) < 0.005,
       "uniform in [0, 1): %g to %g, mean %g", low, high, sum / 100000);
    ok(vf_sampler_uniform(1, 2) != vf_sampler_uniform(2, 1) &&
           vf_sampler_uniform(1, 0) != vf_sampler_uniform((uint64_t)1 << 32, 0) &&
           vf_sampler_uniform(0, 1) != vf_sampler_uniform(0, (uint64_t)1 << 32),
       "all bits of seed and position count");
}

/* --- edges --- */

static uint32_t draw_of(const float *logp, uint32_t n, struct vf_sampling p, uint64_t position,
                        enum vf_code *code)
{
    struct vf_err err = {0};
    struct vf_sampler *s;
    uint32_t token = UINT32_MAX;
    if (vf_sampler_create(n, &s, &err) != VF_OK)
        abort();
    *code = vf_sampler_draw(s, &p, logp, position, &token, &err);
    if (*code != VF_OK)
        note("%s", err.text);
    vf_sampler_destroy(s);
    return token;
}

static void check_only(const char *what, const float *logp, uint32_t n, struct vf_sampling p,
                       uint32_t want)
{
    int wrong = 0;
    for (uint64_t position = 0; position < 200; position++) {
        enum vf_code code;
        wrong += draw_of(logp, n, p, position, &code) != want || code != VF_OK;
    }
    ok(wrong == 0, "%s: always token %u", what, want);
}

static void check_edges(void)
{
    const float ties[] = {-3, -1, -2, -1, -1};
    const float one[] = {-INFINITY, -INFINITY, -4, -INFINITY};
    const float far[] = {-1e30f, -3e38f, 0, -200, -3.4e38f};
    const struct vf_sampling greedy = {0, 0, 1, 0, 1}, plain = {1, 0, 1, 0, 1};
    struct vf_sampling p = plain;
    check_only("greedy, ties", ties, 5, greedy, 1);
    check_only("greedy, all but one at -inf", one, 4, greedy, 2);
    check_only("all but one at -inf", one, 4, plain, 2);
    p.top_k = 3;
    check_only("top_k 3, all but one at -inf", one, 4, p, 2);
    p.top_k = 1;
    check_only("top_k 1, ties", ties, 5, p, 1);
    p = (struct vf_sampling){1, 0, 1e-12, 0, 1};
    check_only("top_p tiny, ties", ties, 5, p, 1);
    p.top_p = 0;
    check_only("top_p 0", ties, 5, p, 1);
    p = (struct vf_sampling){1, 0, 0.9, 0, 1};
    check_only("top_p, all but one at -inf", one, 4, p, 2);
    p = (struct vf_sampling){1e-300, 0, 1, 0, 1};
    check_only("smallest temperature", far, 5, p, 2);
    p = (struct vf_sampling){1, 0, 0.999999, 0, 1};
    check_only("huge distances", far, 5, p, 2);
    check_only("one token", ties, 1, p, 0);

    /* min_p 1 leaves exactly the tokens tied for the best. */
    p = (struct vf_sampling){1, 0, 1, 1, 5};
    int seen[5] = {0};
    enum vf_code code;
    for (uint64_t position = 0; position < 3000; position++) {
        uint32_t token = draw_of(ties, 5, p, position, &code);
        seen[token < 5 ? token : 0]++;
    }
    note("min_p 1: %d %d %d %d %d", seen[0], seen[1], seen[2], seen[3], seen[4]);
    ok(seen[0] == 0 && seen[2] == 0 && seen[1] > 800 && seen[3] > 800 && seen[4] > 800,
       "min_p 1: the tied best ones alone, equally often");
    /* top_k among ties keeps the lowest ids. */
    p = (struct vf_sampling){1, 2, 1, 0, 5};
    bool low = true;
    for (uint64_t position = 0; position < 300; position++) {
        uint32_t token = draw_of(ties, 5, p, position, &code);
        low = low && (token == 1 || token == 3);
    }
    ok(low, "top_k 2 of three tied: the lowest ids");
}

static void check_refusals(void)
{
    const float good[] = {-1, -2}, nan_first[] = {NAN, -1}, nan_last[] = {-1, NAN},
                none[] = {-INFINITY, -INFINITY}, inf[] = {-1, INFINITY};
    const struct vf_sampling greedy = {0, 0, 1, 0, 1}, plain = {1, 0, 1, 0, 1};
    enum vf_code a, b, c, d, e;
    draw_of(nan_first, 2, greedy, 0, &a);
    draw_of(nan_last, 2, plain, 0, &b);
    draw_of(none, 2, plain, 0, &c);
    draw_of(inf, 2, greedy, 0, &d);
    draw_of(good, 2, greedy, 0, &e);
    ok(a == VF_ERR_INTERNAL && b == VF_ERR_INTERNAL, "NaN is an error");
    ok(c == VF_ERR_INTERNAL && d == VF_ERR_INTERNAL && e == VF_OK,
       "no probability and +inf are errors");

    static const struct {
        struct vf_sampling p;
        const char *option;
    } bad[] = {
        {{-0.1, 0, 1, 0, 0}, "--temperature"},
        {{NAN, 0, 1, 0, 0}, "--temperature"},
        {{INFINITY, 0, 1, 0, 0}, "--temperature"},
        {{1, 0, 1.5, 0, 0}, "--top-p"},
        {{1, 0, -1, 0, 0}, "--top-p"},
        {{1, 0, NAN, 0, 0}, "--top-p"},
        {{1, 0, 1, -0.5, 0}, "--min-p"},
        {{1, 0, 1, 1.01, 0}, "--min-p"},
        {{1, 0, 1, NAN, 0}, "--min-p"},
    };
    int wrong = 0;
    for (size_t i = 0; i < VF_ARRAY_LEN(bad); i++) {
        struct vf_err err = {0};
        enum vf_code code = vf_sampling_check(&bad[i].p, &err);
        wrong += code != VF_ERR_USAGE || !strstr(err.text, bad[i].option);
    }
    ok(wrong == 0, "parameters out of range are refused by option");
}

/* --- the same everywhere --- */

static void check_recorded(void)
{
    /* Recorded once; logits from integer arithmetic, so only the sampler itself is in play. */
    static const uint32_t want[] = {682, 997, 874, 787, 402, 384, 279, 437, 628, 332,
                                    611, 402, 454, 262, 330, 804, 944, 121, 752, 402};
    enum { N = 1000 };
    static float logp[N];
    struct vf_err err = {0};
    struct vf_sampler *s;
    if (vf_sampler_create(N, &s, &err) != VF_OK)
        abort();
    for (uint32_t i = 0; i < N; i++)
        logp[i] = -(float)(i * 7919 % 997) / 64;
    const struct vf_sampling p = {0.7, 400, 0.95, 1e-4, 42};
    int wrong = 0;
    struct str got = {0};
    char number[16];
    for (uint64_t i = 0; i < VF_ARRAY_LEN(want); i++) {
        uint32_t token = draw(s, &p, logp, i);
        wrong += token != want[i];
        str_add(&got, number, (size_t)snprintf(number, sizeof(number), "%u, ", token));
    }
    if (!ok(wrong == 0, "recorded draws"))
        note("got %s", got.s);
    free(got.s);
    vf_sampler_destroy(s);
}

/* --- speed --- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void report_speed(const char *what, struct vf_sampler *s, const float *logp,
                         struct vf_sampling p)
{
    enum { ROUNDS = 20 };
    double begin = now_ms();
    for (uint64_t i = 0; i < ROUNDS; i++)
        draw(s, &p, logp, i);
    note("%-22s %.3f ms at 262,144 tokens", what, (now_ms() - begin) / ROUNDS);
}

static void report_speeds(void)
{
    enum { N = 262144 };
    float *logp = malloc(N * sizeof(*logp));
    struct vf_err err = {0};
    struct vf_sampler *s;
    uint64_t rng = 3;
    if (!logp || vf_sampler_create(N, &s, &err) != VF_OK)
        abort();
    for (uint32_t i = 0; i < N; i++) /* bell-shaped, as logits are */
        logp[i] = -16 + 3 * (random_unit(&rng) + random_unit(&rng) + random_unit(&rng) +
                             random_unit(&rng) - 2);
    logp[1234] = -1;
    report_speed("greedy", s, logp, (struct vf_sampling){0, 0, 1, 0, 1});
    report_speed("temperature", s, logp, (struct vf_sampling){1, 0, 1, 0, 1});
    report_speed("top_k 40", s, logp, (struct vf_sampling){1, 40, 1, 0, 1});
    report_speed("top_p 0.9", s, logp, (struct vf_sampling){0.6, 0, 0.9, 0, 1});
    report_speed("top_k 40, top_p, min_p", s, logp, (struct vf_sampling){1, 40, 0.9, 0.05, 1});
    free(logp);
    vf_sampler_destroy(s);
}

int main(void)
{
    plan(4 + 1 + 6 + 13 + 3 + 1);
    check_random();
    check_against_rule();
    check_distribution("temperature 1", (struct vf_sampling){1, 0, 1, 0, 11});
    check_distribution("temperature 2", (struct vf_sampling){2, 0, 1, 0, 12});
    check_distribution("top_k 20", (struct vf_sampling){1.3, 20, 1, 0, 13});
    check_distribution("top_p 0.8", (struct vf_sampling){1, 0, 0.8, 0, 14});
    check_distribution("min_p 0.05", (struct vf_sampling){1, 0, 1, 0.05, 15});
    check_distribution("all of them", (struct vf_sampling){1.5, 100, 0.9, 0.02, 16});
    check_edges();
    check_refusals();
    check_recorded();
    report_speeds();
    return 0;
}
