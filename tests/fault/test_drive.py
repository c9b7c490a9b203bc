"""Experts that can't be read, once or for good, and I/O workers that are killed. What passes is never
noticed in the text; what stays concerns the requests that need the expert, with a sentence that
names it. The cache has three slots, so one that were lost, or kept its pin, would stop the rest."""
import os
import re
import shutil
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import (CONVERT, COORDINATOR, HOME, alive, children, convert, done, environment, finish,
                  note, ok, ok_nothing_left, run, run_dirs, run_id_of, shared, start, wait_until)
from serving import Peer, generate_request

MODEL = convert(shared("models", "tiny_arch2_4"))
TINY_CACHE = ["--experts", "stream", "--expert-cache", "84K"]
PROMPT = [5, 60, 7]
COUNT = 120


def arguments(*options, model=MODEL, count=COUNT):
    return [COORDINATOR, "generate", "--model", model, "--tokens", ",".join(map(str, PROMPT)),
            "--max-tokens", str(count), "--temperature", "0", "--ignore-eos", *options]


ALONE = run(arguments(), check=True).stdout.decode()


def same_text(p, what):
    if not ok(p.returncode == 0 and p.stdout.decode() == ALONE, what + ": the text doesn't change"):
        note("status %d, stderr: %s" % (p.returncode, p.stderr.decode()))


# ---- what passes ------------------------------------------------------------------------------


def check_passing_faults():
    for fault in ("io.read:1=EIO", "io.read:77=EIO", "io.read:30=short", "io.read:5+=short",
                  "io.read:12=EAGAIN", "io.read:20=EINTR"):
        p = run(arguments(*TINY_CACHE), env=environment(VFLOW_FAULT=fault))
        same_text(p, fault)
    ok(not run_dirs(), "and nothing is left behind")


def check_vanished_file():
    """A file without a name is still there for who has it open."""
    copy = os.path.join(HOME, "vanishing.vflow")
    shutil.copyfile(MODEL, copy)
    g = start(arguments(*TINY_CACHE, "--io-throttle", "20M", model=copy))
    first = os.read(g.stdout.fileno(), 8)
    os.unlink(copy)
    out, err, status = finish(g, 60)
    if not ok(status == 0 and first.decode() + out == ALONE, "an unlinked model file: the text goes on"):
        note("status %s, stderr: %s" % (status, err))


# ---- I/O workers that die ---------------------------------------------------------------------


def check_killed_workers():
    g = start(arguments(*TINY_CACHE, "--io-workers", "2", "--io-throttle", "8M"))
    text = os.read(g.stdout.fileno(), 8).decode()
    run_id = run_id_of(g.pid)
    killed = []
    for name in ("io-1", "io-0", "io-1"):
        wait_until(lambda: name in children(g.pid) and children(g.pid)[name] not in killed, 20)
        pid = children(g.pid)[name]
        running = g.poll() is None
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        # Its successor has begun to read: the text goes on.
        text += os.read(g.stdout.fileno(), 8).decode()
        ok(running and g.poll() is None, "kill -9 of %s in the middle of a generation" % name)
    pids = children(g.pid)
    out, err, status = finish(g, 60)
    if not ok(status == 0 and text + out == ALONE, "the text is that of an undisturbed run"):
        note("status %s, text %s, stderr: %s" % (status, text + out, err))
    lines = err.strip().splitlines()
    told = [line for line in lines if line.endswith("it is started again")]
    if not ok(len(told) == 3 and len(lines) == 3, "a line for each says so"):
        note("stderr: " + err)
    ok_nothing_left(run_id, pids, "a run with killed I/O workers")


def check_killed_with_record():
    """Killed between the last byte of a record and its announcement."""
    p = run(arguments(*TINY_CACHE, count=4), env=environment(VFLOW_FAULT="io.checksum:30=kill"))
    alone = run(arguments(count=4), check=True).stdout
    if not ok(p.returncode == 0 and p.stdout == alone and b"started again" in p.stderr,
              "kill -9 with a record in its hands: the text doesn't change"):
        note("status %d, stderr: %s" % (p.returncode, p.stderr.decode()))


def check_dies_again_and_again():
    p = run(arguments(*TINY_CACHE), env=environment(VFLOW_FAULT="io.checksum:1=kill"))
    err = p.stderr.decode().strip().splitlines()
    if not ok(p.returncode == 1 and err and "I/O worker 0" in err[-1] and
              "killed by signal 9" in err[-1] and len(err) < 15,
              "one that dies every time ends the run: status 1, and told"):
        note("status %d, stderr: %s" % (p.returncode, p.stderr.decode()))
    ok(not run_dirs(), "which leaves nothing behind")


# ---- what stays -------------------------------------------------------------------------------


