/* A model file loaded into one executor of this process, without sockets: what the end-to-end
 * measurements run.
 */
#ifndef VF_BENCH_DECODE_LOADED_H
#define VF_BENCH_DECODE_LOADED_H

#include "bench/bench.h"
#include "bench/experts/routing_trace.h"
#include "stage_worker/executor.h"

struct loaded {
    struct vf_model_file *file;
    struct vf_program program;
    struct vf_placement placement;
    struct vf_expert_source *experts;
    struct vf_executor *executor;
    const struct vf_kernels *kernels;
    struct vf_column *columns; /* [chunk * flows] */
    float *rows;
    uint32_t chunk;
    uint64_t steps;
    uint32_t position;
};

struct loaded_params {
    const char *path;
    uint32_t threads, context, chunk;
    enum vf_kernel_tier tier;
    bool huge; /* weights in huge pages of this process instead of the page cache */
    struct vf_routing_recorder *recorder; /* NULL, or notes the routing of steps of one token */
};

/* The weights are read once (their checksums are verified). loaded_close after a failure too. */
enum vf_code loaded_open(struct loaded *l, const struct loaded_params *params, struct vf_err *err);
void loaded_close(struct loaded *l);

/* Runs one step of n tokens (seeded, all over the vocabulary) at the next positions, with the last
 * one's row where want_row, and with every flow (else flow 0 alone); *ms is what it took. */
enum vf_code loaded_step(struct loaded *l, uint32_t n, bool want_row, bool all_flows, double *ms,
                         struct vf_err *err);
/* Starts over at position 0. */
void loaded_rewind(struct loaded *l);

#endif
