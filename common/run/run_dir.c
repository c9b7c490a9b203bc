/* Run directories: creation under a lock, names, and removal of what a run leaves behind.
 *
 * Two proofs say that a run is dead: its lock is free (the kernel drops it with the last process
 * that holds it), and no process of its pid namespace has its owner's pid and start time. A run of
 * another pid namespace (a container that shares /tmp) has only the first, and may be between mkdir
 * and flock, so it also has to be old.
 */
#include "common/run/run_dir.h"

#include "common/base/log.h"
#include "common/base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PREFIX          "vflow-"
#define SHM_DIR         "/dev/shm" /* where glibc's and musl's shm_open live */
#define SUN_PATH_MAX    107        /* characters of a Unix socket's path */
#define FOREIGN_AGE_MIN 60         /* seconds; far longer than mkdir to flock takes */
#define ADOPTED         "owned-"
#define ADOPTED_MAX     96 /* four numbers in hexadecimal */

struct run_id {
    uint64_t pid_namespace, start_time;
    pid_t pid;
    uint32_t random;
};

struct vf_run_dir {
    char path[SUN_PATH_MAX + 1];
    const char *name; /* the last part of path */
    struct run_id id;
    char id_text[VF_RUN_ID_MAX];
    int lock_fd; /* -1 in workers */
};

/* ---- processes ----------------------------------------------------------------------------- */

enum life { LIFE_UNKNOWN, LIFE_DEAD, LIFE_ALIVE };

/* A zombie counts as dead: it holds no lock and comes back no more. */
static enum life read_start_time(pid_t pid, uint64_t *start_time)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? LIFE_DEAD : LIFE_UNKNOWN;
    ssize_t n = read(fd, text, sizeof text - 1);
    int read_errno = errno;
    close(fd);
    if (n <= 0)
        return n < 0 && read_errno == ESRCH ? LIFE_DEAD : LIFE_UNKNOWN;
    text[n] = 0;
    /* The second field is the program's name in parentheses and may hold anything. */
    char *after_name = strrchr(text, ')');
    char state;
    unsigned long long start;
    if (!after_name || sscanf(after_name + 1,
                              " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                              "%*s %*s %*s %llu",
                              &state, &start) != 2)
        return LIFE_UNKNOWN;
    *start_time = start;
    return state == 'Z' || state == 'X' ? LIFE_DEAD : LIFE_ALIVE;
}

unsigned long long vf_process_start_time(pid_t pid)
{
    uint64_t start_time = 0;
    return read_start_time(pid, &start_time) == LIFE_ALIVE ? start_time : 0;
}

static uint64_t own_pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static enum life owner_life(const struct run_id *id)
{
    if (id->pid_namespace == 0 || id->pid_namespace != own_pid_namespace())
        return LIFE_UNKNOWN;
    uint64_t start_time = 0;
    enum life life = read_start_time(id->pid, &start_time);
    return life == LIFE_ALIVE && start_time != id->start_time ? LIFE_DEAD : life;
}

/* ---- names --------------------------------------------------------------------------------- */

static void format_run_id(const struct run_id *id, char out[VF_RUN_ID_MAX])
{
    snprintf(out, VF_RUN_ID_MAX, "%" PRIx64 "-%ld-%" PRIx64 "-%08" PRIx32, id->pid_namespace,
             (long)id->pid, id->start_time, id->random);
}

/* One number, digits only, up to a dash or the end. */
static bool parse_number(const char **at, int base, uint64_t max, uint64_t *out)
{
    const char *digits = base == 10 ? "0123456789" : "0123456789abcdef";
    size_t n = strspn(*at, digits);
    if (n == 0 || n > 16)
        return false;
    *out = strtoull(*at, NULL, base);
    *at += n;
    return *out <= max;
}

