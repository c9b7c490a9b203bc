/* Matrix products split by rows, loops over columns, and activations as the products read them. */
#include "stage_worker/work.h"

#include "common/base/util.h"

_Static_assert(sizeof(struct matmul) == VF_PRODUCT_BYTES, "what the memory plan counts");
_Static_assert(sizeof(struct region_job) == VF_JOB_BYTES, "what the memory plan counts");

enum vf_code work_init(struct work *w, struct vf_pool *pool, const struct vf_kernels *kernels,
                       bool q8, const struct vf_region_space *space, struct vf_err *err)
{
    *w = (struct work){.kernels = kernels, .q8 = q8, .products = space->products};
    return region_init(&w->region, pool, space->jobs, space->job_count, err);
}

void work_deinit(struct work *w)
{
    region_deinit(&w->region);
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* An item is two blocks of rows, 32 rows: as many as a group of quantised activations. The router's
 * few rows are wide in f32, so each block is an item. */
static uint32_t blocks_per_item(const struct matmul *mm)
{
    return mm->exact_f32 ? 1 : 2;
}

/* m is one of the product's matrices, which may be stored differently. */
static vf_matmul_fn *matmul_for(const struct work *w, const struct matmul *mm,
                                const struct vf_matrix *m)
{
    return w->q8 && !mm->exact_f32 ? w->kernels->matmul_q8[m->quant]
                                   : w->kernels->matmul_f32[m->quant];
}

/* How many stripes of 128 rows the product's kernel reads at a time. */
static uint32_t stripes_at_a_time(const struct work *w, const struct matmul *mm)
{
    bool integers =
        w->q8 && !mm->exact_f32 && (mm->m.quant == VF_QUANT_Q4 || mm->m.quant == VF_QUANT_Q8);
    return integers ? vf_stripes_q8(w->kernels, mm->acts.n_col) : 1;
}

static void run_matmul(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct work *w = job->ctx;
    const struct matmul *mm = job->what;
    uint32_t per_item = blocks_per_item(mm), blocks = vf_row_blocks(mm->m.rows);
    uint32_t first = begin * per_item;
    uint32_t last = (uint32_t)vf_min_u64((uint64_t)end * per_item, blocks);
    matmul_for(w, mm, &mm->m)(&mm->m, &mm->acts, first, last, mm->y, mm->y_stride);
    if (mm->m2.data)
        matmul_for(w, mm, &mm->m2)(&mm->m2, &mm->acts, first, last, mm->y2, mm->y_stride);
    if (mm->finish)
        mm->finish(mm, first * VF_RECORD_ROWS,
                   (uint32_t)vf_min_u64((uint64_t)last * VF_RECORD_ROWS, mm->m.rows));
}

void work_add_matmul(struct work *w, const struct matmul *mm)
{
    VF_ASSERT(w->product_count < w->region.capacity);
    uint32_t per_item = blocks_per_item(mm), blocks = vf_row_blocks(mm->m.rows);
    uint32_t stripe = VF_TILE_ROWS / VF_RECORD_ROWS / per_item; /* in items */
    uint64_t bytes = vf_matrix_bytes(mm->m.quant, mm->m.rows, mm->m.cols);
    if (mm->m2.data)
        bytes += vf_matrix_bytes(mm->m2.quant, mm->m2.rows, mm->m2.cols);
    w->weight_bytes += bytes;
    struct matmul *kept = &w->products[w->product_count++];
    *kept = *mm;
    region_add(
        &w->region,
        (struct region_job){.run = run_matmul,
                            .ctx = w,
                            .what = kept,
                            .item_count = (uint32_t)vf_div_up(blocks, per_item),
                            .align = stripe,
                            .batch = stripe * stripes_at_a_time(w, mm),
                            /* a column or two wait for memory, more of them compute */
                            .item_cost = bytes / blocks * per_item * vf_div_up(mm->acts.n_col, 2)});
}

/* ---- loops ------------------------------------------------------------------------------------
 */

void work_add_loop(struct work *w, void *self, const struct vf_op *op, region_run_fn *run,
                   uint32_t item_count, uint64_t item_cost)
{
    struct region_job job = {
        .run = run, .ctx = self, .what = op, .item_count = item_count, .item_cost = item_cost};
    if (region_worth_sharing(&w->region, item_count * item_cost))
        region_add(&w->region, job);
    else
        run(&job, 0, item_count, 0);
}

void work_run(struct work *w)
{
    region_run(&w->region);
    w->product_count = 0;
}

void work_drop(struct work *w)
{
    region_drop(&w->region);
    w->product_count = 0;
}

/* ---- activations ------------------------------------------------------------------------------
 */

void work_quantize(const struct work *w, const struct acts *acts, uint32_t c, uint32_t begin,
                   uint32_t end)
{
    size_t at = (size_t)c * acts->view.stride + begin;
    w->kernels->quantize_q8(acts->view.x + at, (uint32_t)vf_round_up(end - begin, 32),
                            acts->space.q + at, acts->space.scale + at / 32,
                            acts->space.sum + at / 32);
}

static void quantize_columns(const struct region_job *job, uint32_t begin, uint32_t end,
                             uint32_t thread)
{
    (void)thread;
    const struct acts *acts = job->what;
    for (uint32_t c = begin; c < end; c++)
        work_quantize(job->ctx, acts, c, 0, acts->view.stride);
}

void work_view_acts(const struct work *w, struct acts *acts, const float *x, uint32_t n_col,
                    uint32_t cols, uint32_t stride)
{
    acts->view = (struct vf_acts){.x = x, .n_col = n_col, .cols = cols, .stride = stride};
    if (!w->q8)
        return;
    acts->view.q = acts->space.q;
    acts->view.scale = acts->space.scale;
    acts->view.sum = acts->space.sum;
}

void work_add_acts(struct work *w, struct acts *acts, const float *x, uint32_t n_col, uint32_t cols,
                   uint32_t stride)
{
    work_view_acts(w, acts, x, n_col, cols, stride);
    struct region_job job = {.run = quantize_columns,
                             .ctx = w,
                             .what = acts,
                             .item_count = n_col,
                             .item_cost = 4ull * stride};
    if (!w->q8)
        return;
    if (region_worth_sharing(&w->region, job.item_count * job.item_cost))
        region_add(&w->region, job);
    else
        quantize_columns(&job, 0, n_col, 0);
}

struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col)
{
    struct vf_acts s = *acts;
    size_t at = (size_t)begin * acts->stride;
    s.x += at;
    if (s.q) {
        s.q += at;
        s.scale += at / 32;
        s.sum += at / 32;
    }
    s.n_col = n_col;
    return s;
}
