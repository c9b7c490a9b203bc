"""Running vflow's programs in tests: each test in a directory of its own, every wait with a deadline,
and a look at what is left behind: processes, shared memory, run directories."""
import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import numpy as np

import tap
from tap import done, note, ok, skip_all  # noqa: F401

SHARED = tap.shared_dir()
COORDINATOR = tap.program("vflow-coordinator")
CONVERT = tap.program("vflow-convert")
tap.program("vflow-stage-worker")
tap.program("vflow-io-worker")
LEAVE_S = 5  # a run that ended has left nothing behind after so long

# Run directories go here, so that those of other runs on the machine don't matter. The path must be
# short: sockets live in it.
HOME = tempfile.mkdtemp(prefix="vfp-", dir="/tmp")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)


def environment(**extra):
    env = dict(os.environ, TMPDIR=HOME, **extra)
    env.pop("XDG_RUNTIME_DIR", None)
    return env


def convert(checkpoint, *options, suffix="vflow"):
    """A model file made from a checkpoint folder; made once."""
    name = "-".join([os.path.basename(checkpoint)] + [o.strip("-") for o in options])
    path = os.path.join(HOME, name + "." + suffix)
    if not os.path.exists(path):
        run([CONVERT, checkpoint, "-o", path, "--format", suffix, *options], check=True)
    return path


def shared(*parts):
    return os.path.join(SHARED, *parts)


def run(argv, timeout=60, check=False, env=None, **kw):
    p = subprocess.run(argv, capture_output=True, timeout=timeout, env=env or environment(), **kw)
    if check and p.returncode != 0:
        raise RuntimeError("%s: status %d\n%s" % (argv, p.returncode, p.stderr.decode()))
    return p


def ids(tokens):
    return ",".join(str(t) for t in tokens)


def score(model, tokens, *options, env=None, timeout=120):
    """float32 [T, V] of `score --logits`."""
    fd, out = tempfile.mkstemp(suffix=".npy", dir=HOME)
    os.close(fd)
    run([COORDINATOR, "score", "--model", model, "--tokens", ids(tokens), "--logits", out,
         *options], timeout=timeout, check=True, env=env)
    rows = np.load(out)
    os.unlink(out)
    return rows


def generate(model, tokens, count, *options):
    """Greedy tokens of `generate`."""
    p = run([COORDINATOR, "generate", "--model", model, "--tokens", ids(tokens), "--max-tokens",
             str(count), "--temperature", "0", "--ignore-eos", "--json", *options], check=True)
    return json.loads(p.stdout)["tokens"]


def within(a, b, limit):
    """The largest difference of two arrays, and whether every entry is within limit. A NaN is not."""
    if a.shape != b.shape:
        return "shapes %s and %s" % (a.shape, b.shape), False
    close = np.abs(a.astype(np.float64) - b.astype(np.float64)) <= limit
    same_infinity = np.isinf(a) & (a == b)
    return "%.2e" % np.max(np.abs(a - b)), bool(np.all(close | same_infinity))


# ---- processes and what they leave ---------------------------------------------------------------

def start(argv, env=None, **kw):
    """A child in a process group of its own, with default signal dispositions."""
    def in_child():
        os.setpgid(0, 0)
        for s in (signal.SIGINT, signal.SIGHUP):
            signal.signal(s, signal.SIG_DFL)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=env or environment(), preexec_fn=in_child, **kw)


def wait_until(condition, seconds, interval=0.02):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(interval)


def children(pid):
    """{name: pid} of a coordinator's workers: "stage-0", "io-1"."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                words = f.read().decode().split("\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid and "--index" in words:
            kind = "stage" if "stage-worker" in words[0] else "io"
            found["%s-%s" % (kind, words[words.index("--index") + 1])] = int(entry)
    return found


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def run_dirs():
    return [d for d in os.listdir(HOME) if d.startswith("vflow-")]


def run_id_of(pid):
    """The run directory of a coordinator; its name is in all that it leaves."""
    for d in run_dirs():
        if "-%d-" % pid in d:
            return d
    return None


def shared_memory(run_id):
    return [n for n in os.listdir("/dev/shm") if n.startswith(run_id)]


def leftovers(run_id, pids):
    left = ["process %s" % n for n, p in pids.items() if alive(p)]
    left += ["/dev/shm/" + n for n in shared_memory(run_id)]
    return left + [d for d in run_dirs() if d == run_id]


def ok_nothing_left(run_id, pids, text, seconds=LEAVE_S):
    wait_until(lambda: not leftovers(run_id, pids), seconds)
    left = leftovers(run_id, pids)
    if not ok(not left, text + " leaves nothing behind"):
        note("left: " + ", ".join(left))


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
