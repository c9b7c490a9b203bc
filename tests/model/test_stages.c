/* The execution order: every program, whatever its style and delays, in every choice of when the
 * experts run. What is expected is worked out here from the operations' inputs alone. */
#include "common/model/program.h"
#include "common/model/stages.h"
#include "model_test.h"

#define OPS_MAX     2048
#define WORKERS_MAX 5

static struct vf_program program;
static uint32_t order[OPS_MAX], slot[OPS_MAX], place[OPS_MAX];
static bool before[OPS_MAX][OPS_MAX]; /* [a][b]: b depends on a */

static uint32_t producer(const struct vf_op *op, uint32_t k)
{
    return program.values[vf_op_inputs(&program, op)[k]].producer;
}

static void find_dependencies(void)
{
    memset(before, 0, sizeof before);
    for (uint32_t b = 0; b < program.op_count; b++)
        for (uint32_t k = 0; k < program.ops[b].in_count; k++) {
            uint32_t p = producer(&program.ops[b], k);
            before[p][b] = true;
            for (uint32_t a = 0; a < p; a++)
                before[a][b] |= before[a][p];
        }
}

static bool heavy(uint32_t i)
{
    enum vf_op_kind kind = program.ops[i].kind;
    return kind == VF_OP_ATTENTION || kind == VF_OP_DENSE || kind == VF_OP_EXPERTS;
}

/* A permutation in which producers come first and slots are what the header says. */
static bool order_is_sound(void)
{
    bool seen[OPS_MAX] = {false};
    for (uint32_t i = 0; i < program.op_count; i++) {
        if (order[i] >= program.op_count || seen[order[i]])
            return false;
        seen[order[i]] = true;
        place[order[i]] = i;
        uint32_t last = i ? slot[order[i - 1]] : 0, now = slot[order[i]];
        bool shares = i && now == last;
        if (i ? now != last && now != last + 1 : now != 0)
            return false;
        if (shares && !(heavy(order[i]) && heavy(order[i - 1])))
            return false;
    }
    for (uint32_t a = 0; a < program.op_count; a++)
        for (uint32_t b = 0; b < program.op_count; b++) {
            if (before[a][b] && (place[a] >= place[b] || slot[a] >= slot[b]))
                return false;
            if (a != b && slot[a] == slot[b] && program.ops[a].kind == program.ops[b].kind)
                return false;
        }
    return true;
}

/* Workers run their part of the order slot by slot: all inputs first, then the operations. Whether
 * all come through. */
static bool comes_through(const uint32_t *worker, uint32_t workers)
{
    bool done[OPS_MAX] = {false};
    uint32_t at[WORKERS_MAX] = {0}, left = program.op_count;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t w = 0; w < workers; w++) {
            uint32_t begin = at[w];
            while (begin < program.op_count && worker[order[begin]] != w)
                begin++;
            if (begin == program.op_count)
                continue;
            uint32_t end = begin;
            bool ready = true;
            for (; end < program.op_count && slot[order[end]] == slot[order[begin]]; end++)
                for (uint32_t k = 0;
                     worker[order[end]] == w && k < program.ops[order[end]].in_count; k++)
                    ready &= done[producer(&program.ops[order[end]], k)];
            for (uint32_t i = begin; ready && i < end; i++)
                if (worker[order[i]] == w) {
                    done[order[i]] = true;
                    left--;
                }
            if (ready) {
                at[w] = end;
                moved = true;
            }
        }
    }
    return left == 0;
}

