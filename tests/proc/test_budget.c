/* What a run decides about its sizes, for machines and models of every kind. */
#include "coordinator/engine/budget.h"
#include "tap.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static struct vf_engine_params params(void)
{
    return (struct vf_engine_params){.kv = "f16", .sequences = 1, .prefill_chunk = 256};
}

/* 16 layers of 64 experts of 4 MiB: 4 GiB of experts in a file of 5. */
static struct vf_budget_model moe(void)
{
    return (struct vf_budget_model){.file_bytes = 5 * GIB,
                                    .expert_count = 64,
                                    .expert_layers = 16,
                                    .record_bytes = 4 * MIB,
                                    .context_max = 32768,
                                    .vocab_size = 50000,
                                    .flow_count = 1,
                                    .kv_values = 16 * 2 * 2048};
}

static const struct vf_budget_machine large = {64 * GIB, 32 * GIB};

static struct vf_budget decide(struct vf_engine_params p, struct vf_budget_model m,
                               struct vf_budget_machine machine)
{
    struct vf_budget b = {0};
    struct vf_err err;
    if (vf_budget_decide(&p, &m, &machine, &b, &err) != VF_OK)
        note("%s", err.text);
    return b;
}

static enum vf_code refuse(struct vf_engine_params p, struct vf_budget_model m,
                           struct vf_budget_machine machine, const char *word)
{
    struct vf_budget b;
    struct vf_err err = {0};
    enum vf_code code = vf_budget_decide(&p, &m, &machine, &b, &err);
    if (code == VF_OK || !strstr(err.text, word)) {
        note("found: %s", err.text);
        return VF_OK;
    }
    return code;
}

static void test_context(void)
{
    struct vf_engine_params p = params();
    struct vf_budget_model m = moe();
    ok(decide(p, m, large).context == 4096, "the default context is 4096");
    m.context_max = 512;
    ok(decide(p, m, large).context == 512, "or the model's, if that is smaller");
    p.context = 512;
    ok(decide(p, m, large).context == 512, "a context as large as the model's is taken");
    p.context = 513;
    ok(refuse(p, m, large, "513") == VF_ERR_USAGE, "a larger one is refused");
    m.context_max = 1 << 24;
    p.context = 1 << 24;
    p.sequences = 1024;
    m.kv_values = (uint64_t)1 << 35;
    ok(refuse(p, m, large, "--ctx") == VF_ERR_LIMIT, "KV caches beyond any memory are refused");
}

static void test_step(void)
{
    struct vf_engine_params p = params();
    struct vf_budget_model m = moe();
    struct vf_budget b = decide(p, m, large);
    ok(b.chunk == 256 && b.columns_max == 256 && b.rows_max == 1,
       "a generation: a chunk of 256 columns, one row");
    p.scores = true;
    m.vocab_size = 512;
    ok(decide(p, m, large).rows_max == 256, "scoring: a row for every column");
    m.vocab_size = 200000;
    b = decide(p, m, large);
    ok(b.rows_max == 83 && b.logits_bytes == (uint64_t)2 * 83 * 200000 * 4,
       "of a large vocabulary as many as 64 MiB hold");
    m.vocab_size = 1u << 31;
    ok(decide(p, m, large).rows_max == 1, "but always one");
    m.vocab_size = 50000;
    ok(decide(p, m, (struct vf_budget_machine){64 * GIB, 64 * MIB}).rows_max == 41,
       "a small /dev/shm keeps seven eighths");
    p.prefill_chunk = 1;
    p.sequences = 8;
    m.flow_count = 3;
    b = decide(p, m, large);
    ok(b.chunk == 1 && b.columns_max == 24, "eight sequences of three flows need 24 columns");
    p.prefill_chunk = 4096;
    p.context = 100;
    ok(decide(p, m, large).chunk == 100, "a chunk isn't longer than the context");
}

static void test_experts(void)
{
    struct vf_engine_params p = params();
    struct vf_budget_model m = moe();
    ok(!decide(p, m, large).stream, "experts that fit are resident");
    struct vf_budget b = decide(p, m, (struct vf_budget_machine){4 * GIB, 8 * GIB});
    ok(b.stream && b.cache_slots > 450 && b.cache_slots < 520,
       "experts that don't stream through what is left (%llu slots)",
       (unsigned long long)b.cache_slots);
    b = decide(p, m, (struct vf_budget_machine){4 * GIB, 1 * GIB});
    ok(b.stream && b.cache_slots <= 224, "and through no more than /dev/shm has");
    b = decide(p, m, (struct vf_budget_machine){1200 * MIB, 8 * GIB});
    ok(b.stream && b.cache_slots >= 1, "at least one slot, however little there is");
    p.experts = VF_EXPERTS_RESIDENT;
    ok(!decide(p, m, (struct vf_budget_machine){4 * GIB, 8 * GIB}).stream, "resident is obeyed");
    p.experts = VF_EXPERTS_STREAM;
    ok(decide(p, m, large).cache_slots == 1024, "stream is obeyed, with a slot for every expert");
    p.expert_cache_bytes = 100 * MIB;
    ok(decide(p, m, large).cache_slots == 25, "a cache has whole slots");
    p.expert_cache_bytes = 4 * MIB;
    ok(decide(p, m, large).cache_slots == 1, "one is enough");
    p.expert_cache_bytes = 4 * MIB - 1;
    ok(refuse(p, m, large, "4194304") == VF_ERR_USAGE, "less than one is refused");
    p.experts = VF_EXPERTS_AUTO;
    p.expert_cache_bytes = 4 * GIB;
    ok(!decide(p, m, large).stream, "a cache for every expert: simply resident");
    p.expert_cache_bytes = 4 * GIB - 1;
    ok(decide(p, m, large).cache_slots == 1023, "a smaller one streams, though all would fit");
    m.expert_count = 0;
    ok(!decide(p, m, large).stream, "a model without experts streams nothing");
}

int main(void)
{
    plan(5 + 7 + 12);
    test_context();
    test_step();
    test_experts();
    return 0;
}
