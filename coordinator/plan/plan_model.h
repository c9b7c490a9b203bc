/* Everything `plan` knows about one model: loaded once, then printed as text, JSON or SVG.
 *
 * Owned by the caller between vf_plan_build and vf_plan_deinit; immutable in between.
 */
#ifndef VF_COORDINATOR_PLAN_PLAN_MODEL_H
#define VF_COORDINATOR_PLAN_PLAN_MODEL_H

#include "common/base/json.h"
#include "common/format/model_file.h"
#include "common/model/critical_path.h"
#include "coordinator/engine/shape.h"
#include "coordinator/plan/plan_drive.h"

#include <stdio.h>

struct vf_plan_options {
    const char *config;      /* of a model that isn't converted yet; NULL: settings.model */
    const char *config_text; /* the config itself, then config is only its name */
    enum vf_quant quant;     /* with config; a model file knows its own */
    double bandwidth_gb_s;   /* 0: measure, with settings.threads, or every CPU */
    uint64_t drive_speed;    /* bytes a second; 0: as throttled or probed */
    bool memory;             /* plan the run's memory, too */
    Vflow__RunSettings settings;
};

enum vf_plan_part { /* what weights belong to */
                    VF_PART_EMBEDDING,
                    VF_PART_NORMS,
                    VF_PART_ATTENTION,
                    VF_PART_DENSE,
                    VF_PART_ROUTER,
                    VF_PART_EXPERTS,
                    VF_PART_HEAD,
                    VF_PART_COUNT
};

struct vf_plan_timeline {
    double *start, *finish; /* [op_count], bytes read since the token began */
    double total;
};

struct vf_plan {
    struct vf_plan_options options;
    const char *source;          /* path given */
    struct vf_model_file *file;  /* NULL with a config */
    struct vf_config own_config; /* with a config */
    const struct vf_config *config;
    enum vf_quant quant; /* of the embedding; a file may mix */
    const char *quant_name;
    struct vf_program program;
    struct vf_run_shape shape;      /* the run; decided when has_memory */
    struct vf_critical_path closed; /* the report's formula */
    uint64_t params, active_params;
    uint64_t expert_record_bytes; /* padded, as it is read from the drive; 0 without experts */
    uint64_t *op_bytes;           /* [op_count] weights read for one token */
    uint64_t token_bytes[VF_PART_COUNT];  /* sums of op_bytes */
    uint64_t stored_bytes[VF_PART_COUNT]; /* in a model file */
    uint64_t worker_bytes[VF_STAGE_WORKERS_MAX];
    struct vf_plan_timeline placed; /* each worker runs its ops one after another; op_bytes */
    struct vf_plan_timeline lanes;  /* attention, dense, experts side by side; op_bytes */
    double half_lanes;              /* total of the same at 0.5 bytes a weight, projections only */
    double half_unlimited;          /* total at 0.5 bytes when only inputs are waited for */
    double bandwidth_gb_s;
    uint32_t bandwidth_threads; /* 0: given, not measured */
    struct vf_plan_drive drive; /* zeros unless experts stream */
    double token_ms;            /* reads of memory and drive; NAN: the drive's speed isn't known */
    bool has_memory;
    struct vf_err memory_refused; /* code VF_OK: the run fits; else there are no speeds */
};

enum vf_code vf_plan_build(const struct vf_plan_options *options, struct vf_plan *out,
                           struct vf_err *err);
void vf_plan_deinit(struct vf_plan *plan);

struct vf_shape_model vf_plan_shape_model(const struct vf_plan *plan);
const char *vf_plan_part_name(enum vf_plan_part part);
enum vf_plan_part vf_plan_op_part(enum vf_op_kind kind);
uint64_t vf_plan_sum(const uint64_t part_bytes[VF_PART_COUNT]);
/* What one token's value weighs when it crosses to another worker: f32, a column per flow. */
uint64_t vf_plan_value_bytes(const struct vf_plan *plan, vf_value v);
double vf_plan_token_ms(const struct vf_plan *plan, double bytes);

/* Plans sizes and memory of the run on this machine. A run that doesn't fit is part of the plan,
 * not an error; what else is wrong is one. */
enum vf_code vf_plan_add_memory(struct vf_plan *plan, struct vf_err *err);
void vf_plan_print_memory(const struct vf_plan *plan, FILE *out);
/* New reference; *bad is set when memory ran out. */
json_t *vf_plan_memory_json(const struct vf_plan *plan, int *bad);
json_t *vf_plan_drive_json(const struct vf_plan *plan, int *bad); /* likewise; null: not probed */

/* The answer first; the program's operations and edges only with ops. */
void vf_plan_print_text(const struct vf_plan *plan, bool ops, FILE *out);
enum vf_code vf_plan_print_json(const struct vf_plan *plan, FILE *out, struct vf_err *err);
/* VF_ERR_NO_MEMORY alone; whether the stream took it is the caller's to look at. */
enum vf_code vf_plan_draw_svg(const struct vf_plan *plan, FILE *out, struct vf_err *err);

#endif
