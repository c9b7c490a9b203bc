/* What a run decides about its sizes and its memory, for machines and models of every kind. */
#include "common/base/json.h"
#include "common/model/step_memory.h"
#include "coordinator/engine/budget.h"
#include "tap.h"

#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static Vflow__RunSettings params(void)
{
    Vflow__RunSettings s;
    vf_run_settings_init(&s);
    s.kv = VFLOW__KV__KV_F16;
    s.io_depth = 32;
    return s;
}

/* A model with a program and a placement of its own, freed by drop. */
struct model {
    struct vf_config config;
    struct vf_program program;
    struct vf_placement placement;
    struct vf_budget_model m;
};

/* 16 layers, 2048 wide, with 64 experts of 3 x 2048 x 1024 weights, or without. */
static void make(struct model *out, uint32_t experts, uint32_t workers)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"pipeline_native\", \"combine_style\": \"delayed_sum\","
             "\"hidden_size\": 2048, \"num_hidden_layers\": 16, \"num_attention_heads\": 16,"
             "\"num_key_value_heads\": 8, \"intermediate_size\": %u, \"hidden_act\": \"silu\","
             "\"num_experts\": %u, \"num_experts_per_tok\": %u, \"moe_intermediate_size\": %u,"
             "\"vocab_size\": 50000, \"max_position_embeddings\": 32768}",
             experts ? 0 : 8192, experts, experts ? 8 : 0, experts ? 1024 : 0);
    struct vf_err err;
    json_t *obj;
    if (vf_json_parse(text, strlen(text), "test", &obj, &err) ||
        vf_config_parse(obj, "test", &out->config, &err) ||
        vf_program_compile(&out->config, &out->program, &err) ||
        vf_placement_make(VF_PLACEMENT_PIPELINE, &out->config, &out->program, workers,
                          &out->placement, &err) ||
        vf_budget_model_from_config(&out->config, VF_QUANT_Q4, &out->program, &out->placement,
                                    &out->m, &err)) {
        printf("Bail out! %s\n", err.text);
        _exit(1);
    }
    json_decref(obj);
}

static void drop(struct model *m)
{
    vf_placement_deinit(&m->placement);
    vf_program_deinit(&m->program);
    vf_config_deinit(&m->config);
}

static const struct vf_budget_machine large = {64 * GIB, 32 * GIB, 4};

static struct vf_budget_machine machine(uint64_t memory, uint64_t shm)
{
    return (struct vf_budget_machine){memory, shm, 4};
}

static struct vf_budget decide_for(Vflow__RunSettings p, bool scores, const struct model *m,
                                   struct vf_budget_machine where)
{
    struct vf_budget b = {0};
    struct vf_err err;
    if (vf_budget_decide(&p, scores, &m->m, &where, &b, &err) != VF_OK)
        note("%s", err.text);
    return b;
}

static struct vf_budget decide(Vflow__RunSettings p, const struct model *m,
                               struct vf_budget_machine where)
{
    return decide_for(p, false, m, where);
}

static enum vf_code refuse(Vflow__RunSettings p, const struct model *m,
                           struct vf_budget_machine where, const char *word)
{
    struct vf_budget b;
    struct vf_err err = {0};
    enum vf_code code = vf_budget_decide(&p, false, &m->m, &where, &b, &err);
    if (code == VF_OK || !strstr(err.text, word)) {
        note("found: %s", err.text);
        return VF_OK;
    }
    return code;
}

static void test_context(struct model *m)
{
    Vflow__RunSettings p = params();
    ok(decide(p, m, large).context == 4096, "the default context is 4096");
    m->config.context_max = 512;
    ok(decide(p, m, large).context == 512, "or the model's, if that is smaller");
    p.ctx = 512;
    ok(decide(p, m, large).context == 512, "a context as large as the model's is taken");
    p.ctx = 513;
    ok(refuse(p, m, large, "513") == VF_ERR_USAGE, "a larger one is refused");
    m->config.context_max = 1 << 24;
    p.ctx = 1 << 24;
    p.batch = 64;
    ok(refuse(p, m, large, "--ctx") == VF_ERR_LIMIT, "KV caches beyond this memory are refused");
    p.batch = 1024;
    ok(refuse(p, m, large, "--ctx") == VF_ERR_LIMIT, "and those beyond any");
    m->config.context_max = 32768;
}