static void random_programs(enum vf_style style, struct rng *r)
{
    bool sound = true, through = true;
    for (int round = 0; round < 60; round++) {
        struct vf_config config;
        struct vf_err err;
        random_config(r, style, &config);
        if (vf_program_compile(&config, &program, &err) != VF_OK || program.op_count > OPS_MAX)
            continue;
        find_dependencies();
        for (int when = 0; when < VF_EXPERTS_WHEN_COUNT; when++) {
            vf_stages_order(&program, (enum vf_experts_when)when, order, slot);
            sound &= order_is_sound();
            uint32_t worker[OPS_MAX], workers = 1 + rng_below(r, WORKERS_MAX);
            for (uint32_t i = 0; i < program.op_count; i++)
                worker[i] = rng_below(r, workers);
            through &= comes_through(worker, workers);
        }
        vf_program_deinit(&program);
    }
    ok(sound, "%s: producers come first, slots hold independent operations of different kinds",
       vf_style_name(style));
    ok(through, "%s: workers with any parts never wait in a circle", vf_style_name(style));
}

static uint32_t slot_of(enum vf_op_kind kind, uint32_t step_layer)
{
    for (uint32_t i = 0; i < program.op_count; i++)
        if (program.ops[i].kind == kind && program.ops[i].step_layer == step_layer)
            return slot[i];
    return UINT32_MAX;
}

#define BASE                                                                                       \
    "{\"model_type\":\"pipeline_native\",\"hidden_size\":32,\"num_hidden_layers\":8,"              \
    "\"num_attention_heads\":4,\"vocab_size\":64,\"intermediate_size\":64,\"num_experts\":4,"      \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"

static void compile(const char *text)
{
    struct vf_config config;
    struct vf_err err;
    parse_good(text, &config);
    if (vf_program_compile(&config, &program, &err) != VF_OK)
        _exit(1);
}

/* A delayed model has one parallel stage a layer; experts from a drive wait for their consumer. */
static void delayed(void)
{
    compile(BASE "\"combine_style\":\"delayed_sum\",\"dense_delay\":2,\"expert_delay\":3}");
    vf_stages_order(&program, VF_EXPERTS_EARLY, order, slot);
    bool together = true;
    for (uint32_t l = 3; l < 7; l++)
        together &= slot_of(VF_OP_DENSE, l) == slot_of(VF_OP_ATTENTION, l) &&
                    slot_of(VF_OP_EXPERTS, l - 3) == slot_of(VF_OP_ATTENTION, l);
    ok(together, "early: attention, delayed dense and delayed experts run side by side");
    vf_stages_order(&program, VF_EXPERTS_LATE, order, slot);
    bool late = true;
    for (uint32_t l = 3; l < 7; l++)
        late &= slot_of(VF_OP_DENSE, l) == slot_of(VF_OP_ATTENTION, l) &&
                slot_of(VF_OP_EXPERTS, l - 3) > slot_of(VF_OP_ATTENTION, l) &&
                slot_of(VF_OP_EXPERTS, l - 3) < slot_of(VF_OP_ATTENTION, l + 1);
    ok(late, "late: experts run behind them");
    ok(slot_of(VF_OP_FETCH, 7) > slot_of(VF_OP_ATTENTION, 7) &&
           slot_of(VF_OP_DENSE, 7) > slot_of(VF_OP_FETCH, 7) &&
           slot_of(VF_OP_EXPERTS, 4) > slot_of(VF_OP_DENSE, 7),
       "late: the last layer's dense FFN hides the token's last read");
    vf_stages_order(&program, VF_EXPERTS_SYNC, order, slot);
    bool sync = true;
    for (uint32_t l = 0; l < 8; l++) {
        uint32_t from = slot_of(VF_OP_FETCH, l), to = slot_of(VF_OP_EXPERTS, l);
        sync &= from < to;
        for (uint32_t i = 0; i < program.op_count; i++)
            sync &=
                !heavy(i) || program.ops[i].kind == VF_OP_EXPERTS || slot[i] < from || slot[i] > to;
    }
    ok(sync, "sync: nothing runs between a fetch and its experts, or beside these");
    vf_program_deinit(&program);
}

int main(void)
{
    struct rng r = {2024};
    plan(2 * VF_STYLE_COUNT + 4);
    for (int style = 0; style < VF_STYLE_COUNT; style++)
        random_programs((enum vf_style)style, &r);
    delayed();
    return 0;
}
