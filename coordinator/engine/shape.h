/* What a run will be, decided once from its settings, its model and this machine: workers, threads,
 * placement, sizes, memory, reads. A run (engine.c) and `plan` both go by it, so they describe the
 * same run.
 *
 * place, then decide, then probe; deinit accepts what any of them left. Borrows the model's file,
 * config and program, and the settings' strings.
 */
#ifndef VF_COORDINATOR_ENGINE_SHAPE_H
#define VF_COORDINATOR_ENGINE_SHAPE_H

#include "common/experts/stripes.h"
#include "common/machine/topology.h"
#include "common/settings/settings.h"
#include "coordinator/engine/bank_drives.h"
#include "coordinator/engine/budget.h"

struct vf_shape_model {
    const struct vf_model_file *file; /* NULL: only a config, quant says how it would be stored */
    const struct vf_config *config;
    const struct vf_program *program;
    enum vf_quant quant;
};

struct vf_run_shape {
    Vflow__RunSettings settings; /* decided: what was 0 or auto is what the run does */
    struct vf_topology topology;
    struct vf_placement placement;
    uint32_t threads[VF_STAGE_WORKERS_MAX]; /* of each stage worker */
    struct vf_stripe_set stripes;
    struct vf_budget budget;
    uint64_t record_bytes;        /* of an expert */
    struct vf_drive_choice drive; /* depth 0: not probed */
};

/* Stage workers, their threads and their operations. */
enum vf_code vf_run_shape_place(const Vflow__RunSettings *asked, const struct vf_shape_model *model,
                                struct vf_run_shape *out, struct vf_err *err);
/* The sizes and the memory. A run that doesn't fit fails like vf_budget_decide, with its memory in
 * shape->budget; what else fails leaves memory.need 0. */
enum vf_code vf_run_shape_decide(struct vf_run_shape *shape, bool scores,
                                 const struct vf_shape_model *model, struct vf_err *err);
/* How streamed experts are read: as asked for, or as a probe of the drive finds. Nothing without a
 * file or when nothing streams. */
enum vf_code vf_run_shape_probe(struct vf_run_shape *shape, const struct vf_shape_model *model,
                                struct vf_err *err);
void vf_run_shape_deinit(struct vf_run_shape *shape);

const char *vf_run_shape_experts(const struct vf_run_shape *shape, const struct vf_config *config);
/* "2 stage workers of 4 threads (pipeline), ...": once decided; returns text. */
#define VF_RUN_SHAPE_TEXT 320u
const char *vf_run_shape_text(const struct vf_run_shape *shape, const struct vf_config *config,
                              char text[VF_RUN_SHAPE_TEXT]);

#endif