static void test_step(struct model *m)
{
    Vflow__RunSettings p = params();
    struct vf_config *c = &m->config;
    struct vf_budget b = decide(p, m, large);
    ok(b.chunk == 256 && b.columns_max == 256 && b.rows_max == 1,
       "a generation: a chunk of 256 columns, one row");
    c->vocab_size = 512;
    ok(decide_for(p, true, m, large).rows_max == 256, "scoring: a row for every column");
    c->vocab_size = 200000;
    b = decide_for(p, true, m, large);
    ok(b.rows_max == 83 && b.logits_bytes == (uint64_t)2 * 83 * 200000 * 4,
       "of a large vocabulary as many as 64 MiB hold");
    c->vocab_size = 100u << 20;
    ok(decide_for(p, true, m, large).rows_max == 1, "but always one");
    c->vocab_size = 50000;
    ok(decide_for(p, true, m, machine(64 * GIB, 64 * MIB)).rows_max == 41,
       "a small /dev/shm keeps seven eighths");
    p.prefill_chunk = 1;
    p.batch = 8;
    c->flow_count = 3;
    b = decide_for(p, true, m, large);
    ok(b.chunk == 1 && b.columns_max == 24, "eight sequences of three flows need 24 columns");
    c->flow_count = 1;
    p.prefill_chunk = 4096;
    p.ctx = 100;
    ok(decide_for(p, true, m, large).chunk == 100, "a chunk isn't longer than the context");
}

static void test_experts(struct model *m)
{
    Vflow__RunSettings p = params();
    const uint64_t record = m->m.record_bytes, all = 1024 * record;
    note("an expert has %llu bytes", (unsigned long long)record);
    ok(!decide(p, m, large).stream, "experts that fit are resident");
    struct vf_budget b = decide(p, m, machine(2 * GIB, 8 * GIB));
    ok(b.stream && b.memory.need <= b.memory.allowed && b.memory.allowed < 2 * GIB &&
           b.memory.need + 2 * record > b.memory.allowed,
       "experts that don't stream through all that is left (%llu slots)",
       (unsigned long long)b.cache_slots);
    ok(!b.memory.shm_limits, "of memory, as /dev/shm has more");
    b = decide(p, m, machine(2 * GIB, 256 * MIB));
    ok(b.stream && b.memory.shm_bytes <= 256 * MIB && b.memory.shm_bytes + 8 * MIB > 256 * MIB &&
           b.memory.shm_limits,
       "and through no more than /dev/shm has, which is told");
    p.memory = GIB;
    b = decide(p, m, large);
    ok(b.stream && b.memory.allowed == GIB && b.memory.need <= GIB &&
           b.memory.need + 2 * record > GIB,
       "--memory decides on any machine");
    p.memory = 0;
    p.experts = VFLOW__EXPERTS__EXPERTS_STREAM;
    ok(decide(p, m, large).cache_slots == 1024, "stream is obeyed, with a slot for every expert");
    p.expert_cache = 25 * record + 1;
    ok(decide(p, m, large).cache_slots == 25, "a cache has whole slots");
    p.expert_cache = record;
    ok(decide(p, m, large).cache_slots == 1, "one is enough");
    p.expert_cache = record - 1;
    ok(refuse(p, m, large, "one expert") == VF_ERR_USAGE, "less than one is refused");
    p.experts = VFLOW__EXPERTS__EXPERTS_AUTO;
    p.expert_cache = all;
    ok(!decide(p, m, large).stream, "a cache for every expert: simply resident");
    p.expert_cache = all - 1;
    ok(decide(p, m, large).cache_slots == 1023, "a smaller one streams, though all would fit");
}

