#include "bench/compute/rig.h"

#include "common/base/clock.h"
#include "common/base/util.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES    (2ull << 20)
#define SLOT_BYTES    (8ull << 20) /* about: long beside a wake-up, short beside a time slice */
#define STRIPE_BLOCKS (VF_TILE_ROWS / VF_RECORD_ROWS)
#define SLOTS_MIN     16u /* for a pass in which every arm has several turns */

const struct rig_named_shape rig_shapes[] = {
    {"8b-attention", 8192, 8192}, /* arch2_4_8k_4l, 8.34 G parameters */
    {"8b-gate-up", 32768, 8192},
    {"8b-dense-down", 8192, 32768},
    {"3b-attention", 3072, 3072}, /* dense-3b */
    {"3b-key-value", 1024, 3072},
    {"3b-gate-up", 8192, 3072},
    {"3b-down", 3072, 8192},
    {"olmoe-attention", 2048, 2048}, /* olmoe-1b-7b */
    {"olmoe-gate-up", 1024, 2048},
    {"olmoe-down", 2048, 1024},
    {NULL, 0, 0},
};

enum vf_code rig_shape_find(const char *name, const struct rig_named_shape **out,
                            struct vf_err *err)
{
    char known[256] = "";
    for (const struct rig_named_shape *s = rig_shapes; s->name; s++) {
        if (strcmp(s->name, name) == 0) {
            *out = s;
            return VF_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", s->name);
    }
    return vf_err_set(err, VF_ERR_USAGE, "--shape: '%s' found, allowed: %s", name, known);
}

/* ---- memory ------------------------------------------------------------------------------- */

void *rig_memory(uint64_t bytes)
{
    uint64_t size = vf_round_up(bytes, HUGE_BYTES);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

void rig_memory_free(void *p, uint64_t bytes)
{
    if (p)
        munmap(p, vf_round_up(bytes, HUGE_BYTES));
}

#define X_BYTES     ((uint64_t)RIG_COLUMNS_MAX * RIG_COLS_MAX * sizeof(float))
#define Q_BYTES     ((uint64_t)RIG_COLUMNS_MAX * RIG_COLS_MAX)
#define GROUP_BYTES ((uint64_t)RIG_COLUMNS_MAX * RIG_COLS_MAX / VF_RECORD_COLS * 4)
#define Y_BYTES     ((uint64_t)RIG_COLUMNS_MAX * RIG_ROWS_MAX * sizeof(float))

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Codes as the scalar tier makes them: the same for every tier that reads them. */
static enum vf_code fill_activations(struct rig *rig, struct vf_err *err)
{
    const struct vf_kernels *k;
    uint64_t state = 88172645463325252u;
    enum vf_code code = vf_kernels_get(VF_KERNEL_SCALAR, &k, err);
    if (code)
        return code;
    for (size_t i = 0; i < (size_t)RIG_COLUMNS_MAX * RIG_COLS_MAX; i++)
        rig->x[i] = (float)(int32_t)next_random(&state) * 0x1p-31f;
    k->quantize_q8(rig->x, RIG_COLUMNS_MAX * RIG_COLS_MAX, rig->q, rig->scale, rig->sum);
    return VF_OK;
}

enum vf_code rig_open(struct rig *rig, uint32_t threads, uint64_t bytes, struct vf_err *err)
{
    *rig = (struct rig){.bytes = bytes, .quant = VF_QUANT_COUNT};
    rig->weights = rig_memory(bytes);
    rig->x = rig_memory(X_BYTES);
    rig->q = rig_memory(Q_BYTES);
    rig->scale = rig_memory(GROUP_BYTES);
    rig->sum = rig_memory(GROUP_BYTES);
    rig->y = rig_memory(Y_BYTES);
    if (!rig->weights || !rig->x || !rig->q || !rig->scale || !rig->sum || !rig->y)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %llu MiB of weights",
                          (unsigned long long)(bytes >> 20));
    enum vf_code code = fill_activations(rig, err);
    return code ? code : vf_pool_create(threads, &rig->pool, err);
}

void rig_close(struct rig *rig)
{
    vf_pool_destroy(rig->pool);
    rig_memory_free(rig->weights, rig->bytes);
    rig_memory_free(rig->x, X_BYTES);
    rig_memory_free(rig->q, Q_BYTES);
    rig_memory_free(rig->scale, GROUP_BYTES);
    rig_memory_free(rig->sum, GROUP_BYTES);
    rig_memory_free(rig->y, Y_BYTES);
}

/* A half of magnitude 2^-6 to 2^-5 out of random bits. */
static uint16_t small_half(uint64_t r)
{
    return (uint16_t)(0x2400u | (r & 0x83ffu));
}

static void fill_record(uint8_t *record, enum vf_quant quant, uint64_t *state)
{
    uint32_t bytes = vf_record_bytes(quant);
    bool scaled = quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8;
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t r = next_random(state);
        memcpy(record + i, &r, sizeof r);
    }
    for (uint32_t i = 0; i < bytes && quant == VF_QUANT_F32; i += 4) {
        float w = (float)(int32_t)next_random(state) * 0x1p-36f;
        memcpy(record + i, &w, sizeof w);
    }
    for (uint32_t i = 0; quant != VF_QUANT_F32 && i < (scaled ? 2 * VF_RECORD_ROWS : bytes);
         i += 2) {
        uint16_t h = (uint16_t)(record[i] | record[i + 1] << 8);
        h = small_half(scaled ? h & 0x7fffu : h);
        memcpy(record + i, &h, sizeof h);
    }
}

