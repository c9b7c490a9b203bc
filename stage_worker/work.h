/* What operations add to a parallel region: matrix products split by rows, loops over columns, and
 * the activations that products read.
 */
#ifndef VF_STAGE_WORKER_WORK_H
#define VF_STAGE_WORKER_WORK_H

#include "common/kernels/kernels.h"
#include "common/model/step_memory.h"
#include "stage_worker/region.h"

struct matmul;
/* Called on rows that were just computed, while they are in cache. */
typedef void finish_fn(const struct matmul *mm, uint32_t row_begin, uint32_t row_end);

/* A matrix product: y [n_col, y_stride] = m x acts. */
struct matmul {
    struct vf_matrix m;
    struct vf_acts acts;
    float *y;
    size_t y_stride;
    bool exact_f32; /* router: f32 activations whatever the mode */
    uint32_t layer; /* for finish */
    /* Second matrix of the same shape on the same activations (gate and up); data NULL: none. Its
     * product goes to y2. */
    struct vf_matrix m2;
    float *y2;
    finish_fn *finish; /* NULL: none. It gets rows from a multiple of 32 on. */
    void *self;        /* for finish: the operation */
    uint32_t index;    /* for finish: what column 0 of y is */
};

/* Activations of an operation at hand, in the precision the products read. */
struct acts {
    struct vf_acts_space space;
    struct vf_acts view;
};

struct work {
    const struct vf_kernels *kernels;
    bool q8; /* activations as int8, else f32 */
    struct region region;
    struct matmul *products; /* what the region's products compute */
    uint32_t product_count;
    uint64_t weight_bytes; /* of all products so far */
};

enum vf_code work_init(struct work *w, struct vf_pool *pool, const struct vf_kernels *kernels,
                       bool q8, const struct vf_region_space *space, struct vf_err *err);
void work_deinit(struct work *w);

/* Adds a product, split by rows. */
void work_add_matmul(struct work *w, const struct matmul *mm);
/* Adds a loop over items, job->ctx is self and job->what op; a short one runs at once instead. */
void work_add_loop(struct work *w, void *self, const struct vf_op *op, region_run_fn *run,
                   uint32_t item_count, uint64_t item_cost);
/* Makes acts->view of n_col columns of x [n_col, stride] (padding zero) for matrices of cols
 * columns; with q8 adds the loop that quantises them. */
void work_add_acts(struct work *w, struct acts *acts, const float *x, uint32_t n_col, uint32_t cols,
                   uint32_t stride);
/* The same, for columns that something else quantises into the space of acts. */
void work_view_acts(const struct work *w, struct acts *acts, const float *x, uint32_t n_col,
                    uint32_t cols, uint32_t stride);
/* Quantises entries [begin, end) of column c of the view, begin a multiple of 32. */
void work_quantize(const struct work *w, const struct acts *acts, uint32_t c, uint32_t begin,
                   uint32_t end);
/* The same activations, narrowed to columns [begin, begin + n_col). */
struct vf_acts slice_acts(const struct vf_acts *acts, uint32_t begin, uint32_t n_col);

/* Runs what was added, or forgets it. */
void work_run(struct work *w);
void work_drop(struct work *w);

#endif
