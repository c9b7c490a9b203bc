/* Stop strings against a plain search of the whole text, with the text cut at random. */
#include "support.h"
#include "tap.h"

#include "coordinator/sampler/stop_matcher.h"

/* Where the text ends by the rule: before the stop string that is complete first. */
static size_t plain_end(const char *text, size_t n, const char *const *stops, size_t count,
                        bool *stopped)
{
    *stopped = false;
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < count; k++) {
            size_t len = strlen(stops[k]);
            if (len <= end && memcmp(text + end - len, stops[k], len) == 0 && len > longest)
                longest = len;
        }
        if (longest > 0) {
            *stopped = true;
            return end - longest;
        }
    }
    return n;
}

struct run {
    struct str out;
    bool stopped, early; /* early: something was emitted that could still have been stopped */
};

/* Pushes text cut at random character boundaries. */
static struct run run_matcher(const char *text, size_t n, const char *const *stops, size_t count,
                              uint64_t *rng)
{
    struct vf_err err = {0};
    struct vf_stop_matcher *m;
    struct run r = {0};
    const char *emit;
    size_t n_emit;
    str_add(&r.out, "", 0);
    if (vf_stop_matcher_create(stops, count, &m, &err) != VF_OK) {
        note("%s", err.text);
        return r;
    }
    for (size_t at = 0; at < n;) {
        size_t end = at + 1 + random_below(rng, 4);
        while (end < n && ((unsigned char)text[end] & 0xc0) == 0x80)
            end++;
        end = end < n ? end : n;
        if (vf_stop_matcher_push(m, text + at, end - at, &emit, &n_emit, &err) != VF_OK)
            abort();
        str_add(&r.out, emit, n_emit);
        at = end;
    }
    r.stopped = vf_stop_matcher_stopped(m);
    vf_stop_matcher_flush(m, &emit, &n_emit);
    str_add(&r.out, emit, n_emit);
    vf_stop_matcher_flush(m, &emit, &n_emit);
    r.early = n_emit != 0;
    vf_stop_matcher_destroy(m);
    return r;
}

/* Few letters, so that near misses abound. */
static size_t random_text(uint64_t *rng, char *out, size_t letters)
{
    static const char *const alphabet[] = {"a", "b", "\xc3\xa9", "\xe2\x96\x81"};
    size_t n = 0;
    for (size_t i = 0; i < letters; i++) {
        const char *c = alphabet[random_below(rng, 4) & random_below(rng, 4)];
        memcpy(out + n, c, strlen(c));
        n += strlen(c);
    }
    out[n] = 0;
    return n;
}

static void check_random(void)
{
    enum { CASES = 20000 };
    uint64_t rng = 77;
    int wrong = 0, stops_seen = 0;
    for (int c = 0; c < CASES; c++) {
        char text[256], stop_text[VF_STOP_COUNT_MAX][64];
        const char *stops[VF_STOP_COUNT_MAX];
        size_t count = random_below(&rng, VF_STOP_COUNT_MAX + 1);
        for (size_t k = 0; k < count; k++) {
            random_text(&rng, stop_text[k], 1 + random_below(&rng, 8));
            stops[k] = stop_text[k];
        }
        size_t n = random_text(&rng, text, random_below(&rng, 60));
        bool stopped;
        size_t end = plain_end(text, n, stops, count, &stopped);
        struct run r = run_matcher(text, n, stops, count, &rng);
        stops_seen += stopped;
        wrong +=
            r.stopped != stopped || r.early || r.out.n != end || memcmp(r.out.s, text, end) != 0;
        free(r.out.s);
    }
    note("%d of %d texts stop", stops_seen, CASES);
    ok(wrong == 0 && stops_seen > CASES / 10 && stops_seen < CASES, "as a plain search, %d wrong",
       wrong);
}

static bool gives(struct vf_stop_matcher *m, const char *text, const char *want)
{
    struct vf_err err = {0};
    const char *emit;
    size_t n;
    return vf_stop_matcher_push(m, text, strlen(text), &emit, &n, &err) == VF_OK &&
           n == strlen(want) && memcmp(emit, want, n) == 0;
}

static void check_holding(void)
{
    const char *const stops[] = {"\n\nUser:", "END"};
    struct vf_err err = {0};
    struct vf_stop_matcher *m;
    const char *emit;
    size_t n;
    if (vf_stop_matcher_create(stops, 2, &m, &err) != VF_OK)
        abort();
    ok(gives(m, "Hello", "Hello") && gives(m, "", ""), "text without a beginning goes through");
    ok(gives(m, " you\n", " you") && gives(m, "\nUs", "") && gives(m, "x", "\n\nUsx"),
       "a beginning is held back and released");
    ok(gives(m, "E", "") && gives(m, "N", "") && !vf_stop_matcher_stopped(m) &&
           gives(m, "D and more", "") && vf_stop_matcher_stopped(m),
       "a stop string over three pushes");
    ok(gives(m, "later", ""), "nothing comes after a stop");
    vf_stop_matcher_flush(m, &emit, &n);
    ok(n == 0, "nor from the flush");
    vf_stop_matcher_destroy(m);
    vf_stop_matcher_destroy(NULL);
}

static bool refused(const char *const *stops, size_t count)
{
    struct vf_err err = {0};
    struct vf_stop_matcher *m;
    enum vf_code code = vf_stop_matcher_create(stops, count, &m, &err);
    vf_stop_matcher_destroy(m);
    note("%s", err.text);
    return code == VF_ERR_USAGE && strstr(err.text, "--stop");
}

static void check_refusals(void)
{
    const char *many[VF_STOP_COUNT_MAX + 1], *empty = "", *broken = "\xc3";
    char longest[VF_STOP_BYTES_MAX + 2];
    const char *too_long = longest;
    for (size_t i = 0; i < VF_ARRAY_LEN(many); i++)
        many[i] = "x";
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    ok(refused(many, VF_ARRAY_LEN(many)), "too many stop strings");
    ok(refused(&empty, 1), "an empty stop string");
    ok(refused(&too_long, 1), "a stop string too long");
    ok(refused(&broken, 1), "a stop string that isn't UTF-8");
}

int main(void)
{
    plan(10);
    check_random();
    check_holding();
    check_refusals();
    return 0;
}