struct vf_acts rig_acts(const struct rig *rig, uint32_t cols, uint32_t n_col)
{
    VF_ASSERT(n_col <= RIG_COLUMNS_MAX && cols <= RIG_COLS_MAX && cols % VF_RECORD_COLS == 0);
    return (struct vf_acts){rig->x, rig->q, rig->scale, rig->sum, n_col, cols, cols};
}

struct items {
    rig_item_fn *fn;
    void *ctx;
    uint32_t count;
    _Atomic uint32_t next;
};

static void take_items(void *ctx, uint32_t thread)
{
    (void)thread;
    struct items *items = ctx;
    for (;;) {
        uint32_t item = atomic_fetch_add_explicit(&items->next, 1, memory_order_relaxed);
        if (item >= items->count)
            return;
        items->fn(items->ctx, item);
    }
}

void rig_run_items(const struct rig *rig, rig_item_fn *fn, void *ctx, uint32_t count)
{
    struct items items = {fn, ctx, count, 0};
    vf_pool_run(rig->pool, take_items, &items);
}

/* ---- the plain read ------------------------------------------------------------------------- */

#define PIECE_BYTES (1u << 20)

struct read_pass {
    const uint8_t *bytes;
    enum vf_read_way way;
    atomic_uint_fast64_t sum; /* so that the reads can't be optimised away */
};

static void read_piece(void *ctx, uint32_t piece)
{
    struct read_pass *pass = ctx;
    const uint64_t *words = (const uint64_t *)(pass->bytes + (size_t)piece * PIECE_BYTES);
    atomic_fetch_add_explicit(&pass->sum,
                              vf_bandwidth_read(pass->way, words, PIECE_BYTES / sizeof *words),
                              memory_order_relaxed);
}

double rig_read_pass(const struct rig *rig, enum vf_read_way way)
{
    struct read_pass pass = {.bytes = rig->weights, .way = way};
    uint32_t pieces = (uint32_t)(rig->bytes / PIECE_BYTES);
    uint64_t began_ns = vf_now_ns();
    rig_run_items(rig, read_piece, &pass, pieces);
    uint64_t ns = vf_now_ns() - began_ns;
    return pass.sum ? (double)pieces * PIECE_BYTES / (double)ns : 0;
}

/* Sets the rig's way of reading its weights, which have been written. */
static void choose_way(struct rig *rig)
{
    double best[VF_READ_WAYS] = {0};
    for (int pass = 0; pass < 3 * VF_READ_WAYS; pass++) {
        enum vf_read_way way = pass % VF_READ_WAYS;
        double speed = rig_read_pass(rig, way);
        best[way] = speed > best[way] ? speed : best[way];
    }
    rig->way = best[VF_READ_SIDE_BY_SIDE] > best[VF_READ_IN_ORDER] ? VF_READ_SIDE_BY_SIDE
                                                                   : VF_READ_IN_ORDER;
}

void rig_fill(struct rig *rig, enum vf_quant quant)
{
    uint64_t state = 0x9e3779b97f4a7c15u, record = vf_record_bytes(quant);
    if (rig->quant == quant)
        return;
    for (uint64_t at = 0; at + record <= rig->bytes; at += record)
        fill_record(rig->weights + at, quant, &state);
    rig->quant = quant;
    choose_way(rig);
}

/* ---- slots and turns ------------------------------------------------------------------------ */

struct rig_slots rig_slots(uint32_t rows, uint32_t cols, enum vf_quant quant, uint64_t bytes,
                           uint32_t threads)
{
    VF_ASSERT(rows % (VF_TILE_ROWS * RIG_PART_STRIPES) == 0 && rows <= RIG_ROWS_MAX);
    struct rig_slots s = {.rows = rows, .cols = cols, .quant = quant};
    s.matrix_bytes = vf_matrix_bytes(quant, rows, cols);
    s.stripes = rows / VF_TILE_ROWS;
    s.stripe_bytes = s.matrix_bytes / s.stripes;
    uint64_t total = bytes / s.matrix_bytes * s.stripes;
    uint64_t wanted = vf_min_u64(vf_div_up(SLOT_BYTES, s.stripe_bytes), total / SLOTS_MIN);
    uint32_t step = threads * RIG_PART_STRIPES;
    s.per_slot = (uint32_t)vf_max_u64(wanted / step * step, step);
    s.part_count = s.per_slot / RIG_PART_STRIPES;
    s.slot_count = (uint32_t)(total / s.per_slot);
    s.slot_bytes = s.per_slot * s.stripe_bytes;
    VF_ASSERT(s.slot_count > 0);
    return s;
}

