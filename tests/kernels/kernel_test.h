/* What the kernel tests share: seeded numbers, guarded buffers, tiers, comparison to the bit.
 */
#ifndef VF_TESTS_KERNELS_KERNEL_TEST_H
#define VF_TESTS_KERNELS_KERNEL_TEST_H

#include "common/kernels/kernels.h"
#include "tap.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNUSED __attribute__((unused))

/* ---- seeded numbers (xorshift64*) ---- */

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

UNUSED static void rng_seed(uint64_t seed)
{
    rng_state = seed * 2685821657736338717u + 1;
}

UNUSED static uint32_t rng_u32(void)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return (uint32_t)((rng_state * 2685821657736338717u) >> 32);
}

UNUSED static uint32_t rng_below(uint32_t n)
{
    return (uint32_t)((uint64_t)rng_u32() * n >> 32);
}

/* Uniform in [-1, 1). */
UNUSED static float rng_unit(void)
{
    return (float)((double)rng_u32() / 2147483648.0 - 1.0);
}

UNUSED static float bits_to_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

enum kind { KIND_PLAIN, KIND_WIDE, KIND_TINY, KIND_SPECIAL, KIND_ANY_BITS, KIND_COUNT };

UNUSED static float rng_value(enum kind kind)
{
    static const float special[] = {
        0.0f,        -0.0f,       1.0f,        -1.0f,      INFINITY,     -INFINITY, NAN,
        0x1p-149f,   -0x1p-149f,  0x1p-126f,   3.4e38f,    -3.4e38f,     65504.0f,  65520.0f,
        88.722832f,  88.7228394f, -87.336540f, -87.33655f, 0.625f,       -0.625f,   0.927734375f,
        -0.9277344f, 6e-8f,       2.98e-8f,    -103.97f,   5.9604645e-8f};
    switch (kind) {
    case KIND_PLAIN:
        return 4.0f * rng_unit();
    case KIND_WIDE:
        return ldexpf(rng_unit(), (int)rng_below(80) - 40);
    case KIND_TINY:
        return ldexpf(rng_unit(), -149 + (int)rng_below(30));
    case KIND_SPECIAL:
        if (rng_below(4))
            return 100.0f * rng_unit();
        return special[rng_below(sizeof(special) / sizeof(special[0]))];
    default:
        return bits_to_float(rng_u32());
    }
}

UNUSED static void rng_fill(float *x, size_t n, enum kind kind)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_value(kind);
}

/* ---- half floats by arithmetic, independent of the code under test ---- */

UNUSED static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31)
        magnitude = mantissa ? NAN : INFINITY;
    return (float)(h & 0x8000 ? -magnitude : magnitude);
}

/* The nearest half, ties to even. */
UNUSED static uint16_t half_nearest(float f)
{
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    double magnitude = fabs((double)f);
    if (!(magnitude < 65520.0))
        return (uint16_t)(sign | (isnan(f) ? 0x7e00 : 0x7c00));
    int exponent = magnitude >= 0x1p-14 ? ilogb(magnitude) : -14;
    int steps = (int)nearbyint(ldexp(magnitude, 10 - exponent)); /* of 2^(exponent - 10) */
    int normal = magnitude >= 0x1p-14 ? (exponent + 14) * 1024 : 0;
    return (uint16_t)(sign | (normal + steps));
}

/* ---- buffers between two unreadable pages ---- */

struct guarded {
    uint8_t *map;
    size_t map_bytes;
    void *p;
};

enum guard { GUARD_END, GUARD_BEGIN, GUARD_COUNT }; /* which end touches the guard page */

UNUSED static struct guarded guarded_alloc(size_t bytes, enum guard side)
{
    const size_t page = 4096;
    size_t inner = (bytes + page - 1) / page * page;
    struct guarded g = {.map_bytes = inner + 2 * page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map, page, PROT_NONE) != 0 ||
        mprotect(g.map + page + inner, page, PROT_NONE) != 0) {
        perror("guarded_alloc");
        exit(1);
    }
    g.p = g.map + page + (side == GUARD_END ? inner - bytes : 0);
    return g;
}

UNUSED static struct guarded guarded_copy(const void *src, size_t bytes, enum guard side)
{
    struct guarded g = guarded_alloc(bytes, side);
    if (bytes)
        memcpy(g.p, src, bytes);
    return g;
}

UNUSED static void guarded_free(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
}

UNUSED static void *must_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 64) != 0) {
        perror("must_alloc");
        exit(1);
    }
    return p;
}

/* ---- comparison: every bit, but any NaN equals any NaN ---- */

UNUSED static uint32_t canonical_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return f != f ? 0x7fc00000u : u;
}

UNUSED static bool same_float(float a, float b)
{
    return canonical_bits(a) == canonical_bits(b);
}

UNUSED static bool same_floats(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_float(a[i], b[i])) {
            note("element %zu of %zu: %a and %a", i, n, (double)a[i], (double)b[i]);
            return false;
        }
    return true;
}

/* False for NaN, whatever the limit. */
UNUSED static bool close_to(double found, double wanted, double limit)
{
    return fabs(found - wanted) <= limit;
}

/* ---- tiers ---- */

struct tiers {
    const struct vf_kernels *scalar;
    const struct vf_kernels *other[VF_KERNEL_TIER_COUNT]; /* all that can run here */
    int other_count;
};

UNUSED static struct tiers tiers_available(void)
{
    struct tiers t = {0};
    struct vf_err err = {0};
    setenv("VFLOW_EMULATE_AVX512", "1", 1);
    if (vf_kernels_get(VF_KERNEL_SCALAR, &t.scalar, &err) != VF_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (int tier = VF_KERNEL_AVX2; tier < VF_KERNEL_TIER_COUNT; tier++) {
        if (vf_kernels_get(tier, &t.other[t.other_count], &err) == VF_OK) {
            note("tier %s", t.other[t.other_count]->name);
            t.other_count++;
        } else {
            note("not here: %s", err.text);
        }
    }
    return t;
}

#endif
