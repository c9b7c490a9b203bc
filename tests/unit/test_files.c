/* Files that are read and written for the user: what may be replaced and how, what is read, and
 * that nothing waits for a pipe. All in a private directory. */
#include "common/base/cli.h"
#include "common/base/out_file.h"
#include "common/base/util.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static char dir[64];
static struct vf_err err;

static void die(const char *what)
{
    printf("not ok - set-up: %s: %s\n", what, strerror(errno));
    exit(1);
}

static const char *in_dir(const char *name)
{
    static char paths[4][128];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        die(path);
}

static bool holds(const char *path, const char *text)
{
    char *data;
    size_t n;
    if (vf_read_file(path, 1000, &data, &n, &err) != VF_OK)
        return false;
    bool same = n == strlen(text) && memcmp(data, text, n) == 0;
    free(data);
    return same;
}

static int count_files(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static enum vf_code write_new(const char *path, const char *text)
{
    struct vf_out_file *f;
    enum vf_code code = vf_out_file_create(path, &f, &err);
    if (code)
        return code;
    code = vf_pwrite_full(vf_out_file_fd(f), text, strlen(text), 0, path, &err);
    if (!code)
        return vf_out_file_commit(f, &err);
    vf_out_file_abandon(f);
    return code;
}

static void make_socket(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0)
        die("socket");
    close(fd);
}

/* ---- writing ------------------------------------------------------------------------------- */

static void test_replace(void)
{
    const char *path = in_dir("file");
    struct vf_out_file *f;
    struct stat st;
    put(path, "old");
    if (vf_out_file_create(path, &f, &err) != VF_OK)
        die(err.text);
    ok(count_files() == 2 && holds(path, "old"), "the old file stands while a new one is written");
    vf_out_file_abandon(f);
    ok(count_files() == 1 && holds(path, "old"), "and after giving up, which leaves nothing else");
    mode_t mask = umask(027);
    ok(write_new(path, "new") == VF_OK && count_files() == 1 && holds(path, "new"),
       "a commit replaces it");
    unlink(path);
    ok(write_new(path, "new") == VF_OK && stat(path, &st) == 0 && (st.st_mode & 07777) == 0640,
       "a new file has the mode of the umask");
    umask(mask);
    chmod(path, 0604);
    ok(write_new(path, "newer") == VF_OK && holds(path, "newer") && stat(path, &st) == 0 &&
           (st.st_mode & 07777) == 0604,
       "one that is replaced keeps its mode");
    if (vf_out_file_create(path, &f, &err) != VF_OK || fstat(vf_out_file_fd(f), &st) != 0)
        die(err.text);
    ok((st.st_mode & 07777) == 0604, "which its part file has from the start");
    vf_out_file_abandon(f);
    vf_out_file_abandon(NULL);
    ok(write_new("", "x") == VF_ERR_USAGE && strstr(err.text, "empty"), "%s", err.text);
    ok(write_new(in_dir("none/file"), "x") == VF_ERR_IO && strstr(err.text, "none/file"), "%s",
       err.text);
    unlink(path);
}

