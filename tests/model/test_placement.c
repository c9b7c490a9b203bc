/* Pipeline placements: who owns what, the edges, the balance, and that it runs without deadlock. */
#include "model_test.h"

#include "common/model/placement.h"
#include "common/model/tensors.h"
#include "common/tile/tile.h"

#define MODELS 300

/* Contiguous, in order, nobody idle; every op with its own effective layer. */
static bool check_groups(const struct vf_program *p, const struct vf_placement *pl)
{
    uint32_t owner[VF_LAYERS_MAX], next = 0;
    memset(owner, 0xff, sizeof owner);
    for (uint32_t i = 0; i < p->op_count; i++) {
        uint32_t *o = &owner[p->ops[i].step_layer];
        if (*o == UINT32_MAX)
            *o = pl->op_worker[i];
        if (*o != pl->op_worker[i])
            return false;
    }
    for (uint32_t l = 0; l < p->effective_layers; l++) {
        if (owner[l] != next && owner[l] != next + 1)
            return false;
        next = owner[l];
    }
    return owner[0] == 0 && next == pl->worker_count - 1 && pl->head_worker == next &&
           pl->op_worker[0] == 0 && pl->op_worker[p->op_count - 1] == pl->head_worker;
}

static const struct vf_edge *find_edge(const struct vf_placement *pl, vf_value v, uint32_t to,
                                       uint32_t *count)
{
    const struct vf_edge *found = NULL;
    *count = 0;
    for (uint32_t i = 0; i < pl->edge_count; i++)
        if (pl->edges[i].value == v && pl->edges[i].to == to) {
            found = &pl->edges[i];
            ++*count;
        }
    return found;
}

/* Every value read on a worker is made there or has exactly one edge to it, and there are no
 * others. Counted from the reads, independently of how edges are derived. */
static bool check_edges(const struct vf_program *p, const struct vf_placement *pl)
{
    uint32_t needed = 0;
    for (vf_value v = 0; v < p->value_count; v++)
        for (uint32_t w = 0; w < pl->worker_count; w++) {
            uint32_t first = UINT32_MAX, count, from = pl->op_worker[p->values[v].producer];
            for (uint32_t i = 0; i < p->op_count && first == UINT32_MAX; i++)
                for (uint32_t k = 0; k < p->ops[i].in_count; k++)
                    if (vf_op_inputs(p, &p->ops[i])[k] == v && pl->op_worker[i] == w)
                        first = i;
            const struct vf_edge *e = find_edge(pl, v, w, &count);
            bool wanted = first != UINT32_MAX && from != w;
            if (count != (wanted ? 1 : 0))
                return false;
            if (wanted && (e->from != from || e->recv_before != first ||
                           e->send_after != p->values[v].producer || p->values[v].is_route))
                return false;
            needed += wanted;
        }
    return needed == pl->edge_count;
}

/* Each worker runs its ops in program order, sends at once and waits for what it lacks. */
static bool runs_to_the_end(const struct vf_program *p, const struct vf_placement *pl)
{
    uint32_t *next = calloc(pl->worker_count, sizeof *next), done = 0;
    bool *made = calloc(p->value_count, sizeof *made), progress = true;
    while (progress) {
        progress = false;
        for (uint32_t w = 0; w < pl->worker_count; w++) {
            uint32_t i = next[w];
            while (i < p->op_count && pl->op_worker[i] != w)
                i++;
            next[w] = i;
            bool ready = i < p->op_count;
            for (uint32_t k = 0; ready && k < p->ops[i].in_count; k++)
                ready = made[vf_op_inputs(p, &p->ops[i])[k]];
            if (!ready)
                continue;
            if (p->ops[i].out != VF_VALUE_NONE)
                made[p->ops[i].out] = true;
            next[w] = i + 1;
            done++;
            progress = true;
        }
    }
    free(next);
    free(made);
    return done == p->op_count;
}

