/* Timing of the matrix kernels on one core against a plain read of the same buffer.
 *
 *   bench_matmul [TIER [ROWS COLS]]      defaults: auto, 32768 x 4096
 *
 * The matrix is much larger than the caches. The ceiling sums the buffer as 64-bit integers with
 * the compiler's vectors. Each figure is the best of several passes; ceiling and kernel alternate,
 * so that both see the same machine.
 */
#include "common/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SECONDS  0.8 /* per figure */
#define COLS_MAX 16u

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
        __builtin_prefetch(p + i + 6144);
        __builtin_prefetch(p + i + 6144 + 64);
        __builtin_prefetch(p + i + 6144 + 128);
        __builtin_prefetch(p + i + 6144 + 192);
        for (int j = 0; j < 8; j++)
            sum[j] += *(const vec *)(p + i + 32 * j);
    }
    vec all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    return all[0] + all[1] + all[2] + all[3];
}

static volatile uint64_t sink;

static double time_read(const struct vf_matrix *m, size_t bytes)
{
    double begin = now_s();
    sink += read_sum(m->data, bytes);
    return now_s() - begin;
}

/* ---- the kernels ---- */

static float *x, *scale, *y;
static int8_t *q;
static int32_t *sum;

static double time_matmul(vf_matmul_fn *matmul, const struct vf_matrix *m, uint32_t n_col)
{
    uint32_t stride = vf_col_groups(m->cols) * VF_RECORD_COLS;
    struct vf_acts acts = {x, q, scale, sum, n_col, m->cols, stride};
    double begin = now_s();
    matmul(m, &acts, 0, vf_row_blocks(m->rows), y, m->rows);
    return now_s() - begin;
}

static void bench(const struct vf_kernels *k, const struct vf_matrix *m, const char *activations,
                  vf_matmul_fn *matmul)
{
    static const uint32_t n_cols[] = {1, 2, 4, 16};
    size_t bytes = vf_matrix_bytes(m->quant, m->rows, m->cols);
    for (size_t i = 0; i < sizeof(n_cols) / sizeof(n_cols[0]); i++) {
        double read_s = 1e9, matmul_s = 1e9;
        for (double spent = 0.0; spent < SECONDS;) {
            double r = time_read(m, bytes);
            double s = time_matmul(matmul, m, n_cols[i]);
            read_s = r < read_s ? r : read_s;
            matmul_s = s < matmul_s ? s : matmul_s;
            spent += r + s;
        }
        double gb = (double)bytes * 1e-9;
        double gmac = (double)m->rows * m->cols * n_cols[i] * 1e-9;
        printf("%-10s %-3s weights %-3s activations %2u columns: %6.2f GB/s, read %6.2f GB/s, "
               "%3.0f%%, %6.1f Gmac/s\n",
               k->name, vf_quant_name(m->quant), activations, n_cols[i], gb / matmul_s, gb / read_s,
               100.0 * read_s / matmul_s, gmac / matmul_s);
    }
}

static void fill_activations(const struct vf_kernels *k, uint32_t stride)
{
    for (size_t i = 0; i < (size_t)COLS_MAX * stride; i++)
        x[i] = (float)((int)(i * 2654435761u >> 16 & 1023) - 512) / 512.0f;
    k->quantize_q8(x, COLS_MAX * stride, q, scale, sum);
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

int main(int argc, char **argv)
{
    const struct vf_kernels *k = NULL;
    struct vf_err err = {0};
    int tier = VF_KERNEL_AUTO;
    for (int i = 0; argc > 1 && vf_kernel_tier_words[i]; i++)
        if (strcmp(argv[1], vf_kernel_tier_words[i]) == 0)
            tier = i;
    uint32_t rows = argc > 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 32768;
    uint32_t cols = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 4096;
    if (vf_kernels_get(tier, &k, &err) != VF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    uint32_t stride = vf_col_groups(cols) * VF_RECORD_COLS;
    x = allocate((size_t)COLS_MAX * stride * sizeof(*x));
    q = allocate((size_t)COLS_MAX * stride);
    scale = allocate((size_t)COLS_MAX * stride / 32 * sizeof(*scale));
    sum = allocate((size_t)COLS_MAX * stride / 32 * sizeof(*sum));
    y = allocate((size_t)COLS_MAX * rows * sizeof(*y));
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
