/* Run directories: names, checks, and that nothing is left of a killed run. */
#include "common/run/shm.h"
#include "io_test.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static bool shm_exists(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "/dev/shm%s", name);
    return exists(path);
}

static void touch(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    if (fd < 0)
        DIE("%s: %s", path, strerror(errno));
    close(fd);
}

static void make_socket(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0)
        DIE("%s: %s", path, strerror(errno));
    close(fd);
}

static void make_shm(const char *name)
{
    struct vf_shm shm;
    MUST(vf_shm_create(name, 8192, &shm, &must_err));
    vf_shm_close(&shm);
}

/* How many it removes isn't looked at: other tests of this machine leave dead runs behind, and
 * sweep, at the same time. */
static bool sweep(void)
{
    return vf_run_dir_sweep() >= 0;
}

/* ---- names and checks ----------------------------------------------------------------------- */

static void test_create_and_open(void)
{
    struct vf_run_dir *rd, *worker;
    struct vf_err err;
    struct stat st;
    MUST(vf_run_dir_create(&rd, &must_err));
    const char *path = vf_run_dir_path(rd);
    ok(lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0700,
       "the directory has mode 0700");
    ok(strncmp(path, test_base, strlen(test_base)) == 0, "it lies under XDG_RUNTIME_DIR");
    char endpoint[VF_RUN_ENDPOINT_MAX], want[VF_RUN_ENDPOINT_MAX + 160], name[VF_RUN_SHM_NAME_MAX];
    vf_run_dir_io_endpoint(rd, 3, endpoint);
    snprintf(want, sizeof want, "ipc://%s/io-3", path);
    ok(strcmp(endpoint, want) == 0, "endpoint of an I/O worker");
    vf_run_dir_shm_name(rd, VF_RUN_SHM_EXPERTS, name);
    snprintf(want, sizeof want, "/vflow-%s-experts", vf_run_dir_id(rd));
    ok(strcmp(name, want) == 0, "name of a shared-memory object");
    make_shm(name);

    ok(vf_run_dir_open(path, &worker, &err) == VF_OK, "a worker opens it");
    ok(strcmp(vf_run_dir_id(worker), vf_run_dir_id(rd)) == 0 &&
           strcmp(vf_run_dir_path(worker), path) == 0,
       "the worker sees the same names");
    int pidfd;
    ok(vf_run_dir_owner_pidfd(worker, &pidfd, &err) == VF_OK && pidfd >= 0, "pidfd of the owner");
    close(pidfd);

    chmod(path, 0755);
    struct vf_run_dir *no;
    ok(vf_run_dir_open(path, &no, &err) == VF_ERR_DENIED && !no, "open to others is refused: %s",
       err.text);
    chmod(path, 0700);
    ok(vf_run_dir_open("vflow-1-1-1-00000001", &no, &err) == VF_ERR_USAGE, "relative path refused");
    ok(vf_run_dir_open("/tmp", &no, &err) == VF_ERR_USAGE, "another directory refused");
    snprintf(want, sizeof want, "%s/vflow-1-2-3-00000004", test_base);
    ok(vf_run_dir_open(want, &no, &err) == VF_ERR_NOT_FOUND, "missing directory refused");
    if (symlink(path, want) != 0)
        DIE("symlink");
    ok(vf_run_dir_open(want, &no, &err) == VF_ERR_DENIED, "symbolic link refused: %s", err.text);
    unlink(want);

    ok(sweep() && exists(path) && shm_exists(name), "a sweep leaves a live run");
    char held[200];
    snprintf(held, sizeof held, "%s", path);
    vf_run_dir_remove(worker);
    ok(!exists(held) && !shm_exists(name), "remove takes directory and objects");
    vf_run_dir_remove(rd);
    ok(!exists(held), "remove again is fine");
    vf_run_dir_close(worker);
    vf_run_dir_close(rd);
}

static void test_bases(void)
{
    struct vf_run_dir *rd;
    char longer[160];
    snprintf(longer, sizeof longer, "%s/%070d", test_base, 0);
    mkdir(longer, 0700);
    setenv("XDG_RUNTIME_DIR", longer, 1);
    MUST(vf_run_dir_create(&rd, &must_err));
    ok(strncmp(vf_run_dir_path(rd), longer, strlen(longer)) != 0,
       "a base too long for sockets is passed over: %s", vf_run_dir_path(rd));
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    MUST(vf_run_dir_create(&rd, &must_err));
    ok(strncmp(vf_run_dir_path(rd), test_base, strlen(test_base)) == 0, "and one that is missing");
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    setenv("XDG_RUNTIME_DIR", "/proc", 1);
    MUST(vf_run_dir_create(&rd, &must_err));
    ok(strncmp(vf_run_dir_path(rd), test_base, strlen(test_base)) == 0,
       "and one that no directory can be made in");
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    setenv("XDG_RUNTIME_DIR", test_base, 1);
    rmdir(longer);
}

