/* The options that generate, score and serve share (SYSTEM.md section 6): one table, one check, and
 * the engine parameters that follow from them.
 */
#ifndef VF_COORDINATOR_OPTIONS_H
#define VF_COORDINATOR_OPTIONS_H

#include "common/base/cli.h"
#include "coordinator/engine/engine.h"

#define VF_RUN_OPTION_COUNT 22

struct vf_run_options { /* values as the command line gives them; 0 (kv: -1) "decide yourself" */
    const char *model, *expert_bank;
    int activations, kernel, kv, overlap, io, weights, experts, placement,
        speculate;                              /* indices of their words */
    uint64_t expert_cache, memory, io_throttle; /* bytes */
    int64_t threads, stage_workers, io_workers;
    int64_t ctx, batch, prefill_chunk, io_depth;
    int verbosity;
};

/* Defaults; batch is the command's own (1 for generate and score, 8 for serve). */
void vf_run_options_init(struct vf_run_options *o, uint32_t batch);
/* Writes the table, which stores into o, to opts[0..VF_RUN_OPTION_COUNT); returns how many rows it
 * wrote. A command appends its own rows behind them. */
size_t vf_run_options_table(struct vf_run_options *o, struct vf_opt *opts);
/* What a table can't say: --model is missing, options that contradict each other. Also starts
 * logging with the verbosity given. */
enum vf_code vf_run_options_check(const struct vf_run_options *o, struct vf_err *err);
/* The engine's parameters. Borrows o's strings; scores and cancel_fd (vf_signals_open) are the
 * command's. */
void vf_run_options_engine(const struct vf_run_options *o, bool scores, int cancel_fd,
                           struct vf_engine_params *out);

#endif