/* Reads the run id at the start of text; *end is what follows. */
static bool parse_run_id(const char *text, struct run_id *id, const char **end)
{
    uint64_t pid, random;
    const char *at = text;
    if (!parse_number(&at, 16, UINT64_MAX, &id->pid_namespace) || *at++ != '-' ||
        !parse_number(&at, 10, INT_MAX, &pid) || *at++ != '-' ||
        !parse_number(&at, 16, UINT64_MAX, &id->start_time) || *at++ != '-' ||
        !parse_number(&at, 16, UINT32_MAX, &random) || pid == 0)
        return false;
    id->pid = (pid_t)pid;
    id->random = (uint32_t)random;
    *end = at;
    /* Only names that format_run_id writes, so that a name and an id are one to one. */
    char again[VF_RUN_ID_MAX];
    format_run_id(id, again);
    return strlen(again) == (size_t)(at - text) && memcmp(again, text, strlen(again)) == 0;
}

/* "vflow-<run id>" exactly. */
static bool parse_dir_name(const char *name, struct run_id *id)
{
    const char *end;
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 &&
           parse_run_id(name + strlen(PREFIX), id, &end) && *end == 0;
}

/* "vflow-<run id>-<what>" */
static bool parse_shm_name(const char *name, struct run_id *id)
{
    const char *end;
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 &&
           parse_run_id(name + strlen(PREFIX), id, &end) && end[0] == '-' && end[1] != 0;
}

static bool same_run(const struct run_id *a, const struct run_id *b)
{
    return a->pid_namespace == b->pid_namespace && a->pid == b->pid &&
           a->start_time == b->start_time && a->random == b->random;
}

/* The places a run directory may lie in; entries may be NULL. */
#define BASE_COUNT 3
static void list_bases(const char *bases[BASE_COUNT])
{
    bases[0] = getenv("XDG_RUNTIME_DIR");
    bases[1] = getenv("TMPDIR");
    bases[2] = "/tmp";
    for (int i = 0; i < BASE_COUNT; i++)
        if (bases[i] && bases[i][0] != '/')
            bases[i] = NULL;
}

/* ---- removal ------------------------------------------------------------------------------- */