/* ---- sockets elsewhere ---------------------------------------------------------------------- */

static void test_adopted_sockets(void)
{
    struct vf_run_dir *rd;
    struct vf_err err;
    char mine[96], again[96], file[96], gone[96], other[96];
    const struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 4000000000}};
    snprintf(mine, sizeof mine, "%s/mine.sock", test_base);
    snprintf(again, sizeof again, "%s/again.sock", test_base);
    snprintf(file, sizeof file, "%s/file.sock", test_base);
    snprintf(gone, sizeof gone, "%s/gone.sock", test_base);
    snprintf(other, sizeof other, "%s/other.sock", test_base);
    MUST(vf_run_dir_create(&rd, &must_err));
    const char *adopted[] = {mine, again, file, gone};
    for (size_t i = 0; i < VF_ARRAY_LEN(adopted); i++) {
        make_socket(adopted[i]);
        MUST(vf_run_dir_adopt_socket(rd, adopted[i], &must_err));
    }
    ok(vf_run_dir_adopt_socket(rd, mine, &err) == VF_OK, "adopting a socket twice is fine");
    make_socket(other);
    /* A server bound the name again and was given the inode number again: only the time differs. */
    utimensat(AT_FDCWD, again, later, 0);
    unlink(file);
    touch(file);
    unlink(gone);
    vf_run_dir_remove(rd);
    ok(!exists(mine), "a run's end takes the socket that it made elsewhere");
    ok(exists(again), "but not a later one under its name");
    ok(exists(file), "nor a file");
    ok(exists(other), "nor one it hasn't adopted");
    vf_run_dir_close(rd);
    MUST(vf_run_dir_create(&rd, &must_err));
    ok(vf_run_dir_adopt_socket(rd, file, &err) == VF_ERR_IO, "a file isn't adopted: %s", err.text);
    ok(vf_run_dir_adopt_socket(rd, "some.sock", &err) == VF_ERR_USAGE, "nor a relative path: %s",
       err.text);
    vf_run_dir_remove(rd);
    vf_run_dir_close(rd);
    unlink(again);
    unlink(file);
    unlink(other);
}

/* ---- killed runs ---------------------------------------------------------------------------- */

struct run_names {
    char path[160], shm[VF_RUN_SHM_NAME_MAX], elsewhere[96];
};

/* A coordinator in a child with sockets and shared memory; the parent decides when it ends. */
static pid_t start_owner(struct run_names *names)
{
    int pipe_fd[2];
    if (pipe(pipe_fd) != 0)
        DIE("pipe");
    pid_t pid = fork_child();
    if (pid == 0) {
        struct vf_run_dir *rd;
        struct run_names n;
        MUST(vf_run_dir_create(&rd, &must_err));
        snprintf(n.path, sizeof n.path, "%s", vf_run_dir_path(rd));
        vf_run_dir_shm_name(rd, "experts", n.shm);
        make_shm(n.shm);
        char socket_path[200];
        snprintf(socket_path, sizeof socket_path, "%s/control", n.path);
        touch(socket_path);
        snprintf(n.elsewhere, sizeof n.elsewhere, "%s/elsewhere.sock", test_base);
        make_socket(n.elsewhere);
        MUST(vf_run_dir_adopt_socket(rd, n.elsewhere, &must_err));
        if (write(pipe_fd[1], &n, sizeof n) != sizeof n)
            _exit(1);
        for (;;)
            pause();
    }
    if (read(pipe_fd[0], names, sizeof *names) != sizeof *names)
        DIE("the owner didn't start");
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    return pid;
}

static void test_killed_owner(void)
{
    struct run_names names;
    struct vf_run_dir *worker;
    struct vf_err err;
    int pidfd;
    pid_t pid = start_owner(&names);
    ok(sweep() && exists(names.path) && shm_exists(names.shm) && exists(names.elsewhere),
       "a sweep leaves another process's live run");
    MUST(vf_run_dir_open(names.path, &worker, &must_err));
    MUST(vf_run_dir_owner_pidfd(worker, &pidfd, &must_err));
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    ok(poll(&p, 1, 0) == 0, "the pidfd is quiet while the owner lives");
    kill(pid, SIGKILL);
    ok(poll(&p, 1, 5000) == 1, "the pidfd tells the owner's death");
    close(pidfd);
    sweep();
    ok(!exists(names.path) && !shm_exists(names.shm) && !exists(names.elsewhere),
       "a sweep removes directory, object and socket, also of an unreaped owner");
    wait_status(pid);
    ok(vf_run_dir_owner_pidfd(worker, &pidfd, &err) == VF_ERR_PEER_LOST, "no pidfd of the dead: %s",
       err.text);
    vf_run_dir_close(worker);
}

