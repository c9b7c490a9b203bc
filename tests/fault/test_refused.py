"""What a container, a limit or an old kernel refuses: each call of the kernel that has a substitute is
replaced, said once where it costs something, and the text doesn't change; of each other one the
program tells in a sentence, with status 1. Nothing aborts and nothing waits."""
import errno
import os
import resource
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import (COORDINATOR, HOME, convert, done, environment, note, ok, run, run_dirs, shared,
                  skip_all, wait_until)

REFUSE = os.environ.get("VFLOW_REFUSE", "")
CLIENT = os.path.join(os.path.dirname(COORDINATOR), "vflow-client")
if not os.path.isfile(REFUSE):
    skip_all("VFLOW_REFUSE names no program")
if os.uname().machine != "x86_64":
    skip_all("the numbers of system calls are x86_64's")

MODEL = convert(shared("models", "tiny_arch2_4"))
GENERATE = [COORDINATOR, "generate", "--model", MODEL, "--tokens", "5,60,7", "--max-tokens", "20",
            "--temperature", "0", "--ignore-eos", "--experts", "stream", "--expert-cache", "84K"]
SOON_S = 20
PLAIN = run(GENERATE, check=True).stdout

# Calls with a substitute: number, what is said (None: it costs nothing that anybody would notice).
SUBSTITUTED = {
    "io_uring_setup": (425, "io_uring isn't available here: io_uring_setup"),
    "io_uring_enter": (426, "io_uring isn't available here: io_uring_enter"),
    "io_uring_register": (427, "io_uring isn't available here: io_uring_register"),
    "memfd_create": (319, None),
    "madvise": (28, None),
    "mbind": (237, None),
    "futex_waitv": (449, None),
    "sched_setaffinity": (203, None),
    "statx": (332, None),
    "fadvise64": (221, None),
    "timerfd_create": (283, None),
}
# Calls without: words of the sentence.
NEEDED = {
    "clone3": (435, "threads"),
    "eventfd2": (290, "eventfd"),
    "epoll_create1": (291, "epoll_create1"),
    "signalfd4": (289, "signals"),
    "pidfd_open": (434, "watch"),
    "sched_getaffinity": (204, "cores"),
}


def refused(number, argv, code=errno.EPERM):
    started = time.monotonic()
    p = run([REFUSE, str(code), str(number), *argv], timeout=3 * SOON_S)
    return p.returncode, p.stdout, p.stderr.decode(), time.monotonic() - started


def told(passed, err, text):
    if not ok(passed, text):
        note("stderr: " + err)


def check_substituted():
    for name, (number, words) in SUBSTITUTED.items():
        status, out, err, seconds = refused(number, GENERATE)
        said = err.count(words) == 1 and len(err.splitlines()) == 1 if words else not err
        told(status == 0 and out == PLAIN and said and seconds < SOON_S, err,
             "%s refused: the same text%s" % (name, ", said once" if words else ""))


def check_needed():
    for name, (number, words) in NEEDED.items():
        status, out, err, seconds = refused(number, GENERATE)
        last = err.splitlines()[-1] if err else ""
        told(status == 1 and not out and last.startswith("vflow-coordinator") and words in last
             and seconds < SOON_S, err, "%s refused: status 1 and a sentence" % name)


def check_client():
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.join(HOME, "nobody"))
    server.listen()
    for name in ("clone3", "eventfd2", "epoll_create1"):
        number, words = NEEDED[name]
        status, out, err, seconds = refused(number, [CLIENT, "status", "--connect",
                                                     "ipc://%s/nobody" % HOME])
        told(status == 1 and len(err.splitlines()) == 1 and words in err and seconds < SOON_S, err,
             "vflow-client, %s refused: status 1 and a sentence" % name)


# ---- limits -----------------------------------------------------------------------------------


def limited(files):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    return run(GENERATE, timeout=3 * SOON_S, preexec_fn=limit)


def check_open_files():
    """From too few to enough: a sentence or the text, never an abort."""
    wrong, ran = [], 0
    for files in list(range(8, 100, 7)) + [128]:
        p = limited(files)
        err = p.stderr.decode()
        ran += p.returncode == 0
        if p.returncode == 0 and p.stdout == PLAIN:
            continue
        last = err.splitlines()[-1] if err else ""
        if p.returncode != 1 or not last.startswith("vflow-coordinator") or ".cpp:" in err:
            wrong.append("%d files: status %d, %s" % (files, p.returncode, err))
    if not ok(not wrong and ran, "few open files: a sentence and status 1, or the text"):
        note("\n# ".join(wrong))


def pids_group():
    """A control group whose number of processes can be limited, None where there is none."""
    base = "/sys/fs/cgroup"
    for parent in (os.path.join(base, "pids"), base):
        path = os.path.join(parent, "vflow-test-%d" % os.getpid())
        try:
            os.mkdir(path)
        except OSError:
            continue
        if os.path.exists(os.path.join(path, "pids.max")):
            return path
        os.rmdir(path)
    return None


def check_processes():
    group = pids_group()
    if not group:
        ok(True, "few processes # SKIP no control group of pids to be had")
        return

    def enter():
        with open(os.path.join(group, "cgroup.procs"), "w") as f:
            f.write("0")
    wrong, ran = [], 0
    for pids in range(1, 16):
        with open(os.path.join(group, "pids.max"), "w") as f:
            f.write(str(pids))
        # A sanitizer's own look for leaks needs a thread, too.
        p = run(GENERATE, timeout=3 * SOON_S, preexec_fn=enter,
                env=environment(ASAN_OPTIONS="detect_leaks=0"))
        err = p.stderr.decode()
        ran += p.returncode == 0
        if p.returncode == 0 and p.stdout == PLAIN:
            continue
        last = err.splitlines()[-1] if err else ""
        # Two workers that start at once may take each other's last thread (wire.h), so libzmq may end
        # one of them; the run's own end is a sentence all the same.
        if p.returncode != 1 or not last.startswith("vflow-coordinator"):
            wrong.append("%d processes: status %d, %s" % (pids, p.returncode, err))
    wait_until(lambda: not open(os.path.join(group, "cgroup.procs")).read(), 5)
    os.rmdir(group)
    if not ok(not wrong and ran, "few processes: a sentence and status 1, or the text"):
        note("\n# ".join(wrong))


check_substituted()
check_needed()
check_client()
check_open_files()
check_processes()
wait_until(lambda: not run_dirs(), 5)
ok(not run_dirs(), "nothing is left behind")
done()
