/* vflow-io-worker as a program: a coordinator played by the test, a real model file, real sockets.
 */
#include "common/settings/settings.h"
#include "io_test.h"
#include "small_mixture.h"

#include <poll.h>

static char model_path[128], worker_path[512];
static struct vf_model_file *model;
static void *zmq;

/* ---- the coordinator's side ----------------------------------------------------------------- */

struct run {
    struct vf_run_dir *rd;
    struct vf_expert_cache *cache;
    void *router;
    struct vf_wire_peer worker;
    pid_t pid;
};

static pid_t spawn_worker(const struct vf_run_dir *rd, const char *index)
{
    pid_t pid = fork_child();
    if (pid == 0) {
        execl(worker_path, "vflow-io-worker", "--run-dir", vf_run_dir_path(rd), "--index", index,
              (char *)NULL);
        _exit(127);
    }
    return pid;
}

static struct run make_run(void)
{
    struct run r = {0};
    char endpoint[VF_RUN_ENDPOINT_MAX];
    struct vf_expert_bank bank;
    struct vf_wire_options o = {.type = VF_WIRE_ROUTER};
    MUST(vf_run_dir_create(&r.rd, &must_err));
    MUST(vf_expert_bank_from_model(model, &bank, &must_err));
    struct vf_cache_geometry g = {.layer_count = bank.layer_count,
                                  .expert_count = bank.expert_count,
                                  .slot_count = 4,
                                  .io_worker_count = 1,
                                  .record_bytes = bank.record_bytes,
                                  .fingerprint = bank.fingerprint};
    MUST(vf_expert_cache_create(r.rd, &g, &r.cache, &must_err));
    MUST(vf_wire_open(zmq, &o, &r.router, &must_err));
    vf_run_dir_endpoint(r.rd, VF_RUN_CONTROL, endpoint);
    MUST(vf_wire_bind(r.router, endpoint, &must_err));
    return r;
}

static void end_run(struct run *r)
{
    vf_wire_close(r->router);
    vf_expert_cache_close(r->cache);
    vf_run_dir_remove(r->rd);
    vf_run_dir_close(r->rd);
}

static Vflow__Envelope *receive(struct run *r)
{
    Vflow__Envelope *m;
    MUST(vf_wire_receive(r->router, 20000, &r->worker, &m, &must_err));
    return m;
}

static void send_to_worker(struct run *r, Vflow__Envelope *m)
{
    m->version = VF_WIRE_VERSION;
    m->epoch = TEST_EPOCH;
    MUST(vf_wire_send(r->router, &r->worker, m, &must_err));
}

static void send_plan(struct run *r, uint64_t fingerprint, Vflow__Io io)
{
    Vflow__Plan plan = VFLOW__PLAN__INIT;
    plan.model_path = model_path;
    plan.model_fingerprint = fingerprint;
    Vflow__RunSettings settings;
    vf_run_settings_init(&settings);
    settings.stage_workers = settings.io_workers = 1;
    settings.io = io;
    plan.settings = &settings;
    plan.cache_slots = 4;
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_PLAN;
    m.plan = &plan;
    send_to_worker(r, &m);
}

static void send_shutdown(struct run *r)
{
    Vflow__Shutdown shutdown = VFLOW__SHUTDOWN__INIT;
    shutdown.reason = (char *)"the test is over";
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.body_case = VFLOW__ENVELOPE__BODY_SHUTDOWN;
    m.shutdown = &shutdown;
    send_to_worker(r, &m);
}

/* Up to Ready; tells what the worker said. */
static void start_worker(struct run *r, Vflow__Io io, char *ready_io, size_t size)
{
    r->pid = spawn_worker(r->rd, "0");
    vflow__envelope__free_unpacked(receive(r), NULL);
    send_plan(r, vf_model_file_fingerprint(model), io);
    Vflow__Envelope *m = receive(r);
    if (m->body_case != VFLOW__ENVELOPE__BODY_READY)
        DIE("message %d instead of ready", (int)m->body_case);
    snprintf(ready_io, size, "%s", m->ready->io);
    vflow__envelope__free_unpacked(m, NULL);
}

