/* Plans that a stage worker must refuse, sent by a test that plays the coordinator: the error names
 * what was found and what is allowed. */
#include "common/base/clock.h"
#include "common/base/util.h"
#include "common/format/model_file.h"
#include "common/model/placement.h"
#include "common/run/run_dir.h"
#include "common/run/wire.h"
#include "common/settings/settings.h"
#include "small_mixture.h"
#include "tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EPOCH 3u

static char base[] = "/tmp/vflow-plan-XXXXXX", model_path[64];
static char worker_path[512];
static struct vf_model_file *model;
static struct vf_program program;
static struct vf_placement placement;
static void *zmq;

static void must(enum vf_code code, const struct vf_err *err)
{
    if (code == VF_OK)
        return;
    printf("Bail out! %s\n", err->text);
    fflush(stdout);
    _exit(1);
}

struct run {
    struct vf_run_dir *dir;
    void *router;
    struct vf_wire_peer worker;
    pid_t pid;
};

static Vflow__Envelope *receive(struct run *r)
{
    Vflow__Envelope *m;
    struct vf_err err;
    must(vf_wire_receive(r->router, 20000, &r->worker, &m, &err), &err);
    return m;
}

static void send_to_worker(struct run *r, Vflow__Envelope *m)
{
    struct vf_err err;
    m->version = VF_WIRE_VERSION;
    m->epoch = EPOCH;
    must(vf_wire_send(r->router, &r->worker, m, &err), &err);
}

static void start(struct run *r)
{
    struct vf_err err;
    char endpoint[VF_RUN_ENDPOINT_MAX];
    struct vf_wire_options options = {.type = VF_WIRE_ROUTER};
    must(vf_run_dir_create(&r->dir, &err), &err);
    must(vf_wire_open(zmq, &options, &r->router, &err), &err);
    vf_run_dir_endpoint(r->dir, VF_RUN_CONTROL, endpoint);
    must(vf_wire_bind(r->router, endpoint, &err), &err);
    r->pid = fork();
    if (r->pid == 0) {
        execl(worker_path, "vflow-stage-worker", "--run-dir", vf_run_dir_path(r->dir), "--index",
              "0", (char *)NULL);
        _exit(127);
    }
    vflow__envelope__free_unpacked(receive(r), NULL); /* hello */
}

/* The worker stays until somebody has heard its error. */
static int end(struct run *r)
{
    Vflow__Shutdown shutdown = VFLOW__SHUTDOWN__INIT;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    int status = -1;
    shutdown.reason = (char *)"the test is over";
    m.body_case = VFLOW__ENVELOPE__BODY_SHUTDOWN;
    m.shutdown = &shutdown;
    send_to_worker(r, &m);
    waitpid(r->pid, &status, 0);
    vf_wire_close(r->router);
    vf_run_dir_remove(r->dir);
    vf_run_dir_close(r->dir);
    return status;
}

static void refuse(const Vflow__Plan *plan, const char *words)
{
    struct run r = {0};
    struct vf_err err = {0};
    Vflow__Plan copy = *plan;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    start(&r);
    m.body_case = VFLOW__ENVELOPE__BODY_PLAN;
    m.plan = &copy;
    send_to_worker(&r, &m);
    Vflow__Envelope *answer = receive(&r);
    bool refused = answer->body_case == VFLOW__ENVELOPE__BODY_ERROR;
    if (refused)
        vf_wire_error_take(answer->error, &err);
    vflow__envelope__free_unpacked(answer, NULL);
    int status = end(&r);
    ok(refused && err.code == VF_ERR_PROTOCOL && strstr(err.text, words) && WIFEXITED(status) &&
           WEXITSTATUS(status) == 1,
       "refused: %s", err.text);
}

/* The plan of a run of this model, which the worker would follow. */
static Vflow__RunSettings good_settings(void)
{
    Vflow__RunSettings s;
    vf_run_settings_init(&s);
    s.threads = 1;
    s.stage_workers = 2;
    s.ctx = 64;
    s.kv = VFLOW__KV__KV_F16;
    return s;
}

