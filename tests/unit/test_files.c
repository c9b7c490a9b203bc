/* Files that are read and written for the user: what may be replaced and how, what is read, and
 * that nothing waits for a pipe. All in a private directory. */
#include "common/base/out_file.h"
#include "common/base/util.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

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
    ok(stat(path, &st) == 0 && (st.st_mode & 07777) == 0640, "with the mode of the umask");
    umask(mask);
    vf_out_file_abandon(NULL);
    ok(write_new("", "x") == VF_ERR_USAGE && strstr(err.text, "empty"), "%s", err.text);
    ok(write_new(in_dir("none/file"), "x") == VF_ERR_IO && strstr(err.text, "none/file"), "%s",
       err.text);
    unlink(path);
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
    plan(26);
    snprintf(dir, sizeof dir, "/tmp/vfu-XXXXXX");
    if (!mkdtemp(dir))
        die("mkdtemp");
    test_replace();
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