/* A name with a pid and start time that no process has. */
static void dead_id(uint32_t random, uint64_t ns_xor, char *out, size_t size)
{
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) != 0)
        DIE("ns");
    snprintf(out, size, "%" PRIx64 "-%d-%x-%08x", (uint64_t)st.st_ino ^ ns_xor, getpid(), 1u,
             random);
}

static void test_leftovers(void)
{
    char id[80], dir[160], file[200], shm[140], victim[160], victim_file[200];
    dead_id(1, 0, id, sizeof id);
    snprintf(dir, sizeof dir, "%s/vflow-%s", test_base, id);
    snprintf(shm, sizeof shm, "/vflow-%s-experts", id);
    snprintf(victim, sizeof victim, "%s/victim", test_base);
    snprintf(victim_file, sizeof victim_file, "%s/precious", victim);
    mkdir(victim, 0700);
    touch(victim_file);

    make_shm(shm);
    ok(sweep() && !shm_exists(shm), "an object without a directory goes");
    mkdir(dir, 0700);
    ok(sweep() && !exists(dir), "a directory without a lock goes");

    if (symlink(victim, dir) != 0)
        DIE("symlink");
    ok(sweep() && exists(victim_file), "a symbolic link in place of one is left");
    unlink(dir);
    mkdir(dir, 0700);
    snprintf(file, sizeof file, "%s/control", dir);
    if (symlink(victim_file, file) != 0)
        DIE("symlink");
    ok(sweep() && !exists(dir) && exists(victim_file),
       "a symbolic link inside goes, its target stays");

    make_shm("/vflow-keep-this");
    snprintf(shm, sizeof shm, "/vflow-%s", id);
    make_shm(shm);
    ok(sweep() && shm_exists("/vflow-keep-this") && shm_exists(shm),
       "names that aren't a run's are left");
    vf_shm_unlink("/vflow-keep-this");
    vf_shm_unlink(shm);
    unlink(victim_file);
    rmdir(victim);
}

static void test_other_namespace(void)
{
    char id[80], dir[160], shm[140], lock[200];
    dead_id(2, 1, id, sizeof id);
    snprintf(dir, sizeof dir, "%s/vflow-%s", test_base, id);
    snprintf(shm, sizeof shm, "/vflow-%s-experts", id);
    snprintf(lock, sizeof lock, "%s/lock", dir);
    make_shm(shm);
    mkdir(dir, 0700);
    touch(lock);
    ok(sweep() && exists(dir) && shm_exists(shm),
       "a fresh run of another pid namespace can't be proved dead");
    struct timespec old[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};
    utimensat(AT_FDCWD, dir, old, 0);
    ok(sweep() && !exists(dir) && !shm_exists(shm),
       "an old one whose lock is free goes, with its objects");
}

/* Coordinators that start, sweep and are killed all at once: no live run may lose anything. */
static void churn(uint64_t seed)
{
    for (int i = 0; i < 40; i++) {
        struct vf_run_dir *rd;
        char name[VF_RUN_SHM_NAME_MAX];
        vf_run_dir_sweep();
        MUST(vf_run_dir_create(&rd, &must_err));
        vf_run_dir_shm_name(rd, "experts", name);
        make_shm(name);
        usleep(random_below(&seed, 2000));
        if (!exists(vf_run_dir_path(rd)) || !shm_exists(name))
            _exit(1);
        if (random_below(&seed, 30) == 0)
            raise(SIGKILL);
        vf_run_dir_remove(rd);
        if (exists(vf_run_dir_path(rd)) || shm_exists(name))
            _exit(2);
        vf_run_dir_close(rd);
    }
    _exit(0);
}

static bool nothing_left(void)
{
    char command[200];
    snprintf(command, sizeof command, "! ls -d %s/vflow-* 2>/dev/null | grep .", test_base);
    return system(command) == 0;
}

static void test_churn(void)
{
    pid_t pids[6];
    int bad = 0, killed = 0;
    for (int i = 0; i < 6; i++) {
        pids[i] = fork_child();
        if (pids[i] == 0)
            churn((uint64_t)i * 1000 + 5);
    }
    for (int i = 0; i < 6; i++) {
        int status = wait_status(pids[i]);
        killed += WIFSIGNALED(status);
        bad += WIFEXITED(status) && WEXITSTATUS(status) != 0;
    }
    note("%d of 6 coordinators were killed", killed);
    ok(bad == 0, "no live run lost anything to the others' sweeps");
    vf_run_dir_sweep();
    ok(nothing_left(), "a last sweep leaves nothing");
}

int main(void)
{
    plan(39);
    make_test_base();
    vf_run_dir_sweep();
    test_create_and_open();
    test_bases();
    test_adopted_sockets();
    test_killed_owner();
    test_leftovers();
    test_other_namespace();
    test_churn();
    remove_test_base();
    return 0;
}