/* What a process that is killed leaves: begins the file and dies. */
static void die_while_writing(const char *path)
{
    int status;
    struct vf_out_file *f;
    pid_t pid = fork();
    if (pid == 0) {
        if (vf_out_file_create(path, &f, &err) == VF_OK)
            raise(SIGKILL);
        _exit(1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
        die("a process that dies");
}

static void test_dead_parts(void)
{
    char path[128], other[128];
    struct vf_out_file *f, *second;
    snprintf(path, sizeof path, "%s/model", dir);
    snprintf(other, sizeof other, "%s/model2", dir);
    die_while_writing(path);
    die_while_writing(other);
    put(in_dir("model.part-1234567"), "seven digits");
    put(in_dir("model.part-1234567g"), "not hexadecimal");
    ok(count_files() == 4, "a killed process leaves its part file");
    if (vf_out_file_create(path, &f, &err) != VF_OK)
        die(err.text);
    ok(count_files() == 4, "which the next writer of the name replaces by its own, and no other");
    if (vf_out_file_create(path, &second, &err) != VF_OK)
        die(err.text);
    ok(count_files() == 5, "one that is being written stays");
    ok(vf_out_file_commit(f, &err) == VF_OK && vf_out_file_commit(second, &err) == VF_OK,
       "so that both can be finished");
    if (symlink("nowhere", in_dir("model.part-00000000")))
        die("symlink");
    mkdir(in_dir("model.part-00000001"), 0700);
    ok(write_new(path, "new") == VF_OK && count_files() == 6, "links and directories stay");
    rmdir(in_dir("model.part-00000001"));
    unlink(in_dir("model.part-00000000"));
    unlink(in_dir("model.part-1234567"));
    unlink(in_dir("model.part-1234567g"));
    ok(write_new(other, "x") == VF_OK && count_files() == 2, "nothing is left in the end");
    unlink(path);
    unlink(other);
}

static void test_inputs(void)
{
    char *data;
    size_t n;
    put(in_dir("pointer"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
    put(in_dir("text"), "version https://git-lfs.github.com is where it begins");
    if (symlink("none", in_dir("gone")))
        die("symlink");
    ok(vf_read_file(in_dir("pointer"), 1000, &data, &n, &err) == VF_ERR_CORRUPT &&
           strstr(err.text, "git lfs pull"),
       "%s", err.text);
    ok(holds(in_dir("text"), "version https://git-lfs.github.com is where it begins"),
       "a text that begins nearly so is read");
    ok(vf_read_file(in_dir("gone"), 1000, &data, &n, &err) == VF_ERR_NOT_FOUND &&
           strstr(err.text, "symbolic link to none"),
       "%s", err.text);
    ok(vf_name_exists(in_dir("gone")) && vf_name_exists(in_dir("text")) &&
           !vf_name_exists(in_dir("none")),
       "a link that leads nowhere is no missing file");
    unlink(in_dir("pointer"));
    unlink(in_dir("text"));
    unlink(in_dir("gone"));
}

static void test_sizes(void)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},       {"4096B", 4096},        {"64K", 64 << 10},
                {"64KiB", 64 << 10},  {"64KB", 64000},        {"1.5G", 3ull << 29},
                {"8GiB", 8ull << 30}, {"8GB", 8000000000},    {"8gb", 8000000000},
                {"2TiB", 2ull << 40}, {"1TB", 1000000000000}, {"0", 0}};
    static const char *const bad[] = {"",   "G",   "8X",  "8GBs", "8Gi", "8iB",
                                      "-1", "nan", "inf", "0x10", "8 G", "9e18K"};
    uint64_t bytes;
    bool right = true;
    for (size_t i = 0; i < VF_ARRAY_LEN(good); i++)
        if (vf_cli_parse_size(good[i].text, &bytes, &err) != VF_OK || bytes != good[i].bytes) {
            note("%s", good[i].text);
            right = false;
        }
    ok(right, "sizes with every unit");
    right = true;
    for (size_t i = 0; i < VF_ARRAY_LEN(bad); i++)
        if (vf_cli_parse_size(bad[i], &bytes, &err) != VF_ERR_USAGE) {
            note("%s is taken", bad[i]);
            right = false;
        }
    ok(right, "what is no size is refused: %s", err.text);
}

static bool is_link_to(const char *path, const char *target)
{
    char text[128];
    ssize_t n = readlink(path, text, sizeof text);
    return n == (ssize_t)strlen(target) && memcmp(text, target, (size_t)n) == 0;
}

static void test_links(void)
{
    mkdir(in_dir("sub"), 0700);
    put(in_dir("sub/target"), "old");
    if (symlink("sub/target", in_dir("link")) || symlink(in_dir("link"), in_dir("second")) ||
        symlink("sub/later", in_dir("dangling")) || symlink("loop", in_dir("loop")))
        die("symlink");
    ok(write_new(in_dir("link"), "new") == VF_OK && holds(in_dir("sub/target"), "new") &&
           is_link_to(in_dir("link"), "sub/target"),
       "a link stays one, what it leads to is replaced");
    ok(write_new(in_dir("second"), "newer") == VF_OK && holds(in_dir("sub/target"), "newer") &&
           is_link_to(in_dir("second"), in_dir("link")),
       "so does a link to a link");
    ok(write_new(in_dir("dangling"), "made") == VF_OK && holds(in_dir("sub/later"), "made") &&
           is_link_to(in_dir("dangling"), "sub/later"),
       "a link to nothing makes its target");
    ok(write_new(in_dir("loop"), "x") == VF_ERR_IO && is_link_to(in_dir("loop"), "loop"), "%s",
       err.text);
    ok(count_files() == 5, "nothing else is left");
    unlink(in_dir("link"));
    unlink(in_dir("second"));
    unlink(in_dir("dangling"));
    unlink(in_dir("loop"));
    unlink(in_dir("sub/target"));
    unlink(in_dir("sub/later"));
}

/* What isn't a regular file, by itself and through a link: (name, its word). */
static const struct {
    const char *name, *kind;
} others[] = {{"fifo", "a FIFO"}, {"socket", "a socket"}, {"sub", "a directory"}};

static void test_refused(void)
{
    struct stat before, after;
    for (size_t i = 0; i < VF_ARRAY_LEN(others); i++) {
        const char *path = in_dir(others[i].name);
        if (symlink(path, in_dir("link")) || stat(path, &before))
            die("symlink");
        bool refused = write_new(path, "x") == VF_ERR_USAGE && strstr(err.text, others[i].kind);
        refused &= write_new(in_dir("link"), "x") == VF_ERR_USAGE;
        ok(refused && lstat(path, &after) == 0 && after.st_ino == before.st_ino &&
               after.st_mode == before.st_mode && is_link_to(in_dir("link"), path),
           "%s", err.text);
        unlink(in_dir("link"));
    }
    ok(count_files() == 3, "nothing else is left");
}

/* A pipe that came while the file was written. */
static void test_late_pipe(void)
{
    const char *path = in_dir("late");
    struct vf_out_file *f;
    struct stat st;
    if (vf_out_file_create(path, &f, &err) != VF_OK || mkfifo(path, 0600) != 0)
        die("late");
    ok(vf_out_file_commit(f, &err) == VF_ERR_USAGE && lstat(path, &st) == 0 &&
           S_ISFIFO(st.st_mode) && count_files() == 4,
       "%s", err.text);
    unlink(path);
}

/* ---- reading ------------------------------------------------------------------------------- */

static void test_input(void)
{
    int fd;
    uint64_t bytes;
    put(in_dir("file"), "12345");
    ok(vf_open_input(in_dir("file"), &fd, &bytes, &err) == VF_OK && bytes == 5, "a file is opened");
    close(fd);
    alarm(20); /* a FIFO without a writer would be waited for */
    for (size_t i = 0; i < VF_ARRAY_LEN(others); i++)
        ok(vf_open_input(in_dir(others[i].name), &fd, &bytes, &err) == VF_ERR_CORRUPT && fd == -1 &&
               strstr(err.text, others[i].kind),
           "%s", err.text);
    alarm(0);
    ok(vf_open_input("", &fd, &bytes, &err) == VF_ERR_NOT_FOUND && strstr(err.text, "empty"), "%s",
       err.text);
    ok(vf_open_input(in_dir("none"), &fd, &bytes, &err) == VF_ERR_NOT_FOUND, "%s", err.text);
    unlink(in_dir("file"));
}

static void test_utf8(void)
{
    static const struct {
        const char *text;
        size_t bytes, valid;
    } cases[] = {
        {"", 0, 0},
        {"abc", 3, 3},
        {"caf\xc3\xa9", 5, 5},
        {"caf\xe9", 4, 3},
        {"\xff", 1, 0},
        {"a\xe2\x82", 3, 1},
        {"a\0b", 3, 3},
        {"\xed\xa0\x80", 3, 0},
        {"ab\x80"
         "c",
         4, 2},
        {"\xf0\x9f\x98\x80x", 5, 5},
    };
    bool good = true;
    for (size_t i = 0; i < VF_ARRAY_LEN(cases); i++)
        good &= vf_utf8_valid_bytes(cases[i].text, cases[i].bytes) == cases[i].valid &&
                vf_utf8_valid(cases[i].text, cases[i].bytes) == (cases[i].valid == cases[i].bytes);
    ok(good, "UTF-8 is valid up to the first byte that isn't");
}

static void test_append(void)
{
    vf_err_set(&err, VF_ERR_IO, "it failed");
    ok(vf_err_append(&err, "; %d\n", 7) == VF_ERR_IO && strcmp(err.text, "it failed; 7?") == 0 &&
           vf_err_append(NULL, "x") == VF_OK,
       "text behind an error: %s", err.text);
    for (size_t i = 0; i < sizeof err.text; i++)
        vf_err_append(&err, "more ");
    ok(strlen(err.text) == sizeof err.text - 1, "no more than fits");
}

int main(void)
{
    plan(40);
    snprintf(dir, sizeof dir, "/tmp/vfu-XXXXXX");
    if (!mkdtemp(dir))
        die("mkdtemp");
    test_replace();
    test_dead_parts();
    test_inputs();
    test_sizes();
    test_links();
    if (mkfifo(in_dir("fifo"), 0600) != 0)
        die("mkfifo");
    make_socket(in_dir("socket"));
    test_refused();
    test_late_pipe();
    test_input();
    test_utf8();
    test_append();
    unlink(in_dir("fifo"));
    unlink(in_dir("socket"));
    rmdir(in_dir("sub"));
    ok(rmdir(dir) == 0, "and nothing stays behind");
    return 0;
}
