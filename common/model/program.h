/* The layer program: a model's header compiled into a list of operations over named values.
 *
 * Each combine style is a few lines that emit operations; a delay is slack between a value's
 * producer and its consumer; a flow is an extra column of every value. The executor, the fetch
 * orders, the placement, the messages between workers, the critical path and the picture are
 * all read off this one list. Source: SYSTEM.md section 2, MODEL.md section 2.
 *
 * A value is written once ([columns, hidden_size] f32, or a routing decision) and read any
 * number of times. Operations are in an order in which every input comes before its reader, and
 * every `experts` stands right before its consumer: as late as the model's delay allows.
 * A program is immutable once compiled.
 */
#ifndef VF_COMMON_MODEL_PROGRAM_H
#define VF_COMMON_MODEL_PROGRAM_H

#include "common/base/err.h"
#include "common/model/config.h"

#include <stdbool.h>
#include <stdint.h>

enum vf_op_kind {
    VF_OP_EMBED,     /* () -> x: embedding rows of the step's tokens, each flow's own table */
    VF_OP_NORM,      /* (x) -> y: RMSNorm with the weights `norm` names */
    VF_OP_ATTENTION, /* (y) -> m: attention of layer `layer` with KV cache `kv` */
    VF_OP_DENSE,     /* (y) -> f: dense FFN of layer `layer` */
    VF_OP_ROUTE,     /* (y) -> r: router of layer `layer`; a routing decision per column */
    VF_OP_FETCH,     /* (r): orders the chosen experts of `layer` from the I/O workers */
    VF_OP_EXPERTS,   /* (y, r) -> e: the chosen experts of `layer` on y, summed in rank order */
    VF_OP_SUM,       /* (a, b, ...) -> x: ((a + b) + ...) * scale, left to right */
    VF_OP_HEAD,      /* (h) -> log-probabilities of the columns that ask for them */
    VF_OP_KIND_COUNT
};

enum vf_norm_kind { VF_NORM_ATTN, VF_NORM_FFN, VF_NORM_FINAL };

typedef uint32_t vf_value; /* index into program->values */
#define VF_VALUE_NONE 0xffffffffu

struct vf_op {
    enum vf_op_kind kind;
    uint32_t layer;         /* weight layer; VF_LAYER_NONE for embed, final norm, head */
    uint32_t step_layer;    /* effective layer it is emitted for (differs for fixed_point) */
    uint32_t kv;            /* ATTENTION: KV cache index = effective layer */
    enum vf_norm_kind norm; /* NORM */
    float scale;            /* SUM: 1 unless averaging or scaling */
    uint32_t due_layer;     /* EXPERTS, FETCH, ROUTE: effective layer that consumes the result */
    uint32_t in_begin, in_count; /* into program->inputs */
    vf_value out;                /* VF_VALUE_NONE for FETCH, HEAD */
};

struct vf_program_value {
    char name[24];     /* "x3.mid", "e2", "r5": for plan and messages */
    bool is_route;     /* a routing decision instead of a residual */
    uint32_t producer; /* op index */
    uint32_t last_use; /* op index of the last reader */
};

struct vf_program {
    struct vf_op *ops;
    uint32_t op_count;
    vf_value *inputs;
    uint32_t input_count;
    struct vf_program_value *values;
    uint32_t value_count;
    uint32_t effective_layers;
    /* for diagnosis: x[l].out of every effective layer (decoupled_streams: its attention stream;
     * async_experts: before what is still due after the last layer) */
    vf_value *layer_out; /* [effective_layers] */
};

enum vf_code vf_program_compile(const struct vf_config *config, struct vf_program *out,
                                struct vf_err *err);
void vf_program_deinit(struct vf_program *p);

const char *vf_op_kind_name(enum vf_op_kind kind);
static inline const vf_value *vf_op_inputs(const struct vf_program *p, const struct vf_op *op)
{
    return p->inputs + op->in_begin;
}

#endif
