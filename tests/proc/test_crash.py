"""Every way to end a run in the middle: the coordinator notices at once, says who and how, exits with
the right status, and nothing is left: no process, no shared memory, no socket file."""
import json
import os
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import (COORDINATOR, HOME, alive, children, convert, done, environment, finish, leftovers, note,
                  ok, ok_nothing_left, run, run_id_of, shared, shared_memory, run_dirs, start,
                  wait_until)
from tap import program

MODEL = convert(shared("models", "tiny_arch2_4"))
# Slow enough for seconds of work: one expert in the cache, read where it is chosen.
ONE_SLOW = ["--experts", "stream", "--expert-cache", "64K", "--overlap", "sync", "--threads", "1"]
SLOW = ONE_SLOW + ["--stage-workers", "2", "--io-workers", "2"]
# A worker is nearly always waiting for an expert.
SLOW_DRIVE = ["--io-throttle", "300K"]
# A run is over within so long; a worker that doesn't leave by itself is killed after 3 s.
OVER_S = 2


class Generation:
    """A generation in its middle: text has come, more would."""

    def __init__(self, *options, model=MODEL, env=None, slow=SLOW):
        argv = [COORDINATOR, "generate", "--model", model, "-p", "Once upon a time", "--max-tokens",
                "0", "--ignore-eos", *slow, *options]
        self.workers = ["io-0", "io-1", "stage-0", "stage-1"] if slow is SLOW else ["io-0", "stage-0"]
        self.process = start(argv, env=env)
        self.text = os.read(self.process.stdout.fileno(), 4096)
        self.pids = children(self.process.pid)
        self.run_id = run_id_of(self.process.pid)

    def check_running(self, what):
        return ok(self.text and self.process.poll() is None and self.run_id and
                  sorted(self.pids) == self.workers,
                  "%s: a generation is in its middle with %d workers" % (what, len(self.workers)))


def check_worker_killed(name, label, *options):
    what = " ".join(["kill -9 of", name, *options])
    g = Generation(*options)
    g.check_running(what)
    os.kill(g.pids[name], signal.SIGKILL)
    began = time.monotonic()
    _, err, status = finish(g.process)
    took = time.monotonic() - began
    ok(status == 1, "%s: exit status %s, 1 expected" % (what, status))
    ok(took < OVER_S, "%s: over after %.2f s" % (what, took))
    lines = err.strip().splitlines()
    told = "%s (pid %d) was killed by signal 9" % (label, g.pids[name])
    if not ok(len(lines) == 1 and told in lines[0], what + ": one line says so"):
        note("stderr: " + err)
    ok_nothing_left(g.run_id, g.pids, what)


def check_coordinator_killed(how):
    g = Generation()
    g.check_running("kill -9 of the coordinator")
    os.kill(g.process.pid, how)
    finish(g.process)
    ok_nothing_left(g.run_id, g.pids, "kill -9 of the coordinator")


def check_signal(number, status_wanted, *options, slow=SLOW):
    """In the middle of a step, which no worker finishes first."""
    what = " ".join([number.name, *options]) + ("" if slow is SLOW else " with one stage worker")
    g = Generation(*options, slow=slow)
    g.check_running(what)
    os.kill(g.process.pid, number)
    began = time.monotonic()
    _, err, status = finish(g.process)
    took = time.monotonic() - began
    ok(status == status_wanted, "%s: exit status %s, %d expected" % (what, status, status_wanted))
    ok(took < OVER_S, "%s: over after %.2f s" % (what, took))
    if not ok(err.strip() == "", what + ": nothing on stderr"):
        note("stderr: " + err)
    ok_nothing_left(g.run_id, g.pids, what, seconds=0.5)


def check_signal_while_loading():
    process = start([COORDINATOR, "generate", "--model", MODEL, "-p", "x", *SLOW])
    wait_until(lambda: len(children(process.pid)) == 4, 5, 0.001)
    pids, run_id = children(process.pid), run_id_of(process.pid)
    os.kill(process.pid, signal.SIGINT)
    _, _, status = finish(process)
    ok(status == 130, "SIGINT while workers start: exit status %s, 130 expected" % status)
    ok_nothing_left(run_id or "vflow-none", pids, "SIGINT while workers start", seconds=0.5)


