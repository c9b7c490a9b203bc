/* guess_orders MODEL: the orders of a few steps over a model without expert delay, as an expert
 * source sees them; called by test_guesses.py. Prints TAP lines of its own.
 *
 * After a layer's experts are ordered, and before the next layer's are, come guesses for that layer
 * and for the one behind it: ranked by the same deadline as the layer's own order, each expert
 * once, never after the layer has been ordered itself. Their number and how many were right is what
 * the executor says. */
#include "stage_worker/executor.h"
#include "tap.h"

#include <string.h>

#define EXPERTS_MAX 64u
#define LAYERS_MAX  16u
#define STEPS       12u

struct watching_source {
    struct vf_expert_source base;
    struct vf_expert_source *inner;
    uint32_t layers, next_layer; /* whose experts are ordered next */
    uint64_t guessed_deadline[LAYERS_MAX];
    bool guessed[LAYERS_MAX][2][EXPERTS_MAX]; /* [layer][layers ahead - 1] */
    struct vf_guess_counts counts[2];
    uint32_t guess_orders;
    int misplaced, doubled, wrong_deadline;
};

static void take_scheduled(struct watching_source *w, const struct vf_expert_ref *refs, uint32_t n,
                           uint64_t deadline)
{
    uint32_t layer = refs[0].layer;
    w->misplaced += layer != w->next_layer;
    w->next_layer = (layer + 1) % w->layers;
    for (uint32_t a = 0; a < 2; a++) {
        bool any = false;
        for (uint32_t e = 0; e < EXPERTS_MAX; e++) {
            any |= w->guessed[layer][a][e];
            w->counts[a].guessed += w->guessed[layer][a][e];
        }
        for (uint32_t i = 0; i < n; i++)
            w->counts[a].right += w->guessed[layer][a][refs[i].expert];
        w->counts[a].chosen += any ? n : 0;
        w->wrong_deadline += any && w->guessed_deadline[layer] != deadline;
    }
    memset(w->guessed[layer], 0, sizeof w->guessed[layer]);
}

static void take_guess(struct watching_source *w, const struct vf_expert_ref *refs, uint32_t n,
                       uint64_t deadline)
{
    uint32_t layer = refs[0].layer, ahead = layer - w->next_layer + 1;
    w->guess_orders++;
    if (w->next_layer == 0 || ahead < 1 || ahead > 2) {
        w->misplaced++;
        return;
    }
    w->guessed_deadline[layer] = deadline;
    for (uint32_t i = 0; i < n; i++) {
        w->misplaced += refs[i].layer != layer;
        w->doubled += w->guessed[layer][ahead - 1][refs[i].expert];
        w->guessed[layer][ahead - 1][refs[i].expert] = true;
    }
}

static void watch_fetch(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                        uint64_t deadline, enum vf_fetch_urgency urgency)
{
    struct watching_source *w = (struct watching_source *)s;
    if (urgency == VF_FETCH_SCHEDULED)
        take_scheduled(w, refs, n, deadline);
    else
        take_guess(w, refs, n, deadline);
}

static enum vf_code watch_acquire(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                                  uint32_t n, uint64_t deadline, const uint8_t **got,
                                  struct vf_expert_front *fronts, struct vf_err *err)
{
    struct vf_expert_source *inner = ((struct watching_source *)s)->inner;
    return inner->ops->acquire(inner, refs, n, deadline, got, fronts, err);
}

static void watch_release(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                          const uint8_t *const *got)
{
    struct vf_expert_source *inner = ((struct watching_source *)s)->inner;
    inner->ops->release(inner, refs, n, got);
}

static const struct vf_expert_source_ops watch_ops = {
    .fetch = watch_fetch, .acquire = watch_acquire, .release = watch_release};

struct model {
    struct vf_model_file *file;
    struct vf_program program;
    struct vf_placement placement;
    const struct vf_kernels *kernels;
    struct watching_source watch;
};

static enum vf_code open_model(struct model *m, const char *path, struct vf_err *err)
{
    enum vf_code code = vf_model_file_open(path, &m->file, err);
    if (code != VF_OK)
        return code;
    const struct vf_config *config = vf_model_file_config(m->file);
    code = vf_program_compile(config, &m->program, err);
    if (code == VF_OK)
        code = vf_placement_make(VF_PLACEMENT_PIPELINE, config, &m->program, 1, &m->placement, err);
    if (code == VF_OK)
        code = vf_kernels_get(VF_KERNEL_SCALAR, &m->kernels, err);
    if (code == VF_OK)
        code = vf_expert_source_resident(m->file, &m->watch.inner, err);
    m->watch.base.ops = &watch_ops;
    m->watch.layers = config->layer_count;
    return code;
}

