/* What it takes to reach another process: the shared-memory mailbox that stage workers use between
 * layers, the ZeroMQ ipc socket that carries control once a token, and copying an activation.
 *
 * One way, by the clock that both processes share: the sender's time travels in the message. Sent
 * at once, the receiver still spins (mailbox) or is about to poll; sent after a pause, it sleeps.
 */
#include "bench/bench.h"
#include "bench/command.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/run/mailbox.h"
#include "common/run/run_dir.h"
#include "common/run/shm.h"
#include "common/run/wire.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_NS   VF_S(5) /* for the other process, which has nothing else to do */
#define PAUSE_US  1000    /* long after a receiver has gone to sleep */
#define WIDTH     4096u   /* of an activation */
#define TO_CHILD  0u      /* edges */
#define TO_PARENT 1u

/* A way to send a number and to wait for one. Each process has its own. */
struct line {
    enum vf_code (*send)(struct line *line, uint64_t number, struct vf_err *err);
    enum vf_code (*receive)(struct line *line, uint64_t *number, struct vf_err *err);
    bool parent;
    uint64_t sent, received; /* so far */
    struct vf_mailboxes *boxes;
    void *context, *out, *in;
};

/* ---- the two ways ------------------------------------------------------------------------- */

static enum vf_code mailbox_send(struct line *l, uint64_t number, struct vf_err *err)
{
    uint32_t edge = l->parent ? TO_CHILD : TO_PARENT;
    float *buffer;
    enum vf_code code = vf_mailbox_claim(l->boxes, edge, vf_now_ns() + WAIT_NS, &buffer, err);
    if (code != VF_OK)
        return code;
    memcpy(buffer, &number, sizeof number);
    vf_mailbox_post(l->boxes, edge, ++l->sent, false);
    return VF_OK;
}

static enum vf_code mailbox_receive(struct line *l, uint64_t *number, struct vf_err *err)
{
    uint32_t edge = l->parent ? TO_PARENT : TO_CHILD;
    const float *buffer;
    bool failed;
    enum vf_code code = vf_mailbox_take(l->boxes, edge, ++l->received, vf_now_ns() + WAIT_NS,
                                        &buffer, &failed, err);
    if (code != VF_OK)
        return code;
    memcpy(number, buffer, sizeof *number);
    vf_mailbox_release(l->boxes, edge);
    return VF_OK;
}

static enum vf_code socket_send(struct line *l, uint64_t number, struct vf_err *err)
{
    Vflow__Envelope message = VFLOW__ENVELOPE__INIT;
    Vflow__Heartbeat body = VFLOW__HEARTBEAT__INIT;
    message.version = VF_WIRE_VERSION;
    message.request_id = number;
    message.body_case = VFLOW__ENVELOPE__BODY_HEARTBEAT;
    message.heartbeat = &body;
    return vf_wire_send(l->out, NULL, &message, err);
}

static enum vf_code socket_receive(struct line *l, uint64_t *number, struct vf_err *err)
{
    Vflow__Envelope *message;
    enum vf_code code = vf_wire_receive(l->in, (int)(WAIT_NS / 1000000), NULL, &message, err);
    if (code != VF_OK)
        return code;
    *number = message->request_id;
    vflow__envelope__free_unpacked(message, NULL);
    return VF_OK;
}

static enum vf_code open_mailboxes(struct line *l, const struct vf_run_dir *dir, struct vf_err *err)
{
    char name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_shm_name(dir, VF_RUN_SHM_MAILBOXES, name);
    l->send = mailbox_send;
    l->receive = mailbox_receive;
    return l->parent ? vf_mailboxes_create(name, 2, 1, WIDTH, NULL, &l->boxes, err)
                     : vf_mailboxes_open(name, 2, 1, WIDTH, NULL, &l->boxes, err);
}