static int open_dir_at(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_ours(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_uid == geteuid();
}

/* Runs f on every entry of the directory; closes dir_fd. */
static void for_each_entry(int dir_fd, void (*f)(int dir_fd, const char *name, void *ctx),
                           void *ctx)
{
    DIR *dir = fdopendir(dir_fd);
    if (!dir) {
        close(dir_fd);
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            f(dirfd(dir), e->d_name, ctx);
    closedir(dir);
}

/* The entry for a socket elsewhere. The time tells it from a later socket that was given the same
 * inode number, as happens as soon as the name is bound again. */
static void format_adopted(const struct stat *st, char out[ADOPTED_MAX])
{
    snprintf(out, ADOPTED_MAX, ADOPTED "%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%lx",
             (uint64_t)st->st_dev, (uint64_t)st->st_ino, (uint64_t)st->st_mtim.tv_sec,
             (unsigned long)st->st_mtim.tv_nsec);
}

/* Removes the socket that the entry leads to, if it still is that socket. */
static void remove_adopted(int dir_fd, const char *name)
{
    char path[SUN_PATH_MAX + 1], again[ADOPTED_MAX];
    struct stat st;
    ssize_t n = readlinkat(dir_fd, name, path, sizeof path);
    if (n <= 0 || (size_t)n == sizeof path || path[0] != '/')
        return;
    path[n] = 0;
    if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return;
    format_adopted(&st, again);
    if (strcmp(again, name) == 0)
        unlink(path);
}

static void unlink_entry(int dir_fd, const char *name, void *ctx)
{
    (void)ctx;
    if (strncmp(name, ADOPTED, strlen(ADOPTED)) == 0)
        remove_adopted(dir_fd, name);
    unlinkat(dir_fd, name, 0); /* a symbolic link itself, never its target */
}

/* True when the directory existed and is gone now. */
static bool remove_dir_at(int base_fd, const char *name)
{
    int fd = open_dir_at(base_fd, name);
    if (fd < 0)
        return false;
    if (!is_ours(fd)) {
        close(fd);
        return false;
    }
    for_each_entry(fd, unlink_entry, NULL);
    return unlinkat(base_fd, name, AT_REMOVEDIR) == 0;
}

struct shm_sweep {
    const struct run_id *only; /* NULL: those of every dead run */
    int removed;
};

static void remove_shm_entry(int dir_fd, const char *name, void *ctx)
{
    struct shm_sweep *sweep = ctx;
    struct run_id id;
    struct stat st;
    if (!parse_shm_name(name, &id))
        return;
    if (sweep->only ? !same_run(&id, sweep->only) : owner_life(&id) != LIFE_DEAD)
        return;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        st.st_uid != geteuid())
        return;
    if (unlinkat(dir_fd, name, 0) == 0)
        sweep->removed++;
}

static int sweep_shm(const struct run_id *only)
{
    struct shm_sweep sweep = {.only = only};
    int fd = open(SHM_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        for_each_entry(fd, remove_shm_entry, &sweep);
    return sweep.removed;
}

void vf_run_dir_remove(const struct vf_run_dir *rd)
{
    char base[sizeof rd->path];
    size_t n = (size_t)(rd->name - rd->path);
    memcpy(base, rd->path, n);
    base[n] = 0;
    int base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (base_fd >= 0) {
        remove_dir_at(base_fd, rd->name);
        close(base_fd);
    }
    sweep_shm(&rd->id);
}

/* ---- sweep --------------------------------------------------------------------------------- */

/* The lock of the run directory dir_fd, taken: *lock_fd, or -1 when it has no lock file. False when
 * somebody holds it, or it can't be told. */
static bool take_free_lock(int dir_fd, int *lock_fd)
{
    *lock_fd = openat(dir_fd, "lock", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*lock_fd < 0)
        return errno == ENOENT;
    if (flock(*lock_fd, LOCK_EX | LOCK_NB) == 0)
        return true;
    close(*lock_fd);
    *lock_fd = -1;
    return false;
}

static bool is_old(int dir_fd)
{
    struct stat st;
    return fstat(dir_fd, &st) == 0 && time(NULL) - st.st_mtime > FOREIGN_AGE_MIN;
}

static void sweep_dir_entry(int base_fd, const char *name, void *ctx)
{
    int *removed = ctx;
    struct run_id id;
    if (!parse_dir_name(name, &id))
        return;
    int dir_fd = open_dir_at(base_fd, name);
    int lock_fd = -1;
    if (dir_fd < 0)
        return;
    enum life life = owner_life(&id);
    if (is_ours(dir_fd) && life != LIFE_ALIVE && (life == LIFE_DEAD || is_old(dir_fd)) &&
        take_free_lock(dir_fd, &lock_fd)) {
        *removed += sweep_shm(&id);
        *removed += remove_dir_at(base_fd, name);
    }
    if (lock_fd >= 0)
        close(lock_fd);
    close(dir_fd);
}

int vf_run_dir_sweep(void)
{
    int removed = 0;
    const char *bases[BASE_COUNT];
    list_bases(bases);
    for (int i = 0; i < BASE_COUNT; i++) {
        int fd = bases[i] ? open(bases[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (fd >= 0)
            for_each_entry(fd, sweep_dir_entry, &removed);
    }
    removed += sweep_shm(NULL);
    if (removed)
        vf_info("removed %d directories and shared-memory objects of dead runs", removed);
    return removed;
}

/* ---- create and open ----------------------------------------------------------------------- */

static enum vf_code new_run_id(struct run_id *id, struct vf_err *err)
{
    id->pid = getpid();
    id->pid_namespace = own_pid_namespace();
    id->start_time = vf_process_start_time(id->pid);
    if (id->pid_namespace == 0 || id->start_time == 0)
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "/proc/self can't be read; it must be mounted for runs to be told apart");
    if (getrandom(&id->random, sizeof id->random, 0) != sizeof id->random)
        return vf_err_errno(err, VF_ERR_IO, errno, "getrandom");
    return VF_OK;
}

static bool base_usable(const char *base, size_t name_len)
{
    struct stat st;
    return base && strlen(base) + 1 + name_len + 1 + VF_RUN_NAME_MAX - 1 <= SUN_PATH_MAX &&
           stat(base, &st) == 0 && S_ISDIR(st.st_mode) &&
           faccessat(AT_FDCWD, base, W_OK | X_OK, AT_EACCESS) == 0;
}

static enum vf_code make_dir(struct vf_run_dir *rd, struct vf_err *err)
{
    const char *bases[BASE_COUNT];
    list_bases(bases);
    size_t name_len = strlen(PREFIX) + strlen(rd->id_text);
    for (int i = 0; i < BASE_COUNT; i++) {
        if (!base_usable(bases[i], name_len))
            continue;
        snprintf(rd->path, sizeof rd->path, "%s/" PREFIX "%s", bases[i], rd->id_text);
        rd->name = strrchr(rd->path, '/') + 1;
        if (mkdir(rd->path, 0700) == 0)
            return VF_OK;
        vf_info("%s can't be made (%s), looking elsewhere", rd->path, strerror(errno));
    }
    return vf_err_set(err, VF_ERR_IO,
                      "no place for the run directory: none of XDG_RUNTIME_DIR (%s), TMPDIR (%s) "
                      "and /tmp is a directory with a name of at most %zu characters that a "
                      "directory can be made in",
                      bases[0] ? bases[0] : "unset", bases[1] ? bases[1] : "unset",
                      (size_t)SUN_PATH_MAX - 2 - name_len - (VF_RUN_NAME_MAX - 1));
}

static enum vf_code lock_dir(struct vf_run_dir *rd, struct vf_err *err)
{
    char path[sizeof rd->path + 8];
    snprintf(path, sizeof path, "%s/lock", rd->path);
    /* CLOEXEC: a worker that inherits the lock would keep a dead run looking alive. */
    rd->lock_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (rd->lock_fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: cannot create", path);
    if (flock(rd->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: cannot lock", path);
    return VF_OK;
}

static struct vf_run_dir *new_handle(struct vf_err *err)
{
    struct vf_run_dir *rd = calloc(1, sizeof *rd);
    if (!rd) {
        vf_err_set(err, VF_ERR_NO_MEMORY, "run directory: out of memory");
        return NULL;
    }
    rd->lock_fd = -1;
    rd->name = rd->path;
    return rd;
}

enum vf_code vf_run_dir_create(struct vf_run_dir **out, struct vf_err *err)
{
    *out = NULL;
    struct vf_run_dir *rd = new_handle(err);
    if (!rd)
        return VF_ERR_NO_MEMORY;
    enum vf_code code = new_run_id(&rd->id, err);
    if (code != VF_OK)
        goto done;
    format_run_id(&rd->id, rd->id_text);
    code = make_dir(rd, err);
    if (code != VF_OK)
        goto done;
    code = lock_dir(rd, err);
    if (code != VF_OK)
        vf_run_dir_remove(rd);
done:
    if (code != VF_OK)
        vf_run_dir_close(rd);
    else
        *out = rd;
    return code;
}

static enum vf_code check_dir(const char *path, struct vf_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno,
                            "run directory %s", path);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return vf_err_set(err, VF_ERR_DENIED,
                          "run directory %s: owner %ld, mode %o; allowed is a directory of user "
                          "%ld with mode 700",
                          path, (long)st.st_uid, (unsigned)st.st_mode & 07777, (long)geteuid());
    return VF_OK;
}

enum vf_code vf_run_dir_open(const char *path, struct vf_run_dir **out, struct vf_err *err)
{
    *out = NULL;
    struct run_id id;
    const char *slash = strrchr(path, '/');
    if (path[0] != '/' || !parse_dir_name(slash + 1, &id))
        return vf_err_set(err, VF_ERR_USAGE,
                          "run directory %s: not an absolute path that ends in " PREFIX "<run id>",
                          path);
    if (strlen(path) + 1 + VF_RUN_NAME_MAX - 1 > SUN_PATH_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "run directory %s: the path is too long for sockets",
                          path);
    enum vf_code code = check_dir(path, err);
    if (code != VF_OK)
        return code;
    struct vf_run_dir *rd = new_handle(err);
    if (!rd)
        return VF_ERR_NO_MEMORY;
    memcpy(rd->path, path, strlen(path) + 1);
    rd->name = strrchr(rd->path, '/') + 1;
    rd->id = id;
    format_run_id(&id, rd->id_text);
    *out = rd;
    return VF_OK;
}

void vf_run_dir_close(struct vf_run_dir *rd)
{
    if (!rd)
        return;
    if (rd->lock_fd >= 0)
        close(rd->lock_fd);
    free(rd);
}

/* ---- what a run is called ------------------------------------------------------------------ */

const char *vf_run_dir_path(const struct vf_run_dir *rd)
{
    return rd->path;
}

const char *vf_run_dir_id(const struct vf_run_dir *rd)
{
    return rd->id_text;
}

static void check_what(const char *what)
{
    size_t n = strlen(what);
    VF_ASSERT(n > 0 && n < VF_RUN_NAME_MAX);
    VF_ASSERT(strspn(what, "abcdefghijklmnopqrstuvwxyz0123456789-") == n);
}

void vf_run_dir_endpoint(const struct vf_run_dir *rd, const char *what,
                         char out[VF_RUN_ENDPOINT_MAX])
{
    check_what(what);
    int n = snprintf(out, VF_RUN_ENDPOINT_MAX, "ipc://%s/%s", rd->path, what);
    VF_ASSERT(n > 0 && n < VF_RUN_ENDPOINT_MAX);
}

void vf_run_dir_io_endpoint(const struct vf_run_dir *rd, unsigned index,
                            char out[VF_RUN_ENDPOINT_MAX])
{
    char what[VF_RUN_NAME_MAX];
    snprintf(what, sizeof what, "io-%u", index);
    vf_run_dir_endpoint(rd, what, out);
}

void vf_run_dir_shm_name(const struct vf_run_dir *rd, const char *what,
                         char out[VF_RUN_SHM_NAME_MAX])
{
    check_what(what);
    int n = snprintf(out, VF_RUN_SHM_NAME_MAX, "/" PREFIX "%s-%s", rd->id_text, what);
    VF_ASSERT(n > 0 && n < VF_RUN_SHM_NAME_MAX);
}

enum vf_code vf_run_dir_adopt_socket(const struct vf_run_dir *rd, const char *path,
                                     struct vf_err *err)
{
    char name[ADOPTED_MAX], entry[sizeof rd->path + ADOPTED_MAX];
    struct stat st;
    if (path[0] != '/' || strlen(path) > SUN_PATH_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "socket %s: not an absolute path of a socket's length",
                          path);
    if (lstat(path, &st) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "socket %s", path);
    if (!S_ISSOCK(st.st_mode))
        return vf_err_set(err, VF_ERR_IO, "%s is %s, must be a socket", path,
                          vf_file_kind(st.st_mode));
    format_adopted(&st, name);
    snprintf(entry, sizeof entry, "%s/%s", rd->path, name);
    if (symlink(path, entry) != 0 && errno != EEXIST)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s: cannot create", entry);
    return VF_OK;
}

enum vf_code vf_run_dir_owner_pidfd(const struct vf_run_dir *rd, int *pidfd, struct vf_err *err)
{
    *pidfd = -1;
    if (rd->id.pid_namespace != own_pid_namespace())
        return vf_err_set(err, VF_ERR_UNSUPPORTED,
                          "run %s belongs to another pid namespace (a container?)", rd->id_text);
    int fd = (int)syscall(SYS_pidfd_open, rd->id.pid, 0); /* close-on-exec by itself */
    if (fd < 0 && errno != ESRCH)
        return vf_err_errno(err, VF_ERR_IO, errno, "pidfd of coordinator %ld", (long)rd->id.pid);
    /* Checked after opening: from here on the pid can't be somebody else's. */
    if (fd < 0 || owner_life(&rd->id) == LIFE_DEAD) {
        if (fd >= 0)
            close(fd);
        return vf_err_set(err, VF_ERR_PEER_LOST, "coordinator %ld of run %s is gone",
                          (long)rd->id.pid, rd->id_text);
    }
    *pidfd = fd;
    return VF_OK;
}
