/* What the tests of expert streaming share: a private place for run directories, a file of records
 * with known content, and I/O workers in processes of their own. */
#ifndef VF_TESTS_IO_IO_TEST_H
#define VF_TESTS_IO_IO_TEST_H

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/bank.h"
#include "common/experts/cache.h"
#include "common/run/run_dir.h"
#include "common/run/wire.h"
#include "io_worker/service.h"
#include "stage_worker/expert_source_stream.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

/* Tests fork while zmq's threads run; the children start afresh. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

/* libzmq isn't built with the sanitizer, which therefore can't see how it synchronises. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libzmq.so\n";
}

#define DIE(...)                                                                                   \
    do {                                                                                           \
        printf("not ok - set-up at line %d: ", __LINE__);                                          \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        _exit(1);                                                                                  \
    } while (0)

static struct vf_err must_err; /* for the calls inside MUST */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != VF_OK)                                                                       \
            DIE("%s: %s", #call, must_err.text);                                                   \
    } while (0)

/* ---- random numbers ------------------------------------------------------------------------- */

static inline uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(next_random(state) % n);
}

/* ---- a private place ------------------------------------------------------------------------ */

static char test_base[64];

static inline void remove_test_base(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", test_base);
    if (system(command) != 0)
        printf("# could not remove %s\n", test_base);
}

/* Runs are made in a directory of the test's own, whatever the environment. */
static inline void make_test_base(void)
{
    snprintf(test_base, sizeof test_base, "/tmp/vft-XXXXXX");
    if (!mkdtemp(test_base))
        DIE("mkdtemp: %s", strerror(errno));
    setenv("XDG_RUNTIME_DIR", test_base, 1);
    setenv("TMPDIR", test_base, 1);
}

/* ---- a file of records ---------------------------------------------------------------------- */

struct test_bank {
    struct vf_expert_bank bank;
    struct vf_expert_extent *extents; /* [layers * experts] */
    char path[128];
};

static inline struct vf_expert_extent test_extent(const void *ctx, uint32_t layer, uint32_t expert)
{
    const struct test_bank *t = ctx;
    return t->extents[layer * t->bank.expert_count + expert];
}

/* The content of a record: random words of (layer, expert). */
static inline void fill_record(uint32_t layer, uint32_t expert, uint64_t *words, uint64_t bytes)
{
    uint64_t state = ((uint64_t)layer << 32 | expert) * 0x2545f4914f6cdd1du + 17;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = next_random(&state);
}

static inline bool record_is(const uint8_t *data, uint32_t layer, uint32_t expert, uint64_t bytes)
{
    uint64_t state = ((uint64_t)layer << 32 | expert) * 0x2545f4914f6cdd1du + 17;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, data + 8 * i, 8);
        if (word != next_random(&state))
            return false;
    }
    return true;
}