/* The smallest possible largest group, by dynamic programming over all splits. */
static uint64_t best_split(const uint64_t *cost, uint32_t layers, uint32_t workers)
{
    static uint64_t best[65][65];
    for (uint32_t l = 1; l <= layers; l++) {
        best[1][l] = (l > 1 ? best[1][l - 1] : 0) + cost[l - 1];
        for (uint32_t w = 2; w <= workers && w <= l; w++) {
            uint64_t tail = 0, least = UINT64_MAX;
            for (uint32_t cut = l; cut-- >= w;) {
                tail += cost[cut];
                uint64_t largest = best[w - 1][cut] > tail ? best[w - 1][cut] : tail;
                if (largest < least)
                    least = largest;
            }
            best[w][l] = least;
        }
    }
    return best[workers][layers];
}

static bool check_balance(const struct vf_config *c, const struct vf_program *p,
                          const struct vf_placement *pl)
{
    uint64_t cost[64] = {0}, load[VF_STAGE_WORKERS_MAX] = {0}, largest = 0;
    for (uint32_t i = 0; i < p->op_count; i++) {
        uint64_t bytes = vf_op_weight_bytes(c, &p->ops[i], VF_QUANT_Q4);
        cost[p->ops[i].step_layer] += bytes;
        load[pl->op_worker[i]] += bytes;
    }
    for (uint32_t w = 0; w < pl->worker_count; w++)
        largest = load[w] > largest ? load[w] : largest;
    return largest == best_split(cost, p->effective_layers, pl->worker_count);
}

/* From op_worker alone the same placement follows. */
static bool is_restored(const struct vf_program *p, const struct vf_placement *pl)
{
    struct vf_placement copy;
    struct vf_err err;
    bool same =
        vf_placement_from(p, pl->worker_count, pl->op_worker, p->op_count, &copy, &err) == VF_OK &&
        copy.head_worker == pl->head_worker && copy.edge_count == pl->edge_count &&
        memcmp(copy.edges, pl->edges, pl->edge_count * sizeof *pl->edges) == 0;
    vf_placement_deinit(&copy);
    return same;
}

static void test_random(void)
{
    struct rng r = {.state = 77};
    bool groups = true, edges = true, runs = true, balance = true, restored = true;
    uint32_t edge_count = 0;
    for (int i = 0; i < MODELS; i++) {
        struct vf_config c;
        struct vf_program p;
        struct vf_placement pl;
        struct vf_err err = {0};
        random_config(&r, (enum vf_style)(i % VF_STYLE_COUNT), &c);
        if (vf_program_compile(&c, &p, &err) != VF_OK)
            note("%s", err.text);
        uint32_t workers = 1 + rng_below(&r, p.effective_layers);
        if (vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, workers, &pl, &err) != VF_OK)
            note("%s", err.text);
        groups &= check_groups(&p, &pl);
        edges &= check_edges(&p, &pl);
        runs &= runs_to_the_end(&p, &pl);
        balance &= check_balance(&c, &p, &pl);
        restored &= is_restored(&p, &pl);
        edge_count += pl.edge_count;
        vf_placement_deinit(&pl);
        vf_program_deinit(&p);
        vf_config_deinit(&c);
    }
    note("%d models, %u edges", MODELS, edge_count);
    ok(groups, "groups are contiguous, in order, none empty");
    ok(edges && edge_count > MODELS, "exactly one edge per value and reading worker");
    ok(runs, "workers that wait for each other's values all reach the end");
    ok(restored, "another process makes the same of the assignment");
    ok(balance, "no split of the layers has a smaller largest group");
}

static void test_refused(void)
{
    struct vf_config c;
    struct vf_program p;
    struct vf_placement pl;
    struct vf_err err = {0};
    parse_good("{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":100,"
               "\"num_attention_heads\":4,\"intermediate_size\":64,\"vocab_size\":50}",
               &c);
    if (vf_program_compile(&c, &p, &err) != VF_OK)
        note("%s", err.text);
    ok(vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, 0, &pl, &err) == VF_ERR_USAGE, "%s",
       err.text);
    ok(vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, 65, &pl, &err) == VF_ERR_USAGE &&
           strstr(err.text, "64"),
       "%s", err.text);
    ok(vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, 64, &pl, &err) == VF_OK,
       "64 workers for 100 layers");
    vf_placement_deinit(&pl);
    vf_program_deinit(&p);
    c.layer_count = 3;
    if (vf_program_compile(&c, &p, &err) != VF_OK)
        note("%s", err.text);
    ok(vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, 4, &pl, &err) == VF_ERR_USAGE &&
           strstr(err.text, "1 to 3"),
       "%s", err.text);
    vf_program_deinit(&p);
    vf_placement_deinit(NULL);
}

