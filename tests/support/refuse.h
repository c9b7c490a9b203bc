/* Answers system calls of this thread, and of all that it starts, with an error: what a container's
 * seccomp filter does. There is no way back; tests do it in a child. */
#ifndef VF_TESTS_SUPPORT_REFUSE_H
#define VF_TESTS_SUPPORT_REFUSE_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define REFUSED_MAX 16

/* calls: SYS_... numbers. False: the kernel doesn't filter. */
__attribute__((unused)) static bool refuse_calls(int sys_errno, const long *calls, int n)
{
    struct sock_filter f[2 + 2 * REFUSED_MAX];
    unsigned short count = 0;
    if (n > REFUSED_MAX)
        return false;
    f[count++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < n; i++) {
        f[count++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        f[count++] =
            (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)sys_errno);
    }
    f[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {count, f};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#endif