/* Records lie shuffled, with a page between any two. */
static inline void make_test_bank(struct test_bank *t, uint32_t layers, uint32_t experts,
                                  uint64_t record_bytes)
{
    static int number;
    uint32_t n = layers * experts;
    snprintf(t->path, sizeof t->path, "%s/bank%d", test_base, number++);
    t->extents = calloc(n, sizeof *t->extents);
    uint32_t *place = calloc(n, sizeof *place);
    uint64_t *words = malloc(record_bytes), state = 99;
    int fd = open(t->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (!t->extents || !place || !words || fd < 0)
        DIE("bank");
    for (uint32_t i = 0; i < n; i++)
        place[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = random_below(&state, i), swap = place[i - 1];
        place[i - 1] = place[j];
        place[j] = swap;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct vf_expert_extent *x = &t->extents[i];
        x->offset = VF_EXPERT_ALIGN + place[i] * (record_bytes + VF_EXPERT_ALIGN);
        x->bytes = record_bytes;
        fill_record(i / experts, i % experts, words, record_bytes);
        x->xxh3 = XXH3_64bits(words, record_bytes);
        if (pwrite(fd, words, record_bytes, (off_t)x->offset) != (ssize_t)record_bytes)
            DIE("write %s: %s", t->path, strerror(errno));
    }
    if (ftruncate(fd, (off_t)(VF_EXPERT_ALIGN + n * (record_bytes + VF_EXPERT_ALIGN))) != 0)
        DIE("truncate");
    fsync(fd);
    close(fd);
    free(place);
    free(words);
    t->bank = (struct vf_expert_bank){
        .path = t->path,
        .files = {t->path},
        .file_count = 1,
        .fingerprint = 0x1234567890abcdefu,
        .file_bytes = VF_EXPERT_ALIGN + n * (record_bytes + VF_EXPERT_ALIGN),
        .layer_count = layers,
        .expert_count = experts,
        .record_bytes = record_bytes,
        .extent = test_extent,
        .ctx = t,
    };
}

/* Records round `files` files, in each in their order and without a byte between them, but with a
 * page before every gap_every-th expert (0: none). */
static inline void make_dense_bank(struct test_bank *t, uint32_t layers, uint32_t experts,
                                   uint64_t record_bytes, uint32_t files, uint32_t gap_every)
{
    make_test_bank(t, layers, experts, record_bytes);
    uint64_t *words = malloc(record_bytes), end[VF_BANK_FILES_MAX];
    int fds[VF_BANK_FILES_MAX];
    for (uint32_t f = 0; f < files; f++) {
        char path[sizeof t->path + 16];
        snprintf(path, sizeof path, "%s.%u", t->path, f);
        t->bank.files[f] = strdup(path);
        fds[f] = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        end[f] = VF_EXPERT_ALIGN;
        if (!words || !t->bank.files[f] || fds[f] < 0)
            DIE("bank");
    }
    for (uint32_t i = 0; i < layers * experts; i++) {
        struct vf_expert_extent *x = &t->extents[i];
        x->file = i % files;
        end[x->file] += gap_every && i % experts % gap_every == 0 ? VF_EXPERT_ALIGN : 0;
        x->offset = end[x->file];
        end[x->file] += record_bytes;
        fill_record(i / experts, i % experts, words, record_bytes);
        if (pwrite(fds[x->file], words, record_bytes, (off_t)x->offset) != (ssize_t)record_bytes)
            DIE("write %s: %s", t->bank.files[x->file], strerror(errno));
    }
    for (uint32_t f = 0; f < files; f++) {
        fsync(fds[f]);
        close(fds[f]);
    }
    free(words);
    t->bank.file_count = files;
}

static inline void free_dense_bank(struct test_bank *t)
{
    for (uint32_t f = 0; f < t->bank.file_count; f++) {
        unlink(t->bank.files[f]);
        free((char *)t->bank.files[f]);
    }
    unlink(t->path);
    free(t->extents);
}

static inline void free_test_bank(struct test_bank *t)
{
    unlink(t->path);
    free(t->extents);
}

static inline struct vf_cache_geometry test_geometry(const struct test_bank *t, uint32_t slots,
                                                     uint32_t io_workers)
{
    return (struct vf_cache_geometry){
        .layer_count = t->bank.layer_count,
        .expert_count = t->bank.expert_count,
        .slot_count = slots,
        .io_worker_count = io_workers,
        .record_bytes = t->bank.record_bytes,
        .fingerprint = t->bank.fingerprint,
    };
}

/* ---- processes ------------------------------------------------------------------------------ */

#define TEST_EPOCH 7u

struct io_options {
    uint32_t index, depth;
    uint64_t piece_bytes;
    bool buffered, no_uring;
    bool limit_memlock; /* to memlock bytes, without the capability to ignore it */
    uint64_t memlock;
    const char *fault; /* VFLOW_FAULT */
};

/* A child that leaves with its parent and skips the parent's TAP bookkeeping. */
static inline pid_t fork_child(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        DIE("fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static inline void limit_memlock(uint64_t bytes)
{
    struct rlimit none = {bytes, bytes};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none_set[2] = {{0, 0, 0}, {0, 0, 0}};
    if (setrlimit(RLIMIT_MEMLOCK, &none) != 0 || syscall(SYS_capset, &header, none_set) != 0)
        DIE("limit_memlock: %s", strerror(errno));
}

/* Runs the service until it is killed. */
static inline pid_t start_io(const struct vf_run_dir *rd, const struct test_bank *t,
                             struct io_options o)
{
    pid_t pid = fork_child();
    if (pid)
        return pid;
    struct vf_err err = {0};
    if (vf_fault_set(o.fault, &err) != VF_OK)
        _exit(9);
    if (o.limit_memlock)
        limit_memlock(o.memlock);
    struct vf_io_service_params params = {
        .zmq_context = vf_wire_context_create(NULL),
        .run_dir = rd,
        .bank = &t->bank,
        .index = o.index,
        .epoch = TEST_EPOCH,
        .depth = o.depth,
        .piece_bytes = o.piece_bytes,
        .buffered = o.buffered,
        .no_uring = o.no_uring,
    };
    struct vf_io_service *s;
    enum vf_code code = vf_io_service_create(&params, &s, &err);
    if (code == VF_OK && getenv("VFT_VERBOSE"))
        fprintf(stderr, "# engine: %s\n", vf_io_service_engine(s));
    while (code == VF_OK)
        code = vf_io_service_run(s, NULL, 0, 200, &err);
    fprintf(stderr, "# I/O worker %u: %s\n", o.index, err.text);
    _exit(8);
}

static inline int wait_status(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            DIE("waitpid");
    return status;
}

static inline void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    wait_status(pid);
}

static inline struct vf_expert_source *open_source(void *zmq, const struct vf_run_dir *rd,
                                                   const struct test_bank *t, uint32_t process,
                                                   uint64_t timeout_ns)
{
    struct vf_expert_stream_params params = {
        .zmq_context = zmq,
        .run_dir = rd,
        .bank = &t->bank,
        .process = process,
        .epoch = TEST_EPOCH,
        .timeout_ns = timeout_ns,
        .revive_ns = 1,
    };
    struct vf_expert_source *s = NULL;
    MUST(vf_expert_source_stream(&params, &s, &must_err));
    return s;
}

#endif
