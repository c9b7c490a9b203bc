/* Timing of the matrix kernels on one core against a plain read of the same buffer and against the
 * vector units.
 *
 *   bench_matmul [TIER [ROWS COLS [N,N,...]]]      defaults: auto, 65536 x 4096, 1,2,4,16,64,512
 *
 * N are counts of activation columns, at most 512. The matrix is much larger than the caches. The
 * ceiling of reading sums the buffer as 64-bit integers. The ceiling of computing is AVX2's for q4
 * weights with q8 activations: the instructions of 512 multiply-adds, with all operands in
 * registers. Kernel and ceilings take turns, a few stripes each, so that all see the same machine;
 * a figure is the median over the turns, which a preempted one doesn't move. The last column is
 * the rate of the tenth fastest turn of a hundred.
 */
#include "common/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SECONDS     1.0 /* per figure */
#define TURN_BLOCKS 32u /* row blocks: four stripes */
#define SAMPLES_MAX 65536
#define COLS_MAX    512u
#define COUNTS_MAX  32u

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *allocate(size_t bytes)
{
    size_t size = (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
    void *p = aligned_alloc(2u << 20, size);
    if (!p) {
        fprintf(stderr, "no memory for %zu bytes\n", size);
        exit(1);
    }
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 0, size);
    return p;
}

/* ---- the ceiling ---- */

typedef uint64_t vec __attribute__((vector_size(32)));

__attribute__((target("avx2"))) static uint64_t read_sum(const uint8_t *p, size_t bytes)
{
    vec sum[8] = {{0}};
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        for (int j = 0; j < 8; j++)
            sum[j] += *(const vec *)(p + i + 32 * j);
    }
    vec all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    return all[0] + all[1] + all[2] + all[3];
}

static volatile uint64_t sink;

#define ROOF_ROUNDS 20000u

/* 512 multiply-adds of q4 weights and q8 codes for sixteen rows: 16 products of bytes and as many
 * additions, then 2 each of the widening, conversion, scale and multiply-add. */
