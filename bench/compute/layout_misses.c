/* Counts cache misses: this program runs itself under valgrind's cachegrind, once with the product
 * and once without, and takes the difference. The cache is simulated, so the count is the same on
 * every machine; prefetches, by software or hardware, count for nothing in it.
 */
#include "bench/bench.h"
#include "bench/command.h"
#include "bench/compute/layout.h"

#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- inside: one product ----------------------------------------------------------------------
 */

struct pass_options {
    int walk;
    bool q8;
    uint32_t rows, cols, products;
};

static enum vf_code run_products(void *options, struct bench_report *r, struct vf_err *err)
{
    (void)r;
    const struct pass_options *o = options;
    if (o->rows % VF_TILE_ROWS || o->cols % VF_TILE_COLS)
        return vf_err_set(err, VF_ERR_USAGE, "--rows and --cols: whole tiles are allowed");
    const struct vf_kernels *avx2;
    uint32_t rows = o->rows, cols = o->cols;
    uint64_t bytes = vf_matrix_bytes(VF_QUANT_Q4, rows, cols);
    uint8_t *weights = rig_memory(bytes), *q = rig_memory(cols);
    float *x = rig_memory(cols * 4ull), *scale = rig_memory(cols), *y = rig_memory(rows * 4ull);
    int32_t *sum = rig_memory(cols);
    enum vf_code code = weights && q && x && scale && y && sum
                            ? layout_kernels(&avx2, err)
                            : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the matrix");
    if (code == VF_OK) {
        memset(weights, 0x24, bytes); /* small scales, any nibbles; both walks read these bytes */
        struct layout_weights w = {weights, weights, rows, cols};
        struct vf_acts acts = {x, (int8_t *)q, scale, sum, 1, cols, cols};
        for (uint32_t i = 0; i < o->products; i++)
            layout_multiply((enum layout_walk)o->walk, o->q8, avx2, &w, &acts, 0, rows, y);
    }
    rig_memory_free(weights, bytes);
    rig_memory_free(q, cols);
    rig_memory_free(x, cols * 4ull);
    rig_memory_free(scale, cols);
    rig_memory_free(sum, cols);
    rig_memory_free(y, rows * 4ull);
    return code;
}

static const struct pass_options defaults = {.products = 1};
static const struct bench_option options[] = {
    BENCH_OPTION(struct pass_options, walk, .name = "walk", .type = VF_OPT_CHOICE,
                 .choices = layout_walk_words),
    BENCH_OPTION(struct pass_options, q8, .name = "q8", .type = VF_OPT_FLAG),
    BENCH_OPTION(struct pass_options, rows, .name = "rows", .type = VF_OPT_INT, .min = 128,
                 .max = RIG_ROWS_MAX),
    BENCH_OPTION(struct pass_options, cols, .name = "cols", .type = VF_OPT_INT, .min = 256,
                 .max = RIG_COLS_MAX),
    BENCH_OPTION(struct pass_options, products, .name = "products", .type = VF_OPT_INT, .min = 0,
                 .max = 100),
};
const struct bench_command bench_layout_pass = {.name = "layout-pass",
                                                .what = NULL,
                                                .summary = "What layout runs under cachegrind.",
                                                BENCH_OPTIONS(options, defaults),
                                                .plain = true,
                                                .run = run_products};

/* ---- outside ------------------------------------------------------------------------------ */

/* The D1mr of a cachegrind output file: "events: A B C", "summary: 1 2 3". */
static enum vf_code read_misses(const char *path, double *misses, struct vf_err *err)
{
    char *text, *events, *summary, *save1, *save2;
    size_t size;
    enum vf_code code = vf_read_file(path, 64u << 20, &text, &size, err);
    if (code != VF_OK)
        return code;
    events = strstr(text, "events:");
    summary = strstr(text, "\nsummary:");
    code =
        vf_err_set(err, VF_ERR_CORRUPT, "%s: no count of D1mr found in cachegrind's output", path);
    if (events && summary) {
        events[strcspn(events, "\n")] = 0;
        char *name = strtok_r(events, " ", &save1), *value = strtok_r(summary + 1, " \n", &save2);
        while (name && value && strcmp(name, "D1mr") != 0) {
            name = strtok_r(NULL, " ", &save1);
            value = strtok_r(NULL, " \n", &save2);
        }
        if (name && value) {
            *misses = strtod(value, NULL);
            code = VF_OK;
        }
    }
    free(text);
    return code;
}

static enum vf_code run_valgrind(char *const argv[], struct vf_err *err)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    int status;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    int error = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (error == ENOENT)
        return vf_err_set(err, VF_ERR_IO,
                          "valgrind, which counts the cache misses, isn't installed; install it or "
                          "give --no-misses");
    if (error)
        return vf_err_errno(err, VF_ERR_IO, error, "can't start valgrind");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return vf_err_errno(err, VF_ERR_IO, errno, "waiting for valgrind");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return vf_err_set(err, VF_ERR_IO, "valgrind can't run; give --no-misses");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return vf_err_set(err, VF_ERR_IO, "valgrind --tool=cachegrind ended with wait status %d",
                          status);
    return VF_OK;
}

static enum vf_code count(const struct rig_named_shape *shape, enum layout_walk walk, bool q8,
                          uint32_t rows, int products, const char *out, double *misses,
                          struct vf_err *err)
{
    char self[PATH_MAX], out_option[PATH_MAX + 32], row_text[16], col_text[16], count_text[16];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't read /proc/self/exe");
    self[n] = 0;
    snprintf(out_option, sizeof out_option, "--cachegrind-out-file=%s", out);
    snprintf(row_text, sizeof row_text, "%u", rows);
    snprintf(col_text, sizeof col_text, "%u", shape->cols);
    snprintf(count_text, sizeof count_text, "%d", products);
    char *argv[] = {"valgrind",
                    "-q",
                    "--tool=cachegrind",
                    "--cache-sim=yes",
                    "--D1=" LAYOUT_L1,
                    out_option,
                    self,
                    "layout-pass",
                    "--rows",
                    row_text,
                    "--cols",
                    col_text,
                    "--walk",
                    (char *)layout_walk_words[walk],
                    "--products",
                    count_text,
                    q8 ? "--q8" : NULL,
                    NULL};
    enum vf_code code = run_valgrind(argv, err);
    return code ? code : read_misses(out, misses, err);
}

enum vf_code layout_count_misses(const struct rig_named_shape *shape, enum layout_walk walk,
                                 bool q8, uint32_t rows, double *misses, struct vf_err *err)
{
    const char *dir = getenv("TMPDIR");
    char out[PATH_MAX];
    double with = 0, without = 0;
    snprintf(out, sizeof out, "%s/vflow-cachegrind-XXXXXX", dir && *dir ? dir : "/tmp");
    int fd = mkstemp(out);
    if (fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: can't create", out);
    close(fd);
    enum vf_code code = count(shape, walk, q8, rows, 0, out, &without, err);
    if (code == VF_OK)
        code = count(shape, walk, q8, rows, 1, out, &with, err);
    unlink(out);
    *misses = with - without;
    return code ? vf_err_prepend(err, "layout: ") : VF_OK;
}
