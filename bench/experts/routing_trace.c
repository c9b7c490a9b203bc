#include "bench/experts/routing_trace.h"

#include "common/base/npy.h"
#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

#define EXPERT_MAX 65534u

/* ---- files --------------------------------------------------------------------------------- */

static enum vf_code check_shape(const struct vf_npy_array *a, const char *path, struct vf_err *err)
{
    if (a->shape[0] <= UINT32_MAX && a->shape[1] <= VF_TRACE_LAYERS_MAX &&
        a->shape[2] <= VF_TRACE_TOP_MAX)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: shape (%llu, %llu, %llu); allowed are (tokens, up to %u layers, up to "
                      "%u experts)",
                      path, (unsigned long long)a->shape[0], (unsigned long long)a->shape[1],
                      (unsigned long long)a->shape[2], VF_TRACE_LAYERS_MAX, VF_TRACE_TOP_MAX);
}

static int64_t number_at(const struct vf_npy_array *a, uint64_t i)
{
    return a->type == VF_NPY_U16 ? ((const uint16_t *)a->data)[i] : ((const int32_t *)a->data)[i];
}

static bool has(const uint16_t *set, uint32_t n, uint16_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (set[i] == expert)
            return true;
    return false;
}

/* Checks and copies the experts, set by set. */
static enum vf_code take_experts(const struct vf_npy_array *a, const char *path,
                                 struct vf_routing_trace *out, struct vf_err *err)
{
    uint64_t sets = (uint64_t)out->token_count * out->layer_count;
    for (uint64_t s = 0; s < sets; s++) {
        uint16_t *set = out->experts + s * out->top_k;
        for (uint32_t i = 0; i < out->top_k; i++) {
            int64_t v = number_at(a, s * out->top_k + i);
            uint64_t token = s / out->layer_count, layer = s % out->layer_count;
            if (v < 0 || v > EXPERT_MAX)
                return vf_err_set(err, VF_ERR_CORRUPT,
                                  "%s: token %llu, layer %llu: expert %lld; allowed are 0 to %u",
                                  path, (unsigned long long)token, (unsigned long long)layer,
                                  (long long)v, EXPERT_MAX);
            if (has(set, i, (uint16_t)v))
                return vf_err_set(
                    err, VF_ERR_CORRUPT, "%s: token %llu, layer %llu: expert %lld twice", path,
                    (unsigned long long)token, (unsigned long long)layer, (long long)v);
            set[i] = (uint16_t)v;
            out->expert_max = (uint32_t)vf_max_u64(out->expert_max, (uint64_t)v);
        }
    }
    return VF_OK;
}

enum vf_code vf_routing_trace_read(const char *path, struct vf_routing_trace *out,
                                   struct vf_err *err)
{
    *out = (struct vf_routing_trace){0};
    struct vf_npy_array a;
    enum vf_code code = vf_npy_read(path, VF_TRACE_BYTES_MAX, &a, err);
    if (code)
        return code;
    code = check_shape(&a, path, err);
    if (!code) {
        out->token_count = (uint32_t)a.shape[0];
        out->layer_count = (uint32_t)a.shape[1];
        out->top_k = (uint32_t)a.shape[2];
        out->experts = calloc(a.shape[0] * a.shape[1] * a.shape[2], sizeof *out->experts);
        code = out->experts ? take_experts(&a, path, out, err)
                            : vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for it", path);
    }
    free(a.data);
    if (code)
        vf_routing_trace_deinit(out);
    return code;
}

enum vf_code vf_routing_trace_write(const struct vf_routing_trace *t, const char *path,
                                    struct vf_err *err)
{
    struct vf_npy *npy;
    enum vf_code code =
        vf_npy_create_u16(path, t->token_count, t->layer_count, t->top_k, &npy, err);
    if (code)
        return code;
    code = vf_npy_append(npy, t->experts, t->token_count, err);
    if (!code)
        code = vf_npy_commit(npy, err);
    vf_npy_destroy(npy);
    return code;
}