def resident_bytes(pid):
    with open("/proc/%d/statm" % pid) as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def check_signal_while_loading_much():
    """A worker that loads listens to nobody; stopped, it wouldn't come to an end of that either."""
    config, model = os.path.join(HOME, "large.json"), os.path.join(HOME, "large.vflow")
    with open(config, "w") as f:
        json.dump({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
                   "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 512,
                   "max_position_embeddings": 512, "rms_norm_eps": 1e-5}, f)
    run([program("vflow-bench"), "make-model", "--config", config, "--quant", "f32", "-o", model],
        check=True)
    process = start([COORDINATOR, "generate", "--model", model, "--tokens", "1", "--weights", "huge"])
    wait_until(lambda: "stage-0" in children(process.pid), 5, 0.001)
    pids, run_id = children(process.pid), run_id_of(process.pid)
    size = os.path.getsize(model)
    ok(wait_until(lambda: resident_bytes(pids["stage-0"]) > size / 4, 20, 0.001),
       "a worker copies its %d MB of weights" % (size // 1000000))
    os.kill(pids["stage-0"], signal.SIGSTOP)
    os.kill(process.pid, signal.SIGTERM)
    began = time.monotonic()
    _, _, status = finish(process)
    took = time.monotonic() - began
    ok(status == 143 and took < OVER_S,
       "SIGTERM while it does: exit status %s, 143 expected, over after %.2f s" % (status, took))
    os.unlink(model)
    ok_nothing_left(run_id or "vflow-none", pids, "SIGTERM while weights are copied", seconds=0.5)


def check_stopped_worker():
    """A worker that neither dies nor answers doesn't keep anybody from leaving."""
    g = Generation()
    g.check_running("a stopped worker")
    os.kill(g.pids["stage-1"], signal.SIGSTOP)
    time.sleep(0.2)
    ok(g.process.poll() is None, "a stopped worker alone doesn't end the run at once")
    os.kill(g.process.pid, signal.SIGTERM)
    began = time.monotonic()
    _, _, status = finish(g.process)
    ok(status == 143 and time.monotonic() - began < 8,
       "a stopped worker: SIGTERM ends the run with status %s, 143 expected" % status)
    ok_nothing_left(g.run_id, g.pids, "a stopped worker", seconds=0.5)


def check_everybody_killed():
    """What nobody was left to clean, the next start cleans."""
    g = Generation()
    g.check_running("kill -9 of everybody")
    for pid in [g.process.pid, *g.pids.values()]:
        os.kill(pid, signal.SIGSTOP)
    for pid in [g.process.pid, *g.pids.values()]:
        os.kill(pid, signal.SIGKILL)
    finish(g.process)
    wait_until(lambda: not any(alive(p) for p in g.pids.values()), 5)
    ok(g.run_id in run_dirs() and shared_memory(g.run_id), "kill -9 of everybody leaves a run")
    run([COORDINATOR, "generate", "--model", MODEL, "-p", "x", "--max-tokens", "1"], check=True)
    ok_nothing_left(g.run_id, g.pids, "the start after kill -9 of everybody", seconds=0)


def check_worker_killed_while_starting():
    """At any moment from its start to its first steps: before it is heard of, before it is sent
    its plan, while it loads, between two messages."""
    untold = []
    for i in range(25):
        process = start([COORDINATOR, "generate", "--model", MODEL, "-p", "x", *SLOW])
        wait_until(lambda: "stage-1" in children(process.pid), 5, 0.001)
        time.sleep(0.0005 * i)
        pids, run_id = children(process.pid), run_id_of(process.pid)
        os.kill(pids["stage-1"], signal.SIGKILL)
        _, err, status = finish(process)
        if status != 1 or "stage worker 1 (pid %d) was killed by signal 9" % pids["stage-1"] not in err:
            untold.append((status, err))
    if not ok(not untold, "a worker killed while it starts, 25 moments: status 1, and told"):
        note("%d times not: %s" % (len(untold), untold[0]))
    ok_nothing_left(run_id or "vflow-none", pids, "a worker killed while it starts", seconds=0.5)


def check_coordinator_killed_while_starting():
    """At any moment from the first worker on; before that, nobody is left to clean up."""
    left = []
    for i in range(25):
        process = start([COORDINATOR, "generate", "--model", MODEL, "-p", "x", *SLOW])
        wait_until(lambda: children(process.pid), 5, 0.0005)
        time.sleep(0.002 * i)
        pids, run_id = children(process.pid), run_id_of(process.pid)
        process.kill()
        process.communicate()
        if run_id:
            wait_until(lambda: not leftovers(run_id, pids), 5)
            left += leftovers(run_id, pids)
    if not ok(not left, "kill -9 of a coordinator that is starting leaves nothing behind"):
        note("left: " + ", ".join(left))


def check_file_shrinks():
    copy = os.path.join(HOME, "shrinking.vflow")
    shutil.copyfile(MODEL, copy)
    g = Generation(model=copy)
    os.truncate(copy, 0)
    _, err, status = finish(g.process)
    if not ok(status == 1 and "shrinking.vflow" in err,
              "a model file that shrinks under a run: status 1, and it is named"):
        note("status %s, stderr: %s" % (status, err))
    ok_nothing_left(g.run_id, g.pids, "a model file that shrinks under a run")


def check_few_files():
    argv = [COORDINATOR, "generate", "--model", MODEL, "-p", "x", *SLOW]
    p = run(["sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *argv])
    if not ok(p.returncode == 1 and p.stderr.decode().count("\n") == 1 and
              b"open files" in p.stderr, "too few open files: status 1, one sentence"):
        note("status %s, stderr: %s" % (p.returncode, p.stderr.decode()))


def check_reader_gone():
    g = Generation()
    g.check_running("a closed stdout")
    g.process.stdout.close()
    err = g.process.stderr.read().decode()
    status = g.process.wait(20)
    ok(status == 1 and err == "", "a closed stdout: status %s, nothing on stderr %s"
       % (status, repr(err)))
    ok_nothing_left(g.run_id, g.pids, "a closed stdout", seconds=0.5)


def check_two_at_once():
    argv = [COORDINATOR, "generate", "--model", MODEL, "-p", "Once upon a time", "--temperature", "0",
            "--max-tokens", "60"]
    alone = run(argv, check=True).stdout.decode()
    both = [start(argv + SLOW) for _ in range(2)]
    results = [finish(p, 60) for p in both]
    ok(alone.strip() and all(r == (alone, "", 0) for r in results),
       "two coordinators at once: both get the text of one alone")
    ok(not run_dirs(), "two coordinators at once leave nothing behind in %s" % HOME)


def check_bad_weights(offset_share, options, what):
    """A flipped bit in the weights is found by a worker, and is the coordinator's exit status 3."""
    path = os.path.join(HOME, "flipped.vflow")
    with open(MODEL, "rb") as f:
        data = bytearray(f.read())
    data[int(len(data) * offset_share)] ^= 1
    with open(path, "wb") as f:
        f.write(data)
    p = run([COORDINATOR, "generate", "--model", path, "-p", "Once upon a time", *options])
    err = p.stderr.decode().strip()
    if not ok(p.returncode == 3 and len(err.splitlines()) == 1 and "flipped.vflow" in err,
              "%s: exit status %d, 3 expected, and one line names the file" % (what, p.returncode)):
        note("stderr: " + err)
    else:
        note(err)
    ok(not run_dirs(), what + " leaves nothing behind")


def check_bad_files():
    check_bad_weights(0.05, [], "a flipped bit in a matrix")
    check_bad_weights(0.75, ["--experts", "resident"], "a flipped bit in an expert")
    check_bad_weights(0.75, ["--experts", "stream", "--expert-cache", "320K"],
                      "a flipped bit in a streamed expert")


def check_drive_error():
    env = environment(VFLOW_FAULT="io.read:40+=EIO")
    p = run([COORDINATOR, "generate", "--model", MODEL, "-p", "Once upon a time", "--ignore-eos",
             "--max-tokens", "0", "--experts", "stream", "--expert-cache", "64K"], env=env)
    err = p.stderr.decode().strip().splitlines()
    ok(p.returncode == 1, "a drive that fails for good: exit status %d, 1 expected" % p.returncode)
    if not ok(bool(err) and all(w in err[-1] for w in ("layer", "expert", "offset")),
              "a drive that fails for good: the last line names layer, expert and offset"):
        note("stderr: %s" % err)
    ok(not run_dirs(), "a drive that fails for good leaves nothing behind")


if __name__ == "__main__":
    checks = {
        "stage": lambda: check_worker_killed("stage-0", "stage worker 0"),
        "head": lambda: check_worker_killed("stage-1", "stage worker 1"),
        "stage-waiting": lambda: check_worker_killed("stage-0", "stage worker 0", *SLOW_DRIVE),
        "head-waiting": lambda: check_worker_killed("stage-1", "stage worker 1", *SLOW_DRIVE),
        "coordinator": lambda: check_coordinator_killed(signal.SIGKILL),
        "sigint": lambda: check_signal(signal.SIGINT, 130),
        "sigterm": lambda: check_signal(signal.SIGTERM, 143),
        "sighup": lambda: check_signal(signal.SIGHUP, 129),
        "sigint-waiting": lambda: check_signal(signal.SIGINT, 130, *SLOW_DRIVE),
        "sigint-one": lambda: check_signal(signal.SIGINT, 130, *SLOW_DRIVE, slow=ONE_SLOW),
        "loading": check_signal_while_loading,
        "loading-much": check_signal_while_loading_much,
        "starting-worker": check_worker_killed_while_starting,
        "starting": check_coordinator_killed_while_starting,
        "shrinks": check_file_shrinks,
        "files-limit": check_few_files,
        "stopped": check_stopped_worker,
        "everybody": check_everybody_killed,
        "reader": check_reader_gone,
        "two": check_two_at_once,
        "files": check_bad_files,
        "drive": check_drive_error,
    }
    for name in sys.argv[1:] or checks:
        checks[name]()
    done()
