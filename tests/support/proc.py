"""Models, scores and generations through the real commands, and a look at what a run leaves behind:
processes, shared memory, run directories."""
import json
import os
import tempfile

import numpy as np

import tap
from processes import (CONVERT, COORDINATOR, HOME, alive, environment, finish,  # noqa: F401
                       run, start, wait_until)
from tap import done, note, ok, skip_all  # noqa: F401

SHARED = tap.shared_dir()
tap.program("vflow-stage-worker")
tap.program("vflow-io-worker")
LEAVE_S = 5  # a run that ended has left nothing behind after so long


def convert(checkpoint, *options, suffix="vflow"):
    """A model file made from a checkpoint folder; made once."""
    name = "-".join([os.path.basename(checkpoint)] + [o.strip("-") for o in options])
    path = os.path.join(HOME, name + "." + suffix)
    if not os.path.exists(path):
        run([CONVERT, checkpoint, "-o", path, "--format", suffix, *options], check=True)
    return path


def shared(*parts):
    return os.path.join(SHARED, *parts)


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


# ---- what a run leaves behind -----------------------------------------------------------------


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