void vf_routing_trace_deinit(struct vf_routing_trace *t)
{
    free(t->experts);
    *t = (struct vf_routing_trace){0};
}

/* ---- recording ----------------------------------------------------------------------------- */

struct layer_rows {
    uint16_t *experts; /* [capacity][top_k] */
    uint32_t count, capacity;
};
struct vf_routing_recorder {
    uint32_t layer_count, top_k;
    struct layer_rows *layers;
    bool failed; /* out of memory */
};

enum vf_code vf_routing_recorder_create(uint32_t layer_count, uint32_t top_k,
                                        struct vf_routing_recorder **out, struct vf_err *err)
{
    *out = NULL;
    VF_ASSERT(layer_count >= 1 && top_k >= 1);
    struct vf_routing_recorder *r = calloc(1, sizeof *r);
    struct layer_rows *layers = calloc(layer_count, sizeof *layers);
    if (!r || !layers) {
        free(r);
        free(layers);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "routing trace: out of memory");
    }
    r->layer_count = layer_count;
    r->top_k = top_k;
    r->layers = layers;
    *out = r;
    return VF_OK;
}

void vf_routing_recorder_destroy(struct vf_routing_recorder *r)
{
    if (!r)
        return;
    for (uint32_t l = 0; l < r->layer_count; l++)
        free(r->layers[l].experts);
    free(r->layers);
    free(r);
}

static bool grow(struct layer_rows *rows, uint32_t top_k)
{
    if (rows->count < rows->capacity)
        return true;
    uint32_t capacity = rows->capacity ? rows->capacity * 2 : 256;
    uint64_t bytes = (uint64_t)capacity * top_k * sizeof *rows->experts;
    uint16_t *experts = bytes <= VF_TRACE_BYTES_MAX ? realloc(rows->experts, bytes) : NULL;
    if (!experts)
        return false;
    rows->experts = experts;
    rows->capacity = capacity;
    return true;
}

void vf_routing_recorder_add(struct vf_routing_recorder *r, uint32_t layer, const uint32_t *experts,
                             uint32_t stride, uint32_t token_count)
{
    VF_ASSERT(layer < r->layer_count);
    struct layer_rows *rows = &r->layers[layer];
    for (uint32_t t = 0; t < token_count && !r->failed; t++) {
        if (!grow(rows, r->top_k)) {
            r->failed = true;
            return;
        }
        uint16_t *to = rows->experts + (size_t)rows->count++ * r->top_k;
        for (uint32_t i = 0; i < r->top_k; i++)
            to[i] = (uint16_t)experts[(size_t)t * stride + i];
    }
}

enum vf_code vf_routing_recorder_finish(const struct vf_routing_recorder *r,
                                        struct vf_routing_trace *out, struct vf_err *err)
{
    *out = (struct vf_routing_trace){
        .token_count = r->layers[0].count, .layer_count = r->layer_count, .top_k = r->top_k};
    for (uint32_t l = 0; l < r->layer_count; l++)
        if (r->layers[l].count != out->token_count || out->token_count == 0)
            return vf_err_set(err, VF_ERR_UNSUPPORTED,
                              "routing trace: layer %u routed %u tokens, layer 0 %u; a trace needs "
                              "each layer once a token",
                              l, r->layers[l].count, out->token_count);
    size_t sets = (size_t)out->token_count * out->layer_count;
    out->experts = r->failed ? NULL : calloc(sets * out->top_k, sizeof *out->experts);
    if (!out->experts)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "routing trace: out of memory");
    for (size_t s = 0; s < sets; s++) {
        const struct layer_rows *rows = &r->layers[s % out->layer_count];
        memcpy(out->experts + s * out->top_k, rows->experts + s / out->layer_count * out->top_k,
               out->top_k * sizeof *out->experts);
    }
    for (size_t i = 0; i < sets * out->top_k; i++)
        if (out->experts[i] > out->expert_max)
            out->expert_max = out->experts[i];
    return VF_OK;
}
