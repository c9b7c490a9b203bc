/* Timing of attention_block on one core: decode against a plain read of the same keys and values,
 * prefill in multiply-adds.
 *
 *   bench_attention [TIER [CONTEXT [HEAD_DIM [HEADS]]]]   defaults: auto, 4096, 128, 3
 *
 * Keys and values are f16; KV heads are laid one after the other until they fill 256 MiB, so that
 * nothing waits in a cache. HEADS query heads share a KV head. Decode is one column; prefill is
 * 1, 4 and 16 columns that see all keys. Kernel and ceiling take turns; a figure is the median.
 */
#include "common/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SECONDS     1.5 /* per figure */
#define KV_BYTES    (256u << 20)
#define COLUMNS_MAX 16u
#define SAMPLES_MAX 65536

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

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

struct bench {
    const struct vf_kernels *k;
    uint8_t *kv;
    size_t block_bytes; /* of the keys of a block, and of its values */
    uint32_t blocks;    /* of one KV head */
    struct vf_attn_args args;
};

/* All blocks of the KV head that begins at `kv`. */
static void attend(const struct bench *b, const uint8_t *kv, uint32_t n_col, uint32_t heads)
{
    struct vf_attn_args a = b->args;
    a.heads = heads;
    a.n_q = heads * n_col;
    for (uint32_t i = 0; i < b->blocks; i++) {
        a.k = kv + 2 * i * b->block_bytes;
        a.v = kv + (2 * i + 1) * b->block_bytes;
        a.next_k = kv + 2 * (i + 1) * b->block_bytes;
        b->k->attention_block(&a);
    }
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *x, size_t count)
{
    qsort(x, count, sizeof(*x), ascending);
    return x[count / 2];
}

static void bench(const struct bench *b, uint32_t n_col, uint32_t heads)
{
    static double product[SAMPLES_MAX], read[SAMPLES_MAX];
    size_t head_bytes = 2 * b->blocks * b->block_bytes, turns = KV_BYTES / head_bytes / 2 * 2;
    size_t count[2] = {0};
    for (double begin = now_s(); count[0] < 2 || now_s() - begin < SECONDS;)
        for (size_t i = 0; i < turns && count[0] < SAMPLES_MAX && count[1] < SAMPLES_MAX; i++) {
            const uint8_t *kv = b->kv + i * head_bytes;
            bool reads = (i + count[0] / turns) % 2;
            double start = now_s();
            if (reads)
                sink += read_sum(kv, head_bytes);
            else
                attend(b, kv, n_col, heads);
            (reads ? read : product)[count[reads]++] = now_s() - start;
        }
    double seconds = median(product, count[0]), ceiling = median(read, count[1]);
    double macs = 2.0 * b->blocks * VF_ATTN_BLOCK * b->args.head_dim * heads * n_col;
    printf("%-10s %u heads x %2u columns, %u keys: %6.2f GB/s, read %6.2f GB/s, %3.0f%%; "
           "%5.1f Gmac/s\n",
           b->k->name, heads, n_col, b->blocks * VF_ATTN_BLOCK, (double)head_bytes * 1e-9 / seconds,
           (double)head_bytes * 1e-9 / ceiling, 100.0 * ceiling / seconds, macs * 1e-9 / seconds);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct vf_err err = {0};
    int tier = VF_KERNEL_AUTO;
    for (int i = 0; argc > 1 && vf_kernel_tier_words[i]; i++)
        if (strcmp(argv[1], vf_kernel_tier_words[i]) == 0)
            tier = i;
    uint32_t context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4096;
    uint32_t dim = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 128;
    uint32_t heads = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 3;
    if (vf_kernels_get(tier, &b.k, &err) != VF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    b.blocks = context / VF_ATTN_BLOCK;
    b.block_bytes = (size_t)VF_ATTN_BLOCK * dim * sizeof(uint16_t);
    if (b.blocks == 0 || dim == 0 || heads == 0 || 4 * b.blocks * b.block_bytes > KV_BYTES) {
        fprintf(stderr, "a context of at least %u, and two KV heads in %u MiB\n", VF_ATTN_BLOCK,
                KV_BYTES >> 20);
        return 2;
    }
    b.kv = aligned_alloc(2u << 20, KV_BYTES);
    float *q = calloc((size_t)COLUMNS_MAX * heads * (dim + 2), sizeof(float));
    float *out = calloc((size_t)COLUMNS_MAX * heads * dim, sizeof(float));
    if (!b.kv || !q || !out) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    madvise(b.kv, KV_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < KV_BYTES / 2; i++) /* halves of about 1/8, of both signs */
        ((uint16_t *)b.kv)[i] = (uint16_t)(0x3000 | (i * 2654435761u >> 16 & 0x83ff));
    for (size_t i = 0; i < (size_t)COLUMNS_MAX * heads * dim; i++)
        q[i] = (float)((int)(i * 2654435761u >> 16 & 1023) - 512) / 512.0f;
    float *max = q + (size_t)COLUMNS_MAX * heads * dim;
    b.args = (struct vf_attn_args){.q = q,
                                   .q_stride = dim,
                                   .q_column_stride = (size_t)heads * dim,
                                   .kv_f16 = true,
                                   .head_dim = dim,
                                   .key_end = VF_ATTN_BLOCK,
                                   .scale = 0.1f,
                                   .max = max,
                                   .sum = max + (size_t)COLUMNS_MAX * heads,
                                   .out = out,
                                   .out_stride = dim};
    for (uint32_t n_col = 1; n_col <= COLUMNS_MAX; n_col *= 4)
        bench(&b, n_col, heads);
    free(b.kv);
    free(q);
    free(out);
    return 0;
}
