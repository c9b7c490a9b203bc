/* Table 4.1 of the pipeline-native report, and schedules of programs worked out by hand. */
#include "model_test.h"

#include "common/base/util.h"
#include "common/model/critical_path.h"

#define MIB 1048576.0

struct table_row {
    const char *name, *config;
    double naive, critical; /* MB/token, exact in binary */
};

#define HEAD    "{\"model_type\":\"pipeline_native\",\"num_attention_heads\":8,\"vocab_size\":50257,"
#define DENSE   "\"hidden_size\":512,\"num_hidden_layers\":6,\"intermediate_size\":2048,"
#define EXPERTS DENSE "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":512,"

static const struct table_row table[] = {
    {"arch1", HEAD DENSE "\"combine_style\":\"decoupled_streams\",\"merge_interval\":3}", 9.0, 9.0},
    {"arch2_4_combined", HEAD EXPERTS "\"dense_delay\":1,\"expert_delay\":2}", 9.0, 4.5},
    {"arch2_4_sync", HEAD EXPERTS "\"dense_delay\":1,\"expert_delay\":0}", 9.0, 4.5},
    {"arch3", HEAD DENSE "\"combine_style\":\"pipeline_registers\"}", 9.0, 9.0},
    {"arch4", HEAD EXPERTS "\"combine_style\":\"async_experts\",\"expert_delay\":2}", 9.0, 9.0},
    {"arch5",
     HEAD "\"hidden_size\":640,\"num_hidden_layers\":2,\"intermediate_size\":2560,"
          "\"combine_style\":\"fixed_point\",\"fixed_point_iterations\":3}",
     14.0625, 14.0625},
};

static void test_table(void)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(table); i++) {
        struct vf_config c;
        parse_good(table[i].config, &c);
        struct vf_critical_path r = vf_critical_path_closed_form(&c);
        ok(r.naive / MIB == table[i].naive && r.critical / MIB == table[i].critical,
           "%s: %.2f -> %.2f MB/token", table[i].name, r.naive / MIB, r.critical / MIB);
    }
    struct vf_config c;
    parse_good(table[1].config, &c);
    struct vf_critical_path r = vf_critical_path_closed_form(&c);
    ok(r.attention / MIB == 0.5 && r.dense / MIB == 1.5 && r.experts / MIB == 0.75 &&
           r.serial / MIB == 16.5,
       "arch2_4: 0.50 + 1.50 + 0.75 a layer, 16.50 in all");
}

static void test_other_geometry(void)
{
    struct vf_config c;
    parse_good("{\"model_type\":\"pipeline_native\",\"hidden_size\":64,\"num_hidden_layers\":3,"
               "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":16,"
               "\"intermediate_size\":256,\"mlp_gated\":false,\"vocab_size\":100}",
               &c);
    struct vf_critical_path r = vf_critical_path_closed_form(&c);
    ok(r.attention == 0.5 * 64 * (128 + 32 + 32 + 128), "grouped queries count what they store");
    ok(r.dense == 0.5 * 2 * 64 * 256 && r.experts == 0.0, "an ungated FFN has two matrices");
}

/* Runs config's program with 0.5-byte costs on three streams, or on none. */
static double measure(const char *text, bool streams)
{
    struct vf_config c;
    struct vf_program p;
    struct vf_err err = {0};
    parse_good(text, &c);
    if (vf_program_compile(&c, &p, &err) != VF_OK)
        return -1.0;
    double *cost = calloc(p.op_count, sizeof *cost), *start = calloc(p.op_count, sizeof *start);
    double *finish = calloc(p.op_count, sizeof *finish), busy[VF_LANE_COUNT];
    uint32_t *resource = calloc(p.op_count, sizeof *resource);
    for (uint32_t i = 0; i < p.op_count; i++) {
        enum vf_lane lane = vf_op_lane(p.ops[i].kind);
        cost[i] = vf_op_half_bytes(&c, &p.ops[i]);
        resource[i] = streams && lane != VF_LANE_NONE ? (uint32_t)lane : VF_RESOURCE_NONE;
    }
    double total =
        vf_program_schedule(&p, cost, NULL, resource, busy, VF_LANE_COUNT, start, finish);
    for (uint32_t i = 0; i < p.op_count; i++)
        for (uint32_t k = 0; k < p.ops[i].in_count; k++)
            if (start[i] < finish[p.values[vf_op_inputs(&p, &p.ops[i])[k]].producer])
                total = -1.0; /* started before its input was there */
    free(cost);
    free(start);
    free(finish);
    free(resource);
    vf_program_deinit(&p);
    return total / MIB;
}

/* A layer's numbers: attention 0.50, dense 1.50, experts 0.75. */
static void test_programs(void)
{
    /* dense waits for attention: 6 x (0.5 + 1.5) */
    double serial = measure(HEAD EXPERTS "\"dense_delay\":0,\"expert_delay\":0}", true);
    ok(serial == 12.0, "no delay: %.2f MB/token", serial);
    /* layer 0 reads no dense and isn't waiting for experts: 0.5; then dense alone: 5 x 1.5 */
    double combined = measure(HEAD EXPERTS "\"dense_delay\":1,\"expert_delay\":2}", true);
    ok(combined == 8.0, "arch2_4_combined: %.2f MB/token", combined);
    /* layer 0: 0.5 + 0.75 experts; then max(1.5, 0.5 + 0.75) a layer */
    double sync = measure(HEAD EXPERTS "\"dense_delay\":1,\"expert_delay\":0}", true);
    ok(sync == 8.75, "arch2_4_sync: %.2f MB/token", sync);
    /* attention and dense both start from x.in: 6 x 1.5; the last experts come in their shadow */
    double arch4 =
        measure(HEAD EXPERTS "\"combine_style\":\"async_experts\",\"expert_delay\":2}", true);
    ok(arch4 == 9.0, "arch4: %.2f MB/token", arch4);
    /* two chains of their own, dense the longer: 6 x 1.5 */
    double arch1 =
        measure(HEAD DENSE "\"combine_style\":\"decoupled_streams\",\"merge_interval\":6}", true);
    ok(arch1 == 9.0, "arch1: %.2f MB/token", arch1);
    /* dense delay 2 without a limit on streams: 0.5 + 0.5, then 1.5 for every two layers */
    double unlimited = measure(HEAD DENSE "\"dense_delay\":2}", false);
    ok(unlimited == 1.0 + 3.0, "dense delay 2, any number of streams: %.2f MB/token", unlimited);
    /* with one dense stream its own bytes are the bound: 0.5, then 4 x 1.5, after x0.out */
    double limited = measure(HEAD DENSE "\"dense_delay\":2}", true);
    ok(limited == 0.5 + 6.0, "dense delay 2, one dense stream: %.2f MB/token", limited);
}

int main(void)
{
    plan((int)VF_ARRAY_LEN(table) + 1 + 2 + 7);
    test_table();
    test_other_geometry();
    test_programs();
    return 0;
}