static void compute_roof(void)
{
#if defined(__x86_64__)
    for (uint32_t i = 0; i < ROOF_ROUNDS; i++)
        __asm__ volatile(".rept 2\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm2\n vpaddw %%ymm2, %%ymm8, %%ymm8\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm3\n vpaddw %%ymm3, %%ymm9, %%ymm9\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm4\n vpaddw %%ymm4, %%ymm10, %%ymm10\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm5\n vpaddw %%ymm5, %%ymm11, %%ymm11\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm2\n vpaddw %%ymm2, %%ymm12, %%ymm12\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm3\n vpaddw %%ymm3, %%ymm13, %%ymm13\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm4\n vpaddw %%ymm4, %%ymm14, %%ymm14\n"
                         "vpmaddubsw %%ymm0, %%ymm1, %%ymm5\n vpaddw %%ymm5, %%ymm15, %%ymm15\n"
                         "vpmaddwd %%ymm0, %%ymm1, %%ymm2\n vcvtdq2ps %%ymm2, %%ymm2\n"
                         "vmulps %%ymm0, %%ymm1, %%ymm3\n vfmadd231ps %%ymm2, %%ymm3, %%ymm6\n"
                         ".endr\n vzeroupper" ::
                             : "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm8", "xmm9", "xmm10",
                               "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

/* ---- the kernels ---- */

static struct {
    float *x, *scale, *y;
    int8_t *q;
    int32_t *sum;
} buffers;

struct samples {
    double rate[SAMPLES_MAX]; /* GB/s of matrix bytes */
    size_t count;
};

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double quantile(struct samples *s, double part)
{
    qsort(s->rate, s->count, sizeof(s->rate[0]), ascending);
    return s->rate[(size_t)((double)(s->count - 1) * part)];
}

static void take_turn(struct samples *s, vf_matmul_fn *matmul, const struct vf_matrix *m,
                      const struct vf_acts *acts, uint32_t rb)
{
    uint32_t left = vf_row_blocks(m->rows) - rb;
    uint32_t end = rb + (left < TURN_BLOCKS ? left : TURN_BLOCKS);
    size_t offset = vf_record_offset(m->quant, m->rows, m->cols, rb, 0);
    size_t bytes = (size_t)(end - rb) * vf_col_groups(m->cols) * vf_record_bytes(m->quant);
    double begin = now_s();
    if (matmul)
        matmul(m, acts, rb, end, buffers.y, m->rows);
    else
        sink += read_sum(m->data + offset, bytes);
    if (s->count < SAMPLES_MAX)
        s->rate[s->count++] = (double)bytes * 1e-9 / (now_s() - begin);
}

static void take_roof_turn(struct samples *s)
{
    double begin = now_s();
    compute_roof();
    if (s->count < SAMPLES_MAX)
        s->rate[s->count++] = ROOF_ROUNDS * 512e-9 / (now_s() - begin);
}

static struct {
    uint32_t n_col[COUNTS_MAX];
    uint32_t count;
} columns = {{1, 2, 4, 16, 64, 512}, 6};

static void bench(const struct vf_kernels *k, const struct vf_matrix *m, const char *activations,
                  vf_matmul_fn *matmul)
{
    static struct samples product, read, roof;
    uint32_t stride = vf_col_groups(m->cols) * VF_RECORD_COLS;
    for (uint32_t i = 0; i < columns.count; i++) {
        uint32_t n_col = columns.n_col[i];
        struct vf_acts acts = {buffers.x, buffers.q, buffers.scale, buffers.sum,
                               n_col,     m->cols,   stride};
        product.count = read.count = roof.count = 0;
        uint32_t pass = 0; /* turns swap roles from pass to pass */
        for (double begin = now_s(); pass < 2 || now_s() - begin < SECONDS; pass++)
            for (uint32_t rb = 0; rb < vf_row_blocks(m->rows); rb += TURN_BLOCKS) {
                bool reads = (pass + rb / TURN_BLOCKS) % 2;
                take_roof_turn(&roof);
                take_turn(reads ? &read : &product, reads ? NULL : matmul, m, &acts, rb);
            }
        double rate = quantile(&product, 0.5), ceiling = quantile(&read, 0.5);
        double mac_per_byte =
            (double)m->rows * m->cols * n_col / (double)vf_matrix_bytes(m->quant, m->rows, m->cols);
        double units = quantile(&roof, 0.5);
        printf("%-10s %-3s weights %-3s activations %3u columns: %6.2f GB/s, read %6.2f GB/s, "
               "%3.0f%%; %6.1f Gmac/s, units %6.1f, %3.0f%%; best %6.2f GB/s, %6.1f Gmac/s\n",
               k->name, vf_quant_name(m->quant), activations, n_col, rate, ceiling,
               100.0 * rate / ceiling, rate * mac_per_byte, units,
               100.0 * rate * mac_per_byte / units, quantile(&product, 0.9),
               quantile(&product, 0.9) * mac_per_byte);
    }
}

static void fill_activations(const struct vf_kernels *k, uint32_t stride)
{
    for (size_t i = 0; i < (size_t)COLS_MAX * stride; i++)
        buffers.x[i] = (float)((int)(i * 2654435761u >> 16 & 1023) - 512) / 512.0f;
    k->quantize_q8(buffers.x, COLS_MAX * stride, buffers.q, buffers.scale, buffers.sum);
}

/* Scales of about one, any codes. */
static void fill_matrix(uint8_t *data, enum vf_quant quant, size_t bytes)
{
    uint32_t record = vf_record_bytes(quant);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data[i] = (uint8_t)state;
        bool scaled = quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8;
        if (scaled && i % record < 32)
            data[i] = i % 2 ? 0x3c : (uint8_t)state;
        else if (!scaled && i % 2)
            data[i] = 0x3c;
    }
}

static void parse_columns(const char *list)
{
    columns.count = 0;
    for (char *end; *list && columns.count < COUNTS_MAX; list = *end ? end + 1 : end) {
        unsigned long n = strtoul(list, &end, 10);
        if (end == list || n < 1 || n > COLS_MAX) {
            fprintf(stderr, "column counts are 1 to %u, separated by commas\n", COLS_MAX);
            exit(2);
        }
        columns.n_col[columns.count++] = (uint32_t)n;
    }
}

int main(int argc, char **argv)
{
    const struct vf_kernels *k = NULL;
    struct vf_err err = {0};
    int tier = VF_KERNEL_AUTO;
    for (int i = 0; argc > 1 && vf_kernel_tier_words[i]; i++)
        if (strcmp(argv[1], vf_kernel_tier_words[i]) == 0)
            tier = i;
    uint32_t rows = argc > 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 65536;
    uint32_t cols = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 4096;
    if (argc > 4)
        parse_columns(argv[4]);
    if (vf_kernels_get(tier, &k, &err) != VF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    uint32_t stride = vf_col_groups(cols) * VF_RECORD_COLS;
    buffers.x = allocate((size_t)COLS_MAX * stride * sizeof(float));
    buffers.q = allocate((size_t)COLS_MAX * stride);
    buffers.scale = allocate((size_t)COLS_MAX * stride / 32 * sizeof(float));
    buffers.sum = allocate((size_t)COLS_MAX * stride / 32 * sizeof(int32_t));
    buffers.y = allocate((size_t)COLS_MAX * rows * sizeof(float));
    fill_activations(k, stride);
    for (int quant = VF_QUANT_COUNT - 1; quant >= 0; quant--) {
        size_t bytes = vf_matrix_bytes(quant, rows, cols);
        struct vf_matrix m = {allocate(bytes), rows, cols, quant};
        fill_matrix((uint8_t *)m.data, quant, bytes);
        if (quant == VF_QUANT_Q4 || quant == VF_QUANT_Q8)
            bench(k, &m, "q8", k->matmul_q8[quant]);
        bench(k, &m, "f32", k->matmul_f32[quant]);
        free((void *)m.data);
    }
    return 0;
}
