/* Embed, norm and sum: the operations that go column by column. */
#ifndef VF_STAGE_WORKER_COLUMNS_H
#define VF_STAGE_WORKER_COLUMNS_H

#include "stage_worker/operation.h"

struct embed {
    const struct core *core;
    struct vf_matrix tables[VF_FLOWS_MAX]; /* flow j: its own or flow 0's */
};
init_fn embed_init;
column_fn embed_column;

struct norm {
    const struct core *core;
    const float **attn, **ffn; /* [layer_count] */
    const float *final;
};
init_fn norm_init;
deinit_fn norm_deinit;
column_fn norm_column;

struct sum {
    const struct core *core;
};
init_fn sum_init;
column_fn sum_column;

#endif
