/* Matrix products split by rows, loops over columns, and activations as the products read them. */
#include "stage_worker/internal.h"

#include "common/base/util.h"

/* ---- products ---------------------------------------------------------------------------------
 */

/* An item is two blocks of rows, 32 rows: as many as a group of quantised activations. The router's
 * few rows are wide in f32, so each block is an item. */
static uint32_t blocks_per_item(const struct matmul *mm)
{
    return mm->exact_f32 ? 1 : 2;
}

/* m is one of the product's matrices, which may be stored differently. */
static vf_matmul_fn *matmul_for(const struct vf_executor *ex, const struct matmul *mm,
                                const struct vf_matrix *m)
{
    return ex->p.q8 && !mm->exact_f32 ? ex->p.kernels->matmul_q8[m->quant]
                                      : ex->p.kernels->matmul_f32[m->quant];
}

/* How many stripes of 128 rows the product's kernel reads at a time. */
static uint32_t stripes_at_a_time(const struct vf_executor *ex, const struct matmul *mm)
{
    bool integers =
        ex->p.q8 && !mm->exact_f32 && (mm->m.quant == VF_QUANT_Q4 || mm->m.quant == VF_QUANT_Q8);
    return integers ? vf_stripes_q8(ex->p.kernels, mm->acts.n_col) : 1;
}

static void run_matmul(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct vf_executor *ex = job->ctx;
    const struct matmul *mm = job->what;
    uint32_t per_item = blocks_per_item(mm), blocks = vf_row_blocks(mm->m.rows);
    uint32_t first = begin * per_item;
    uint32_t last = (uint32_t)vf_min_u64((uint64_t)end * per_item, blocks);
    matmul_for(ex, mm, &mm->m)(&mm->m, &mm->acts, first, last, mm->y, mm->y_stride);
    if (mm->m2.data)
        matmul_for(ex, mm, &mm->m2)(&mm->m2, &mm->acts, first, last, mm->y2, mm->y_stride);
    if (mm->finish)
        mm->finish(ex, mm, first * VF_RECORD_ROWS,
                   (uint32_t)vf_min_u64((uint64_t)last * VF_RECORD_ROWS, mm->m.rows));
}

void add_matmul(struct vf_executor *ex, const struct matmul *mm)
{
    VF_ASSERT(ex->matmul_count < ex->region.capacity);
    uint32_t per_item = blocks_per_item(mm), blocks = vf_row_blocks(mm->m.rows);
    uint32_t stripe = VF_TILE_ROWS / VF_RECORD_ROWS / per_item; /* in items */
    uint64_t bytes = vf_matrix_bytes(mm->m.quant, mm->m.rows, mm->m.cols);
    if (mm->m2.data)
        bytes += vf_matrix_bytes(mm->m2.quant, mm->m2.rows, mm->m2.cols);
    ex->stats.weight_bytes += bytes;
    struct matmul *kept = &ex->matmuls[ex->matmul_count++];
    *kept = *mm;
    region_add(
        &ex->region,
        (struct region_job){.run = run_matmul,
                            .ctx = ex,
                            .what = kept,
                            .item_count = (uint32_t)vf_div_up(blocks, per_item),
                            .align = stripe,
                            .batch = stripe * stripes_at_a_time(ex, mm),
                            /* a column or two wait for memory, more of them compute */
                            .item_cost = bytes / blocks * per_item * vf_div_up(mm->acts.n_col, 2)});
}

/* ---- loops ------------------------------------------------------------------------------------
 */

void add_loop(struct vf_executor *ex, const struct vf_op *op, region_run_fn *run,
              uint32_t item_count, uint64_t item_cost)
{
    struct region_job job = {
        .run = run, .ctx = ex, .what = op, .item_count = item_count, .item_cost = item_cost};
    if (region_worth_sharing(&ex->region, item_count * item_cost))
        region_add(&ex->region, job);
    else
        run(&job, 0, item_count, 0);
}

void run_region(struct vf_executor *ex)
{
    region_run(&ex->region);
    ex->matmul_count = 0;
}

void drop_region(struct vf_executor *ex)
{
    region_drop(&ex->region);
    ex->matmul_count = 0;
}

/* ---- activations ------------------------------------------------------------------------------
 */

void quantize_part(const struct vf_executor *ex, const struct acts *acts, uint32_t c,
                   uint32_t begin, uint32_t end)
{
    size_t at = (size_t)c * acts->view.stride + begin;
    ex->p.kernels->quantize_q8(acts->view.x + at, (uint32_t)vf_round_up(end - begin, 32),
                               acts->q + at, acts->scale + at / 32, acts->sum + at / 32);
}

static void quantize_columns(const struct region_job *job, uint32_t begin, uint32_t end,
                             uint32_t thread)
{
    (void)thread;
    const struct acts *acts = job->what;
    for (uint32_t c = begin; c < end; c++)
        quantize_part(job->ctx, acts, c, 0, acts->view.stride);
}

void view_acts(struct vf_executor *ex, struct acts *acts, const float *x, uint32_t n_col,
               uint32_t cols, uint32_t stride)
{
    acts->view = (struct vf_acts){.x = x, .n_col = n_col, .cols = cols, .stride = stride};
    if (!ex->p.q8)
        return;
    acts->view.q = acts->q;
    acts->view.scale = acts->scale;
    acts->view.sum = acts->sum;
}

void add_acts(struct vf_executor *ex, struct acts *acts, const float *x, uint32_t n_col,
              uint32_t cols, uint32_t stride)
{
    view_acts(ex, acts, x, n_col, cols, stride);
    struct region_job job = {.run = quantize_columns,
                             .ctx = ex,
                             .what = acts,
                             .item_count = n_col,
                             .item_cost = 4ull * stride};
    if (!ex->p.q8)
        return;
    if (region_worth_sharing(&ex->region, job.item_count * job.item_cost))
        region_add(&ex->region, job);
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
