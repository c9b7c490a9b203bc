/* Parallel regions: loops over items on the pool, matrix products split by rows, activations.
 */
#include "stage_worker/internal.h"

#include "common/util.h"

/* Below this much memory traffic a loop costs less than waking a second thread. */
#define PARALLEL_BYTES_MIN (48u << 10)
/* Items per thread and region: enough to even out a slow core, few enough to stream. */
#define ITEMS_PER_THREAD 4u
#define STRIPE_BLOCKS    (VF_TILE_ROWS / VF_RECORD_ROWS)

void run_parallel(struct vf_executor *ex, vf_pool_fn *fn, void *ctx, uint32_t item_count,
                  uint64_t work_bytes)
{
    if (work_bytes >= PARALLEL_BYTES_MIN) {
        vf_pool_run(ex->pool, fn, ctx, item_count);
        return;
    }
    for (uint32_t i = 0; i < item_count; i++)
        fn(ctx, i, 0);
}

/* m is one of the job's matrices, which may be stored differently. */
static vf_matmul_fn *matmul_for(const struct vf_executor *ex, const struct matmul_job *job,
                                const struct vf_matrix *m)
{
    return ex->p.q8 && !job->exact_f32 ? ex->p.kernels->matmul_q8[m->quant]
                                       : ex->p.kernels->matmul_f32[m->quant];
}

struct region {
    struct vf_executor *ex;
    struct matmul_job *jobs;
    uint32_t count;
};

static void matmul_item(void *ctx, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct region *r = ctx;
    uint32_t lo = 0, hi = r->count;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (r->jobs[mid].item_begin <= item)
            lo = mid;
        else
            hi = mid;
    }
    const struct matmul_job *job = &r->jobs[lo];
    uint32_t begin = (item - job->item_begin) * job->blocks_per_item;
    uint32_t blocks = vf_row_blocks(job->m->rows);
    uint32_t end = begin + job->blocks_per_item < blocks ? begin + job->blocks_per_item : blocks;
    matmul_for(r->ex, job, job->m)(job->m, &job->acts, begin, end, job->y, job->y_stride);
    if (job->m2.data)
        matmul_for(r->ex, job, &job->m2)(&job->m2, &job->acts, begin, end, job->y2, job->y_stride);
    if (job->finish) {
        uint32_t row_end = end * VF_RECORD_ROWS;
        job->finish(r->ex, job, begin * VF_RECORD_ROWS,
                    row_end < job->m->rows ? row_end : job->m->rows);
    }
}

/* Whole stripes where there are enough of them, so that each thread streams. */
static uint32_t blocks_per_item(const struct vf_executor *ex, uint32_t blocks)
{
    uint32_t items = vf_pool_threads(ex->pool) * ITEMS_PER_THREAD;
    uint32_t per_item = (blocks + items - 1) / items;
    if (per_item >= STRIPE_BLOCKS)
        per_item = (uint32_t)vf_round_up(per_item, STRIPE_BLOCKS);
    return per_item ? per_item : 1;
}

void run_matmuls(struct vf_executor *ex, struct matmul_job *jobs, uint32_t count)
{
    uint32_t items = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct matmul_job *job = &jobs[i];
        uint32_t blocks = vf_row_blocks(job->m->rows);
        job->blocks_per_item = blocks_per_item(ex, blocks);
        job->item_begin = items;
        items += (uint32_t)vf_div_up(blocks, job->blocks_per_item);
        uint64_t matrix = vf_matrix_bytes(job->m->quant, job->m->rows, job->m->cols);
        if (job->m2.data)
            matrix += vf_matrix_bytes(job->m2.quant, job->m2.rows, job->m2.cols);
        bytes += matrix * vf_div_up(job->acts.n_col, 2);
        ex->stats.weight_bytes += matrix;
    }
    struct region region = {ex, jobs, count};
    run_parallel(ex, matmul_item, &region, items, bytes);
}

/* ---- activations ------------------------------------------------------------------------------
 */

struct quantize_job {
    struct vf_executor *ex;
    const float *x;
    uint32_t stride;
    struct acts_space *space;
};

static void quantize_item(void *ctx, uint32_t c, uint32_t thread)
{
    (void)thread;
    struct quantize_job *j = ctx;
    size_t at = (size_t)c * j->stride, group = (size_t)c * (j->stride / 32);
    j->ex->p.kernels->quantize_q8(j->x + at, j->stride, j->space->q + at, j->space->scale + group,
                                  j->space->sum + group);
}

struct vf_acts prepare_acts(struct vf_executor *ex, const float *x, uint32_t n_col, uint32_t cols,
                            uint32_t stride, struct acts_space *space)
{
    struct vf_acts acts = {.x = x, .n_col = n_col, .cols = cols, .stride = stride};
    if (!ex->p.q8)
        return acts;
    struct quantize_job job = {ex, x, stride, space};
    run_parallel(ex, quantize_item, &job, n_col, (uint64_t)n_col * stride * 4);
    acts.q = space->q;
    acts.scale = space->scale;
    acts.sum = space->sum;
    return acts;
}

struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col)
{
    struct vf_acts s = *acts;
    size_t at = (size_t)begin * acts->stride, group = (size_t)begin * (acts->stride / 32);
    s.x += at;
    if (s.q) {
        s.q += at;
        s.scale += group;
        s.sum += group;
    }
    s.n_col = n_col;
    return s;
}
