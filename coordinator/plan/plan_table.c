/* Table 4.1 of the pipeline-native report beside what this program computes for its geometries. */
#include "coordinator/plan/plan_table.h"

#include "common/base/json.h"
#include "common/base/util.h"
#include "coordinator/plan/plan_model.h"

#include <errno.h>
#include <string.h>

#define MIB 1048576.0

#define HEAD    "{\"model_type\":\"pipeline_native\",\"num_attention_heads\":8,\"vocab_size\":50257,"
#define DENSE   "\"hidden_size\":512,\"num_hidden_layers\":6,\"intermediate_size\":2048,"
#define EXPERTS "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":512,"

struct row {
    const char *name, *config;
    double paper_naive, paper_critical; /* MB a token, as printed there */
};

static const struct row rows[] = {
    {"arch1_decoupled_streams",
     HEAD DENSE "\"combine_style\":\"decoupled_streams\",\"merge_interval\":3}", 9.00, 9.00},
    {"arch2_4_combined", HEAD DENSE EXPERTS "\"dense_delay\":1,\"expert_delay\":2}", 9.00, 4.50},
    {"arch2_4_sync", HEAD DENSE EXPERTS "\"dense_delay\":1}", 9.00, 4.50},
    {"arch3_pipeline_registers", HEAD DENSE "\"combine_style\":\"pipeline_registers\"}", 9.00,
     9.00},
    {"arch4_async_experts",
     HEAD DENSE EXPERTS "\"combine_style\":\"async_experts\",\"expert_delay\":2}", 9.00, 9.00},
    {"arch5_fixed_point",
     HEAD "\"hidden_size\":640,\"num_hidden_layers\":2,\"intermediate_size\":2560,"
          "\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":3}",
     14.06, 14.06},
};

static void print_text(const struct row *r, const struct vf_plan *p, FILE *out)
{
    fprintf(out, "%-26s %2u %2u   %6.2f %9.2f   %6.2f %9.2f   %13.2f\n", r->name,
            p->config->dense_delay, p->config->expert_delay, r->paper_naive, r->paper_critical,
            p->closed.naive / MIB, p->closed.critical / MIB, p->half_lanes / MIB);
}

static json_t *row_json(const struct row *r, const struct vf_plan *p)
{
    return json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "name", r->name, "dense_delay",
                     (int)p->config->dense_delay, "expert_delay", (int)p->config->expert_delay,
                     "paper_naive_mb_per_token", r->paper_naive, "paper_critical_mb_per_token",
                     r->paper_critical, "naive_mb_per_token", p->closed.naive / MIB,
                     "critical_mb_per_token", p->closed.critical / MIB, "program_mb_per_token",
                     p->half_lanes / MIB);
}

static enum vf_code print_json(json_t *list, FILE *out, struct vf_err *err)
{
    if (!list)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the table as JSON");
    if (json_dumpf(list, out, JSON_INDENT(2)) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't write to stdout");
    fputc('\n', out);
    return VF_OK;
}

enum vf_code vf_plan_print_table(bool as_json, FILE *out, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    json_t *list = as_json ? json_array() : NULL;
    if (!as_json)
        fprintf(out, "MB (2^20) a token            delays   table 4.1          here"
                     "               this program,\n"
                     "                           dd de    naive  critical    naive  critical"
                     "   three streams\n");
    for (size_t i = 0; code == VF_OK && i < VF_ARRAY_LEN(rows); i++) {
        struct vf_plan_options options = {.config = rows[i].name,
                                          .config_text = rows[i].config,
                                          .quant = VF_QUANT_Q4,
                                          .bandwidth_gb_s = 1.0};
        vf_run_settings_init(&options.settings);
        options.settings.stage_workers = 1;
        struct vf_plan plan;
        code = vf_plan_build(&options, &plan, err);
        if (code != VF_OK)
            break;
        if (as_json)
            json_array_append_new(list, row_json(&rows[i], &plan));
        else
            print_text(&rows[i], &plan, out);
        vf_plan_deinit(&plan);
    }
    if (code == VF_OK && as_json)
        code = print_json(list, out, err);
    json_decref(list);
    return code;
}
