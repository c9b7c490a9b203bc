#include "coordinator/signals.h"

#include "common/base/cli.h"
#include "common/base/util.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Process-wide by nature, like signals: the first one that came. */
static int taken;

enum vf_code vf_signals_open(int *fd, struct vf_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    if (!vf_signal_is_ignored(SIGTERM))
        sigaddset(&set, SIGTERM);
    if (!vf_signal_is_ignored(SIGINT))
        sigaddset(&set, SIGINT);
    if (!vf_signal_is_ignored(SIGHUP))
        sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    *fd = sigprocmask(SIG_BLOCK, &set, NULL) == 0 ? signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)
                                                  : -1;
    if (*fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't receive signals");
    return VF_OK;
}

int vf_signals_take(int fd)
{
    struct signalfd_siginfo info;
    if (taken == 0 && read(fd, &info, sizeof info) == sizeof info)
        taken = (int)info.ssi_signo;
    return taken;
}

int vf_signals_exit(int fd, const char *program, const struct vf_err *err)
{
    int signo = vf_signals_take(fd);
    if (signo)
        return 128 + signo;
    return err->code == VF_OK ? 0 : vf_cli_fail(program, err);
}