/* Every expert through the four slots, compared with the mapped file. */
static bool all_experts_arrive(struct run *r, struct vf_err *err)
{
    struct vf_expert_bank bank;
    struct vf_expert_source *streamed, *resident;
    uint64_t deadline = 1;
    bool right = true;
    MUST(vf_expert_bank_from_model(model, &bank, &must_err));
    struct vf_expert_stream_params p = {.zmq_context = zmq,
                                        .run_dir = r->rd,
                                        .bank = &bank,
                                        .epoch = TEST_EPOCH,
                                        .timeout_ns = VF_S(20)};
    MUST(vf_expert_source_stream(&p, &streamed, &must_err));
    MUST(vf_expert_source_resident(model, &resident, &must_err));
    for (uint32_t l = 0; l < bank.layer_count && right; l++)
        for (uint32_t e = 0; e < bank.expert_count && right; e++) {
            struct vf_expert_ref ref = {l, e};
            const uint8_t *a = NULL, *b = NULL;
            enum vf_code code = streamed->ops->acquire(streamed, &ref, 1, deadline, &a, NULL, err);
            if (code == VF_OK)
                code = resident->ops->acquire(resident, &ref, 1, deadline, &b, NULL, err);
            right = code == VF_OK && a && b && memcmp(a, b, bank.record_bytes) == 0;
            streamed->ops->release(streamed, &ref, 1, &a);
            deadline++;
        }
    streamed->ops->destroy(streamed);
    resident->ops->destroy(resident);
    return right;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_life(Vflow__Io io, const char *want_io, bool no_uring)
{
    struct run r = make_run();
    struct vf_err err = {0};
    if (no_uring)
        setenv("VFLOW_NO_URING", "1", 1);
    r.pid = spawn_worker(r.rd, "0");
    unsetenv("VFLOW_NO_URING");
    Vflow__Envelope *m = receive(&r);
    ok(m->body_case == VFLOW__ENVELOPE__BODY_HELLO && m->hello->role == VFLOW__ROLE__ROLE_IO &&
           m->hello->index == 0 && m->hello->pid == (uint64_t)r.pid &&
           strcmp(m->hello->run_id, vf_run_dir_id(r.rd)) == 0,
       "hello from I/O worker 0");
    vflow__envelope__free_unpacked(m, NULL);
    send_plan(&r, vf_model_file_fingerprint(model), io);
    m = receive(&r);
    ok(m->body_case == VFLOW__ENVELOPE__BODY_READY && m->epoch == TEST_EPOCH &&
           strcmp(m->ready->io, want_io) == 0,
       "ready: %s", m->ready ? m->ready->io : "?");
    vflow__envelope__free_unpacked(m, NULL);
    ok(all_experts_arrive(&r, &err), "every expert arrives as it is in the file %s", err.text);

    Vflow__Heartbeat beat = VFLOW__HEARTBEAT__INIT;
    beat.sent_ns = 12345;
    Vflow__Envelope ask = VFLOW__ENVELOPE__INIT;
    ask.request_id = 77;
    ask.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    ask.heartbeat = &beat;
    kill(r.pid, SIGINT);
    send_to_worker(&r, &ask);
    m = receive(&r);
    ok(m->body_case == VFLOW__ENVELOPE__BODY_HEARTBEAT && m->request_id == 77 &&
           m->heartbeat->sent_ns == 12345,
       "SIGINT is ignored, a heartbeat is answered");
    vflow__envelope__free_unpacked(m, NULL);
    send_shutdown(&r);
    ok(wait_status(r.pid) == 0, "shutdown ends it with status 0");
    end_run(&r);
}

static void test_sigterm(void)
{
    struct run r = make_run();
    char io[64];
    start_worker(&r, VFLOW__IO__IO_DIRECT, io, sizeof io);
    kill(r.pid, SIGTERM);
    ok(wait_status(r.pid) == 0, "SIGTERM ends it with status 0");
    end_run(&r);
}

/* A plan it can't follow: an error with the reason, and the status of its kind. */
static void test_bad_plan(uint64_t fingerprint, Vflow__Io io, enum vf_code want, int want_status,
                          const char *word)
{
    struct run r = make_run();
    struct vf_err err = {0};
    r.pid = spawn_worker(r.rd, "0");
    vflow__envelope__free_unpacked(receive(&r), NULL);
    send_plan(&r, fingerprint, io);
    Vflow__Envelope *m = receive(&r);
    bool is_error = m->body_case == VFLOW__ENVELOPE__BODY_ERROR;
    if (is_error)
        vf_wire_error_take(m->error, &err);
    ok(is_error && err.code == want && strstr(err.text, word), "refused: %s", err.text);
    vflow__envelope__free_unpacked(m, NULL);
    send_shutdown(&r);
    int status = wait_status(r.pid);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == want_status, "with exit status %d", want_status);
    end_run(&r);
}

