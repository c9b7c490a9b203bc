/* Experts begun at their front: a source that hands out fronts before records, as the test says,
 * and the same bits as with experts in memory. Each record that confirms a front has a broken gate
 * and up, each front a broken down, and each front of an abandoned load is broken altogether: what
 * is computed from the wrong part shows.
 */
#include "common/base/clock.h"
#include "common/base/util.h"
#include "small_mixture.h"
#include "stage_worker/executor.h"
#include "tap.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define EXPERTS 5u
#define COLUMNS 7u
#define STEPS   3u

static struct vf_err must_err;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != VF_OK) {                                                                     \
            printf("Bail out! %s: %s\n", #call, must_err.text);                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- a source of fronts --------------------------------------------------------------------- */

enum manner {
    CONFIRMED, /* a front of every expert, then their records */
    ABANDONED, /* the fronts were of loads that never ended */
    MIXED, /* of each round's experts one front and one record, and some loads end, some don't */
};

struct fronts_source {
    struct vf_expert_source base;
    const struct vf_model_file *file;
    struct vf_expert_layout layout;
    enum manner manner;
    uint64_t loads;
    uint8_t *front[EXPERTS], *record[EXPERTS];
    uint32_t confirmed, repeated;
};

static bool is_abandoned(const struct fronts_source *s, uint64_t load)
{
    return s->manner == ABANDONED || (s->manner == MIXED && load % 3 == 0);
}

/* Bytes of a part that nobody may use. */
static void spoil(uint8_t *record, uint64_t begin, uint64_t end)
{
    memset(record + begin, 0x3c, end - begin);
}

static void give_front(struct fronts_source *s, struct vf_expert_ref ref,
                       struct vf_expert_front *front)
{
    uint8_t *copy = s->front[ref.expert];
    *front = (struct vf_expert_front){copy, ++s->loads};
    memcpy(copy, vf_model_file_expert_data(s->file, ref.layer, ref.expert), s->layout.bytes);
    spoil(copy, is_abandoned(s, front->load) ? 0 : s->layout.down_offset, s->layout.bytes);
}

static const uint8_t *give_record(struct fronts_source *s, struct vf_expert_ref ref,
                                  struct vf_expert_front *front)
{
    uint8_t *copy = s->record[ref.expert];
    memcpy(copy, vf_model_file_expert_data(s->file, ref.layer, ref.expert), s->layout.bytes);
    front->data = NULL;
    if (front->load && !is_abandoned(s, front->load)) {
        spoil(copy, 0, s->layout.down_offset);
        s->confirmed++;
        return copy;
    }
    s->repeated += front->load != 0;
    front->load = 0;
    return copy;
}

static enum vf_code fronts_acquire(struct vf_expert_source *base, const struct vf_expert_ref *refs,
                                   uint32_t n, uint64_t deadline, const uint8_t **got,
                                   struct vf_expert_front *fronts, struct vf_err *err)
{
    (void)deadline, (void)err;
    struct fronts_source *s = (struct fronts_source *)base;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        got[i] = NULL;
        fronts[i].data = NULL;
        if (fronts[i].load == 0 && (s->manner != MIXED || i == n - 1)) {
            give_front(s, refs[i], &fronts[i]);
            any = true;
        }
    }
    for (uint32_t i = 0; i < n && (!any || s->manner == MIXED); i++)
        if (!fronts[i].data && (s->manner != MIXED || i == 0))
            got[i] = give_record(s, refs[i], &fronts[i]);
    return VF_OK;
}

static void fronts_fetch(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                         uint64_t deadline, enum vf_fetch_urgency urgency)
{
    (void)s, (void)refs, (void)n, (void)deadline, (void)urgency;
}

static void fronts_release(struct vf_expert_source *base, const struct vf_expert_ref *refs,
                           uint32_t n, const uint8_t *const *got)
{
    struct fronts_source *s = (struct fronts_source *)base;
    for (uint32_t i = 0; i < n; i++)
        if (got[i]) /* and what is released is gone */
            spoil(s->record[refs[i].expert], 0, s->layout.bytes);
}

static const struct vf_expert_source_ops fronts_ops = {
    .fetch = fronts_fetch, .acquire = fronts_acquire, .release = fronts_release};

/* ---- steps ---------------------------------------------------------------------------------- */

static struct vf_model_file *file;
static struct vf_program program;
static struct vf_placement placement;
static uint32_t vocabulary;

/* The log-probabilities behind each step. */
static void run(struct vf_expert_source *source, bool q8, uint32_t threads, uint32_t columns,
                float *rows)
{
    const struct vf_kernels *kernels;
    MUST(vf_kernels_get(VF_KERNEL_SCALAR, &kernels, &must_err));
    struct vf_executor_params params = {.file = file,
                                        .program = &program,
                                        .placement = &placement,
                                        .kernels = kernels,
                                        .q8 = q8,
                                        .experts_when = VF_EXPERTS_LATE,
                                        .context = STEPS * COLUMNS,
                                        .sequences = 1,
                                        .columns_max = COLUMNS,
                                        .rows_max = 1,
                                        .threads = threads,
                                        .experts = source};
    struct vf_executor *ex;
    struct vf_column cols[COLUMNS] = {{0}};
    MUST(vf_executor_create(&params, &ex, &must_err));
    for (uint32_t s = 0; s < STEPS; s++) {
        for (uint32_t i = 0; i < columns; i++)
            cols[i] = (struct vf_column){.token = (s * columns + i) * 37 % vocabulary,
                                         .position = s * columns + i,
                                         .primary = i,
                                         .want_row = i == columns - 1};
        struct vf_step step = {s + 1, cols, columns};
        uint32_t count;
        bool peer_failed;
        MUST(vf_executor_run(ex, &step, UINT64_MAX, rows + (size_t)s * vocabulary, &count,
                             &peer_failed, &must_err));
    }
    vf_executor_destroy(ex);
}

static bool differ(const float *rows)
{
    bool any = false;
    for (uint32_t i = 1; i < STEPS * vocabulary; i++)
        any |= rows[i] != rows[0];
    return any;
}

static void check(struct fronts_source *s, const char *name, bool q8, uint32_t threads,
                  uint32_t columns)
{
    size_t bytes = (size_t)STEPS * vocabulary * sizeof(float);
    float *want = malloc(bytes), *rows = malloc(bytes);
    struct vf_expert_source *resident;
    MUST(vf_expert_source_resident(file, &resident, &must_err));
    run(resident, q8, threads, columns, want);
    s->confirmed = s->repeated = 0;
    memset(rows, 0, bytes);
    run(&s->base, q8, threads, columns, rows);
    bool any = s->manner == CONFIRMED   ? s->confirmed && !s->repeated
               : s->manner == ABANDONED ? s->repeated && !s->confirmed
                                        : s->repeated && s->confirmed;
    ok(any && differ(want) && memcmp(rows, want, bytes) == 0,
       "%s, %s, %u threads, %u columns: the same bits with %u hidden activations from a front, %u "
       "computed again",
       name, q8 ? "q8" : "f32", threads, columns, s->confirmed, s->repeated);
    resident->ops->destroy(resident);
    free(want);
    free(rows);
}

int main(void)
{
    static const char *const names[] = {"confirmed", "abandoned", "mixed"};
    char path[] = "/tmp/vft-fronts-XXXXXX";
    plan(3 * 2 * 2 * 2);
    int fd = mkstemp(path);
    close(fd);
    MUST(write_small_mixture(path, &must_err));
    MUST(vf_model_file_open(path, &file, &must_err));
    unlink(path);
    const struct vf_config *config = vf_model_file_config(file);
    vocabulary = config->vocab_size;
    MUST(vf_program_compile(config, &program, &must_err));
    MUST(vf_placement_make(VF_PLACEMENT_PIPELINE, config, &program, 1, &placement, &must_err));
    struct fronts_source s = {
        .base = {&fronts_ops}, .file = file, .layout = vf_model_file_expert_layout(file)};
    for (uint32_t e = 0; e < EXPERTS; e++) {
        s.front[e] = aligned_alloc(VF_EXPERT_ALIGN, s.layout.bytes);
        s.record[e] = aligned_alloc(VF_EXPERT_ALIGN, s.layout.bytes);
    }
    for (int m = CONFIRMED; m <= MIXED; m++) {
        s.manner = (enum manner)m;
        for (uint32_t i = 0; i < 8; i++)
            check(&s, names[m], i & 1, i & 2 ? 2 : 1, i & 4 ? COLUMNS : 1);
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        free(s.front[e]);
        free(s.record[e]);
    }
    vf_placement_deinit(&placement);
    vf_program_deinit(&program);
    vf_model_file_close(file);
    return 0;
}