static Vflow__Plan plan_with(Vflow__RunSettings *settings)
{
    Vflow__Plan p = VFLOW__PLAN__INIT;
    p.model_path = model_path;
    p.model_fingerprint = vf_model_file_fingerprint(model);
    p.columns_max = 8;
    p.rows_max = p.logits_slots = 1;
    p.settings = settings;
    p.op_worker = placement.op_worker;
    p.n_op_worker = program.op_count;
    return p;
}

static void test_words(void)
{
    static const struct {
        size_t offset;
        const char *words;
    } cases[] = {
        {offsetof(Vflow__RunSettings, activations), "activations: the unknown word number 7 found, "
                                                    "allowed: q8, f32"},
        {offsetof(Vflow__RunSettings, kernel), "kernel: the unknown word number 7 found, allowed: "
                                               "auto, scalar, avx2, avx512, vnni"},
        {offsetof(Vflow__RunSettings, kv), "kv: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, overlap), "overlap: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, speculate), "speculate: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, io), "io: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, weights), "weights: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, experts), "experts: the unknown word number 7 found"},
        {offsetof(Vflow__RunSettings, placement), "placement: the unknown word number 7 found"},
    };
    for (size_t i = 0; i < VF_ARRAY_LEN(cases); i++) {
        Vflow__RunSettings s = good_settings();
        const uint32_t seven = 7;
        memcpy((char *)&s + cases[i].offset, &seven, sizeof seven);
        Vflow__Plan p = plan_with(&s);
        refuse(&p, cases[i].words);
    }
}

static void test_numbers(void)
{
    Vflow__Plan none = plan_with(NULL);
    refuse(&none, "no settings");
    Vflow__RunSettings s = good_settings();
    s.threads = 1u << 20;
    Vflow__Plan p = plan_with(&s);
    refuse(&p, "threads: 1048576 found");
    s = good_settings();
    s.ctx = 0;
    refuse(&p, "context 0");
    s = good_settings();
    s.kv = VFLOW__KV__KV_AUTO;
    refuse(&p, "KV caches in auto");
}

static void test_placements(void)
{
    Vflow__RunSettings s = good_settings();
    Vflow__Plan p = plan_with(&s);
    uint32_t *workers = malloc(program.op_count * sizeof *workers);
    if (!workers)
        _exit(1);
    p.n_op_worker--;
    refuse(&p, "placement: workers of ");
    p = plan_with(&s);
    memcpy(workers, placement.op_worker, program.op_count * sizeof *workers);
    workers[1] = 2;
    p.op_worker = workers;
    refuse(&p, "operation 1 on worker 2 found, allowed: 0 to 1");
    memset(workers, 0, program.op_count * sizeof *workers);
    refuse(&p, "nothing for worker 1 found");
    for (uint32_t i = 0; i < program.op_count; i++)
        workers[i] = program.ops[i].kind == VF_OP_FETCH;
    refuse(&p, "which makes its routing decision");
    free(workers);
}

int main(void)
{
    const char *bin = getenv("VFLOW_BIN");
    struct vf_err err;
    if (!bin)
        skip_all("VFLOW_BIN isn't set");
    snprintf(worker_path, sizeof worker_path, "%s/vflow-stage-worker", bin);
    plan(9 + 4 + 4 + 1);
    if (!mkdtemp(base) || setenv("XDG_RUNTIME_DIR", base, 1) != 0)
        return 1;
    snprintf(model_path, sizeof model_path, "%s/model.vflow", base);
    must(write_small_mixture(model_path, &err), &err);
    zmq = vf_wire_context_create(&err);
    must(vf_model_file_open(model_path, &model, &err), &err);
    const struct vf_config *config = vf_model_file_config(model);
    must(vf_program_compile(config, &program, &err), &err);
    must(vf_placement_make(VF_PLACEMENT_PIPELINE, config, &program, 2, &placement, &err), &err);
    test_words();
    test_numbers();
    test_placements();
    vf_placement_deinit(&placement);
    vf_program_deinit(&program);
    vf_model_file_close(model);
    vf_wire_context_destroy(zmq);
    unlink(model_path);
    ok(rmdir(base) == 0, "nothing is left behind");
    return 0;
}
