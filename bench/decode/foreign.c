#include "bench/decode/foreign.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void compute_for_ever(pid_t parent)
{
    volatile uint64_t x = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent)
        for (int i = 0; i < 10000000; i++)
            x = x * 6364136223846793005u + 1;
}

enum vf_code foreign_start(struct foreign *f, struct vf_err *err)
{
    cpu_set_t mine, one;
    pid_t self = getpid();
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "--foreign: can't read this process's CPUs");
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &mine))
            CPU_SET(cpu, &one);
    pid_t pid = fork();
    if (pid < 0)
        return vf_err_errno(err, VF_ERR_LIMIT, errno, "--foreign: can't start a process");
    if (pid == 0) {
        raise(SIGSTOP);
        compute_for_ever(self);
        _exit(0);
    }
    f->pid = pid;
    while (waitpid(pid, NULL, WUNTRACED) < 0 && errno == EINTR)
        ;
    if (sched_setaffinity(pid, sizeof one, &one) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "--foreign: can't pin a process to a CPU");
    return VF_OK;
}

void foreign_run(const struct foreign *f, int on)
{
    if (f->pid)
        kill(f->pid, on ? SIGCONT : SIGSTOP);
}

void foreign_end(struct foreign *f)
{
    if (!f->pid)
        return;
    kill(f->pid, SIGKILL);
    while (waitpid(f->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    f->pid = 0;
}
