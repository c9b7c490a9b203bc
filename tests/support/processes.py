"""Starting vflow's programs in tests: each test in a directory of its own, every wait with a
deadline."""
import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time

import tap
from tap import note

COORDINATOR = tap.program("vflow-coordinator")
CONVERT = tap.program("vflow-convert")

# Run directories go here, so that those of other runs on the machine don't matter. The path must be
# short: sockets live in it.
HOME = tempfile.mkdtemp(prefix="vfp-", dir="/tmp")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)


def environment(**extra):
    env = dict(os.environ, TMPDIR=HOME, **extra)
    env.pop("XDG_RUNTIME_DIR", None)
    return env


def run(argv, timeout=60, check=False, env=None, **kw):
    p = subprocess.run(argv, capture_output=True, timeout=timeout, env=env or environment(), **kw)
    if check and p.returncode != 0:
        raise RuntimeError("%s: status %d\n%s" % (argv, p.returncode, p.stderr.decode()))
    return p


def child_signals():
    """A process group of its own, and signals as a shell would give them."""
    os.setpgid(0, 0)
    for s in (signal.SIGINT, signal.SIGHUP):
        signal.signal(s, signal.SIG_DFL)


def start(argv, env=None, **kw):
    """A child with pipes, in a process group of its own."""
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=env or environment(), preexec_fn=child_signals, **kw)


def wait_until(condition, seconds, interval=0.02):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(interval)


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def finish(process, seconds=20):
    """stdout, stderr, status; a process that doesn't end is killed and reported."""
    try:
        out, err = process.communicate(timeout=seconds)
        return out.decode(), err.decode(), process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        note("killed after %d s, its last lines:" % seconds)
        for line in err.decode().splitlines()[-10:]:
            note("  " + line)
        return out.decode(), err.decode(), None