/* What a pipeline-native model sends: residuals now, expert outputs later. */
static void test_what_travels(void)
{
    struct vf_config c;
    struct vf_program p;
    struct vf_placement pl;
    struct vf_err err = {0};
    parse_good("{\"model_type\":\"pipeline_native\",\"dense_delay\":2,\"expert_delay\":2,"
               "\"hidden_size\":256,\"num_hidden_layers\":6,\"num_attention_heads\":4,"
               "\"intermediate_size\":512,\"num_experts\":4,\"num_experts_per_tok\":2,"
               "\"moe_intermediate_size\":256,\"vocab_size\":50}",
               &c);
    if (vf_program_compile(&c, &p, &err) != VF_OK ||
        vf_placement_make(VF_PLACEMENT_PIPELINE, &c, &p, 2, &pl, &err) != VF_OK)
        note("%s", err.text);
    char text[200] = "";
    bool late = true;
    for (uint32_t i = 0; i < pl.edge_count; i++) {
        const struct vf_edge *e = &pl.edges[i];
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s ", p.values[e->value].name);
        if (p.ops[e->send_after].kind == VF_OP_EXPERTS)
            late &= e->send_after > pl.edges[0].send_after;
    }
    /* worker 1 has layers 3 to 5. Layer 1 added nothing to its mid value, which layer 3's dense
     * FFN reads; x2.out is layer 3's input and layer 4's dense input; e1 and e2 are due at 3, 4. */
    ok(strcmp(text, "x1.mid x2.out e1 e2 ") == 0,
       "older residuals and expert outputs not yet due cross, nothing else: %s", text);
    ok(late, "expert outputs follow the residuals");
    vf_placement_deinit(&pl);
    vf_program_deinit(&p);
}

/* vf_op_weight_bytes against the tensor list: all layers' non-expert matrices and vectors once. */
static void test_weight_bytes(void)
{
    struct rng r = {.state = 5};
    bool same = true;
    for (int i = 0; i < 200; i++) {
        struct vf_config c;
        struct vf_program p;
        struct vf_err err = {0};
        struct vf_tensor_spec *specs;
        size_t count;
        uint64_t listed = 0, ops = 0;
        enum vf_quant quant = (enum vf_quant)rng_below(&r, VF_QUANT_COUNT);
        random_config(&r, VF_STYLE_DELAYED_SUM, &c);
        c.dense_delay = 0; /* each layer's dense runs */
        c.attention_bias = rng_below(&r, 2);
        c.qk_norm = (enum vf_qk_norm)rng_below(&r, 3);
        if (vf_program_compile(&c, &p, &err) != VF_OK ||
            vf_tensors_list(&c, true, &specs, &count, &err) != VF_OK) {
            note("%s", err.text);
            same = false;
            continue;
        }
        for (size_t k = 0; k < count; k++) {
            const struct vf_tensor_spec *s = &specs[k];
            enum vf_quant q = s->id.kind == VF_T_ROUTER ? VF_QUANT_F32 : quant;
            bool unused = vf_tensor_is_expert(s->id.kind) && s->id.expert >= c.expert_top_k;
            if (s->id.kind == VF_T_EMBED || unused)
                continue;
            listed += s->is_vector ? 4ull * s->cols : vf_matrix_bytes(q, s->rows, s->cols);
        }
        for (uint32_t k = 1; k < p.op_count; k++)
            ops += vf_op_weight_bytes(&c, &p.ops[k], quant);
        same &= ops == listed;
        free(specs);
        vf_program_deinit(&p);
        vf_config_deinit(&c);
    }
    ok(same, "the ops of a token read each tensor once and top-k experts a layer");
}

int main(void)
{
    plan(5 + 4 + 2 + 1);
    test_random();
    test_refused();
    test_what_travels();
    test_weight_bytes();
    return 0;
}