static void test_refusals(struct model *m)
{
    Vflow__RunSettings p = params();
    ok(refuse(p, m, machine(400 * MIB, 8 * GIB), "8 experts at a time") == VF_ERR_LIMIT,
       "a machine that can't hold one layer's experts");
    p.memory = 400 * MIB;
    ok(refuse(p, m, large, "--memory allows 400.0 MiB: raise it") == VF_ERR_USAGE,
       "a --memory that can't");
    p.expert_cache = GIB;
    ok(refuse(p, m, large, "lower --expert-cache") == VF_ERR_USAGE,
       "a cache that is too large for it");
    p = params();
    p.experts = VFLOW__EXPERTS__EXPERTS_RESIDENT;
    ok(refuse(p, m, machine(2 * GIB, 8 * GIB), "--experts stream") == VF_ERR_LIMIT,
       "resident experts that don't fit");
    p = params();
    p.experts = VFLOW__EXPERTS__EXPERTS_STREAM;
    ok(refuse(p, m, machine(64 * GIB, 16 * MIB), "remount,size=") == VF_ERR_LIMIT,
       "a /dev/shm that can't hold one layer's experts");
    p.io_workers = 33;
    ok(refuse(p, m, large, "--io-workers") == VF_ERR_USAGE, "too many I/O workers");
}

/* The sum of the items, and what each of them depends on. */
static void test_items(struct model *m, struct model *dense)
{
    Vflow__RunSettings p = params();
    struct vf_budget b = decide(p, m, large), more;
    uint64_t sum = 0;
    for (int i = 0; i < VF_MEMORY_ITEM_COUNT; i++)
        sum += b.memory.bytes[i];
    ok(sum == b.memory.need, "a plan's items add up");
    ok(b.memory.bytes[VF_MEMORY_KV] == (uint64_t)16 * 2 * 8 * 128 * 2 * 4096,
       "keys and values of 4096 positions in f16");
    ok(b.memory.bytes[VF_MEMORY_EXPERTS] == 1024 * m->m.record_bytes, "every expert is counted");
    p.batch = 4;
    p.kv = VFLOW__KV__KV_F32;
    ok(decide(p, m, large).memory.bytes[VF_MEMORY_KV] == 8 * b.memory.bytes[VF_MEMORY_KV],
       "four sequences in f32 take eight times that");
    p = params();
    p.weights = VFLOW__WEIGHTS__WEIGHTS_HUGE;
    more = decide(p, m, large);
    ok(more.memory.bytes[VF_MEMORY_WEIGHTS] >= b.memory.bytes[VF_MEMORY_WEIGHTS],
       "copies take at least as much as what is mapped");
    p = params();
    p.prefill_chunk = 512;
    more = decide(p, m, large);
    ok(more.memory.bytes[VF_MEMORY_BUFFERS] > b.memory.bytes[VF_MEMORY_BUFFERS] * 3 / 2,
       "buffers grow with the chunk");
    p = params();
    b = decide(p, dense, large);
    ok(!b.stream && b.memory.bytes[VF_MEMORY_EXPERTS] == 0 && b.io_workers == 0,
       "a model without experts streams nothing");
    p.memory = 64 * MIB;
    ok(refuse(p, dense, large, "for weights, ") == VF_ERR_USAGE, "but may be refused");
}

/* Workers share what they map; buffers and KV caches are their own. */
static void test_workers(struct model *one)
{
    struct model four;
    make(&four, 64, 4);
    Vflow__RunSettings p = params();
    struct vf_budget a = decide(p, one, large), b = decide(p, &four, large);
    ok(a.memory.bytes[VF_MEMORY_WEIGHTS] == b.memory.bytes[VF_MEMORY_WEIGHTS],
       "four workers map the same weights");
    ok(a.memory.bytes[VF_MEMORY_KV] == b.memory.bytes[VF_MEMORY_KV], "and share the KV caches out");
    ok(b.memory.bytes[VF_MEMORY_BUFFERS] > 3 * a.memory.bytes[VF_MEMORY_BUFFERS],
       "each has buffers of its own");
    ok(b.memory.bytes[VF_MEMORY_SHARED] >
           a.memory.bytes[VF_MEMORY_SHARED] + (uint64_t)3 * 4 * 256 * 2048 * 4,
       "and mailboxes between them");
    drop(&four);
}

int main(void)
{
    plan(6 + 7 + 11 + 6 + 8 + 4);
    struct model moe, dense;
    make(&moe, 64, 1);
    make(&dense, 0, 1);
    test_context(&moe);
    test_step(&moe);
    test_experts(&moe);
    test_refusals(&moe);
    test_items(&moe, &dense);
    test_workers(&moe);
    drop(&moe);
    drop(&dense);
    return 0;
}
