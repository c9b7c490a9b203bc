#include "coordinator/engine/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* dir of /proc/self/exe + "/" + name */
static enum vf_code sibling_path(const char *name, char path[PATH_MAX], struct vf_err *err)
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't read /proc/self/exe");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) + strlen(name) + 2 > PATH_MAX)
        return vf_err_set(err, VF_ERR_LIMIT, "the path of this program is too long");
    strcpy(slash + 1, name);
    if (access(path, X_OK) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't start the worker program '%s'", path);
    return VF_OK;
}

static int prepare_attributes(posix_spawnattr_t *attr)
{
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    const int reset[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof reset / sizeof reset[0]; i++)
        sigaddset(&defaults, reset[i]);
    int e = posix_spawnattr_setsigmask(attr, &none);
    if (!e)
        e = posix_spawnattr_setsigdefault(attr, &defaults);
    if (!e)
        e = posix_spawnattr_setpgroup(attr, 0);
    if (!e)
        e = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                               POSIX_SPAWN_SETPGROUP);
    return e;
}

static int spawn(const char *path, char **argv, pid_t *pid)
{
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    int e = posix_spawnattr_init(&attr);
    if (e)
        return e;
    e = posix_spawn_file_actions_init(&files);
    if (e) {
        posix_spawnattr_destroy(&attr);
        return e;
    }
    e = prepare_attributes(&attr);
    if (!e)
        e = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!e) /* stdout is for results, and those are the coordinator's */
        e = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (!e) /* whatever our parent left open to us */
        e = posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    if (!e)
        e = posix_spawn(pid, path, &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return e;
}

enum vf_code vf_process_start(const char *name, char **argv, struct vf_process *out,
                              struct vf_err *err)
{
    *out = (struct vf_process){0, -1};
    char path[PATH_MAX];
    enum vf_code code = sibling_path(name, path, err);
    if (code)
        return code;
    argv[0] = path;
    int e = spawn(path, argv, &out->pid);
    argv[0] = NULL;
    if (e) {
        out->pid = 0;
        return vf_err_errno(err, VF_ERR_IO, e, "can't start '%s'", path);
    }
    out->pidfd = pidfd_open(out->pid, 0);
    if (out->pidfd < 0) {
        e = errno;
        kill(out->pid, SIGKILL);
        while (waitpid(out->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        out->pid = 0;
        return vf_err_errno(err, VF_ERR_IO, e, "can't watch the new process '%s'", path);
    }
    return VF_OK;
}

bool vf_process_reap(struct vf_process *p, char *how, size_t how_bytes, int *exit_status)
{
    int status;
    pid_t rc;
    if (p->pid == 0)
        return false;
    do
        rc = waitpid(p->pid, &status, WNOHANG);
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return false;
    *exit_status = -1;
    if (rc < 0)
        snprintf(how, how_bytes, "vanished");
    else if (WIFSIGNALED(status))
        snprintf(how, how_bytes, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, how_bytes, "exited with status %d", *exit_status = WEXITSTATUS(status));
    p->pid = 0;
    return true;
}

void vf_process_kill(const struct vf_process *p)
{
    if (p->pid)
        kill(p->pid, SIGKILL);
}

void vf_process_deinit(struct vf_process *p)
{
    if (p->pidfd >= 0)
        close(p->pidfd);
    p->pidfd = -1;
}