/* Each process binds the end it reads and connects to the other's, in any order. */
static enum vf_code open_sockets(struct line *l, const struct vf_run_dir *dir, struct vf_err *err)
{
    static const struct vf_wire_options push = {.type = VF_WIRE_PUSH},
                                        pull = {.type = VF_WIRE_PULL};
    char in[VF_RUN_ENDPOINT_MAX], out[VF_RUN_ENDPOINT_MAX];
    vf_run_dir_endpoint(dir, l->parent ? "hop-parent" : "hop-child", in);
    vf_run_dir_endpoint(dir, l->parent ? "hop-child" : "hop-parent", out);
    l->send = socket_send;
    l->receive = socket_receive;
    l->context = vf_wire_context_create(err);
    if (!l->context)
        return err->code;
    enum vf_code code = vf_wire_open(l->context, &pull, &l->in, err);
    if (code == VF_OK)
        code = vf_wire_open(l->context, &push, &l->out, err);
    if (code == VF_OK)
        code = vf_wire_bind(l->in, in, err);
    return code ? code : vf_wire_connect(l->out, out, err);
}

static void close_line(struct line *l)
{
    vf_mailboxes_close(l->boxes);
    vf_wire_close(l->in);
    vf_wire_close(l->out);
    if (l->context)
        vf_wire_context_destroy(l->context);
}

typedef enum vf_code open_fn(struct line *line, const struct vf_run_dir *dir, struct vf_err *err);

/* ---- the two processes -------------------------------------------------------------------- */

/* Answers how long each message took to come; 0 ends it. */
static int run_child(open_fn *open, const char *path, pid_t parent)
{
    struct line line = {0};
    struct vf_run_dir *dir;
    struct vf_err err = {0};
    uint64_t sent_ns = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    enum vf_code code = vf_run_dir_open(path, &dir, &err);
    if (code == VF_OK)
        code = open(&line, dir, &err);
    if (code == VF_OK)
        code = line.send(&line, 1, &err); /* ready */
    while (code == VF_OK && sent_ns) {
        code = line.receive(&line, &sent_ns, &err);
        if (code == VF_OK && sent_ns)
            code = line.send(&line, vf_now_ns() - sent_ns, &err);
    }
    if (code != VF_OK)
        vf_error("hop's other process: %s", err.text);
    close_line(&line);
    return code != VF_OK;
}

/* One-way times to the child, in microseconds. */
static enum vf_code exchange(struct line *l, uint32_t n, bool pause, double *us, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; code == VF_OK && i < n; i++) {
        uint64_t ns;
        if (pause)
            usleep(PAUSE_US);
        code = l->send(l, vf_now_ns(), err);
        if (code == VF_OK)
            code = l->receive(l, &ns, err);
        us[i] = (double)ns / 1e3;
    }
    return code;
}

struct hop_options {
    uint32_t samples;
};

static const struct bench_column columns[] = {
    {"hop", "one way", BENCH_TEXT}, {"us", "us", BENCH_2},      {"us_min", "min", BENCH_2},
    {"us_p10", "p10", BENCH_2},     {"us_p90", "p90", BENCH_2}, {"us_max", "max", BENCH_2},
};

static void add_row(struct bench_report *r, struct bench_panel *panel, const char *name, double *us,
                    uint32_t n)
{
    struct bench_stat s = bench_stat_of(us, n);
    double p10 = bench_quantile(us, n, 0.1), p90 = bench_quantile(us, n, 0.9);
    bench_report_row(r,
                     (struct bench_cell[]){BENCH_STR(name), BENCH_NUM(s.median), BENCH_NUM(s.low),
                                           BENCH_NUM(p10), BENCH_NUM(p90), BENCH_NUM(s.high)});
    bench_panel_point(panel, "median", name, s.median, p10, p90);
}

