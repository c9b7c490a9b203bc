/* What the kernel benchmarks share: weights much larger than the caches, activations, threads, and
 * arms that take turns.
 *
 * A shape's matrices fill the weights back to back. A slot is a few whole stripes of them (128
 * rows), some megabytes; the arms of a measurement take the slots in turn, so that all see the same
 * machine and none finds in a cache what another just read. A pass over all slots gives every arm
 * one sample. Random weights and activations, the same for every run.
 */
#ifndef VF_BENCH_COMPUTE_RIG_H
#define VF_BENCH_COMPUTE_RIG_H

#include "bench/bench.h"
#include "bench/report/report.h"
#include "common/kernels/kernels.h"
#include "common/machine/bandwidth.h"
#include "stage_worker/pool.h"

#define RIG_COLUMNS_MAX  32u    /* activation columns */
#define RIG_COLS_MAX     32768u /* of a matrix */
#define RIG_ROWS_MAX     32768u
#define RIG_BYTES        (256ull << 20) /* weights; more where a measurement needs it */
#define RIG_PART_STRIPES 4u
#define RIG_PASSES_MIN   5u
#define RIG_PASSES_MAX   512u

struct rig {
    struct vf_pool *pool;
    uint8_t *weights;
    uint64_t bytes;
    enum vf_quant quant;  /* what the weights are */
    enum vf_read_way way; /* the faster one here, by as many threads */
    float *x, *scale, *y;
    int8_t *q;
    int32_t *sum;
};

/* bytes of weights; rig_close after a failure too. */
enum vf_code rig_open(struct rig *rig, uint32_t threads, uint64_t bytes, struct vf_err *err);
void rig_close(struct rig *rig);
/* Any bytes that are weights of about one over sqrt(columns). */
void rig_fill(struct rig *rig, enum vf_quant quant);
/* The first n_col columns of the activations for matrices of cols columns. */
struct vf_acts rig_acts(const struct rig *rig, uint32_t cols, uint32_t n_col);
/* Runs fn(ctx, item) for every item below count on the rig's threads, each taking the next one. */
typedef void rig_item_fn(void *ctx, uint32_t item);
void rig_run_items(const struct rig *rig, rig_item_fn *fn, void *ctx, uint32_t count);
/* Reads all weights with the rig's threads, each taking the next MiB; GB/s. */
double rig_read_pass(const struct rig *rig, enum vf_read_way way);
/* Zeroed memory in huge pages where there are any; NULL when there is none. */
void *rig_memory(uint64_t bytes);
void rig_memory_free(void *p, uint64_t bytes);

/* Shapes out of models: which, what of it. NULL-terminated by name. */
struct rig_named_shape {
    const char *name;
    uint32_t rows, cols;
};
extern const struct rig_named_shape rig_shapes[];
/* The named one, or VF_ERR_USAGE with the names. */
enum vf_code rig_shape_find(const char *name, const struct rig_named_shape **out,
                            struct vf_err *err);

/* How one shape lies in `bytes` of weights, cut into slots. */
struct rig_slots {
    uint32_t rows, cols;
    enum vf_quant quant;
    uint64_t matrix_bytes, stripe_bytes;
    uint32_t stripes;              /* of a matrix */
    uint32_t per_slot, slot_count; /* stripes of a slot */
    uint32_t part_count;           /* of a slot */
    uint64_t slot_bytes;
};
/* rows is a multiple of 128 * RIG_PART_STRIPES. */
struct rig_slots rig_slots(uint32_t rows, uint32_t cols, enum vf_quant quant, uint64_t bytes,
                           uint32_t threads);
/* Part i of a slot: stripes of one matrix that a kernel gets in one call, as in the engine. */
struct rig_part {
    uint64_t offset; /* of the matrix in the weights */
    uint32_t rb_begin, rb_end;
};
struct rig_part rig_part_at(const struct rig_slots *s, uint32_t slot, uint32_t i);

/* One of the alternatives that take turns; run works off a slot. */
struct rig_arm {
    void (*run)(void *ctx, uint32_t slot);
    void *ctx;
    double seconds[RIG_PASSES_MAX]; /* of a slot, per pass */
};
/* Passes until `seconds` are over, at least RIG_PASSES_MIN; returns how many. One pass before them
 * warms up. */
uint32_t rig_take_turns(struct rig_arm *arms, uint32_t count, uint32_t slot_count, double seconds);

/* amount / seconds of each pass, and how much of arm b's time arm a saves: b / a. */
struct bench_stat rig_rate(const struct rig_arm *arm, uint32_t passes, double amount);
struct bench_stat rig_speedup(const struct rig_arm *a, const struct rig_arm *b, uint32_t passes);

/* An arm's context that reads the slot's weights and does nothing else. */
struct rig_read {
    const struct rig *rig;
    const struct rig_slots *slots;
    uint64_t sum;
};
void rig_run_read(void *ctx, uint32_t slot);
/* An arm's context that multiplies. */
struct rig_product {
    const struct rig *rig;
    const struct rig_slots *slots;
    vf_matmul_fn *matmul;
    struct vf_acts acts;
};
void rig_run_product(void *ctx, uint32_t slot);

#endif