static void test_command_line(void)
{
    pid_t pid = fork_child();
    if (pid == 0) {
        execl(worker_path, "vflow-io-worker", (char *)NULL);
        _exit(127);
    }
    int status = wait_status(pid);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 2, "without --run-dir: status 2");
    pid = fork_child();
    if (pid == 0) {
        setenv("VFLOW_FAULT", "nonsense", 1);
        execl(worker_path, "vflow-io-worker", "--run-dir", "/tmp/vflow-1-1-1-00000001",
              (char *)NULL);
        _exit(127);
    }
    status = wait_status(pid);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 2, "a VFLOW_FAULT that means nothing: status 2");
    pid = fork_child();
    if (pid == 0) {
        execl(worker_path, "vflow-io-worker", "--run-dir", "/tmp/vflow-1-1-1-00000001",
              (char *)NULL);
        _exit(127);
    }
    status = wait_status(pid);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a run that isn't there: status 3");
}

/* kill -9 of the coordinator: the worker leaves and takes the run's names with it. */
static void test_dead_coordinator(void)
{
    struct {
        pid_t worker;
        char path[160], shm[VF_RUN_SHM_NAME_MAX];
    } told;
    int fd[2];
    if (pipe(fd) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        DIE("set-up");
    vf_wire_context_destroy(zmq); /* the child has its own */
    pid_t pid = fork_child();
    if (pid == 0) {
        char io[64];
        zmq = vf_wire_context_create(NULL);
        struct run r = make_run();
        r.pid = fork();
        if (r.pid == 0) {
            execl(worker_path, "vflow-io-worker", "--run-dir", vf_run_dir_path(r.rd), (char *)NULL);
            _exit(127);
        }
        vflow__envelope__free_unpacked(receive(&r), NULL);
        send_plan(&r, vf_model_file_fingerprint(model), VFLOW__IO__IO_DIRECT);
        vflow__envelope__free_unpacked(receive(&r), NULL);
        snprintf(io, sizeof io, "%d", (int)r.pid);
        told.worker = r.pid;
        snprintf(told.path, sizeof told.path, "%s", vf_run_dir_path(r.rd));
        vf_run_dir_shm_name(r.rd, VF_RUN_SHM_EXPERTS, told.shm);
        if (write(fd[1], &told, sizeof told) != sizeof told)
            _exit(1);
        for (;;)
            pause();
    }
    if (read(fd[0], &told, sizeof told) != sizeof told)
        DIE("the coordinator's child didn't start");
    uint64_t start = vf_now_ns();
    end_child(pid);
    int status = wait_status(told.worker); /* reparented to this process */
    double seconds = (double)(vf_now_ns() - start) / 1e9;
    char shm_path[160];
    struct stat st;
    snprintf(shm_path, sizeof shm_path, "/dev/shm%s", told.shm);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 1 && seconds < 5,
       "a worker without coordinator leaves after %.3f s", seconds);
    ok(lstat(told.path, &st) != 0 && lstat(shm_path, &st) != 0,
       "and leaves neither directory nor shared memory");
    zmq = vf_wire_context_create(NULL);
}

int main(void)
{
    const char *bin = getenv("VFLOW_BIN");
    if (!bin)
        skip_all("VFLOW_BIN isn't set");
    snprintf(worker_path, sizeof worker_path, "%s/vflow-io-worker", bin);
    plan(3 * 5 + 1 + 2 * 2 + 3 + 2);
    make_test_base();
    snprintf(model_path, sizeof model_path, "%s/model.vflow", test_base);
    MUST(write_small_mixture(model_path, &must_err));
    MUST(vf_model_file_open(model_path, &model, &must_err));
    zmq = vf_wire_context_create(NULL);
    test_life(VFLOW__IO__IO_DIRECT, "uring direct", false);
    test_life(VFLOW__IO__IO_BUFFERED, "uring buffered", false);
    test_life(VFLOW__IO__IO_DIRECT, "pread direct", true);
    test_sigterm();
    test_bad_plan(1, VFLOW__IO__IO_DIRECT, VF_ERR_CORRUPT, 3, "fingerprint");
    test_bad_plan(vf_model_file_fingerprint(model), (Vflow__Io)9, VF_ERR_PROTOCOL, 1,
                  "io: the unknown word number 9 found, allowed: direct, buffered");
    test_command_line();
    test_dead_coordinator();
    vf_wire_context_destroy(zmq);
    vf_model_file_close(model);
    remove_test_base();
    return 0;
}
