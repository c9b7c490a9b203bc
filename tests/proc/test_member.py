"""Workers started by hand while a server runs: each one that the run has no place for ends with one
sentence and the right status, and the server goes on undisturbed."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from processes import HOME, alive, finish, run, start
from serving import CLIENT, Server, wait_until
from tap import done, note, ok

PROGRAMS = {"stage": tap.program("vflow-stage-worker"), "io": tap.program("vflow-io-worker")}
STREAMED = ["--experts", "stream", "--expert-cache", "600K", "--io-workers", "1", "--ctx", "256"]


def run_dir_of(server):
    names = [n for n in os.listdir(HOME)
             if n.startswith("vflow-") and "-%d-" % server.process.pid in n]
    return os.path.join(HOME, names[0])


def by_hand(role, run_dir, index):
    p = start([PROGRAMS[role], "--run-dir", run_dir, "--index", str(index)])
    return finish(p, 10)


def tokens(server):
    p = run([CLIENT, "generate", "--connect", server.endpoint, "--tokens", "5,6,7", "--max-tokens",
             "12", "--temperature", "0", "--ignore-eos", "--json"])
    return p.stdout.split(b'"stats"')[0].split(b'"tokens"')[-1] if p.returncode == 0 else None


def ok_refused(role, run_dir, index, status, *words):
    out, err, found = by_hand(role, run_dir, index)
    lines = err.splitlines()
    good = found == status and len(lines) == 1 and not out and all(w in err for w in words)
    if not ok(good, "%s worker %d by hand: status %s, %d expected, one sentence naming %s"
              % (role, index, found, status, ", ".join(words))):
        for line in lines:
            note(line)


def check_refusals():
    with Server(*STREAMED) as server:
        run_dir, workers = run_dir_of(server), sorted(server.workers)
        before = tokens(server)
        for role, noun in ("stage", "stage worker"), ("io", "I/O worker"):
            ok_refused(role, run_dir, 0, 1, noun + " 0", "already", os.path.basename(run_dir)[6:])
            ok_refused(role, run_dir, 9, 2, "--index", "1 " + noun, "9")
        ok(before and tokens(server) == before, "the server generates the same as before")
        ok(sorted(server.worker_pids()) == workers and all(map(alive, workers)),
           "by the same workers")
        ok(server.stop() == 0 and not server.leftovers(), "and leaves with status 0 and nothing")


def check_while_generating():
    """A stranger comes and goes in the middle of a generation."""
    with Server("--experts", "resident", "--ctx", "512") as server:
        p = start([CLIENT, "generate", "--connect", server.endpoint, "--tokens", "5,6,7",
                   "--max-tokens", "400", "--temperature", "0", "--ignore-eos", "--json"])
        for _ in range(5):
            by_hand("stage", run_dir_of(server), 0)
        _, err, status = finish(p, 60)
        ok(status == 0, "five strangers during a generation: it ends with status %s" % status)
        if status:
            note(err[-500:])


def check_no_run():
    dead = os.path.join(HOME, "vflow-1-1-1-00000001")
    for role in PROGRAMS:
        ok_refused(role, dead, 0, 3, dead)


def blocks_sigterm(pid):
    with open("/proc/%d/status" % pid) as f:
        blocked = [line.split()[1] for line in f if line.startswith("SigBlk:")]
    return int(blocked[0], 16) >> (signal.SIGTERM - 1) & 1


def check_silent_coordinator():
    """One that takes no hello: an I/O worker that waits for its plan hears SIGTERM."""
    with Server("--experts", "resident", "--ctx", "256") as server:
        run_dir = run_dir_of(server)
        server.process.send_signal(signal.SIGSTOP)
        try:
            p = start([PROGRAMS["io"], "--run-dir", run_dir])
            wait_until(lambda: p.poll() is not None or blocks_sigterm(p.pid))
            p.send_signal(signal.SIGTERM)
            _, err, status = finish(p, 10)
        finally:
            server.process.send_signal(signal.SIGCONT)
        ok(status == 0 and not err,
           "SIGTERM ends an I/O worker that waits for its plan: status %s" % status)


if __name__ == "__main__":
    check_refusals()
    check_while_generating()
    check_no_run()
    check_silent_coordinator()
    done()
