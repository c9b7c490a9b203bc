/* A producer and a consumer in two processes over one edge: every step arrives whole and in order,
 * whatever the pace; failed posts, left-over steps, deadlines and the end of the run behave as
 * documented. */
#include "common/base/clock.h"
#include "common/run/mailbox.h"
#include "common/run/shm.h"
#include "tap.h"

#include <stdbool.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define COLUMNS 3u
#define WIDTH   64u

static char name[64], state_name[64];

static float expected(uint64_t step, uint32_t i)
{
    return (float)(step * 1000 + i);
}

static void produce(uint64_t steps)
{
    struct vf_mailboxes *m;
    struct vf_err err;
    if (vf_mailboxes_open(name, 2, COLUMNS, WIDTH, NULL, &m, &err) != VF_OK)
        _exit(2);
    for (uint64_t s = 1; s <= steps; s++) {
        float *buffer;
        if (vf_mailbox_claim(m, 1, vf_now_ns() + VF_S(20), &buffer, &err) != VF_OK)
            _exit(3);
        for (uint32_t i = 0; i < COLUMNS * WIDTH; i++)
            buffer[i] = expected(s, i);
        if (s % 97 == 0)
            usleep(300);
        vf_mailbox_post(m, 1, s, s % 10 == 0);
    }
    _exit(0);
}

static bool consume(struct vf_mailboxes *m, uint64_t steps)
{
    bool good = true;
    struct vf_err err;
    for (uint64_t s = 1; s <= steps && good; s++) {
        const float *buffer;
        bool failed;
        if (vf_mailbox_take(m, 1, s, vf_now_ns() + VF_S(20), &buffer, &failed, &err) != VF_OK)
            return false;
        good &= failed == (s % 10 == 0);
        for (uint32_t i = 0; i < COLUMNS * WIDTH; i++)
            good &= buffer[i] == expected(s, i);
        vf_mailbox_release(m, 1);
        if (s % 61 == 0)
            usleep(300);
    }
    return good;
}

/* As much as all of /dev/shm may hold, and the other edge: it can't fit, however empty it is. */
static void test_too_large(void)
{
    struct vf_mailboxes *m;
    struct vf_err err;
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs) != 0 || fs.f_blocks == 0 || fs.f_blocks > UINT32_MAX) {
        ok(1, "/dev/shm has no limit to run into # SKIP");
        return;
    }
    uint32_t width = (uint32_t)(fs.f_frsize / VF_MAILBOX_DEPTH / sizeof(float)) + 1;
    enum vf_code code = vf_mailboxes_create(name, 2, (uint32_t)fs.f_blocks, width, NULL, &m, &err);
    ok(code == VF_ERR_NO_MEMORY && strstr(err.text, "--batch") && strstr(err.text, "--prefill") &&
           !strstr(err.text, "--expert-cache"),
       "what doesn't fit says what would take less: %s", err.text);
    if (code == VF_OK)
        vf_mailboxes_close(m);
}

/* A run that goes on; what isn't one is refused. */
static struct vf_run_state *test_state(void)
{
    struct vf_run_state *state = NULL, *other = NULL;
    struct vf_shm shm;
    struct vf_err err;
    vf_shm_create(name, VF_RUN_STATE_BYTES, &shm, &err);
    ok(vf_run_state_open(name, &other, &err) == VF_ERR_CORRUPT && !other && strstr(err.text, name),
       "an object that isn't a run's state is refused: %s", err.text);
    vf_shm_close(&shm);
    vf_shm_unlink(name);
    enum vf_code code = vf_run_state_create(state_name, &state, &err);
    if (code == VF_OK)
        code = vf_run_state_open(state_name, &other, &err);
    vf_shm_unlink(state_name);
    ok(code == VF_OK && vf_run_state_check(other, &err) == VF_OK &&
           vf_run_state_check(NULL, &err) == VF_OK,
       "a run goes on");
    vf_run_state_close(other);
    return state;
}

int main(void)
{
    plan(15);
    snprintf(name, sizeof name, "/vflow-test-mailbox-%d", (int)getpid());
    snprintf(state_name, sizeof state_name, "/vflow-test-state-%d", (int)getpid());
    struct vf_mailboxes *m;
    struct vf_err err;
    test_too_large();
    struct vf_run_state *state = test_state();
    ok(vf_mailboxes_create(name, 2, COLUMNS, WIDTH, state, &m, &err) == VF_OK, "created");
    struct vf_mailboxes *other;
    ok(vf_mailboxes_open(name, 3, COLUMNS, WIDTH, NULL, &other, &err) == VF_ERR_CORRUPT,
       "another plan's sizes are refused");

    pid_t child = fork();
    if (child == 0)
        produce(3000);
    ok(consume(m, 3000), "3000 steps arrive whole and in order");
    int status;
    waitpid(child, &status, 0);
    vf_shm_unlink(name); /* whoever ends early from here on leaves nothing behind */
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the producer is content");

    float *buffer;
    const float *got;
    bool failed;
    for (uint64_t s = 1; s <= VF_MAILBOX_DEPTH; s++) {
        vf_mailbox_claim(m, 0, 0, &buffer, &err);
        buffer[0] = (float)s;
        vf_mailbox_post(m, 0, s, false);
    }
    ok(vf_mailbox_claim(m, 0, vf_now_ns() + VF_MS(20), &buffer, &err) == VF_ERR_TIMEOUT,
       "a full mailbox makes the producer wait until its deadline");
    ok(vf_mailbox_take(m, 0, 3, 0, &got, &failed, &err) == VF_OK && got[0] == 3.0f,
       "left-over steps are passed over");
    ok(vf_mailbox_take(m, 0, 2, 0, &got, &failed, &err) == VF_ERR_PROTOCOL,
       "a step from the future is refused");
    uint32_t ahead = 0; /* steps that are posted while the third is still read */
    for (; vf_mailbox_claim(m, 0, 0, &buffer, &err) == VF_OK && ahead < VF_MAILBOX_DEPTH; ahead++) {
        buffer[0] = -1.0f;
        vf_mailbox_post(m, 0, VF_MAILBOX_DEPTH + 1 + ahead, false);
    }
    ok(ahead == 2 && got[0] == 3.0f, "what is read in place stays until it is released");

    child = fork();
    if (child == 0) {
        usleep(50000);
        vf_run_state_end(state);
        vf_mailboxes_wake(m);
        _exit(0);
    }
    uint64_t began = vf_now_ns();
    ok(vf_mailbox_take(m, 1, 5000, vf_now_ns() + VF_S(20), &got, &failed, &err) == VF_ERR_PEER_LOST,
       "the run's end ends a wait");
    ok(vf_now_ns() - began < VF_S(2), "at once");
    waitpid(child, &status, 0);
    vf_mailboxes_close(m);

    ok(vf_run_state_check(state, &err) == VF_ERR_PEER_LOST && strstr(err.text, "given up"),
       "and whoever else looks knows");
    vf_run_state_close(state);
    uint64_t bytes = 1;
    ok(vf_mailboxes_bytes(0, COLUMNS, WIDTH, &bytes, &err) == VF_OK && bytes == 0,
       "without an edge there is no object");
    return 0;
}