/* With a child of its own; names[pause]. */
static enum vf_code measure_line(const struct hop_options *o, open_fn *open,
                                 const char *const names[2], double *us, struct bench_report *r,
                                 struct bench_panel *panel, struct vf_err *err)
{
    struct line line = {.parent = true};
    struct vf_run_dir *dir;
    enum vf_code code = vf_run_dir_create(&dir, err);
    if (code != VF_OK)
        return code;
    uint64_t ready;
    pid_t self = getpid(), child = -1;
    if (open == open_mailboxes) /* exists before the child looks */
        code = open(&line, dir, err);
    if (code == VF_OK && (child = fork()) < 0)
        code = vf_err_errno(err, VF_ERR_LIMIT, errno, "can't start a process");
    if (child == 0)
        _exit(run_child(open, vf_run_dir_path(dir), self));
    if (code == VF_OK && open != open_mailboxes) /* ZeroMQ's threads don't survive a fork */
        code = open(&line, dir, err);
    if (code == VF_OK)
        code = line.receive(&line, &ready, err);
    for (int pause = 0; code == VF_OK && pause < 2; pause++) {
        code = exchange(&line, o->samples, pause, us, err);
        if (code == VF_OK)
            add_row(r, panel, names[pause], us, o->samples);
    }
    if (code == VF_OK)
        code = line.send(&line, 0, err);
    else if (child > 0)
        kill(child, SIGKILL);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    close_line(&line);
    vf_run_dir_remove(dir);
    vf_run_dir_close(dir);
    return code;
}

static enum vf_code measure_copy(const struct hop_options *o, uint32_t column_count, double *us,
                                 struct bench_report *r, struct bench_panel *panel,
                                 struct vf_err *err)
{
    size_t n = (size_t)column_count * WIDTH;
    float *from = malloc(n * sizeof *from), *to = malloc(n * sizeof *to);
    char name[64];
    if (!from || !to) {
        free(from);
        free(to);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u activations", column_count);
    }
    memset(from, 1, n * sizeof *from);
    memset(to, 2, n * sizeof *to);
    for (uint32_t i = 0; i < o->samples; i++) {
        uint64_t began = vf_now_ns();
        memcpy(to, from, n * sizeof *to);
        __asm__ volatile("" : : "r"(to) : "memory"); /* somebody might read it */
        us[i] = (double)(vf_now_ns() - began) / 1e3;
    }
    snprintf(name, sizeof name, "copy of %u column%s of %u f32", column_count,
             column_count == 1 ? "" : "s", WIDTH);
    add_row(r, panel, name, us, o->samples);
    free(from);
    free(to);
    return VF_OK;
}

static enum vf_code measure(void *options, struct bench_report *r, struct vf_err *err)
{
    const struct hop_options *o = options;
    static const char *const mailbox[2] = {"mailbox, reader spinning", "mailbox, reader asleep"};
    static const char *const sockets[2] = {"ZeroMQ ipc, at once", "ZeroMQ ipc, after a pause"};
    double *us = calloc(o->samples, sizeof *us);
    bench_report_fact(r, "samples", o->samples);
    bench_report_table(r, "rows", NULL, columns, VF_ARRAY_LEN(columns));
    struct bench_panel *panel =
        bench_panel_add(bench_report_chart(r),
                        &(struct bench_panel_look){.kind = BENCH_BARS,
                                                   .title = "From one process to another, one way",
                                                   .values = "microseconds",
                                                   .categories = "hop",
                                                   .spread = "p10 to p90 of the messages"});
    enum vf_code code =
        us ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %u samples", o->samples);
    if (code == VF_OK)
        code = measure_line(o, open_mailboxes, mailbox, us, r, panel, err);
    if (code == VF_OK)
        code = measure_line(o, open_sockets, sockets, us, r, panel, err);
    for (uint32_t c = 1; code == VF_OK && c <= 256; c *= 16)
        code = measure_copy(o, c, us, r, panel, err);
    free(us);
    return code;
}

static const struct hop_options defaults = {.samples = 2000};
static const struct bench_option options[] = {
    BENCH_SAMPLES(struct hop_options, 5, 10000000, "messages of each kind (2000)"),
};
const struct bench_command bench_hop = {
    .name = "hop",
    .what = "one-way latency between processes",
    .summary = "How long a message takes to another process, and a copy of an activation.",
    BENCH_OPTIONS(options, defaults),
    .run = measure};