class Serving:
    def __init__(self, *options, model=MODEL, fault=None):
        self.endpoint = "ipc://%s/drive" % HOME
        env = environment(VFLOW_FAULT=fault) if fault else environment()
        self.process = start([COORDINATOR, "serve", "--model", model, "--bind", self.endpoint,
                              *TINY_CACHE, *options], env=env)
        if not self.process.stdout.readline():
            raise RuntimeError("the server doesn't listen: " + finish(self.process)[1])
        self.pids, self.run_id = children(self.process.pid), run_id_of(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        _, err, status = finish(self.process)
        if kind:
            note(err[-2000:])
        ok(status == 0, "the server ends with status %s" % status)
        ok_nothing_left(self.run_id, self.pids, "the server")

    def generate(self, prompt=PROMPT, count=40):
        """(tokens, error) of one request."""
        with Peer(self.endpoint) as peer:
            request = generate_request(peer.send(), tokens=prompt, max_tokens=count)
            tokens = []
            for answer in peer.answers(request.request_id):
                if answer.WhichOneof("body") == "tokens":
                    tokens += list(answer.tokens.ids)
                elif answer.WhichOneof("body") == "error":
                    return tokens, answer.error
        return tokens, None


def names_the_read(error, path):
    return bool(error and re.search(r"layer \d+, expert \d+", error.text) and path in error.text and
                "offset" in error.text)


def check_failing_requests(site, code, what):
    """A record may be read again by whoever comes to it next, so only some failures in a row are
    sure to be met, by a request that waits for its reads; the requests after it meet the rest."""
    fault = ",".join("%s:%d=%s" % (site, n, what) for n in range(25, 33))
    with Serving() as calm:
        right = calm.generate()
    for label, must_fail, options in (("waited for", True, ["--overlap", "sync", "--io-depth", "1"]),
                                      ("read ahead", False, [])):
        with Serving(*options, fault=fault) as s:
            answers = [s.generate() for _ in range(12)]
        failed = [(tokens, error) for tokens, error in answers if error]
        if not ok((failed or not must_fail) and
                  all(names_the_read(error, MODEL) and error.code == code and
                      tokens == right[0][:len(tokens)] for tokens, error in failed),
                  "%s, %s: %d requests fail, and layer, expert, file and offset are named" %
                  (what, label, len(failed))):
            note("errors: %s" % [error for _, error in failed])
        others = [a for a in answers if not a[1]]
        if not ok(all(a == right for a in others) and all(a[1] is None for a in answers[-3:]),
                  "%s, %s: the others don't notice, and have every slot at their service" %
                  (what, label)):
            note("got: %s" % answers)


def check_stripes():
    """The records in files of their own: one that is cut short concerns streaming alone."""
    dirs = [os.path.join(HOME, d) for d in ("left", "right")]
    for d in dirs:
        os.mkdir(d)
    run([CONVERT, MODEL, "--split-bank", ",".join(dirs)], check=True)
    stripe = os.path.join(dirs[1], os.path.basename(MODEL) + ".bank-1-of-2")
    options = ["--expert-bank", ",".join(dirs)]
    p = run(arguments(*TINY_CACHE, *options))
    same_text(p, "experts from two files")
    p = run([COORDINATOR, "plan", "--model", MODEL, "--bandwidth", "10", *TINY_CACHE, *options])
    ok(p.returncode == 0, "plan knows of them")
    p = run([COORDINATOR, "plan", "--model", MODEL, "--bandwidth", "10", "--expert-bank", HOME])
    if not ok(p.returncode == 3 and "bank-0-of-1" in p.stderr.decode(),
              "and names one that isn't there"):
        note("status %d: %s" % (p.returncode, p.stderr.decode()))
    with Serving(*options) as s:
        right, error = s.generate()
        ok(error is None and right, "a server with experts in two files")
        whole = os.path.getsize(stripe)
        os.truncate(stripe, 4096)
        _, error = s.generate()
        if not ok(names_the_read(error, stripe) and "ended" in error.text,
                  "a stripe cut short: the request fails, and the file is named"):
            note("error: %s" % error)
        os.truncate(stripe, whole)
        _, error = s.generate()
        ok(names_the_read(error, stripe) and "checksum" in error.text,
           "full of zeros: a wrong checksum")
        run([CONVERT, MODEL, "--split-bank", ",".join(dirs)], check=True)
        # The server goes on with the files that it opened.
        ok(alive(s.process.pid), "the server lives")
    p = run(arguments(*TINY_CACHE, *options))
    same_text(p, "written again")


if __name__ == "__main__":
    checks = {
        "passing": check_passing_faults,
        "vanished": check_vanished_file,
        "killed": check_killed_workers,
        "record": check_killed_with_record,
        "again": check_dies_again_and_again,
        "eio": lambda: check_failing_requests("io.read", 6, "EIO"),
        "corrupt": lambda: check_failing_requests("io.checksum", 2, "corrupt"),
        "stripes": check_stripes,
    }
    for name in sys.argv[1:] or checks:
        checks[name]()
    done()