struct rig_part rig_part_at(const struct rig_slots *s, uint32_t slot, uint32_t i)
{
    uint64_t stripe = (uint64_t)slot * s->per_slot + (uint64_t)i * RIG_PART_STRIPES;
    uint32_t rb = (uint32_t)(stripe % s->stripes) * STRIPE_BLOCKS;
    return (struct rig_part){stripe / s->stripes * s->matrix_bytes, rb,
                             rb + RIG_PART_STRIPES * STRIPE_BLOCKS};
}

/* Pass p gives slot i to arm (p + i) mod count; seconds NULL: a warm-up. */
static void one_pass(struct rig_arm *arms, uint32_t count, uint32_t slot_count, uint32_t pass,
                     bool counts)
{
    uint64_t ns[8] = {0};
    uint32_t turns[8] = {0};
    VF_ASSERT(count <= VF_ARRAY_LEN(ns));
    uint32_t rounds =
        (slot_count + count - 1) / count; /* few slots: each arm has one all the same */
    for (uint32_t i = 0; i < rounds * count; i++) {
        uint32_t a = (pass + i) % count;
        uint64_t began = vf_now_ns();
        arms[a].run(arms[a].ctx, i % slot_count);
        ns[a] += vf_now_ns() - began;
        turns[a]++;
    }
    for (uint32_t a = 0; counts && a < count; a++)
        arms[a].seconds[pass] = (double)ns[a] * 1e-9 / turns[a];
}

uint32_t rig_take_turns(struct rig_arm *arms, uint32_t count, uint32_t slot_count, double seconds)
{
    uint32_t pass = 0;
    one_pass(arms, count, slot_count, 0, false);
    for (uint64_t began = vf_now_ns();
         pass < RIG_PASSES_MIN ||
         (pass < RIG_PASSES_MAX && (double)(vf_now_ns() - began) * 1e-9 < seconds);
         pass++)
        one_pass(arms, count, slot_count, pass, true);
    return pass;
}

struct bench_stat rig_rate(const struct rig_arm *arm, uint32_t passes, double amount)
{
    double rate[RIG_PASSES_MAX];
    for (uint32_t i = 0; i < passes; i++)
        rate[i] = amount / arm->seconds[i];
    return bench_stat_of(rate, passes);
}

struct bench_stat rig_speedup(const struct rig_arm *a, const struct rig_arm *b, uint32_t passes)
{
    double ratio[RIG_PASSES_MAX];
    for (uint32_t i = 0; i < passes; i++)
        ratio[i] = b->seconds[i] / a->seconds[i];
    return bench_stat_of(ratio, passes);
}

/* ---- arms --------------------------------------------------------------------------------- */

struct turn {
    union {
        struct rig_read *read;
        struct rig_product *product;
    };
    uint32_t slot;
    _Atomic uint64_t sum;
};

static void read_part(void *ctx, uint32_t item)
{
    struct turn *t = ctx;
    const struct rig_slots *s = t->read->slots;
    struct rig_part at = rig_part_at(s, t->slot, item);
    uint64_t offset = at.offset + at.rb_begin / STRIPE_BLOCKS * s->stripe_bytes;
    const uint64_t *words = (const uint64_t *)(t->read->rig->weights + offset);
    atomic_fetch_add_explicit(&t->sum,
                              vf_bandwidth_read(t->read->rig->way, words,
                                                RIG_PART_STRIPES * s->stripe_bytes / sizeof *words),
                              memory_order_relaxed);
}

void rig_run_read(void *ctx, uint32_t slot)
{
    struct rig_read *read = ctx;
    struct turn t = {.read = read, .slot = slot};
    rig_run_items(read->rig, read_part, &t, read->slots->part_count);
    read->sum += t.sum;
}

static void multiply_part(void *ctx, uint32_t item)
{
    struct turn *t = ctx;
    const struct rig_slots *s = t->product->slots;
    struct rig_part at = rig_part_at(s, t->slot, item);
    struct vf_matrix m = {t->product->rig->weights + at.offset, s->rows, s->cols, s->quant};
    t->product->matmul(&m, &t->product->acts, at.rb_begin, at.rb_end, t->product->rig->y, s->rows);
}

void rig_run_product(void *ctx, uint32_t slot)
{
    struct rig_product *product = ctx;
    struct turn t = {.product = product, .slot = slot};
    rig_run_items(product->rig, multiply_part, &t, product->slots->part_count);
}
