"""Another model written over the file of a running server, the same inode: with weights mapped or
copied, experts resident or streamed; by a longer, a shorter and an equally long file; while it
idles, prefills and decodes. No process may die by a signal, no token may come from two models, and
a sentence names the file. Who has copied everything goes on as if nothing had happened."""
import json
import os
import random
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from proc import (CONVERT, COORDINATOR, HOME, children, convert, done, finish, note, ok,
                  ok_nothing_left, run, run_id_of, shared, start)
from serving import Peer, generate_request

INSPECT = tap.program("vflow-inspect")
MODEL = convert(shared("models", "tiny_arch2_4"))
SERVED = os.path.join(HOME, "served.vflow")
LONG_PROMPT = [5 + i % 60 for i in range(200)]
MODES = {
    "resident, mapped": ["--experts", "resident", "--weights", "mmap"],
    "resident, copied": ["--experts", "resident", "--weights", "huge"],
    "streamed, mapped": ["--experts", "stream", "--expert-cache", "84K", "--weights", "mmap"],
    "streamed, copied": ["--experts", "stream", "--expert-cache", "84K", "--weights", "huge"],
    "streamed, two workers": ["--experts", "stream", "--expert-cache", "168K", "--io", "buffered",
                              "--stage-workers", "2", "--io-workers", "2"],
}
PHASES = {"idle": ([5, 60, 7], 20), "prefill": (LONG_PROMPT, 1), "decode": ([5, 60, 7], 200)}


def contents():
    """What is written over the model, by its name."""
    with open(MODEL, "rb") as f:
        model = f.read()
    longer = convert(shared("models", "tiny_arch2_4"), "--quant", "f32")
    with open(longer, "rb") as f:
        long = f.read()
    noise = random.Random(7).randbytes(len(model))
    return {"longer": long, "shorter": model[:len(model) // 3], "noise": noise, "empty": b""}


CONTENTS = contents()


def overwrite(data, keep_times):
    """As `cat >` does, or with rsync's --inplace --times: no truncation, and an old mtime."""
    before = os.stat(SERVED)
    with open(SERVED, "r+b" if keep_times else "wb") as f:
        f.write(data)
        f.truncate(len(data))
    if keep_times:
        os.utime(SERVED, ns=(before.st_atime_ns, before.st_mtime_ns))


class Client(threading.Thread):
    """Asks again and again until something goes wrong, and keeps all answers."""

    def __init__(self, endpoint, prompt, count):
        super().__init__(daemon=True)
        self.endpoint, self.prompt, self.count = endpoint, prompt, count
        self.error, self.answers = None, []

    def ask(self, peer):
        request = generate_request(peer.send(), tokens=self.prompt, max_tokens=self.count)
        tokens = []
        self.answers.append(tokens)
        while True:
            answer = peer.receive(20)
            kind = answer.WhichOneof("body") if answer else "silence"
            if kind == "tokens":
                tokens += list(answer.tokens.ids)
            elif kind == "generate_done":
                return None
            elif kind in ("error", "silence"):
                return answer.error.text if answer else "silence"

    def run(self):
        with Peer(self.endpoint) as peer:
            while self.error is None and len(self.answers) < 100000:
                self.error = self.ask(peer)


def alone(prompt, count):
    p = run([COORDINATOR, "generate", "--model", MODEL, "--tokens", ",".join(map(str, prompt)),
             "--max-tokens", str(count), "--temperature", "0", "--ignore-eos", "--json"], check=True)
    return json.loads(p.stdout)["tokens"]


RIGHT = {phase: alone(*what) for phase, what in PHASES.items()}


def serve(mode):
    shutil.copyfile(MODEL, SERVED)
    endpoint = "ipc://%s/over" % HOME
    process = start([COORDINATOR, "serve", "--model", SERVED, "--bind", endpoint, *MODES[mode]])
    if not process.stdout.readline():
        raise RuntimeError("the server doesn't listen: " + finish(process)[1])
    return process, endpoint


def ends_with_a_sentence(process, client, label, right):
    _, err, status = finish(process, 30)
    good = (status in (1, 3) and SERVED in err and "signal" not in err and
            all(t == right[:len(t)] for t in client.answers))
    if not ok(good, "%s: status %s, the file is named, no token is wrong" % (label, status)):
        note("client: %s, %d answers" % (client.error, len(client.answers)))
        note("stderr: " + err)


def goes_on(process, client, label, right):
    client.join(0.2)
    process.terminate()
    _, err, status = finish(process, 30)
    good = status == 0 and all(t == right[:len(t)] for t in client.answers)
    if not ok(good, "%s: goes on with what it has copied" % label):
        note("status %s, client: %s, stderr: %s" % (status, client.error, err))


def check(mode, phase, name, keep_times, seed):
    label = "%s, %s, %s%s" % (mode, phase, name, ", times kept" if keep_times else "")
    process, endpoint = serve(mode)
    pids, run_id = children(process.pid), run_id_of(process.pid)
    client = Client(endpoint, *PHASES[phase])
    if phase != "idle":
        client.start()
        time.sleep(random.Random(seed).uniform(0.0, 0.06))
    overwrite(CONTENTS[name], keep_times)
    if phase == "idle":
        client.start()
    (goes_on if mode == "resident, copied" else ends_with_a_sentence)(
        process, client, label, RIGHT[phase])
    ok_nothing_left(run_id, pids, label)


def check_other_names():
    """A second name, another mode, a name that vanishes: the bytes are the same."""
    process, endpoint = serve("resident, mapped")
    client = Client(endpoint, *PHASES["idle"])
    os.link(SERVED, SERVED + ".link")
    os.chmod(SERVED, 0o400)
    os.unlink(SERVED)
    client.start()
    client.join(0.2)
    os.unlink(SERVED + ".link")
    client.join(0.2)
    running = client.error is None and len(client.answers) > 1
    process.terminate()
    _, err, status = finish(process, 30)
    right = RIGHT["idle"]
    if not ok(running and status == 0 and all(t == right[:len(t)] for t in client.answers),
              "links and modes of the file change nothing"):
        note("status %s, %s: %s" % (status, client.error, err))


def check_split():
    """vflow-inspect and --split-bank on a file that is cut meanwhile end without a signal."""
    for argv in ([INSPECT, SERVED, "--verify"], [CONVERT, SERVED, "--split-bank", HOME]):
        for wait_s in (0.0, 0.002, 0.005, 0.01):
            shutil.copyfile(MODEL, SERVED)
            process = start(argv)
            time.sleep(wait_s)
            overwrite(CONTENTS["noise"], False)
            _, err, status = finish(process, 30)
            if not ok(status in (0, 1, 3) and (status == 0 or SERVED in err),
                      "%s after %g s: status %s" % (os.path.basename(argv[0]), wait_s, status)):
                note(err)


if __name__ == "__main__":
    rounds = int(os.environ.get("VFLOW_OVERWRITE_ROUNDS", "1"))
    for seed in range(rounds):
        for i, mode in enumerate(MODES):
            for j, phase in enumerate(PHASES):
                for k, name in enumerate(CONTENTS):
                    check(mode, phase, name, name == "noise" and (i + j + seed) % 2 == 0,
                          seed * 1000 + i * 100 + j * 10 + k)
    check_other_names()
    check_split()
    done()