/* Steps of `columns` new positions each. */
static bool run(struct model *m, enum vf_speculate mode, uint32_t columns,
                struct vf_speculation_stats *stats)
{
    struct vf_err err = {0};
    struct vf_executor_params params = {.file = m->file,
                                        .program = &m->program,
                                        .placement = &m->placement,
                                        .kernels = m->kernels,
                                        .experts_when = VF_EXPERTS_LATE,
                                        .context = STEPS * columns,
                                        .sequences = 1,
                                        .columns_max = columns,
                                        .rows_max = 1,
                                        .threads = 1,
                                        .experts = &m->watch.base,
                                        .speculate = mode};
    struct vf_executor *ex;
    enum vf_code code = vf_executor_create(&params, &ex, &err);
    struct vf_column cols[16] = {{0}};
    for (uint32_t s = 0; s < STEPS && code == VF_OK; s++) {
        for (uint32_t i = 0; i < columns; i++)
            cols[i] = (struct vf_column){
                .token = (s * columns + i) * 37 % 97, .position = s * columns + i, .primary = i};
        struct vf_step step = {s + 1, cols, columns};
        uint32_t rows;
        bool peer_failed;
        code = vf_executor_run(ex, &step, UINT64_MAX, NULL, &rows, &peer_failed, &err);
    }
    if (code == VF_OK) {
        vf_executor_speculation(ex, stats);
        vf_executor_destroy(ex);
    } else {
        note("%s", err.text);
    }
    return code == VF_OK;
}

static void reset(struct watching_source *w)
{
    w->next_layer = w->guess_orders = 0;
    w->misplaced = w->doubled = w->wrong_deadline = 0;
    memset(w->counts, 0, sizeof w->counts);
    memset(w->guessed, 0, sizeof w->guessed);
}

static void check(struct model *m, uint32_t columns)
{
    struct watching_source *w = &m->watch;
    struct vf_speculation_stats s;
    uint32_t layers = w->layers;
    reset(w);
    bool ran = run(m, VF_SPECULATE_ON, columns, &s);
    ok(ran && w->guess_orders == STEPS * (layers - 1 + layers - 2),
       "%u columns: %u orders of guesses, for the two layers behind each", columns,
       w->guess_orders);
    ok(w->misplaced == 0 && w->doubled == 0 && w->wrong_deadline == 0,
       "each between the layers' own orders, each expert once, with the layer's own deadline");
    ok(memcmp(w->counts, s.ahead, sizeof w->counts) == 0 && s.ahead[0].right > 0 &&
           s.steps == STEPS && s.steps_speculated == STEPS,
       "guessed, right and chosen are counted as the orders say");
}

static void check_none(struct model *m, enum vf_speculate mode, uint32_t columns)
{
    struct vf_speculation_stats s;
    reset(&m->watch);
    ok(run(m, mode, columns, &s) && m->watch.guess_orders == 0 && s.steps_speculated == 0,
       "mode %d, %u columns: no guess", (int)mode, columns);
}

int main(int argc, char **argv)
{
    struct model m = {0};
    struct vf_err err = {0};
    plan(9);
    if (argc != 2 || open_model(&m, argv[1], &err) != VF_OK ||
        vf_model_file_config(m.file)->layer_count > LAYERS_MAX ||
        vf_model_file_config(m.file)->expert_count > EXPERTS_MAX) {
        note("%s", argc == 2 ? err.text : "usage: guess_orders MODEL");
        return 1;
    }
    check(&m, 1);
    check(&m, 8);
    check_none(&m, VF_SPECULATE_ON, 9);
    check_none(&m, VF_SPECULATE_OFF, 1);
    struct vf_speculation_stats s;
    reset(&m.watch);
    bool ran = run(&m, VF_SPECULATE_AUTO, 1, &s);
    ok(ran && s.steps == STEPS && s.steps_speculated == VF_GATE_BLOCK_STEPS,
       "auto: warms up without guesses, then begins a comparison");
    m.watch.inner->ops->destroy(m.watch.inner);
    vf_placement_deinit(&m.placement);
    vf_program_deinit(&m.program);
    vf_model_file_close(m.file);
    return 0;
}
