/* The memory of a run as the plan command shows it: what would be taken, what may be, and whether
 * the experts would stream. */
#include "coordinator/plan/plan_model.h"

#include <inttypes.h>

struct vf_shape_model vf_plan_shape_model(const struct vf_plan *p)
{
    return (struct vf_shape_model){
        .file = p->file, .config = p->config, .program = &p->program, .quant = p->quant};
}

enum vf_code vf_plan_add_memory(struct vf_plan *p, struct vf_err *err)
{
    const struct vf_shape_model model = vf_plan_shape_model(p);
    struct vf_err *refused = &p->memory_refused;
    enum vf_code code = vf_run_shape_decide(&p->shape, false, &model, refused);
    refused->code = code;
    p->has_memory = true;
    if (code && p->shape.budget.memory.need == 0) { /* it didn't get as far as the memory */
        *err = *refused;
        return code;
    }
    return code ? VF_OK : vf_run_shape_probe(&p->shape, &model, err);
}

void vf_plan_print_memory(const struct vf_plan *p, FILE *out)
{
    const struct vf_budget *b = &p->shape.budget;
    const struct vf_memory_plan *m = &b->memory;
    char text[VF_BYTES_TEXT], there[VF_BYTES_TEXT];
    fprintf(out,
            "\nmemory of a run, all processes together: %u sequence%s of %u positions, steps of "
            "%u columns\n",
            p->shape.settings.batch, p->shape.settings.batch == 1 ? "" : "s", b->context,
            b->columns_max);
    for (int i = 0; i < VF_MEMORY_ITEM_COUNT; i++) {
        fprintf(out, "  %-12s %12s", vf_memory_item_name((enum vf_memory_item)i),
                vf_bytes_text(m->bytes[i], text));
        if (i == VF_MEMORY_EXPERTS && b->stream)
            fprintf(out, "  streamed, %" PRIu64 " of %" PRIu64 " in the cache", b->cache_slots,
                    (uint64_t)p->config->expert_count * p->config->layer_count);
        else if (i == VF_MEMORY_EXPERTS)
            fprintf(out, "  %s", vf_run_shape_experts(&p->shape, p->config));
        fprintf(out, "\n");
    }
    fprintf(out, "  %-12s %12s\n", "total", vf_bytes_text(m->need, text));
    fprintf(out, "  %-12s %12s  %s\n", "allowed", vf_bytes_text(m->allowed, text),
            m->given ? "by --memory" : "of what is available, less a reserve");
    fprintf(out, "  %-12s %12s  of %s free in /dev/shm\n", "shm", vf_bytes_text(m->shm_bytes, text),
            vf_bytes_text(m->shm_available, there));
    if (p->shape.drive.depth)
        fprintf(out,
                "\nthe drive, as probed: %.2f GB/s in reads of %s, %u at a time, %.2f ms each\n",
                p->shape.drive.bytes_per_s * 1e-9, vf_bytes_text(p->shape.drive.read_bytes, text),
                p->shape.drive.depth, p->shape.drive.latency_ms);
}

static void put_bytes(json_t *o, const char *key, uint64_t bytes, int *bad)
{
    *bad |= json_object_set_new(o, key, json_integer((json_int_t)bytes));
}

json_t *vf_plan_memory_json(const struct vf_plan *p, int *bad)
{
    const struct vf_budget *b = &p->shape.budget;
    const struct vf_memory_plan *m = &b->memory;
    json_t *o = json_object(), *items = json_object();
    for (int i = 0; i < VF_MEMORY_ITEM_COUNT; i++)
        put_bytes(items, vf_memory_item_name((enum vf_memory_item)i), m->bytes[i], bad);
    *bad |= json_object_set_new(o, "fits", json_boolean(p->memory_refused.code == VF_OK));
    if (p->memory_refused.code)
        *bad |= json_object_set_new(o, "refused", json_string(p->memory_refused.text));
    put_bytes(o, "allowed", m->allowed, bad);
    *bad |= json_object_set_new(o, "allowed_by", json_string(m->given ? "option" : "machine"));
    put_bytes(o, "available", m->available, bad);
    put_bytes(o, "need", m->need, bad);
    *bad |= json_object_set_new(o, "items", items);
    *bad |=
        json_object_set_new(o, "experts", json_string(vf_run_shape_experts(&p->shape, p->config)));
    put_bytes(o, "cache_slots", b->cache_slots, bad);
    put_bytes(o, "shm", m->shm_bytes, bad);
    put_bytes(o, "shm_available", m->shm_available, bad);
    put_bytes(o, "context", b->context, bad);
    put_bytes(o, "sequences", p->shape.settings.batch, bad);
    put_bytes(o, "columns", b->columns_max, bad);
    put_bytes(o, "rows", b->rows_max, bad);
    return o;
}

json_t *vf_plan_drive_json(const struct vf_plan *p, int *bad)
{
    if (!p->shape.drive.depth)
        return json_null();
    json_t *o = json_object();
    put_bytes(o, "read_bytes", p->shape.drive.read_bytes, bad);
    put_bytes(o, "io_depth", p->shape.drive.depth, bad);
    *bad |= json_object_set_new(o, "bytes_per_second", json_real(p->shape.drive.bytes_per_s));
    *bad |= json_object_set_new(o, "latency_ms", json_real(p->shape.drive.latency_ms));
    return o;
}
